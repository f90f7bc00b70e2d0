package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"spillway/internal/serve/audit"
	"spillway/internal/serve/stream"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func TestHealth(t *testing.T) {
	t.Parallel()
	var parts []Part
	base := start(t, Config{Ready: func() []Part { return parts }, Acks: func() []StreamAck { return []StreamAck{{"/orders", "spool"}} }})

	f := func(path string, wantStatus int, wantType, wantBody string) {
		t.Helper()
		status, header, body := get(t, base+path, nil)
		if status != wantStatus || header.Get("Content-Type") != wantType || body != wantBody {
			t.Errorf("%s answered %d, %s, %q", path, status, header.Get("Content-Type"), body)
		}
		if got := header.Get("Cache-Control"); got != "no-store" {
			t.Errorf("%s: Cache-Control %q", path, got)
		}
	}
	f("/livez", 200, "text/plain; charset=utf-8", "ok\n")
	ready := func(want string) {
		t.Helper()
		var got []string
		for _, path := range []string{"/readyz", "/readyz/reads", "/readyz/writes", "/readyz/popups"} {
			status, _, _ := get(t, base+path, nil)
			got = append(got, fmt.Sprint(status))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("readyz, reads, writes, popups: %v, want %s", got, want)
		}
	}
	since := time.Date(2026, 11, 22, 19, 0, 0, 123456789, time.FixedZone("", 3600))
	orders := Part{Name: "POST /orders", Group: Writes, Serves: true, Reason: "nearly full: the spool holds 80 bytes", Since: since}
	full := Part{Name: "POST /positions", Group: Writes, Reason: "the spool holds 99 bytes", Since: since}
	ready("200 200 200 200") // nothing is configured
	parts = []Part{{Name: "server", Reason: "starting", Since: since}, {Name: "/goodslist", Group: Reads, Serves: true}}
	ready("503 503 503 503")
	parts = []Part{{Name: "server", Serves: true}, {Name: "/goodslist", Group: Reads, Serves: true}, full, orders}
	ready("200 200 200 200")
	parts = []Part{{Name: "server", Serves: true}, {Name: "/goodslist", Group: Reads, Serves: true}, full}
	ready("200 200 503 200")
	parts = []Part{{Name: "server", Serves: true}, {Name: "/goodslist", Group: Reads, Reason: "window is 12s old"}, {Name: "/cities", Group: Reads, Serves: true}, full}
	ready("200 200 503 200")
	parts = []Part{{Name: "server", Serves: true}, {Name: "/goodslist", Group: Reads, Reason: "window is 12s old"}, full, {Name: "/popup", Group: Shows, Reason: "down"}}
	ready("503 503 503 503")
	parts = []Part{{Name: "server", Serves: true}, {Name: "/goodslist", Group: Reads, Serves: true}, {Name: "replica", Group: Reads, Reason: "late", Spare: true}}
	ready("200 200 200 200")
	parts = []Part{{Name: "server", Serves: true}, {Name: "/goodslist", Group: Reads, Reason: "down"}, {Name: "replica", Group: Reads, Serves: true, Spare: true}}
	ready("503 503 200 200")

	parts = []Part{{Name: "server", Serves: true}, {Name: "/goodslist", Group: Reads, Reason: "window is 12s old", Since: since}, orders}
	const fill = `{"name":"POST /orders","serves":true,"reason":"nearly full: the spool holds 80 bytes","since":"2026-11-22T18:00:00.123Z"}`
	f("/livez", 200, "text/plain; charset=utf-8", "ok\n")
	f("/readyz/reads", 503, "application/json", `{"ready":false,"reasons":[{"name":"/goodslist","serves":false,"reason":"window is 12s old","since":"2026-11-22T18:00:00.123Z"}]}`+"\n")
	f("/readyz/writes", 200, "application/json", `{"ready":true,"reasons":[`+fill+`],"streams":[{"stream":"/orders","ack":"spool"}]}`+"\n")
	f("/readyz", 200, "application/json", `{"ready":true,"reasons":[{"name":"/goodslist","serves":false,"reason":"window is 12s old","since":"2026-11-22T18:00:00.123Z"},`+fill+`],"streams":[{"stream":"/orders","ack":"spool"}]}`+"\n")
	f("/", 200, "text/plain; charset=utf-8", index)
}

