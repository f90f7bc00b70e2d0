package servetest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"spillway/internal/apptest"
)

// TestRollingRestarts: behind HAProxy, which repeats no request, no request fails while two replicas are restarted in turn, with
// and without rights. A short run ends the delay of each stop when HAProxy has seen it; a long one waits for a second.
func TestRollingRestarts(t *testing.T) {
	t.Parallel()
	for _, user := range []string{"root", "nobody"} {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			restarts, delay := 20, "1s"
			if testing.Short() {
				restarts, delay = 2, "10m"
			}
			r := startReplicas(t, user, delay)
			short := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
			kept := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}, Timeout: time.Minute}
			defer kept.CloseIdleConnections()
			l := &pacedClients{}
			ctx, stop := context.WithCancel(t.Context())
			l.running.Go(func() { l.run(ctx, short, r.short) })
			l.running.Go(func() { l.run(ctx, kept, r.kept) })
			began := time.Now()
			for i := range restarts {
				r.restart(t, i%2, testing.Short())
			}
			stop()
			l.running.Wait()
			t.Logf("%d restarts as %s: %d requests, %.0f/s, %d failed, the longest took %v", restarts, user, l.sent,
				float64(l.sent)/time.Since(began).Seconds(), len(l.failed), l.longest)
			if len(l.failed) > 0 || l.sent == 0 {
				t.Errorf("%d of %d requests failed: %s", len(l.failed), l.sent, l.failed[:min(3, len(l.failed))])
			}
		})
	}
}

// replicas are two servers behind HAProxy.
type replicas struct {
	servers     [2]*apptest.Spillway
	short, kept string // URLs at HAProxy, which opens a connection for each request, or keeps them
	stats       string // its socket
}

const haproxyConfig = `global
  stats socket %[1]s/stats
defaults
  mode http
  retries 0
  timeout connect 1m
  timeout client 1m
  timeout server 1m
  timeout check 1m
frontend short
  bind %[2]s
  default_backend short
frontend kept
  bind %[3]s
  default_backend kept
backend short
  http-reuse never
  option http-server-close
  option httpchk
  http-check send meth GET uri /readyz hdr Host 127.0.0.1
  default-server check inter 100ms fall 1 rise 1
  server s0 %[4]s port %[5]s
  server s1 %[6]s port %[7]s
backend kept
  http-reuse always
  server s0 %[4]s track short/s0
  server s1 %[6]s track short/s1
`

func startReplicas(t *testing.T, user, delay string) *replicas {
	t.Helper()
	dir := apptest.Directory(t)
	config := filepath.Join(dir, "spillway.yaml")
	r := &replicas{stats: filepath.Join(dir, "stats")}
	if err := os.WriteFile(config, []byte("probes: true\nhttp: {stop_delay: "+delay+"}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	texts := []any{dir}
	for _, url := range []*string{&r.short, &r.kept} {
		address, err := apptest.FreeAddr()
		if err != nil {
			t.Fatal(err)
		}
		*url = "http://" + address + "/hello"
		texts = append(texts, address)
	}
	for i := range r.servers {
		if user == "root" {
			r.servers[i] = apptest.Serve(t, binary.Path(t), config)
		} else {
			r.servers[i] = apptest.ServeAs(t, user, binary.Path(t), config)
		}
		t.Cleanup(r.servers[i].Kill) // it would stop after its delay
		r.servers[i].WaitReady(t)
		_, port, _ := strings.Cut(strings.TrimPrefix(r.servers[i].Admin, "http://"), ":")
		texts = append(texts, r.servers[i].Addr(), port)
	}
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, fmt.Appendf(nil, haproxyConfig, texts...), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "haproxy", "-db", "-f", file)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if _ = cmd.Wait(); t.Failed() {
			t.Log(log.String())
		}
	})
	r.await(t, 0, "UP")
	r.await(t, 1, "UP")
	return r
}

// await returns when a server has a status in both backends of HAProxy.
func (r *replicas) await(t *testing.T, i int, status string) {
	t.Helper()
	line := regexp.MustCompile(fmt.Sprintf(`(?m)^(short|kept),s%d,.*,%s,`, i, status))
	apptest.AwaitState(t, fmt.Sprintf("HAProxy says that server %d is %s", i, status), func() (string, bool) {
		c, err := net.Dial("unix", r.stats)
		if err != nil {
			return err.Error(), false
		}
		defer c.Close()
		if _, err := io.WriteString(c, "show stat\n"); err != nil {
			return err.Error(), false
		}
		text, err := io.ReadAll(c)
		return string(text), err == nil && len(line.FindAll(text, -1)) == 2
	})
}

// restart restarts a server. With hurry, a second signal ends its delay.
func (r *replicas) restart(t *testing.T, i int, hurry bool) {
	t.Helper()
	s := r.servers[i]
	if hurry {
		if err := syscall.Kill(s.PID(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		r.await(t, i, "DOWN")
		response, err := new(http.Client{Transport: new(http.Transport)}).Get(s.URL("hello"))
		if err != nil {
			t.Fatal(err)
		}
		if response.Body.Close(); response.StatusCode != 200 || !response.Close {
			t.Errorf("a new connection during the delay: %s, closes %t", response.Status, response.Close)
		}
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	r.await(t, i, "DOWN")
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	r.await(t, i, "UP")
}

// pacedClients send requests at a fixed rate, however long the answers take.
type pacedClients struct {
	running sync.WaitGroup

	mu      sync.Mutex
	sent    int
	failed  []string
	longest time.Duration
}

func (l *pacedClients) run(ctx context.Context, client *http.Client, url string) {
	ticker := time.NewTicker(4 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case due := <-ticker.C:
			l.running.Go(func() {
				err := ask(client, url)
				took := time.Since(due)
				l.mu.Lock()
				defer l.mu.Unlock()
				if l.sent++; err != nil {
					l.failed = append(l.failed, err.Error())
				}
				l.longest = max(l.longest, took)
			})
		}
	}
}

func ask(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != 200 || string(body) != "hello world!!" {
		return fmt.Errorf("%s %q: %w", response.Status, body, err)
	}
	return nil
}
