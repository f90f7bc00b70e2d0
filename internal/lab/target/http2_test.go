package target

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/lab/result"
)

// serveHTTP2 starts a server for HTTP/2, and for HTTP/1.1 too, and counts its
// connections.
func serveHTTP2(t *testing.T, secure bool, handle http.HandlerFunc) (server *httptest.Server, connections *atomic.Int64) {
	t.Helper()
	connections = new(atomic.Int64)
	server = httptest.NewUnstartedServer(handle)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	if secure {
		server.EnableHTTP2 = true
		server.StartTLS()
	} else {
		server.Config.Protocols = new(http.Protocols)
		server.Config.Protocols.SetHTTP1(true)
		server.Config.Protocols.SetUnencryptedHTTP2(true)
		server.Start()
	}
	t.Cleanup(server.Close)
	return server, connections
}

// sendOnAll sends one request on each session at the same time.
func sendOnAll(t *testing.T, tg *Target, sessions []*Session) []Outcome {
	outcomes := make([]Outcome, len(sessions))
	var sending sync.WaitGroup
	for i, s := range sessions {
		sending.Go(func() { outcomes[i] = s.Do(t.Context(), tg.config.Clock.Now()) })
	}
	sending.Wait()
	return outcomes
}

// TestHTTP2Streams sends requests that the server answers only when all are
// there, so they have to share the connections.
func TestHTTP2Streams(t *testing.T) {
	t.Parallel()
	const connections, streams = 3, 5
	for _, secure := range []bool{false, true} {
		var round atomic.Pointer[sync.WaitGroup]
		server, count := serveHTTP2(t, secure, func(w http.ResponseWriter, r *http.Request) {
			round.Load().Done()
			round.Load().Wait()
			fmt.Fprint(w, r.Proto, " ", r.UserAgent())
		})
		checks, err := ParseChecks([]string{"body~=HTTP/2.0 spillway"})
		if err != nil {
			t.Fatal(err)
		}
		tg := open(t, Config{URL: server.URL, Insecure: true, HTTP2: true, Streams: streams, Checks: checks, Timeout: time.Minute})
		if err := tg.Check(t.Context()); err != nil || tg.EventLoop() || tg.Slots(connections) != connections*streams {
			t.Fatalf("check: %v, event loop %v, %d slots", err, tg.EventLoop(), tg.Slots(connections))
		}
		sessions := tg.NewSessions(connections)
		connected := 0
		for range 3 {
			next := new(sync.WaitGroup)
			next.Add(len(sessions))
			round.Store(next)
			for _, o := range sendOnAll(t, tg, sessions) {
				checkTimes(t, &o)
				if o.Err != nil || o.Status != 200 {
					t.Fatalf("outcome %+v", o)
				}
				if o.Connected != 0 {
					connected++
				}
			}
		}
		total := int64(0)
		for _, s := range sessions {
			total += s.Counters().Connects
			s.Close()
		}
		if count.Load() != 1+connections || total != connections || connected != connections {
			t.Errorf("TLS %v: the server saw %d connections, counted are %d and %d; want %d and one of the check", secure, count.Load(), total, connected, connections)
		}
	}
}

// TestHTTP2Timeout has one stream time out: the others keep their connection.
// When the server ends the connection, they share a new one.
func TestHTTP2Timeout(t *testing.T) {
	t.Parallel()
	var stuck atomic.Bool
	server, count := serveHTTP2(t, false, func(_ http.ResponseWriter, r *http.Request) {
		if stuck.CompareAndSwap(true, false) {
			<-r.Context().Done()
		}
	})
	tg := open(t, Config{URL: server.URL, HTTP2: true, Streams: 4, Timeout: 10 * time.Second})
	sessions := tg.NewSessions(1)
	defer func() {
		for _, s := range sessions {
			s.Close()
		}
	}()
	f := func(wantFailed int, wantConnections int64) {
		t.Helper()
		failed := 0
		for _, o := range sendOnAll(t, tg, sessions) {
			if o.Err != nil {
				if failed++; Classify(o.Err) != result.Timeout {
					t.Errorf("%v", o.Err)
				}
			}
		}
		if failed != wantFailed || count.Load() != wantConnections {
			t.Errorf("%d failed, %d connections; want %d and %d", failed, count.Load(), wantFailed, wantConnections)
		}
	}
	f(0, 1)
	stuck.Store(true)
	f(1, 1)
	f(0, 1)
	server.CloseClientConnections()
	for sessions[0].conn.(*netHTTPConn).conn.Err() == nil {
		sessions[0].Do(t.Context(), tg.config.Clock.Now()) // until the client has noticed
		if sessions[0].conn == nil {
			break
		}
	}
	outcomes := sendOnAll(t, tg, sessions) // each notices once
	outcomes = append(outcomes, sendOnAll(t, tg, sessions)...)
	if o := outcomes[len(outcomes)-1]; o.Err != nil {
		t.Errorf("after the server ended the connection: %v", o.Err)
	}
	if n := count.Load(); n != 2 {
		t.Errorf("%d connections, want a second one for all", n)
	}
}

// TestHTTP2NotOffered connects to servers that negotiate another protocol, or none.
func TestHTTP2NotOffered(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	without := hostile(t, func(_ int, conn net.Conn) {
		tls.Server(conn, &tls.Config{Certificates: server.TLS.Certificates}).Handshake()
	})
	for url, want := range map[string]string{server.URL: "no application protocol", "https://" + without: "does not offer HTTP/2"} {
		err := open(t, Config{URL: url, Insecure: true, HTTP2: true}).Check(t.Context())
		if err == nil || Classify(err) != result.TLSError || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
