package searchtest

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"spillway/internal/apptest"
)

var program apptest.Binary // shared by the tests

func TestMain(m *testing.M) { goleak.VerifyTestMain(apptest.Closing(m, &program)) }

// spillway runs the program in an empty directory and returns its output and exit code.
func spillway(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return program.Run(t, args...)
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

// command returns the program with arguments in an empty directory, not started yet.
func command(t *testing.T, args ...string) *process {
	t.Helper()
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

// interrupt signals the process as Ctrl-C does.
func (p *process) interrupt(t *testing.T) {
	t.Helper()
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Errorf("interrupt: %v\n%s%s", err, &p.stdout, &p.stderr)
	}
}

// pages serves /ok and /fail (503), and counts the requests of /ok.
func pages(t *testing.T) (url string, seen *atomic.Int64) {
	t.Helper()
	seen = new(atomic.Int64)
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, _ *http.Request) {
		seen.Add(1)
		io.WriteString(w, "SUCCESS")
	})
	mux.HandleFunc("/fail", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL, seen
}
