//go:build !portable

package app

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/serve/config"
)

// pollers returns how many epoll instances this process has. Each event loop has one, and Go's scheduler another.
func pollers(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && target == "anon_inode:[eventpoll]" {
			n++
		}
	}
	return n
}

// output collects what a process writes.
type output struct {
	mu   sync.Mutex
	text strings.Builder
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

// hello asks for /hello at a Unix socket, once something listens there.
func hello(t *testing.T, socket string, failed <-chan error, log *output) string {
	t.Helper()
	var c net.Conn
	apptest.AwaitState(t, "the server listens", func() (string, bool) {
		select {
		case err := <-failed:
			t.Fatalf("the server has ended: %v\n%s", err, log)
		default:
		}
		var err error
		c, err = net.Dial("unix", socket)
		return fmt.Sprintf("%v\n%s", err, log), err == nil
	})
	defer c.Close()
	if _, err := io.WriteString(c, "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(resp.StatusCode, " ", string(body))
}

// TestLoops: http.loops is the number of event loops, by default one per core. While the server runs, each has a thread of its
// own beside those of the cores, and popups one more; afterwards there are as many as before.
func TestLoops(t *testing.T) {
	cores, before := runtime.GOMAXPROCS(0), pollers(t)
	for _, c := range []struct {
		http, more  string
		loops, adds int
	}{
		{"", "", cores, cores},
		{"loops: 0", "", cores, cores},
		{"loops: -1", "", 0, 0},
		{"loops: 1", "", 1, 1},
		{"loops: 3", "popups: {path: /popup}\n", 3, 4},
		{"loops: -1", "popups: {path: /popup}\n", 0, 1},
	} {
		dir := t.TempDir()
		o := Options{File: filepath.Join(dir, "spillway.yaml"), Data: filepath.Join(dir, "data"), Stdout: io.Discard}
		socket := filepath.Join(dir, "http.sock")
		text := fmt.Sprintf("listen: 'unix:%s'\nprobes: true\nadmin: {listen: 'unix:%s'}\nhttp: {%s}\n%s", socket, filepath.Join(dir, "admin.sock"), c.http, c.more)
		if err := os.WriteFile(o.File, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		log := &output{}
		o.Stderr = log
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- Serve(ctx, o) }()
		if got := hello(t, socket, ended, log); got != "200 hello world!!" {
			t.Errorf("%+v: %s, want 200 hello world!!", c, got)
		}
		if got := pollers(t) - before; got != c.loops {
			t.Errorf("%+v: %d event loops, want %d", c, got, c.loops)
		}
		if got := runtime.GOMAXPROCS(0); got != cores+c.adds {
			t.Errorf("%+v: GOMAXPROCS %d on %d cores, want %d", c, got, cores, cores+c.adds)
		}
		stop()
		if err := apptest.Receive(t, "the end of Serve", ended); err != nil {
			t.Errorf("%+v: %v\n%s", c, err, log)
		}
		if got, threads := pollers(t)-before, runtime.GOMAXPROCS(0); got != 0 || threads != cores {
			t.Errorf("%+v: afterwards %d event loops, GOMAXPROCS %d on %d cores", c, got, threads, cores)
		}
	}
}

// TestLoopsAndThreads: each event loop has a thread beside those that there are, popups have one more, and TLS has no event loops.
func TestLoopsAndThreads(t *testing.T) {
	cores := runtime.GOMAXPROCS(0)
	for _, c := range []struct {
		change      func(*config.Config)
		loops, more int
	}{
		{func(*config.Config) {}, cores, cores},
		{func(c *config.Config) { c.HTTP.Loops = 1024 }, 1024, 1024},
		{func(c *config.Config) { c.HTTP.TLSCert, c.HTTP.TLSKey = "cert.pem", "key.pem" }, -1, 0},
		{func(c *config.Config) { c.HTTP.TLSCert, c.HTTP.Loops, c.Popups.Path = "cert.pem", 5, "/popup" }, -1, 1},
		{func(c *config.Config) { c.Popups.Path = "/popup" }, cores, cores + 1},
		{func(c *config.Config) { c.HTTP.Loops, c.Popups.Path = -1, "/popup" }, -1, 1},
	} {
		cfg := config.Default()
		c.change(&cfg)
		asIs := cfg.HTTP.Loops
		loops, undo := addThreads(&cfg)
		if more := runtime.GOMAXPROCS(0) - cores; loops != c.loops || more != c.more || cfg.HTTP.Loops != asIs {
			t.Errorf("%d loops, %d threads more, http.loops %d; want %d, %d, %d", loops, more, cfg.HTTP.Loops, c.loops, c.more, asIs)
		}
		if undo(); runtime.GOMAXPROCS(0) != cores {
			t.Errorf("afterwards GOMAXPROCS is %d, want %d", runtime.GOMAXPROCS(0), cores)
			runtime.GOMAXPROCS(cores)
		}
	}
}