func TestErrors(t *testing.T) {
	t.Parallel()
	base := start(t, Config{})
	f := func(method, path string, wantStatus int, wantTitle string) {
		t.Helper()
		status, header, body := request(t, method, base+path, nil)
		if got := header.Get("Content-Type"); got != "application/problem+json" {
			t.Errorf("%s %s: content type %q", method, path, got)
		}
		var problem map[string]any
		if err := json.Unmarshal([]byte(body), &problem); err != nil {
			t.Fatalf("%s %s: %v in %q", method, path, err, body)
		}
		detail, _ := problem["detail"].(string)
		delete(problem, "detail")
		want := map[string]any{"type": "about:blank", "title": wantTitle, "status": float64(wantStatus)}
		if diff := cmp.Diff(want, problem); diff != "" || status != wantStatus || detail == "" {
			t.Errorf("%s %s: status %d, detail %q (-want +got):\n%s", method, path, status, detail, diff)
		}
		if wantStatus == http.StatusMethodNotAllowed && header.Get("Allow") == "" {
			t.Errorf("%s %s: no Allow header", method, path)
		}
	}
	f("GET", "/nothing", 404, "Not Found")
	f("GET", "/livez/", 404, "Not Found")
	f("GET", "/debug/pprof/nothing", 404, "Not Found")
	f("GET", "/debug/pprof/cmdline", 404, "Not Found")
	for _, spelling := range []string{
		"//livez", "/%6civez", "/./livez", "/x/../livez", "/readyz//reads", "/readyz/./reads", "/readyz%2freads", "/%2flivez", "/livez//",
		"/livez/.", "/debug/pprof//heap", "/debug/%70prof/heap", "/debug/pprof/%70rofile", "//metrics", "//",
	} {
		f("GET", spelling, 404, "Not Found")
	}
	f("POST", "/readyz", 405, "Method Not Allowed")
	f("DELETE", "/livez", 405, "Method Not Allowed")
	f("PUT", "/metrics", 405, "Method Not Allowed")
	f("POST", "/", 405, "Method Not Allowed")
	f("POST", "/debug/pprof/heap", 405, "Method Not Allowed")
}

// The process has one profiler and one tracer, so that the tests that use them run one after
// the other.

func TestProfiles(t *testing.T) {
	base := start(t, Config{})
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/thread%63reate", "/debug/pprof/heap", "/debug/pprof/symbol", "/debug/pprof/trace?seconds=0.01"} {
		if status, _, body := get(t, base+path, nil); status != 200 || body == "" {
			t.Errorf("%s answered %d, %d bytes", path, status, len(body))
		}
	}
}

func TestToken(t *testing.T) {
	t.Parallel()
	base := start(t, Config{Tokens: []Token{{"admin", "correct horse", RoleAdmin}}})
	f := func(path, authorization string, want int) {
		t.Helper()
		status, header, body := get(t, base+path, http.Header{"Authorization": {authorization}})
		if status != want {
			t.Errorf("%s with %q answered %d, want %d", path, authorization, status, want)
		}
		if asked := header.Get("WWW-Authenticate"); (asked != "") != (want == 401) {
			t.Errorf("%s with %q: WWW-Authenticate %q", path, authorization, asked)
		}
		if strings.Contains(body, "horse") {
			t.Errorf("%s shows the token: %q", path, body)
		}
	}
	for _, path := range []string{"/", "/metrics", "/debug/pprof/heap", "/nothing"} {
		f(path, "", 401)
		f(path, "Bearer", 401)
		f(path, "Bearer correct", 401)
		f(path, "Bearer correct horse battery", 401)
		f(path, "Basic correct horse", 401)
	}
	f("/", "Bearer correct horse", 200)
	f("/metrics", "bearer correct horse", 200)
	f("/nothing", "Bearer correct horse", 404)
	f("/livez", "", 200)
	f("/readyz", "", 200)
	f("/readyz/reads", "", 200)
	f("/readyz/nothing", "", 401)
}

