package experiment

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"spillway/internal/apptest"
	"spillway/internal/controlgroup"
	"spillway/internal/lab/watch"
)

// burner uses the CPU in a child that ends when the file enough is there, leaves a process behind that has no parent in the tree, and then idles.
const burner = `(until [ -e enough ]; do :; done)
(setsid sleep 1000 & echo $! >orphan)
touch burned
exec sleep 1000`

// burned is the CPU time that the child uses at least, in seconds. /proc counts in hundredths.
const burned = 0.25

// TestCPUAccounting runs a service in every way to count CPU time that this machine offers. The process tree always is one.
func TestCPUAccounting(t *testing.T) {
	prefix := prefixOf(identify(os.Getpid())) + "test-"
	best := openCgroups(t.Context(), prefix)
	t.Logf("the best source here is %s", best.accounting.Source)
	for i, accounting := range accountings() {
		c := &cgroups{accounting: accounting, prefix: fmt.Sprintf("%s%d-", prefix, i), dir: controlgroup.Own(accounting.controller())}
		if accounting.Source == CPUProcessTree || c.dir != "" && c.try(t.Context()) == nil {
			t.Run(accounting.Source, func(t *testing.T) { testAccounting(t, c) })
		}
	}
	if left := runGroups(prefix); len(left) > 0 {
		t.Errorf("control groups are left: %v", left)
	}
}

func testAccounting(t *testing.T, c *cgroups) {
	dir := t.TempDir()
	group, err := c.create("burner", "")
	if err != nil {
		t.Fatal(err)
	}
	r, err := start(startSpec{
		command: []string{"sh", "-c", burner}, directory: dir, log: filepath.Join(dir, "log"), signal: syscall.SIGTERM, cgroup: group,
	})
	if err != nil {
		t.Fatal(err)
	}
	cpu := readCPU(t, r)
	apptest.AwaitState(t, fmt.Sprintf("%g s of CPU are counted", burned), func() (string, bool) {
		got := cpu()
		return fmt.Sprintf("%.3f s", got), got >= burned
	})
	if err := os.WriteFile(filepath.Join(dir, "enough"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the child has ended", func() bool {
		_, err := os.Stat(filepath.Join(dir, "burned"))
		return err == nil
	})
	process, err := procfs.NewProc(r.pid)
	if err != nil {
		t.Fatal(err)
	}
	stat, err := process.Stat()
	if err != nil {
		t.Fatal(err)
	}
	want := float64(stat.UTime+stat.STime+uint(stat.CUTime)+uint(stat.CSTime)) / 100
	if got := cpu(); got < 0.75*want || got > 1.5*want {
		t.Errorf("%.6f s of CPU, want the %.2f that /proc says, or a little more with the process that has left the tree", got, want)
	}
	grace := time.Minute
	if group != nil {
		grace = 500 * time.Millisecond // nobody asks the process that has left the tree to end: it is killed
	}
	if stopped := r.stop(grace); stopped != "" && group == nil {
		t.Errorf("stop: %s", stopped)
	}
	if err := group.remove(); err != nil {
		t.Error(err)
	}
	if group != nil {
		if _, err := os.Stat(group.dir); !os.IsNotExist(err) || len(group.members()) > 0 {
			t.Errorf("the control group is still there: %v", err)
		}
	}
	killOrphan(t, filepath.Join(dir, "orphan"), group != nil)
}

// readCPU returns a function that reads how much CPU time a process and all that belong to it have used so far.
func readCPU(t *testing.T, r *running) func() float64 {
	t.Helper()
	target, err := watch.ParseProcess("burner=" + r.watchSpec())
	if err != nil {
		t.Fatal(err)
	}
	sampler, err := watch.Process(target)
	if err != nil {
		t.Fatal(err)
	}
	read := func() float64 {
		samples, err := sampler.Read(t.Context())
		if err != nil || len(samples) != 1 {
			t.Fatalf("%d samples: %v", len(samples), err)
		}
		return samples[0].Values["cpu_user_seconds_total"] + samples[0].Values["cpu_system_seconds_total"]
	}
	read() // from here on it knows the tree
	return read
}

// killOrphan ends the process that has left the tree. A control group has killed it already.
func killOrphan(t *testing.T, path string, gone bool) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		t.Fatal(err)
	}
	orphan := identify(pid)
	if gone && orphan.alive() {
		t.Errorf("process %d outlived its control group", pid)
	}
	orphan.kill()
}
