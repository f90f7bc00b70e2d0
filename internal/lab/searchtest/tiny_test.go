package searchtest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
load: {url: "http://{{.service.web.addr.http}}/", requests: 60, check: ["body~=a"]}
levels:
  - {rate: 200, per_connection: 1, connections: 5}
cooldown: {timeout: 1s, time_wait: 1000000}
blocks: 2
`

const tinyNginx = `daemon off;
worker_processes 2;
pid "{{.folder}}/pid";
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
	return startExperimentWith(t, nil, dir, args...)
}

// startExperimentWith adds variables to the environment.
func startExperimentWith(t *testing.T, variables []string, dir string, args ...string) *experimentRun {
	t.Helper()
	r := &experimentRun{cmd: exec.Command(program.Path(t), append([]string{"experiment"}, args...)...), dir: dir}
	r.cmd.Dir, r.cmd.Env = t.TempDir(), append(os.Environ(), variables...)
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
