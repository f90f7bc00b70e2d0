package servetest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"spillway/internal/apptest"
)

// plainFeed is a configuration with one feed.
const plainFeed = "probes: true\nfeeds: [{path: /numbers, sql: SELECT 1 AS n, key: n}]\n"

// plainFile writes plainFeed with more in front of it.
func plainFile(t *testing.T, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	if err := os.WriteFile(file, []byte(apptest.Patient(more+plainFeed)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// shortDir returns a directory whose name leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// writeCertificate writes a certificate for a host and its key.
func writeCertificate(t *testing.T, certFile, keyFile, name string) {
	t.Helper()
	certificate, key := apptest.Certificate(t, name)
	if err := errors.Join(os.WriteFile(certFile, certificate, 0o600), os.WriteFile(keyFile, key, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestCertificateRotation: new connections get the certificate that is in the files, and open
// ones stay. Files that do not belong together change nothing.
func TestCertificateRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, cert, key, "first.example")
	s := apptest.Serve(t, binary.Path(t), plainFile(t, fmt.Sprintf("http: {tls_cert: %s, tls_key: %s}\n", cert, key)))
	s.WaitReady(t)
	dial := func() (*tls.Conn, string) {
		c, err := tls.Dial("tcp", s.Addr(), &tls.Config{InsecureSkipVerify: true}) // the test reads the certificate
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c, c.ConnectionState().PeerCertificates[0].DNSNames[0]
	}
	open, name := dial()
	if apptest.Ask(t, open, "/hello"); name != "first.example" {
		t.Errorf("the certificate is %s", name)
	}
	writeCertificate(t, filepath.Join(dir, "other.pem"), key, "other.example")
	apptest.Await(t, "the log says that the files do not fit", func() bool { return strings.Contains(s.Log(t), "TLS certificate cannot be read") })
	if _, name := dial(); name != "first.example" {
		t.Errorf("with a wrong key the certificate is %s", name)
	}
	writeCertificate(t, cert, key, "second.example")
	apptest.Await(t, "new connections get the new certificate", func() bool { _, name := dial(); return name == "second.example" })
	if body := apptest.Ask(t, open, "/hello"); body != "hello world!!" {
		t.Errorf("the open connection answers %s", body)
	}
}

// activated is a server to which a service manager has passed its sockets.
type activated struct {
	cmd   *exec.Cmd
	ended chan error
}

// activate starts the server as systemd does: the sockets are the descriptors from 3 on.
func activate(t *testing.T, notify string, names string, sockets []*os.File, args ...string) *activated {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, binary.Path(t), "serve", "--data", t.TempDir()}, args...)...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("LISTEN_FDS=%d", len(sockets)), "LISTEN_FDNAMES="+names, "NOTIFY_SOCKET="+notify)
	cmd.ExtraFiles = sockets
	log := new(strings.Builder)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a := &activated{cmd, make(chan error, 1)}
	go func() { a.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if <-a.ended; t.Failed() {
			t.Log(log)
		}
	})
	return a
}

// signal sends a signal.
func (a *activated) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := a.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// end stops the server and waits for it.
func (a *activated) end(t *testing.T) {
	t.Helper()
	a.signal(t, syscall.SIGTERM)
	err := apptest.Receive(t, "the end of the server", a.ended)
	a.ended <- err
	if err != nil {
		t.Errorf("the server ended with %v", err)
	}
}

// TestSocketActivation: the service manager's sockets are served, and requests that wait in
// them survive a restart. The service manager learns when the server is ready, reloads and stops.
func TestSocketActivation(t *testing.T) {
	t.Parallel()
	var sockets []*os.File
	var addresses []string
	for range 2 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		file, err := ln.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, ln.Addr().String())
		sockets = append(sockets, file)
		_ = ln.Close()
		defer file.Close()
	}
	dial := func() net.Conn {
		c, err := net.Dial("tcp", addresses[0])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(shortDir(t), "n"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	told := func(want string) {
		t.Helper()
		room := make([]byte, 1000)
		if err := manager.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, err := manager.Read(room)
		if err != nil || !strings.HasPrefix(string(room[:n]), want) {
			t.Fatalf("the service manager is told %q (%v), want %q", room[:n], err, want)
		}
	}
	file := plainFile(t, "")
	start := func() *activated {
		return activate(t, manager.LocalAddr().String(), "http:admin", sockets, file)
	}
	early := dial()
	s := start()
	told("READY=1")
	if body := apptest.Ask(t, early, "/hello"); body != "hello world!!" {
		t.Errorf("a connection from before the start: %s", body)
	}
	if a := apptest.Fetch(t, "http://"+addresses[1]+"/readyz"); a.Status != 200 {
		t.Errorf("readyz: %d %s", a.Status, a.Body)
	}
	s.signal(t, syscall.SIGHUP)
	told("RELOADING=1\nMONOTONIC_USEC=")
	told("READY=1")
	_ = early.Close()
	s.end(t)
	told("STOPPING=1")
	between := dial()
	s = start()
	told("READY=1")
	if body := apptest.Ask(t, between, "/hello"); body != "hello world!!" {
		t.Errorf("a connection from between two processes: %s", body)
	}
	_ = between.Close()
	s.end(t)
}

// TestTwoAdminSockets: a second socket named admin is refused, and not served publicly.
func TestTwoAdminSockets(t *testing.T) {
	t.Parallel()
	var sockets []*os.File
	for range 2 {
		ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		file, err := ln.File()
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		sockets = append(sockets, file)
	}
	s := activate(t, "", "admin:admin", sockets, plainFile(t, ""))
	s.ended <- apptest.Receive(t, "the end of the process", s.ended)
	if code := s.cmd.ProcessState.ExitCode(); code != 2 {
		t.Errorf("exit %d, want 2", code)
	}
}

// TestUnixSockets: both listeners can be Unix sockets. The file of a process that was killed
// is replaced, that of a running one is not, and a stop removes it.
func TestUnixSockets(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	public, admin := filepath.Join(dir, "http"), filepath.Join(dir, "admin")
	file := plainFile(t, "streams: [{path: /open, table: t, columns: {id: integer}}]\n") // without keys: only this machine can reach it
	args := []string{"--listen", "unix:" + public, "--admin", "unix:" + admin, file}
	answers := func(socket, path string) bool {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return false
		}
		defer c.Close()
		apptest.Ask(t, c, path)
		return true
	}
	s := activate(t, "", "", nil, args...)
	apptest.Await(t, "the socket answers", func() bool { return answers(public, "/hello") })
	if !answers(admin, "/livez") {
		t.Error("the admin listener does not answer")
	}
	if info, err := os.Stat(public); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket's mode is %v, %v", info.Mode(), err)
	}
	if _, stderr, code := binary.Run(t, append([]string{"serve", "--data", t.TempDir()}, args...)...); code != 3 || !strings.Contains(stderr, "address already in use") {
		t.Errorf("a second process: exit %d, %s", code, stderr)
	}
	if !answers(public, "/hello") {
		t.Error("the second process has taken the socket")
	}
	if stdout, stderr, code := binary.Run(t, "config", "reload", "--admin", "unix:"+admin); code != 0 || stdout != "reloaded\n" {
		t.Errorf("reload: exit %d, %s%s", code, stdout, stderr)
	}
	s.signal(t, syscall.SIGKILL)
	s.ended <- <-s.ended
	s = activate(t, "", "", nil, args...)
	apptest.Await(t, "the next process replaces the file", func() bool { return answers(public, "/hello") })
	s.end(t)
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
