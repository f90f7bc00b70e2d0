package labtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/lab/load"
	"spillway/internal/lab/report"
	"spillway/internal/lab/result"
)

// The tests share the program and a database server.
var (
	program  apptest.Binary
	postgres = apptest.Shared[*apptest.PostgresServer]{Start: func() (*apptest.PostgresServer, error) { return apptest.StartPostgres() }}
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(apptest.Closing(m, &program, &postgres)) }

// spillway runs the program in an empty directory and returns its output and exit code.
func spillway(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return program.Run(t, args...)
}

// spillwayIn runs the program in a directory.
func spillwayIn(t *testing.T, dir string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	p := command(t, args...)
	p.Dir = dir
	p.start(t)
	code = p.wait(t)
	return p.stdout.String(), p.stderr.String(), code
}

// process is a program that runs, ended with the test.
type process struct {
	*exec.Cmd
	stdout, stderr output
}

// output collects what a process prints.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// command returns the program with arguments in an empty directory, not started yet. The requests of a load have ten minutes,
// because this process answers some of them late on a busy machine.
func command(t *testing.T, args ...string) *process {
	t.Helper()
	if len(args) > 0 && args[0] == "load" && !slices.Contains(args, "--timeout") {
		args = append(args[:1:1], append([]string{"--timeout", "10m"}, args[1:]...)...)
	}
	p := &process{Cmd: exec.CommandContext(t.Context(), program.Path(t), args...)}
	p.Dir = t.TempDir()
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.ProcessState == nil { // the context of the test has killed it
			_ = p.Wait()
		}
	})
}

// wait returns the exit code.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	if err := p.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return p.ProcessState.ExitCode()
}

// interrupt signals the process as Ctrl-C does and returns the exit code.
func (p *process) interrupt(t *testing.T) int {
	t.Helper()
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Errorf("interrupt: %v\n%s%s", err, &p.stdout, &p.stderr)
	}
	return p.wait(t)
}

// document parses what a load with --json prints.
func document(t *testing.T, stdout, stderr string) (d report.Document) {
	t.Helper()
	if err := json.Unmarshal([]byte(stdout), &d); err != nil {
		t.Fatalf("%v in\n%s%s", err, stdout, stderr)
	}
	return d
}

// judged runs a load with an SLO, and returns its result file and its last line. The exit code and that line must be those of the
// verdicts in the file, whatever they are on this machine.
func judged(t *testing.T, args ...string) (run *result.Run, last string) {
	t.Helper()
	file := t.TempDir() + "/run.ndjson"
	stdout, stderr, code := spillway(t, append([]string{"load", "-o", file}, args...)...)
	run, err := result.ReadFile(file)
	if err != nil || run.CutOff != "" || run.Header.SLO == "" || len(run.Steps) == 0 {
		t.Fatalf("%q: exit %d, %v, file %+v\n%s%s", args, code, err, run, stdout, stderr)
	}
	lines := strings.SplitAfter(stderr, "\n")
	last = lines[max(len(lines)-2, 0)]
	verdict := load.Judge(run)
	if verdict == nil {
		if code != exit.OK {
			t.Errorf("%q: exit %d, want 0\n%s%s", args, code, stdout, stderr)
		}
		return run, last
	}
	if code != exit.Code(verdict) || last != "spillway: "+verdict.Error()+"\n" {
		t.Errorf("%q: exit %d, want %d and %v\n%s%s", args, code, exit.Code(verdict), verdict, stdout, stderr)
	}
	return run, last
}

// missed returns the criteria that the step missed, in their order.
func missed(step *result.StepRun) (texts []string) {
	for _, c := range step.Total.SLO {
		if !c.Met {
			texts = append(texts, c.Text)
		}
	}
	return texts
}
