package searchtest

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/apptest"
	"spillway/internal/lab/experiment"
	"spillway/internal/lab/result"
)

// tinyExperiment compares two answers of nginx. Its second service forks and ignores signals to end.
const tinyExperiment = `name: tiny
needs: {nginx: {package: nginx, version: ["-v"]}}
services:
  web:
    command: ["{{.program.nginx}}", -p, "{{.folder}}", -c, "{{.folder}}/nginx.conf", -e, stderr]
    files: {nginx.conf: nginx.conf}
    ports: [http]
    ready: {http: "http://{{.addr.http}}/"}
    stop: {signal: QUIT}
  stubborn:
    scope: experiment
    command: [sh, -c, "trap '' TERM INT QUIT; sleep 1000 & sleep 1000 & while :; do wait; done"]
    stop: {grace: 100ms}
factors:
  body:
    values:
      short: {settings: {body: a}}
      long: {settings: {body: aaaaaaaa}}
variants:
  base: {values: {body: short}}
  other: {values: {body: long}}
load: {url: "http://{{.service.web.addr.http}}/", duration: 300ms, check: ["body~=a"]}
levels:
  - {rate: 200, per_connection: 1, connections: 5}
cooldown: {timeout: 1s, time_wait: 1000000}
blocks: 2
`

const tinyNginx = `daemon off;
worker_processes 2;
pid {{.folder}}/pid;
events {}
http {
	access_log off;
	client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
	server { listen {{.addr.http}}; location / { return 200 "{{.setting.body}}"; } }
}
`

// writeExperiment writes an experiment and its nginx.conf, and returns the path of the experiment.
func writeExperiment(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"e.yaml": text, "nginx.conf": tinyNginx} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "e.yaml")
}

// withoutSampling disables the sampling of processes in an experiment.
func withoutSampling(text string) string { return text + "watch: {processes: {}}\n" }

// experimentRun is a running `spillway experiment`.
type experimentRun struct {
	cmd    *exec.Cmd
	dir    string // results
	output strings.Builder
}

func startExperiment(t *testing.T, dir string, args ...string) *experimentRun {
	t.Helper()
	r := &experimentRun{cmd: exec.Command(program.Path(t), append([]string{"experiment"}, args...)...), dir: dir}
	r.cmd.Dir = t.TempDir()
	r.cmd.Stdout, r.cmd.Stderr = &r.output, &r.output
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
	})
	return r
}

// wait waits for the end of the run and returns the exit code.
func (r *experimentRun) wait() int {
	_ = r.cmd.Wait()
	return r.cmd.ProcessState.ExitCode()
}

// awaitLoad waits until a load runs in the block and returns the run's state.
func (r *experimentRun) awaitLoad(t *testing.T, block int) experiment.State {
	t.Helper()
	var state experiment.State
	apptest.Await(t, "a load begins", func() bool {
		text, err := os.ReadFile(filepath.Join(r.dir, experiment.StateFile))
		return err == nil && json.Unmarshal(text, &state) == nil && state.Block == block && state.Level != "" &&
			len(matches(r.dir, "blocks/*/*/*.ndjson.gz")) >= 1
	})
	return state
}

func matches(dir, pattern string) []string {
	names, _ := filepath.Glob(filepath.Join(dir, pattern))
	return names
}

// wantNothingLeft checks that the run's processes, folders, namespaces and control groups are gone, and with the processes
// the ports that they had.
func (r *experimentRun) wantNothingLeft(t *testing.T) {
	t.Helper()
	mine := fmt.Sprintf("spillway-%d-*", r.cmd.Process.Pid)
	apptest.Await(t, "nothing is left of the run", func() bool {
		return len(r.processes()) == 0 && len(matches(os.TempDir(), mine)) == 0 && len(matches("/run/netns", mine)) == 0 &&
			len(matches("/sys/fs/cgroup", mine)) == 0 && len(matches("/sys/fs/cgroup", "*/"+mine)) == 0
	})
}

// processes returns the processes whose working directory is in the run's folders.
func (r *experimentRun) processes() []string {
	var found []string
	for _, link := range matches("/proc", "[0-9]*/cwd") {
		dir, _ := os.Readlink(link)
		if strings.HasPrefix(dir, filepath.Join(os.TempDir(), fmt.Sprintf("spillway-%d-", r.cmd.Process.Pid))) {
			found = append(found, link)
		}
	}
	return found
}

