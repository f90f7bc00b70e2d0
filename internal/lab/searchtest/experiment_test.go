package searchtest

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/apptest"
	"spillway/internal/lab/experiment"
	"spillway/internal/lab/peak"
	"spillway/internal/lab/result"
)

func TestExperiment(t *testing.T) {
	t.Parallel()
	file, out := writeExperiment(t, tinyExperiment+"aa: true\n"), filepath.Join(t.TempDir(), "out")
	r := startExperiment(t, out, file, "-o", out, "--seed", "7")
	code := r.wait()
	for block := 1; block <= 2; block++ {
		for _, variant := range []string{"base", "base-again", "other"} {
			r.checkTrial(t, filepath.Join(out, experiment.BlocksDir, fmt.Sprintf("%03d", block), variant), variant)
		}
	}
	r.checkEnd(t, code, 0, "spillway report ")
	var manifest experiment.Manifest
	text, err := os.ReadFile(filepath.Join(out, experiment.ManifestFile))
	if err == nil {
		err = json.Unmarshal(text, &manifest)
	}
	if err != nil || manifest.Seed != 7 || len(manifest.Plan) != 2 || !strings.HasPrefix(manifest.Programs[0].Version, "nginx version") {
		t.Errorf("%v, %+v", err, manifest)
	}
	if !strings.Contains(r.output.String(), "trials done, ") || !strings.Contains(r.output.String(), "ends between ") {
		t.Errorf("no progress in %s", &r.output)
	}
	r.wantNothingLeft(t)
	_, stderr, code := spillway(t, "experiment", file, "-o", out)
	if code != 2 || !strings.Contains(stderr, "already holds a run") {
		t.Errorf("a second run into the same directory: exit %d, %s", code, stderr)
	}
}

// checkTrial checks the trial in a directory, which has two services and one level, and returns it.
func (r *experimentRun) checkTrial(t *testing.T, dir, variant string) experiment.Trial {
	t.Helper()
	trial := readTrial(t, filepath.Join(dir, experiment.TrialFile))
	if !trial.Complete || trial.Error != "" || len(trial.Services) != 2 {
		t.Fatalf("%s: %+v\n%s", dir, trial, &r.output)
	}
	run, err := result.ReadFile(filepath.Join(dir, trial.Levels[0].File))
	if err != nil || run.Header.Label != variant || !sampled(run, "", result.SamplerProcess, "web") || run.Steps[0].Total.Due != 60 || run.Steps[0].Total.Done == 0 {
		t.Errorf("%s: %v, %+v", dir, err, trial.Levels)
	}
	return trial
}

// checkEnd checks the exit code and the last line.
func (r *experimentRun) checkEnd(t *testing.T, code, want int, last string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(r.output.String()), "\n")
	if code != want || !strings.Contains(lines[len(lines)-1], last) {
		t.Errorf("exit %d, want %d with %q in the last line\n%s", code, want, last, &r.output)
	}
}

// TestExperimentPeak searches for the peak of each variant. A host with other work may prove none; then the run says so, because
// levels of 60 requests have too few samples anyway.
func TestExperimentPeak(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	text := strings.Replace(tinyExperiment, "blocks: 2", "blocks: 1", 1) +
		"peak: {start: 1000, max: 2000, slo: p50<10s errors<=100%, connections: 5, max_time: 20s}\n"
	file, out := writeExperiment(t, text), filepath.Join(t.TempDir(), "out")
	r := startExperiment(t, out, file, "-o", out)
	code, proved := r.wait(), false
	for _, variant := range []string{"base", "other"} {
		dir := filepath.Join(out, experiment.BlocksDir, "001", variant)
		trial := r.checkTrial(t, dir, variant)
		if trial.Peak == nil {
			t.Fatalf("%s has no peak: %+v\n%s", variant, trial, &r.output)
		}
		proved = checkPeak(t, dir, trial.Peak) || proved
	}
	if proved {
		r.checkEnd(t, code, 0, "spillway report ")
	} else {
		r.checkEnd(t, code, 4, "nothing valid was measured")
	}
	r.wantNothingLeft(t)
}

