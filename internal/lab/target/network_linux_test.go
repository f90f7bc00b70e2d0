package target

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/lab/result"
)

// names is a resolver whose answer can change.
type names struct {
	mu     sync.Mutex
	answer []netip.Addr
	err    error
}

func (n *names) set(err error, texts ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answer, n.err = nil, err
	for _, text := range texts {
		n.answer = append(n.answer, netip.MustParseAddr(text))
	}
}

func (n *names) lookup(context.Context, string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.answer, n.err
}

// listenOn counts the connections to one address.
func listenOn(t *testing.T, address string) (port string, count *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	return port, countOn(t, listener)
}

// listenOnAll counts the connections to each of several hosts, with one port that is free at all of them.
func listenOnAll(t *testing.T, hosts ...string) (port string, counts []*atomic.Int64) {
	t.Helper()
	for range 100 {
		var listeners []net.Listener
		port = "0"
		for _, host := range hosts {
			listener, err := net.Listen("tcp", net.JoinHostPort(host, port))
			if err != nil {
				t.Log(err)
				break
			}
			listeners = append(listeners, listener)
			_, port, _ = net.SplitHostPort(listener.Addr().String())
		}
		if len(listeners) == len(hosts) {
			for _, listener := range listeners {
				counts = append(counts, countOn(t, listener))
			}
			return port, counts
		}
		for _, listener := range listeners {
			listener.Close()
		}
	}
	t.Fatalf("of 100 ports none is free at all of %q", hosts)
	return "", nil
}

// countOn serves until the test ends, and counts the connections.
func countOn(t *testing.T, listener net.Listener) (count *atomic.Int64) {
	t.Helper()
	count = new(atomic.Int64)
	server := &http.Server{ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			count.Add(1)
		}
	}, Handler: http.NotFoundHandler()}
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(listener) })
	t.Cleanup(func() {
		server.Close()
		serving.Wait()
	})
	return count
}

func TestCheckTriesEveryAddress(t *testing.T) {
	port, _ := listenOn(t, "127.0.0.3:0")
	f := func(c Config, wantErr, wantNote string, addresses ...string) *Target {
		t.Helper()
		var n names
		n.set(nil, addresses...)
		c.URL, c.Lookup, c.Timeout = "http://shop.test:"+port+"/", n.lookup, time.Minute
		tg, err := Open(t.Context(), c)
		if err == nil {
			err = tg.Check(t.Context())
		}
		if wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), wantErr) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: %v, want %q", addresses, err, wantErr)
			}
			return nil
		}
		if notes := strings.Join(tg.Notes(), "\n"); err != nil || (notes == "") != (wantNote == "") || !strings.Contains(notes, wantNote) {
			t.Errorf("%q: %v, notes %q, want %q", addresses, err, notes, wantNote)
		}
		return tg
	}
	f(Config{}, "", "", "127.0.0.3")
	f(Config{}, "", "shop.test has 2 addresses; this run loads 127.0.0.3:"+port+" only; --dns-refresh", "127.0.0.3", "127.0.0.2")
	f(Config{}, "", "this run loads 127.0.0.3:"+port+", the first that can be connected to (dial tcp 127.0.0.2", "127.0.0.2", "127.0.0.3", "::1")
	f(Config{}, "", "", "::1", "127.0.0.3")
	f(Config{}, "127.0.0.4:"+port+": connect: connection refused; dial tcp [::1]", "", "127.0.0.4", "::1")
	f(Config{Sources: []netip.Addr{netip.MustParseAddr("127.0.0.9")}}, "", "", "::1", "127.0.0.3")
	f(Config{Sources: []netip.Addr{netip.MustParseAddr("127.0.0.9")}}, "must both be IPv4", "", "::1")
	f(Config{}, "--allow shop.test", "", "127.0.0.3", "1.1.1.1")
	f(Config{}, "no address", "")
	f(Config{DNSRefresh: time.Hour}, "", "shop.test is loaded at 127.0.0.2:"+port+", 127.0.0.3:"+port+" in rotation", "127.0.0.2", "127.0.0.3", "::1")

	c := Config{URL: "http://127.0.0.1/", DNSRefresh: time.Second, Timeout: time.Minute}
	if _, err := Open(t.Context(), c); err == nil || !strings.Contains(err.Error(), "requires a target with a host name") {
		t.Errorf("%s: %v", c.URL, err)
	}
}

// TestRefresh changes the addresses of a name under both engines.
func TestRefresh(t *testing.T) {
	port, counts := listenOnAll(t, "127.0.0.2", "127.0.0.3", "127.0.0.4")
	var n names
	n.set(nil, "127.0.0.2")
	accept, err := ParseChecks([]string{"status=404"})
	if err != nil {
		t.Fatal(err)
	}
	tg := open(t, Config{URL: "http://shop.test:" + port + "/", Lookup: n.lookup, DNSRefresh: time.Millisecond, PerConnection: 1, Checks: accept})
	if err := tg.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	reports := make(chan string)
	var refreshing sync.WaitGroup
	refreshing.Go(func() {
		tg.Refresh(ctx, func(text string) {
			select {
			case reports <- text:
			case <-ctx.Done():
			}
		})
	})
	defer refreshing.Wait()
	defer cancel()
	load := func(want int64) { // connections so far; one to .2 is of the check
		t.Helper()
		outcomes, _ := drive(t, tg, 1, 20)
		for _, o := range outcomes {
			if o.Err != nil {
				t.Fatal(o.Err)
			}
		}
		if a, b, c := counts[0].Load(), counts[1].Load(), counts[2].Load(); a != 21 || b != want || c != want {
			t.Errorf("connections to .2, .3 and .4: %d, %d and %d; want 21 and %d of each of the new ones", a, b, c, want)
		}
	}
	load(0)
	n.set(nil, "127.0.0.4", "127.0.0.3")
	if text := <-reports; !strings.Contains(text, "shop.test is now loaded at 127.0.0.3:"+port+", 127.0.0.4:"+port) {
		t.Error(text)
	}
	load(10)
	n.set(nil, "127.0.0.2", "1.1.1.1")
	if text := <-reports; !strings.Contains(text, "not allowed: shop.test (1.1.1.1)") || !strings.Contains(text, "stay as they were") {
		t.Error(text)
	}
	load(20)
	n.set(errors.New("server failure"))
	if text := <-reports; !strings.Contains(text, "look up shop.test: server failure") {
		t.Error(text)
	}
	load(30)
}

func TestRotation(t *testing.T) {
	n := network{sources: make([]netip.Addr, 2)}
	seen := map[[2]int]bool{}
	for number := range 6 {
		seen[[2]int{number % len(n.sources), n.rotate(number, 3)}] = true
	}
	if len(seen) != 6 {
		t.Errorf("6 connections use %d of 6 pairs of source and place", len(seen))
	}
	if Classify(&net.DNSError{}) != result.Resolve {
		t.Error("a failed lookup is not called resolve")
	}
}
