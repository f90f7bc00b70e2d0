package target

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// lookup is a resolver with one answer.
func lookup(texts ...string) func(context.Context, string) ([]netip.Addr, error) {
	var answer []netip.Addr
	for _, text := range texts {
		answer = append(answer, netip.MustParseAddr(text))
	}
	return func(context.Context, string) ([]netip.Addr, error) { return answer, nil }
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
		c.URL, c.Lookup, c.Timeout = "http://shop.test:"+port+"/", lookup(addresses...), time.Minute
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
	f(Config{}, "", "shop.test has 2 addresses; this run loads 127.0.0.3:"+port+" only", "127.0.0.3", "127.0.0.2")
	f(Config{}, "", "this run loads 127.0.0.3:"+port+", the first that can be connected to (dial tcp 127.0.0.2", "127.0.0.2", "127.0.0.3", "::1")
	f(Config{}, "", "", "::1", "127.0.0.3")
	f(Config{}, "127.0.0.4:"+port+": connect: connection refused; dial tcp [::1]", "", "127.0.0.4", "::1")
	f(Config{Sources: []netip.Addr{netip.MustParseAddr("127.0.0.9")}}, "", "", "::1", "127.0.0.3")
	f(Config{Sources: []netip.Addr{netip.MustParseAddr("127.0.0.9")}}, "must both be IPv4", "", "::1")
	f(Config{}, "--allow shop.test", "", "127.0.0.3", "1.1.1.1")
	f(Config{}, "no address", "")
}