// checkPeak checks the record of a search up to 2000, which every VALID probe meets, against its result file, and reports whether it
// proves the peak.
func checkPeak(t *testing.T, dir string, found *experiment.PeakRun) (proved bool) {
	t.Helper()
	run, err := result.ReadFile(filepath.Join(dir, found.File))
	if err != nil {
		t.Fatal(err)
	}
	outcome, err := peak.OutcomeOf(run)
	if err != nil || outcome == nil {
		t.Fatalf("%s is no search: %v", found.File, err)
	}
	a := &outcome.Answer
	complete := a.Stopped == peak.StoppedMaximum && a.Feasible == 2000
	if found.Feasible != a.Feasible || found.Infeasible != 0 || (found.Validity == result.Valid) != complete || found.Note == "" {
		t.Errorf("the peak %+v of a search that found %s, and stopped for %s", found, outcome.Headline(), a.Stopped)
	}
	return complete
}

// gate is a server that answers "a", and from its n-th request on only after release is called.
type gate struct {
	url     string
	seen    atomic.Int64
	release func()
}

func openGate(t *testing.T, n int64) *gate {
	t.Helper()
	released := make(chan struct{})
	g := &gate{release: sync.OnceFunc(func() { close(released) })}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.seen.Add(1) >= n {
			select {
			case <-released:
			case <-r.Context().Done():
			}
		}
		io.WriteString(w, "a")
	}))
	g.url = server.URL
	t.Cleanup(server.Close)
	t.Cleanup(g.release)
	return g
}

