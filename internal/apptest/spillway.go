package apptest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Build compiles the command at the import path into dir and returns the
// binary's path.
func Build(dir, importPath string) (string, error) {
	binary := filepath.Join(dir, filepath.Base(importPath))
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "spillway").Output()
	if err != nil {
		return "", fmt.Errorf("find the module spillway: %w", err)
	}
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", binary, importPath)
	cmd.Dir = strings.TrimSpace(string(root)) // a test in experiments/ is in another module
	output, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", importPath, err, output)
	}
	return binary, nil
}

// Spillway is a running `spillway serve`.
type Spillway struct {
	*Server
	Admin string // base URL of its admin listener
}

// Serve starts `spillway serve` with further arguments for the duration of a test, on free
// ports and with a separate data directory. It returns when the process is alive. WaitReady
// waits until it is ready.
func Serve(t testing.TB, binary string, args ...string) *Spillway {
	t.Helper()
	return serveAs(t, nil, binary, args)
}

// ServeAs is Serve as a user without rights, unless the caller is one.
func ServeAs(t testing.TB, user, binary string, args ...string) *Spillway {
	t.Helper()
	credential, err := unprivileged(user)
	if err != nil {
		t.Fatal(err)
	}
	return serveAs(t, credential, binary, args)
}

func serveAs(t testing.TB, credential *syscall.Credential, binary string, args []string) *Spillway {
	t.Helper()
	s := &Spillway{Server: &Server{
		name: "spillway", binary: binary, scheme: "http://", stopSignal: syscall.SIGTERM, credential: credential,
	}}
	if err := s.setUp(args); err != nil {
		t.Fatal(err)
	}
	s.closeAfter(t)
	return s
}

func (s *Spillway) setUp(args []string) error {
	var err error
	if s.addr, err = FreeAddr(); err != nil {
		return err
	}
	admin, err := FreeAddr()
	if err != nil {
		return err
	}
	s.Admin = "http://" + admin
	if s.dir, err = newDirectory(s.credential); err != nil {
		return fmt.Errorf("create a directory for spillway: %w", err)
	}
	if s.credential != nil { // who may not enter the binary's directory
		program, err := os.ReadFile(s.binary)
		if err != nil {
			return fmt.Errorf("copy the program: %w", err)
		}
		s.binary = filepath.Join(s.dir, "spillway")
		if err := os.WriteFile(s.binary, program, 0o755); err != nil {
			return fmt.Errorf("copy the program: %w", err)
		}
	}
	s.args = append([]string{"serve", "--listen", s.addr, "--admin", admin, "--data", filepath.Join(s.dir, "data")}, args...)
	s.ready = func(ctx context.Context) error { return get(ctx, s.Admin+"/livez") }
	if err := s.Start(); err != nil {
		return fmt.Errorf("%w", err)
	}
	return nil
}

// WaitReady returns when /readyz answers 200 and every part serves.
func (s *Spillway) WaitReady(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	alive := s.ready
	s.ready = func(ctx context.Context) error { return get(ctx, s.Admin+"/readyz", `"serves":false`) }
	err := s.awaitReady(s.process)
	s.ready = alive
	if err != nil {
		t.Fatalf("spillway is not ready: %v\n%s", err, s.logTail())
	}
}

// Log returns what the process has printed so far.
func (s *Spillway) Log(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(s.logFile())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// get requests url and returns an error unless the status is 200 and the body contains none of
// the texts.
func get(ctx context.Context, url string, without ...string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	req.Close = true // keep no connection open
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	for _, text := range without {
		if strings.Contains(string(body), text) {
			return fmt.Errorf("%s: %s", url, body)
		}
	}
	return nil
}

// BinaryVariable names a built spillway, which tests then use instead of building one each.
const BinaryVariable = "SPILLWAY_TEST_BINARY"

// Binary is the spillway binary that the tests of a package share. It is built by the first
// Path and removed by Closing.
type Binary struct {
	mu  sync.Mutex
	dir string // of a binary of our own
	at  string
	err error
}

// Path returns the path of the binary.
func (b *Binary) Path(t testing.TB) string {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.at == "" && b.err == nil {
		b.at, b.err = b.find()
	}
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.at
}

func (b *Binary) find() (string, error) {
	if path := os.Getenv(BinaryVariable); path != "" {
		_, err := os.Stat(path) // go test runs the tests again when the file has changed
		return path, err
	}
	var err error
	if b.dir, err = newDirectory(nil); err != nil {
		return "", err
	}
	return Build(b.dir, "spillway/cmd/spillway")
}

func (b *Binary) finish(bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dir == "" {
		return nil
	}
	return os.RemoveAll(b.dir)
}

// Run runs the binary with arguments in an empty directory and returns its output and exit
// code.
func (b *Binary) Run(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), b.Path(t), args...)
	cmd.Dir = t.TempDir()
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}