// Each role permits what those before it do. The history gets the name of the token.
func TestRoles(t *testing.T) {
	t.Parallel()
	c := startCampaigns(t)
	c.config.Tokens = []Token{{"Rita", "token-of-rita", RoleRead}, {"Ed", "token-of-ed", RoleEdit}, {"admin", "token-of-ann", RoleAdmin}}
	c.base = start(t, c.config)
	for _, step := range []struct {
		method, path, body string
		least              Role
	}{
		{"GET", "/", "", RoleRead},
		{"GET", "/metrics", "", RoleRead},
		{"GET", "/popups/campaigns", "", RoleRead},
		{"GET", "/popups/explain?user=7", "", RoleRead},
		{"POST", "/popups/campaigns", birthday, RoleEdit},
		{"POST", "/popups/campaigns/1/pause", "", RoleEdit},
		{"GET", "/debug/pprof/heap", "", RoleAdmin},
		{"POST", "/reload", "", RoleAdmin},
	} {
		for i, who := range c.config.Tokens {
			r, err := http.NewRequestWithContext(t.Context(), step.method, c.base+step.path, strings.NewReader(step.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Close = true
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Authorization", "Bearer "+who.Token)
			response, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(response.Body)
			if err = errors.Join(err, response.Body.Close()); err != nil {
				t.Fatal(err)
			}
			if may := Role(i+1) >= step.least; may != (response.StatusCode < 300) || !may && response.StatusCode != 403 {
				t.Errorf("%s %s by %s: %d %s", step.method, step.path, who.Name, response.StatusCode, text)
			}
			if need := "requires a token with the role " + step.least.String() + "; that of " + who.Name; response.StatusCode == 403 && !strings.Contains(string(text), need) {
				t.Errorf("%s %s by %s: %s", step.method, step.path, who.Name, text)
			}
		}
	}
	if diff := cmp.Diff([]string{"Ed", "admin", "Ed"}, c.tables.by); diff != "" {
		t.Errorf("saved by (-want +got):\n%s", diff)
	}
}

func TestHost(t *testing.T) {
	t.Parallel()
	f := func(cfg Config, host string, want int) {
		t.Helper()
		base := start(t, cfg)
		status, _, _ := get(t, base+"/metrics", http.Header{"Host": {host}, "Authorization": {"Bearer x"}})
		if status != want {
			t.Errorf("Host %q answered %d, want %d", host, status, want)
		}
	}
	f(Config{}, "localhost:9090", 200)
	f(Config{}, "localhost", 200)
	f(Config{}, "127.0.0.1", 200)
	f(Config{}, "[::1]:9090", 200)
	f(Config{}, "[::1]", 200)
	f(Config{}, "evil.example:9090", 421)
	f(Config{}, "127.0.0.1.evil.example", 421)
	f(Config{}, "192.0.2.1", 421)
	f(Config{Tokens: []Token{{"admin", "x", RoleAdmin}}}, "admin.example", 200)
}

// Serve checks the address of the listener: the configured one may be a name.
func TestServeRefusesOpenListener(t *testing.T) {
	t.Parallel()
	s := newServer(Config{Listen: "localhost:0"})
	ln, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(t.Context(), ln); err == nil || !strings.Contains(err.Error(), "no token is set") {
		t.Errorf("Serve returned %v", err)
	}
	if _, err := ln.Accept(); err == nil {
		t.Error("the listener is still open")
	}
}

func TestRunReportsTakenAddress(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	s := newServer(Config{Listen: ln.Addr().String()})
	if _, err := s.Listen(t.Context()); err == nil || !strings.Contains(err.Error(), "listen for admin: ") {
		t.Errorf("Listen returned %v", err)
	}
}

// pipes is a listener without a network, for virtual time.
type pipes struct {
	connections chan net.Conn
	closed      chan struct{}
	close       func()
}

func newPipes() *pipes {
	p := &pipes{connections: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.connections:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.close(); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.connections <- server:
		return client, nil
	case <-p.closed:
		return nil, errors.Join(net.ErrClosed, client.Close(), server.Close())
	}
}

// A request that began before the stop is answered, and no other.
func TestStopIsGraceful(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testStopIsGraceful)
}

func testStopIsGraceful(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	s := newServer(Config{Listen: "127.0.0.1:0", Ready: func() []Part {
		close(asked)
		<-answer
		return nil
	}})
	listener := newPipes()
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, listener) }()

	got := make(chan string, 1)
	go func() {
		status, _, body := requestBy(t, &http.Transport{DisableKeepAlives: true, DialContext: listener.dial}, http.MethodGet, "http://localhost/readyz", nil)
		got <- fmt.Sprint(status, " ", body)
	}()
	<-asked
	stop()
	<-time.After(DrainTimeout - time.Second)
	if _, err := listener.dial(ctx, "", ""); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a connection after the stop: %v, want %v", err, net.ErrClosed)
	}
	close(answer)
	if body := <-got; body != "200 {\"ready\":true}\n" {
		t.Errorf("the open request was answered %q", body)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve returned %v", err)
	}
}

// Beyond the limit, a connection without a request is closed for each new one.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	base := start(t, Config{})
	address := strings.TrimPrefix(base, "http://")
	var open []net.Conn
	for range ConnectionsMax {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if status := ask(conn); status != 200 {
			t.Fatalf("connection %d answered %d", len(open), status)
		}
		open = append(open, conn)
	}
	extra, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer extra.Close()
	if status := ask(extra); status != 200 {
		t.Fatalf("a connection beside idle ones answered %d", status)
	}
	closed := 0
	for _, conn := range open {
		if ask(conn) == 0 {
			closed++
		}
	}
	if closed != 1 {
		t.Errorf("%d connections were closed for one", closed)
	}
	if !answers(address) {
		t.Error("a connection beside idle ones got no answer")
	}
	_, _, body := get(t, base+"/metrics", nil)
	if strings.Contains(body, "\nspillway_admin_connections_refused_total 0\n") {
		t.Errorf("the refused connection was not counted:\n%s", body)
	}
}