// TestExperimentResume interrupts a run with Ctrl-C during a load of its second block and resumes it.
func TestExperimentResume(t *testing.T) {
	t.Parallel()
	const firstBlock = 120 // requests
	target := openGate(t, firstBlock+1)
	text := strings.Replace(withoutSampling(tinyExperiment), `"http://{{.service.web.addr.http}}/", requests: 60`, `"`+target.url+`/", requests: 60, timeout: 10h`, 1)
	file, out := writeExperiment(t, text), filepath.Join(t.TempDir(), "out")
	r := startExperiment(t, out, file, "-o", out)
	apptest.AwaitState(t, "a load of the second block runs", func() (string, bool) {
		return fmt.Sprintf("%d requests", target.seen.Load()), target.seen.Load() > firstBlock
	})
	if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := r.wait(); code != 3 || !strings.Contains(r.output.String(), "--resume "+out) {
		t.Fatalf("exit %d\n%s", code, &r.output)
	}
	target.release()
	r.wantNothingLeft(t)
	first := readTrial(t, filepath.Join(out, "blocks/001/base", experiment.TrialFile))

	changed := filepath.Join(filepath.Dir(file), "nginx.conf")
	if err := os.WriteFile(changed, []byte(tinyNginx+"# changed\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := spillway(t, "experiment", file, "--resume", out)
	if code != 2 || !strings.Contains(stderr, "has changed since") {
		t.Errorf("changed template: exit %d, %s", code, stderr)
	}
	if err := os.WriteFile(changed, []byte(tinyNginx), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code = spillway(t, "experiment", file, "--resume", out); code != 0 {
		t.Fatalf("resume: exit %d, %s", code, stderr)
	}
	if diff := cmp.Diff(first, readTrial(t, filepath.Join(out, "blocks/001/base", experiment.TrialFile))); diff != "" {
		t.Errorf("a complete block was run again: %s", diff)
	}
	for _, variant := range []string{"base", "other"} {
		if trial := readTrial(t, filepath.Join(out, "blocks/002", variant, experiment.TrialFile)); !trial.Complete {
			t.Errorf("%+v", trial)
		}
	}
	if len(matches(out, "incomplete/002-1/*")) == 0 {
		t.Error("the incomplete block 2 was not kept")
	}
}

// TestExperimentKilled kills the processes of a run with kill -9. Nothing of the run may be left.
func TestExperimentKilled(t *testing.T) {
	t.Parallel()
	long := strings.Replace(withoutSampling(tinyExperiment), "requests: 60", "duration: 1h", 1)
	for _, c := range []struct {
		name                 string
		killInner, killOuter bool
	}{{"inner", true, false}, {"outer", false, true}, {"both", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file, out := writeExperiment(t, long), filepath.Join(t.TempDir(), "out")
			r := startExperiment(t, out, file, "-o", out)
			state := r.awaitLoad(t, 1)
			apptest.AwaitState(t, "sh, two sleeps, nginx and two workers run", func() (string, bool) {
				processes := r.processes()
				return fmt.Sprint(processes), len(processes) >= 6
			})
			if c.killOuter {
				_ = r.cmd.Process.Kill()
			}
			if c.killInner {
				_ = syscall.Kill(state.PID, syscall.SIGKILL)
			}
			if code := r.wait(); c.killInner && !c.killOuter && code != 3 {
				t.Errorf("exit %d", code)
			}
			if c.killInner && c.killOuter { // the next run removes what is left
				if _, stderr, code := spillway(t, "experiment", file, "-o", out); code != 2 {
					t.Errorf("exit %d, %s", code, stderr)
				}
			}
			r.wantNothingLeft(t)
		})
	}
}

// tinyHosts runs the load and nginx on separate hosts.
const tinyHosts = `hosts:
  client: {ports: 40000-40063, sysctl: {net.ipv4.tcp_tw_reuse: "0"}}
  app:
`

func TestExperimentHosts(t *testing.T) {
	t.Parallel()
	text := strings.NewReplacer("services:\n  web:\n", tinyHosts+"services:\n  web:\n    host: app\n    user: nobody\n",
		"trap '' TERM INT QUIT;", "touch '{{.data}}/x';", "blocks: 2", "blocks: 1", "connections: 5", "connections: 50").Replace(tinyExperiment)
	file, out := writeExperiment(t, text), filepath.Join(t.TempDir(), "out")
	r := startExperiment(t, out, file, "-o", out)
	code := r.wait()
	if os.Geteuid() != 0 {
		if code != 2 || !strings.Contains(r.output.String(), "only root") {
			t.Errorf("without root: exit %d, %s", code, &r.output)
		}
	}
	apptest.NeedRoot(t)
	if code != 0 {
		t.Fatalf("exit %d\n%s", code, &r.output)
	}
	trial := readTrial(t, filepath.Join(out, "blocks/001/base", experiment.TrialFile))
	run, err := result.ReadFile(filepath.Join(out, "blocks/001/base", trial.Levels[0].File))
	if err != nil {
		t.Fatal(err)
	}
	machine := run.Header.Machine
	if machine.PortLow != 40000 || machine.PortHigh != 40063 || !strings.HasPrefix(run.Header.Target, "http://10.213.0.2:") {
		t.Errorf("the load used ports %d to %d and the target %s", machine.PortLow, machine.PortHigh, run.Header.Target)
	}
	if !sampled(run, "", result.SamplerProcess, "web") || !sampled(run, "", result.SamplerTCP, "") || !sampled(run, "10.213.0.2:9191", result.SamplerTCP, "") {
		t.Errorf("watched: %+v", run.Watches)
	}
	total := &run.Steps[0].Total
	if _, counted := trial.Levels[0].Cooldown.TimeWait["client"]; total.Done == 0 || !counted {
		t.Errorf("%+v", trial.Levels[0])
	}
	r.wantNothingLeft(t)
}

func TestExperimentRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ old, fresh, args, want string }{
		{"package: nginx", "package: nginx-x, find: [nginx-nosuch]", "", "not installed: nginx; run: apt-get install -y nginx-x"},
		{"other: {values: {body: long}}", "other: {values: {body: short}}", "", "does not differ from base"},
		{"{{.program.nginx}}", "{{.program.apache}}", "", `e.yaml:5:15: services.web.command[0]: .program.apache: there is no "apache" here`},
		{"blocks: 2", "blocks: 2", "--quick", "the file has no quick block"},
		{"blocks: 2", "blocks: 2", "--only none", "--only none: the file has no such variant"},
		{"blocks: 2", "blocks: 2", "--resume /nonexistent", "no run to resume"},
		{"blocks: 2", "blocks: 2", "--resume x --quick", "remove the other options"},
	} {
		file := writeExperiment(t, strings.Replace(tinyExperiment, c.old, c.fresh, 1))
		_, stderr, code := spillway(t, append([]string{"experiment", file}, strings.Fields(c.args)...)...)
		if code != 2 || !strings.Contains(stderr, c.want) {
			t.Errorf("%s %s: exit %d, %q, want %q", c.fresh, c.args, code, stderr, c.want)
		}
	}
	stdout, stderr, code := spillway(t, "experiment", writeExperiment(t, tinyExperiment), "--check", "--seed", "3")
	if code != 0 || !strings.Contains(stdout, "other    base           body        web, stubborn") || !strings.Contains(stdout, "ends between") {
		t.Errorf("--check: exit %d, %s%s", code, stdout, stderr)
	}
}

