package trial

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/apptest"
)

// The templates of both proxies are started with four replicas, which are restarted in turn. No request fails meanwhile: on kept
// connections and on new ones, and whatever the replica that is asked first does.
func TestProxiesDuringRestarts(t *testing.T) {
	replicas := startReplicas(t, 4)
	for _, proxy := range []struct {
		name  string
		start func(*testing.T, []*apptest.Spillway) (url string)
	}{{"nginx", startNginx}, {"haproxy", startHAProxy}} {
		t.Run(proxy.name, func(t *testing.T) {
			url := proxy.start(t, replicas) + "/hello"
			apptest.Await(t, "the proxy answers", func() bool {
				a, err := apptest.TryFetch(t.Context(), http.DefaultClient, url)
				return err == nil && a.Status == http.StatusOK
			})
			clients := &clients{rate: 500}
			if !testing.Short() {
				clients.rate = 2000
			}
			began := time.Now()
			ctx, stop := context.WithCancel(t.Context())
			running := clients.start(ctx, url)
			for _, replica := range replicas {
				if err := replica.Restart(); err != nil {
					t.Error(err)
				}
				replica.WaitReady(t)
				apptest.Await(t, "the replica has answered through the proxy", func() bool {
					return apptest.Metric(t, replica, `spillway_http_requests_total{code="200",route="/hello"}`) > 0
				})
			}
			stop()
			running.Wait()
			t.Logf("%d requests in %.1f s, %d failed", clients.sent, time.Since(began).Seconds(), len(clients.failed))
			if len(clients.failed) > 0 || clients.sent == 0 {
				t.Errorf("%d of %d requests failed: %s", len(clients.failed), clients.sent, clients.failed[:min(3, len(clients.failed))])
			}
		})
	}
}

func startReplicas(t *testing.T, count int) []*apptest.Spillway {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	if err := os.WriteFile(file, []byte("probes: true\nhttp: {stop_delay: 3s, trusted_proxies: [127.0.0.1]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var replicas []*apptest.Spillway
	for range count {
		s := apptest.Serve(t, binary.Path(t), file)
		s.WaitReady(t)
		replicas = append(replicas, s)
	}
	return replicas
}

// readTemplate returns a template whose two servers are replaced by one line for each replica.
func readTemplate(t *testing.T, file, server, listen string, replicas []*apptest.Spillway, line func(int, *apptest.Spillway) string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", file))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	done := false
	for l := range strings.Lines(strings.ReplaceAll(string(text), "127.0.0.1:8080", listen)) {
		if !strings.HasPrefix(strings.TrimSpace(l), server) {
			out = append(out, l)
			continue
		}
		for i, s := range replicas {
			if !done {
				out = append(out, line(i, s)+"\n")
			}
		}
		done = true
	}
	if !done {
		t.Fatalf("%s has no line with %s", file, server)
	}
	return strings.Join(out, "")
}

func startNginx(t *testing.T, replicas []*apptest.Spillway) string {
	listen := address(t)
	config := readTemplate(t, "nginx/spillway.conf", "server 127.0.0.1:", listen, replicas, func(_ int, s *apptest.Spillway) string {
		return fmt.Sprintf("\tserver %s max_fails=1 fail_timeout=1s;", s.Addr())
	})
	dir := t.TempDir()
	config = "daemon off; pid " + dir + "/pid; error_log stderr warn; worker_rlimit_nofile 10000;\nevents { worker_connections 4000; }\n" +
		"http { access_log off; client_body_temp_path " + dir + "; proxy_temp_path " + dir + ";\n" + config + "}\n"
	startProxy(t, dir, config, func(file string) []string { return []string{"nginx", "-p", dir, "-c", file} })
	return "http://" + listen
}

func startHAProxy(t *testing.T, replicas []*apptest.Spillway) string {
	listen := address(t)
	config := readTemplate(t, "haproxy/haproxy.cfg", "server ", listen, replicas, func(i int, s *apptest.Spillway) string {
		return fmt.Sprintf("  server r%d %s port %s", i, s.Addr(), s.Admin[strings.LastIndexByte(s.Admin, ':')+1:])
	})
	config = strings.Replace(config, "maxconn 20000", "maxconn 4000", 1)
	startProxy(t, t.TempDir(), config, func(file string) []string { return []string{"haproxy", "-db", "-f", file} })
	return "http://" + listen
}

func startProxy(t *testing.T, dir, config string, command func(file string) []string) {
	t.Helper()
	file := filepath.Join(dir, "config")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	args := command(file)
	p, err := Start(dir, nil, args[0], args[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _ = p.End(context.Background()); t.Failed() {
			t.Log(p.Log())
		}
	})
}

func address(t *testing.T) string {
	t.Helper()
	address, err := apptest.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// clients send requests at a rate, however long the answers take: half on kept connections, half on new ones.
type clients struct {
	rate int

	mu     sync.Mutex
	sent   int
	failed []string
}

func (c *clients) start(ctx context.Context, url string) *sync.WaitGroup {
	kept := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}, Timeout: time.Minute}
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	running := &sync.WaitGroup{}
	running.Go(func() {
		defer kept.CloseIdleConnections()
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			for i := range c.rate / 100 {
				client := kept
				if i%2 == 0 {
					client = fresh
				}
				running.Go(func() { c.ask(client, url) })
			}
		}
	})
	return running
}

func (c *clients) ask(client *http.Client, url string) {
	a, err := apptest.TryFetch(context.Background(), client, url)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent++; err != nil {
		c.failed = append(c.failed, err.Error())
	} else if a.Status != http.StatusOK {
		c.failed = append(c.failed, fmt.Sprintf("%d %s", a.Status, a.Body))
	}
}
