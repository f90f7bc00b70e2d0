package searchtest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/lab/cores"
	"spillway/internal/lab/result"
)

// cpus returns the cores that this process may use.
func cpus(t *testing.T) cores.Set {
	t.Helper()
	list, err := cores.Available()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// occupy keeps a core busy until the test ends.
func occupy(t *testing.T, core int) {
	t.Helper()
	loop := exec.Command("taskset", "-c", strconv.Itoa(core), "sh", "-c", "while :; do :; done")
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = loop.Process.Kill()
		_ = loop.Wait()
	})
}

// sharedCPU divides the machine: the load has a core, and the service half of another.
const sharedCPU = "network: loopback\nhosts: {app: {cpus: 0.5}, client: {cpus: 1}}\nservices:\n"

// TestExperimentShares saturates a service with half of a core. It uses at most that, and if it gets that, its quota stopped it. The
// long test also wants a busy loop on its core found in every level.
func TestExperimentShares(t *testing.T) {
	apptest.NeedRoot(t)
	t.Parallel()
	t.Run("alone", func(t *testing.T) { testShares(t, false) })
	t.Run("disturbed", func(t *testing.T) {
		apptest.Long(t)
		testShares(t, true)
	})
}

func testShares(t *testing.T, disturbed bool) {
	t.Helper()
	text := strings.NewReplacer("services:\n", sharedCPU, "blocks: 2", "blocks: 1", "load: {", "load: {host: client, ", "{rate: 200, per_connection: 1, connections: 5}", "{connections: 8}",
		"requests: 60", "duration: 1s").Replace(tinyExperiment)
	file, cores := writeExperiment(t, text), cpus(t)
	if len(cores) < 2 {
		_, stderr, code := spillway(t, "experiment", file)
		if code != 2 || !strings.Contains(stderr, "core") {
			t.Errorf("on one core: exit %d, want 2: %s", code, stderr)
		}
		return
	}
	out := filepath.Join(t.TempDir(), "out")
	r := startExperiment(t, out, file, "-o", out)
	if disturbed {
		occupy(t, cores[1]) // the load has the first core
	}
	if code := r.wait(); code != 0 {
		t.Fatalf("exit %d\n%s", code, &r.output)
	}
	names := matches(out, "blocks/*/*/*.ndjson.gz")
	for _, name := range names {
		run, err := result.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		total := &run.Steps[0].Total
		if len(total.Hosts) != 2 || len(run.Header.Hosts) != 2 {
			t.Fatalf("hosts: %+v", total.Hosts)
		}
		app, client := total.Hosts[0], total.Hosts[1]
		if app.Throttled == 0 && app.UsedShare() > 0.9 || app.UsedShare() > 1.5 || client.Throttled > 0 || app.Cores == client.Cores {
			t.Errorf("%+v", total.Hosts)
		}
		if (disturbed || app.Used == 0 || client.Used == 0) && (total.Validity != result.HostContended || !strings.Contains(total.Reasons[0].Text, "programs that belong to no host")) {
			t.Errorf("%s: %q", total.Validity, total.Reasons)
		}
	}
	if len(names) != 2 {
		t.Errorf("results: %q", names)
	}
	r.wantNothingLeft(t)
	if stdout, stderr, code := spillway(t, "report", out); code != 0 || !strings.Contains(stdout, "host app used ") ||
		!strings.Contains(stdout, fmt.Sprintf("host app     127.0.0.1, 0.5 CPUs on cores %d", cores[1])) {
		t.Errorf("report: exit %d\n%s%s", code, stdout, stderr)
	}
}