func readTrial(t *testing.T, path string) experiment.Trial {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var trial experiment.Trial
	if err := json.Unmarshal(text, &trial); err != nil {
		t.Fatal(err)
	}
	return trial
}

// sampled reports whether a run has a sample of a subject.
func sampled(run *result.Run, host, sampler, subject string) bool {
	return slices.ContainsFunc(run.Samples, func(s result.Sample) bool {
		return s.Host == host && s.Sampler == sampler && s.Subject == subject && len(s.Values) > 0
	})
}

func TestExperiment(t *testing.T) {
	file, out := writeExperiment(t, tinyExperiment+"aa: true\npeak: {start: 1000, max: 2000, slo: p50<10s errors<=100%, connections: 5}\n"), filepath.Join(t.TempDir(), "out")
	r := startExperiment(t, out, file, "-o", out, "--seed", "7")
	code, proved := r.wait(), false
	for block := 1; block <= 2; block++ {
		for _, variant := range []string{"base", "base-again", "other"} {
			dir := filepath.Join(out, experiment.BlocksDir, fmt.Sprintf("%03d", block), variant)
			trial := readTrial(t, filepath.Join(dir, experiment.TrialFile))
			if !trial.Complete || trial.Error != "" || len(trial.Services) != 2 || trial.Peak == nil {
				t.Fatalf("%s: %+v\n%s", dir, trial, &r.output)
			}
			proved = checkPeak(t, trial.Peak) || proved
			run, err := result.ReadFile(filepath.Join(dir, trial.Levels[0].File))
			if err != nil || run.Header.Label != variant || !sampled(run, "", result.SamplerProcess, "web") || run.Steps[0].Total.Due != 60 || run.Steps[0].Total.Done == 0 {
				t.Errorf("%s: %v, %+v", dir, err, trial.Levels)
			}
		}
	}
	want, last := 0, "spillway report "
	if !proved { // the host is too busy; levels of 60 requests have too few samples anyway
		want, last = 4, "nothing valid was measured"
	}
	lines := strings.Split(strings.TrimSpace(r.output.String()), "\n")
	if code != want || !strings.Contains(lines[len(lines)-1], last) {
		t.Errorf("exit %d, a peak proved: %v\n%s", code, proved, &r.output)
	}
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

// checkPeak checks that only VALID attempts move the bounds of a search from 1000 to 2000 that every VALID attempt meets, and
// reports whether they prove the peak.
func checkPeak(t *testing.T, peak *experiment.PeakRun) (proved bool) {
	t.Helper()
	feasible, valid, tries := 0.0, map[float64]bool{}, map[float64]int{}
	for i := range peak.Attempts {
		a := peak.Attempts[i].Peak
		tries[a.Rate]++
		if a.Validity == result.Valid {
			feasible, valid[a.Rate] = max(feasible, a.Rate), true
		}
	}
	complete := peak.Feasible == 2000 && peak.Unproved == 0
	unproved := peak.Unproved > 0 && !valid[peak.Unproved] && tries[peak.Unproved] > 0
	if peak.Feasible != feasible || peak.Infeasible != 0 || !complete && !unproved {
		t.Errorf("the peak %+v with %v attempts, VALID ones up to %g", peak, tries, feasible)
	}
	return complete
}

// TestExperimentResume interrupts a run with Ctrl-C in its second block and resumes it.
func TestExperimentResume(t *testing.T) {
	long := strings.Replace(withoutSampling(tinyExperiment), "duration: 300ms", "duration: 1s", 1)
	file, out := writeExperiment(t, long), filepath.Join(t.TempDir(), "out")
	r := startExperiment(t, out, file, "-o", out)
	r.awaitLoad(t, 2)
	if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := r.wait(); code != 3 || !strings.Contains(r.output.String(), "--resume "+out) {
		t.Fatalf("exit %d\n%s", code, &r.output)
	}
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
	long := strings.Replace(withoutSampling(tinyExperiment), "duration: 300ms", "duration: 60s", 1)
	for _, c := range []struct {
		name                 string
		killInner, killOuter bool
	}{{"inner", true, false}, {"outer", false, true}, {"both", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file, out := writeExperiment(t, long), filepath.Join(t.TempDir(), "out")
			r := startExperiment(t, out, file, "-o", out)
			state := r.awaitLoad(t, 1)
			if len(r.processes()) < 6 { // sh, two sleeps, nginx, two workers
				t.Errorf("only %d processes run", len(r.processes()))
			}
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
	text := strings.NewReplacer("services:\n  web:\n", tinyHosts+"services:\n  web:\n    host: app\n    user: nobody\n",
		"trap '' TERM INT QUIT;", "touch {{.data}}/x;", "blocks: 2", "blocks: 1", "connections: 5", "connections: 50").Replace(tinyExperiment)
	file, out := writeExperiment(t, text), filepath.Join(t.TempDir(), "out")
	r := startExperiment(t, out, file, "-o", out)
	code := r.wait()
	if os.Geteuid() != 0 {
		if code != 2 || !strings.Contains(r.output.String(), "only root") {
			t.Errorf("without root: exit %d, %s", code, &r.output)
		}
		return
	}
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
	level := "{rate: 200, per_connection: 1, connections: 5}"
	for _, c := range []struct{ old, fresh, want string }{
		{"duration: 300ms", "duration: 300ms, slo: p99<70", `load.slo: SLO "p99<70"`},
		{level, "{rate: 200, connections: abc}", `e.yaml:24:30: levels[0].connections: --connections abc: "abc" is not a number`},
		{"duration: 300ms", "duration: 300ms, abort: speed>3", `load.abort: --abort "speed>3"`},
		{level, "{connections: 5, arrival: poisson}", "levels[0].arrival: "},
		{level, "{rate: 20x}", `levels[0].rate: --rate "20x"`},
		{level, level + "\n  - {name: second, rate: 5, timeout: 3}", `levels[1].timeout: `},
		{`"body~=a"`, `"boddy~=a"`, "load.check[0]: "},
		{"duration: 300ms", "duration: 300ms, method: POST, body_file: none.json", "none.json: no such file"},
		{"duration: 300ms", "duration: 300ms, flow: none.yaml", "none.yaml: no such file"},
		{"duration: 300ms", "duration: 300ms, requests_file: mix.txt", "none.bin: no such file"},
		{"duration: 300ms", "duration: 300ms, header: [NoColon]", "load.header[0]: "},
		{"duration: 300ms", "duration: 300ms, http2: yes", "load.http2: must be true or false"},
		{"blocks: 2", "blocks: 2\nwatch: {databases: {shop: oracle://db/shop}}", "watch.databases.shop: --watch-db shop: "},
		{"duration: 300ms", "duration: 300ms, abort: errors>20", `load.abort: --abort "errors>20"`},
		{"blocks: 2", "blocks: 2\nquick: {blocks: 1, load: {slo: p99}}", "quick.load.slo: "},
		{"blocks: 2", "blocks: 2\nquick: {blocks: 1, levels: [{connections: 0}]}", "quick.levels[0].connections: "},
		{"blocks: 2", "blocks: 2\npeak: {slo: speed>3, duration: 1s}", "peak.slo: "},
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
		"duration: 300ms", "duration: 300ms, body_file: body").Replace(withoutSampling(tinyExperiment))
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
		"broken fails", ": 100.0 % of its requests (status 60, HTTP 500: 60). silent fails", ": 100.0 % of its requests (reset 60).", "  0/s  ",
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
	values := []string{"env-s3cret", "file-s3cret", "liter4l-s3cret", "url-s3cret"}
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(values[0]+values[1]+values[2])))
	text := strings.NewReplacer("  stubborn:\n    scope: experiment\n", `  stubborn:
    scope: experiment
    env: {TOKEN: "${LAB_TOKEN}", FROM_FILE: "{{.setting.db_password}}", PGPASSWORD: liter4l-s3cret, DATABASE: "postgres://app:url-s3cret@db/shop"}
    prepare: [[sh, -c, "printf %s \"$TOKEN$FROM_FILE$PGPASSWORD\" | sha256sum | grep "], [sh, -c, "echo $0", "{{.setting.db_password}}", --password=liter4l-s3cret]]
`, "factors:", "settings: {db_password: file:secret.txt, note: 'of ${LAB_TOKEN}'}\nfactors:", ".addr.http}}/\", duration: 300ms", ".addr.http}}/?x=${LAB_TOKEN}\", requests: 5",
		"blocks: 2", "blocks: 1 # not --password liter4l-s3cret").Replace(withoutSampling(tinyExperiment))
	text = strings.Replace(text, "| grep ", "| grep "+sum, 1)
	file, out := writeExperiment(t, text), filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(filepath.Join(filepath.Dir(file), "secret.txt"), []byte("file-s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := spillway(t, "experiment", file, "--check"); code != 2 || !strings.Contains(stderr, "the environment variable LAB_TOKEN is not set") {
		t.Errorf("without the variable: exit %d, %s", code, stderr)
	}
	t.Setenv("LAB_TOKEN", "env-s3cret")
	r := startExperiment(t, out, file, "-o", out)
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
		for _, want := range []string{"${LAB_TOKEN}", "file:secret.txt", "postgres://app:xxxxx@db/shop"} {
			if !strings.Contains(files[name], want) {
				t.Errorf("%s has no %s:\n%s", name, want, files[name])
			}
		}
	}
	if _, stderr, code := spillway(t, "experiment", file, "--resume", out); code != 0 {
		t.Errorf("resume: exit %d, %s", code, stderr)
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
	broken := strings.Replace(withoutSampling(tinyExperiment), "{{.folder}}/nginx.conf\"", "{{.folder}}/none.conf\"", 1)
	_, stderr, code := spillway(t, "experiment", writeExperiment(t, broken), "-o", "out")
	if code != 3 || !strings.Contains(stderr, "service web: it ended before it was ready") || !strings.Contains(stderr, "none.conf") {
		t.Errorf("broken service: exit %d, %s", code, stderr)
	}
	dying := strings.Replace(withoutSampling(tinyExperiment), "  stubborn:\n    scope: experiment\n", "  stubborn:\n", 1)
	dying = strings.Replace(dying, "sleep 1000 & sleep 1000 & while :; do wait; done", "sleep 0.2; exit 5", 1)
	_, stderr, code = spillway(t, "experiment", writeExperiment(t, dying), "-o", "out")
	if code != 1 || !strings.Contains(stderr, "service stubborn ended by itself: exit status 5") || !strings.Contains(stderr, "4 of 4 trials are not complete") {
		t.Errorf("dying service: exit %d, %s", code, stderr)
	}
}

// TestExperimentKeep: kept data is filled once, and a service is restarted when a level changes its settings.
func TestExperimentKeep(t *testing.T) {
	kept := strings.NewReplacer(
		"  stubborn:\n    scope: experiment\n", `  stubborn:
    scope: experiment
    prepare: [[sh, -c, "echo prepare >> {{.data}}/log"]]
    fill: [[sh, -c, "echo fill >> {{.data}}/log"]]
    keep: 1
`, "  - {rate: 200, per_connection: 1, connections: 5}", "  - {name: one, settings: {mode: 1}, requests: 5}\n  - {name: two, settings: {mode: 2}, requests: 5}",
		", duration: 300ms", "", "blocks: 2", "blocks: 1").Replace(withoutSampling(tinyExperiment))
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

// TestExperimentShares saturates a service with half of a core. It uses at most that, and if it gets that, its quota stopped it. Then
// the test wants a busy loop on its core found in every level.
func TestExperimentShares(t *testing.T) {
	text := strings.NewReplacer("services:\n", sharedCPU, "blocks: 2", "blocks: 1", "load: {", "load: {host: client, ", "{rate: 200, per_connection: 1, connections: 5}", "{connections: 8}",
		"duration: 300ms", "duration: 1s").Replace(tinyExperiment)
	file := writeExperiment(t, text)
	for _, disturbed := range []bool{false, true} {
		out := filepath.Join(t.TempDir(), "out")
		r := startExperiment(t, out, file, "-o", out)
		if disturbed {
			occupy(t, 1) // the load has the first core
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
			if app.Throttled == 0 && app.UsedShare() > 0.9 || app.Used == 0 || app.UsedShare() > 1.5 || client.Throttled > 0 || client.Used == 0 || app.Cores == client.Cores {
				t.Errorf("%+v", total.Hosts)
			}
			if disturbed && (total.Validity != result.HostContended || !strings.Contains(total.Reasons[0], "programs that belong to no host")) {
				t.Errorf("%s: %q", total.Validity, total.Reasons)
			}
		}
		if len(names) != 2 {
			t.Errorf("results: %q", names)
		}
		r.wantNothingLeft(t)
		if stdout, stderr, code := spillway(t, "report", out); code != 0 || !strings.Contains(stdout, "host app used  throttled") ||
			!strings.Contains(stdout, "host app: 127.0.0.1, 0.5 CPUs on cores 1") {
			t.Errorf("report: exit %d\n%s%s", code, stdout, stderr)
		}
	}
}
