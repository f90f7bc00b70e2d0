package target

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/lab/result"
)

func TestHTTPS(t *testing.T) {
	var connections atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s", r.Proto, r.Method, r.URL.Path, body)
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS()
	defer server.Close()
	for _, http2 := range []bool{false, true} {
		proto := "HTTP/1.1"
		if http2 {
			proto = "HTTP/2.0"
		}
		checks, err := ParseChecks([]string{"body~=" + proto + " PUT /p/1 body-1"})
		if err != nil {
			t.Fatal(err)
		}
		c := Config{
			URL: server.URL + "/p/{random(1,1)}", Method: "PUT", Body: template(t, "body-{random(1,1)}"), Checks: checks,
			HTTP2: http2, Insecure: true, PerConnection: 5,
		}
		connections.Store(0)
		outcomes, counters := exchangeAll(t, open(t, c), 12)
		for _, o := range outcomes {
			if o.Err != nil || o.Status != 200 || o.Kind != Write || o.BytesReceived == 0 {
				t.Fatalf("%s: outcome %+v", proto, o)
			}
		}
		if counters.Connects != 3 || connections.Load() != 3 {
			t.Errorf("%s: %+v and the server saw %d, want 3 connections", proto, counters, connections.Load())
		}
		c.Insecure = false
		outcomes, _ = exchangeAll(t, open(t, c), 1)
		if err := outcomes[0].Err; err == nil || Classify(err) != result.TLSError {
			t.Errorf("%s: unknown certificate: %v", proto, err)
		}
	}
}

func TestHTTPSToPlainServer(t *testing.T) {
	address := hostile(t, func(_ int, conn net.Conn) {
		conn.Read(make([]byte, 100))
		io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
	})
	outcomes, _ := exchangeAll(t, open(t, Config{URL: "https://" + address}), 1)
	if err := outcomes[0].Err; err == nil || Classify(err) != result.TLSError {
		t.Errorf("%v, want a TLS error", err)
	}
}

// TestSessionSaysNothingTwice has a TLS server close connections under
// requests: each request is seen at most once.
func TestSessionSaysNothingTwice(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		var seen atomic.Int64
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if seen.Add(1)%3 == 0 {
				panic(http.ErrAbortHandler)
			}
		}))
		server.EnableHTTP2 = true
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.StartTLS()
		outcomes, _ := exchangeAll(t, open(t, Config{URL: server.URL, HTTP2: http2, Insecure: true}), 12)
		server.Close()
		failed := 0
		for _, o := range outcomes {
			if o.Err != nil {
				failed++
				if Classify(o.Err) != result.Reset {
					t.Errorf("HTTP/2 %v: %v is %s, want a reset", http2, o.Err, Classify(o.Err))
				}
			}
		}
		if seen.Load() != 12 || failed != 4 {
			t.Errorf("HTTP/2 %v: the server saw %d requests, %d failed; want 12 and 4", http2, seen.Load(), failed)
		}
	}
}

func TestSessionAbort(t *testing.T) {
	arrived := make(chan struct{})
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	}))
	defer server.Close()
	tg := open(t, Config{URL: server.URL, Insecure: true, Timeout: time.Minute})
	s := tg.NewSession(0, 1)
	defer s.Close()
	go func() {
		<-arrived
		s.Abort()
	}()
	if o := s.Do(t.Context(), tg.config.Clock.Now()); o.Err == nil {
		t.Error("an aborted request ended well")
	}
	if o := s.Do(t.Context(), tg.config.Clock.Now()); o.Err == nil {
		t.Error("a request after Abort ended well")
	}
}

func TestOpenErrors(t *testing.T) {
	for _, test := range []struct {
		config Config
		want   string
	}{
		{Config{URL: "127.0.0.1"}, "no scheme"},
		{Config{URL: "ftp://x/"}, "unknown scheme"},
		{Config{URL: "http://"}, "write http://HOST:PORT/PATH"},
		{Config{URL: "http://h:x/"}, "not HOST or HOST:PORT"},
		{Config{URL: "http://1.1.1.1/"}, "--allow 1.1.1.1"},
		{Config{URL: "http://[2606:4700::1]/"}, "--allow 2606:4700::1"},
		{Config{URL: "http://127.0.0.1/", SQL: "SELECT 1"}, "--sql"},
		{Config{URL: "http://127.0.0.1/", Commands: []string{"GET x"}}, "--command"},
		{Config{URL: "redis://127.0.0.1/", Commands: []string{"PING"}, HTTP2: true}, "requires an https: or http: target"},
		{Config{URL: "http://127.0.0.1/", Streams: 2}, "it requires --http2"},
		{Config{URL: "http://127.0.0.1/{randm(1,2)}"}, "unknown value"},
		{Config{URL: "redis://127.0.0.1/"}, "requires a --command"},
		{Config{URL: "postgres://u:secret@1.1.1.1/d", SQL: "SELECT 1"}, "--allow 1.1.1.1"},
		{Config{URL: "postgres://u:secret@127.0.0.1/d"}, "requires a statement"},
		{Config{URL: "mysql://u:secret@1.1.1.1/d", SQL: "SELECT 1"}, "--allow 1.1.1.1"},
		{Config{URL: "postgres://u:secret@127.0.0.1/d", SQL: "SELECT 1", Headers: []Header{{"a", "b"}}}, "are for HTTP"},
		{Config{URL: "http+unix://run/x"}, "percent-encoded"},
	} {
		test.config.Timeout = time.Minute
		_, err := Open(t.Context(), test.config)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", test.config.URL, err, test.want)
		}
	}
	if _, err := Open(t.Context(), Config{URL: "http://1.1.1.1/", Allow: []string{"1.1.1.1"}, Timeout: time.Minute}); err != nil {
		t.Errorf("an allowed host: %v", err)
	}
	for _, url := range []string{"http://10.1.2.3/", "http://192.168.0.1:81", "http://[fd00::1]/", "http://localhost/"} {
		if _, err := Open(t.Context(), Config{URL: url, Timeout: time.Minute}); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}