// Connections that never end their requests do not keep others out.
func TestUnfinishedRequests(t *testing.T) {
	t.Parallel()
	address := strings.TrimPrefix(start(t, Config{}), "http://")
	for range ConnectionsMax {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "POST /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		if !answers(address) {
			t.Errorf("connection %d beside unfinished requests got no answer", i)
		}
	}
}

// Headers beyond the limit are refused. The next request is answered.
func TestHeaderBound(t *testing.T) {
	t.Parallel()
	base := start(t, Config{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The server answers before it has read all, and may close before all is sent.
	_, _ = io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: "+strings.Repeat("x", 1<<20)+"\r\n\r\n")
	if status := answered(conn); status != 431 {
		t.Errorf("a header of 1 MiB answered %d, want 431", status)
	}
	if status, _, _ := get(t, base+"/livez", nil); status != 200 {
		t.Errorf("the next request answered %d", status)
	}
}

// answers reports whether a new connection is answered.
func answers(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	defer conn.Close()
	return ask(conn) == 200
}

// ask sends one request on conn and returns the answer's status, 0 for none.
func ask(conn net.Conn) int {
	if _, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return 0
	}
	return answered(conn)
}

// answered returns the status of the answer that conn has, 0 for none.
func answered(conn net.Conn) int {
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode
}

// newServer returns a server with what a configuration leaves out.
func newServer(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	if cfg.Ready == nil {
		cfg.Ready = func() []Part { return nil }
	}
	if cfg.Acks == nil {
		cfg.Acks = func() []StreamAck { return nil }
	}
	if cfg.Figures == nil {
		cfg.Traffic, cfg.Figures = sampled(countedRequests(3, 1)), allFigures
		cfg.About = About{Process{"host", 1, "1.0", time.Now()}, []Link{{"Grafana", "https://grafana.example"}}}
	}
	if cfg.Streams == nil {
		cfg.Streams = func() []stream.Stats {
			one := stream.Stats{Name: "/positions", RefusedSchema: 1}
			one.Derive("spool")
			return []stream.Stats{one}
		}
	}
	if cfg.Read == nil {
		cfg.Read = (&rows{}).someRead
	}
	if cfg.Reload == nil {
		cfg.Reload = func(context.Context) error { return nil }
	}
	if cfg.Changes == nil {
		cfg.Changes = audit.Log{new(keptChanges)}
	}
	if cfg.Configuration == nil {
		cfg.Configuration = func() Configuration {
			return Configuration{"a.yaml", "listen: 127.0.0.1:1", []SettingChange{{"listen", true, "127.0.0.1:1", "127.0.0.1:2"}}, ""}
		}
	}
	return New(cfg)
}

// keptChanges keeps changes in memory, or fails.
type keptChanges struct {
	mu  sync.Mutex
	all []audit.Change
	err error
}

func (k *keptChanges) AddChange(_ context.Context, c audit.Change) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.all = append(k.all, c)
	}
	return k.err
}

func (k *keptChanges) Changes(_ context.Context, from, before time.Time, limit int) (all []audit.Change, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range slices.Backward(k.all) {
		if !c.At.Before(from) && c.At.Before(before) && len(all) < limit {
			all = append(all, c)
		}
	}
	return all, k.err
}

// start serves cfg on a free loopback port until the test ends, and returns its base URL.
func start(t *testing.T, cfg Config) string {
	t.Helper()
	cfg.Listen = "127.0.0.1:0"
	var log bytes.Buffer
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := newServer(cfg)
	ln, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.Serve(ctx, ln); err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
	t.Cleanup(func() {
		stop()
		serving.Wait()
		for _, one := range cfg.Tokens {
			if strings.Contains(log.String(), one.Token) {
				t.Errorf("the token was logged:\n%s", log.String())
			}
		}
	})
	return "http://" + ln.Addr().String()
}

func get(t *testing.T, url string, header http.Header) (status int, answer http.Header, body string) {
	t.Helper()
	return request(t, http.MethodGet, url, header)
}

// request sends one request on a new connection.
func request(t *testing.T, method, url string, header http.Header) (status int, answer http.Header, body string) {
	t.Helper()
	return requestBy(t, &http.Transport{DisableKeepAlives: true}, method, url, header)
}

// requestBy sends one request.
func requestBy(t *testing.T, transport *http.Transport, method, url string, header http.Header) (status int, answer http.Header, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Error(err)
		return 0, nil, ""
	}
	r.Host = header.Get("Host")
	for name := range header {
		r.Header.Set(name, header.Get(name))
	}
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	response, err := client.Do(r)
	if err != nil {
		t.Error(err)
		return 0, nil, ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	return response.StatusCode, response.Header, string(text)
}