// TestExperimentChecksLoads: --check finds what `spillway load` would refuse, in every level and in the quick block.
func TestExperimentChecksLoads(t *testing.T) {
	t.Parallel()
	level := "{rate: 200, per_connection: 1, connections: 5}"
	for _, c := range []struct{ old, fresh, want string }{
		{"requests: 60", "requests: 60, slo: p99<70", `load.slo: SLO "p99<70"`},
		{level, "{rate: 200, connections: abc}", `e.yaml:24:30: levels[0].connections: --connections abc: "abc" is not a number`},
		{"requests: 60", "requests: 60, abort: speed>3", `load.abort: --abort "speed>3"`},
		{level, "{connections: 5, arrival: poisson}", "levels[0].arrival: "},
		{level, "{rate: 20x}", `levels[0].rate: --rate "20x"`},
		{level, level + "\n  - {name: second, rate: 5, timeout: 3}", `levels[1].timeout: `},
		{`"body~=a"`, `"boddy~=a"`, "load.check[0]: "},
		{"requests: 60", "requests: 60, method: POST, body_file: none.json", "none.json: no such file"},
		{"requests: 60", "requests: 60, flow: none.yaml", "none.yaml: no such file"},
		{"requests: 60", "requests: 60, requests_file: mix.txt", "none.bin: no such file"},
		{"requests: 60", "requests: 60, header: [NoColon]", "load.header[0]: "},
		{"requests: 60", "requests: 60, http2: yes", "load.http2: must be true or false"},
		{"blocks: 2", "blocks: 2\nwatch: {databases: {shop: oracle://db/shop}}", "watch.databases.shop: --watch-db shop: "},
		{"requests: 60", "requests: 60, abort: errors>20", `load.abort: --abort "errors>20"`},
		{"blocks: 2", "blocks: 2\nquick: {blocks: 1, load: {slo: p99}}", "quick.load.slo: "},
		{"blocks: 2", "blocks: 2\nquick: {blocks: 1, levels: [{connections: 0}]}", "quick.levels[0].connections: "},
		{"blocks: 2", "blocks: 2\npeak: {slo: speed>3}", "peak.slo: "},
		{"blocks: 2", "blocks: 2\npeak: {slo: p99<1s rate>=3}", "peak.slo: the search finds the rate"},
		{"blocks: 2", "blocks: 2\npeak: {slo: p99<1s, duration: 1s}", "peak: remove rate, duration, requests and abort"},
	} {
		if !strings.Contains(tinyExperiment, c.old) {
			t.Fatalf("%q is not in the file", c.old)
		}
		file := writeExperiment(t, strings.Replace(tinyExperiment, c.old, c.fresh, 1))
		if err := os.WriteFile(filepath.Join(filepath.Dir(file), "mix.txt"), []byte("POST / @none.bin\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, code := spillway(t, "experiment", file, "--check")
		if code != 2 || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, %q%q, want %q", c.fresh, code, stdout, stderr, c.want)
		}
	}
}

// TestExperimentDirectory: a directory with files that no run makes is refused, and a load that refuses its arguments
// ends the run.
func TestExperimentDirectory(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	if err := os.WriteFile(filepath.Join(out, "notes.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	file := writeExperiment(t, tinyExperiment)
	_, stderr, code := spillway(t, "experiment", file, "-o", out)
	if code != 2 || !strings.Contains(stderr, "has other files, such as notes.txt: choose a new or empty directory") || len(matches(out, "*")) != 1 {
		t.Errorf("exit %d, %s", code, stderr)
	}

	text := strings.NewReplacer("    scope: experiment\n", "    scope: experiment\n    prepare: [[rm, \"{{.source}}/body\"]]\n",
		"requests: 60", "requests: 60, body_file: body").Replace(withoutSampling(tinyExperiment))
	file, out = writeExperiment(t, text), filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(filepath.Join(filepath.Dir(file), "body"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr, code = spillway(t, "experiment", file, "-o", out)
	if code != 2 || !strings.Contains(stderr, "level rate-200-connections-5-per-connection-1: spillway load refuses its arguments; it printed: ") ||
		!strings.Contains(stderr, "body: no such file") || len(matches(out, "blocks/*/*/block.json")) != 1 {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

// TestExperimentFailingVariants: a variant that fails every request, with an answer or without, stays in the study and is named.
func TestExperimentFailingVariants(t *testing.T) {
	t.Parallel()
	text := strings.NewReplacer("settings: {body: a}", "settings: {code: 200 a}", "settings: {body: aaaaaaaa}", "settings: {code: 500}}\n      none: {settings: {code: 444}",
		"other: {values: {body: long}}", "broken: {values: {body: long}}\n  silent: {values: {body: none}}", `http: "http://{{.addr.http}}/"`, "tcp: [http]",
		", check: [\"body~=a\"]", ", slo: p99<1s", "blocks: 2", "blocks: 1").Replace(withoutSampling(tinyExperiment))
	file, out := writeExperiment(t, text), filepath.Join(t.TempDir(), "out")
	conf := strings.Replace(tinyNginx, `return 200 "{{.setting.body}}"`, "return {{.setting.code}}", 1)
	if err := os.WriteFile(filepath.Join(filepath.Dir(file), "nginx.conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := spillway(t, "experiment", file, "-o", out); code != 0 && code != 4 {
		t.Fatalf("exit %d, %s", code, stderr)
	}
	stdout, stderr, code := spillway(t, "report", out)
	if code != 0 || strings.Contains(stdout, "faster") {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
	for _, want := range []string{
		"broken fails", ": 100 % of its requests (status 60, HTTP 500: 60). silent fails", ": 100 % of its requests (reset 60).", "  0/s  ",
	} {
		if !strings.Contains(strings.ReplaceAll(stdout, "0/s*", "0/s"), want) { // the mark of a busy machine
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	study, err := experiment.ReadStudy(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range study.Comparisons {
		if c.Pairs != 0 || c.Ratio != 0 || c.Verdict != experiment.NoVerdict || c.Failing+c.LeftOut != 1 {
			t.Errorf("%+v", c)
		}
	}
	if len(study.Comparisons) == 0 {
		t.Error("the failing variants are not compared")
	}
}

// TestExperimentSecrets: secrets reach the service and the load, and no file of the run.
func TestExperimentSecrets(t *testing.T) {
	t.Parallel()
	values := []string{"env-s3cret", "file-s3cret"}
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(values[0]+values[1])))
	text := strings.NewReplacer("  stubborn:\n    scope: experiment\n", `  stubborn:
    scope: experiment
    env: {TOKEN: "${LAB_TOKEN}", FROM_FILE: "{{.setting.db_password}}", DATABASE: "postgres://app:${LAB_TOKEN}@db/shop"}
    prepare: [[sh, -c, "printf %s \"$TOKEN$FROM_FILE\" | sha256sum | grep "], [sh, -c, "echo $0", "{{.setting.db_password}}", "--password={{.setting.db_password}}"]]
`, "factors:", "settings: {db_password: file:secret.txt, note: 'of ${LAB_TOKEN}'}\nfactors:", ".addr.http}}/\", requests: 60", ".addr.http}}/?x=${LAB_TOKEN}\", requests: 5",
		"blocks: 2", "blocks: 1").Replace(withoutSampling(tinyExperiment))
	text = strings.Replace(text, "| grep ", "| grep "+sum, 1)
	file, out := writeExperiment(t, text), filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(filepath.Join(filepath.Dir(file), "secret.txt"), []byte("file-s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := spillway(t, "experiment", file, "--check"); code != 2 || !strings.Contains(stderr, "the environment variable LAB_TOKEN is not set") {
		t.Errorf("without the variable: exit %d, %s", code, stderr)
	}
	literal := writeExperiment(t, strings.Replace(tinyExperiment, "blocks: 2", "blocks: 2\nsettings: {password: liter4l}", 1))
	if _, stderr, code := spillway(t, "experiment", literal, "--check"); code != 2 || !strings.Contains(stderr, "settings.password: has a secret; write ${NAME}") {
		t.Errorf("a secret in the file: exit %d, %s", code, stderr)
	}
	token := []string{"LAB_TOKEN=env-s3cret"}
	r := startExperimentWith(t, token, out, file, "-o", out)
	if code := r.wait(); code != 0 {
		t.Fatalf("exit %d\n%s", code, &r.output)
	}
	files := map[string]string{"output": r.output.String()}
	err := filepath.WalkDir(out, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "stubborn.log" { // the service's own words
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil && strings.HasSuffix(path, ".gz") {
			content, err = gunzip(content)
		}
		files[d.Name()] = string(content)
		return err
	})
	if err != nil || len(files) < 6 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for name, content := range files {
		for _, secret := range values {
			if strings.Contains(content, secret) {
				t.Errorf("%s has %s", name, secret)
			}
		}
	}
	for _, name := range []string{experiment.ManifestFile, experiment.SourceFile} {
		for _, want := range []string{"of ${LAB_TOKEN}", "file:secret.txt"} {
			if !strings.Contains(files[name], want) {
				t.Errorf("%s has no %s:\n%s", name, want, files[name])
			}
		}
	}
	again := startExperimentWith(t, token, out, file, "--resume", out)
	if code := again.wait(); code != 0 {
		t.Errorf("resume: exit %d, %s", code, &again.output)
	}
}

func gunzip(data []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// TestExperimentFailures: a service that does not become ready ends the run. A service that ends during the load
// makes its trial incomplete.
func TestExperimentFailures(t *testing.T) {
	t.Parallel()
	broken := strings.Replace(withoutSampling(tinyExperiment), "{{.folder}}/nginx.conf\"", "{{.folder}}/none.conf\"", 1)
	_, stderr, code := spillway(t, "experiment", writeExperiment(t, broken), "-o", "out")
	if code != 3 || !strings.Contains(stderr, "service web: it ended before it was ready") || !strings.Contains(stderr, "none.conf") {
		t.Errorf("broken service: exit %d, %s", code, stderr)
	}

	// The other service ends when a load has begun, which is answered when it has ended.
	dir := t.TempDir()
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		awaitEnd(t, dir)
		io.WriteString(w, "a")
	}))
	defer target.Close()
	dying := strings.NewReplacer("  stubborn:\n    scope: experiment\n", "  stubborn:\n", `"http://{{.service.web.addr.http}}/", requests: 60`, `"`+target.URL+`/", requests: 1, timeout: 10h`,
		"trap '' TERM INT QUIT; sleep 1000 & sleep 1000 & while :; do wait; done",
		"cd '"+dir+"'; echo $$ > pid.new; mv pid.new pid; until [ -e die-$$ ]; do sleep 0.02; done; exit 5").Replace(withoutSampling(tinyExperiment))
	_, stderr, code = spillway(t, "experiment", writeExperiment(t, dying), "-o", "out")
	if code != 1 || !strings.Contains(stderr, "service stubborn ended by itself: exit status 5") || !strings.Contains(stderr, "4 of 4 trials are not complete") {
		t.Errorf("dying service: exit %d, %s", code, stderr)
	}
}

// awaitEnd ends the process that has written its pid into the directory and waits until it is gone. Each
// trial has one such process and one request.
func awaitEnd(t *testing.T, dir string) {
	var pid string
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for ; t.Context().Err() == nil; <-poll.C {
		if text, err := os.ReadFile(filepath.Join(dir, "pid")); err == nil {
			pid = strings.TrimSpace(string(text))
			break
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "die-"+pid), nil, 0o600); err != nil {
		t.Error(err)
	}
	for ; t.Context().Err() == nil; <-poll.C {
		if _, err := os.Stat(filepath.Join("/proc", pid)); err != nil {
			break
		}
	}
	if err := os.Remove(filepath.Join(dir, "pid")); err != nil {
		t.Error(err)
	}
}

// TestExperimentKeep: kept data is filled once, and a service is restarted when a level changes its settings.
func TestExperimentKeep(t *testing.T) {
	t.Parallel()
	kept := strings.NewReplacer(
		"  stubborn:\n    scope: experiment\n", `  stubborn:
    scope: experiment
    prepare: [[sh, -c, "echo prepare >> '{{.data}}/log'"]]
    fill: [[sh, -c, "echo fill >> '{{.data}}/log'"]]
    keep: 1
`, "  - {rate: 200, per_connection: 1, connections: 5}", "  - {name: one, settings: {mode: 1}, requests: 5}\n  - {name: two, settings: {mode: 2}, requests: 5}",
		", requests: 60", "", "blocks: 2", "blocks: 1").Replace(withoutSampling(tinyExperiment))
	data := t.TempDir()
	log := filepath.Join(data, "experiments/tiny/stubborn/data/log")
	for _, text := range []string{kept, kept, strings.Replace(kept, "keep: 1", "keep: 2", 1)} {
		out := filepath.Join(t.TempDir(), "out")
		if _, stderr, code := spillway(t, "experiment", writeExperiment(t, text), "-o", out, "--data", data); code != 0 {
			t.Fatalf("exit %d, %s", code, stderr)
		}
		if text, err := os.ReadFile(log); err != nil || string(text) != "prepare\nfill\n" {
			t.Errorf("%v, %q", err, text)
		}
		trial := readTrial(t, filepath.Join(out, "blocks/001/base", experiment.TrialFile))
		var modes []string
		for _, s := range trial.Services {
			if s.Name == "web" {
				modes = append(modes, s.Setting["mode"])
			}
		}
		if diff := cmp.Diff([]string{"1", "2"}, modes); diff != "" {
			t.Errorf("starts of web (-want +got):\n%s", diff)
		}
	}
}
