package watch

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
)

const serveToken = "0123456789abcdef"

// servedWatcher is a watch of one value that counts its readings.
type servedWatcher struct {
	watcher *Watcher
	reads   atomic.Int64
}

func newServedWatcher() *servedWatcher {
	w := &servedWatcher{}
	w.watcher = New(time.Now(), &Sampler{
		Kind: result.SamplerHost, Subject: "one", Detail: "a figure of a test", Every: 10 * time.Millisecond,
		Read: func(context.Context) ([]result.Sample, error) {
			return []result.Sample{{Values: map[string]float64{"reads_total": float64(w.reads.Add(1))}}}, nil
		},
	})
	return w
}

// serveWatch serves until the test ends, or until stop is called.
func serveWatch(t testing.TB, listener net.Listener, config ServeConfig) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, listener, config) }()
	var stopped atomic.Bool
	stop = func() {
		if stopped.Swap(true) {
			return
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func listenWatch(t testing.TB, address, token string) net.Listener {
	t.Helper()
	listener, err := Listen(t.Context(), address, token)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func TestListen(t *testing.T) {
	for _, c := range []struct{ address, token, want string }{
		{"127.0.0.1:0", "", ""},
		{"localhost:0", "", ""},
		{":0", "", ""},
		{":0", serveToken, ""},
		{"0.0.0.0:0", serveToken, ""},
		{"0.0.0.0:0", "", "set a token of at least 16 characters, or listen on 127.0.0.1"},
		{"[::]:0", "", "set a token"},
		{"example.com:0", "", "set a token"},
		{"127.0.0.1:0", "short", "the token has 5 characters"},
		{"9191", "", "write HOST:PORT"},
	} {
		listener, err := Listen(t.Context(), c.address, c.token)
		if err != nil {
			if c.want == "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Listen(%q, %q): %v, want %q", c.address, c.token, err, c.want)
			}
			continue
		}
		loopback := listener.Addr().(*net.TCPAddr).IP.IsLoopback()
		if c.want != "" || c.token == "" && !loopback {
			t.Errorf("Listen(%q, %q) listens on %v", c.address, c.token, listener.Addr())
		}
		listener.Close()
	}
	open, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), open, ServeConfig{Watcher: New(time.Now())}); err == nil || !strings.Contains(err.Error(), "set a token") {
		t.Errorf("Serve on %v without a token: %v", open.Addr(), err)
	}
}

// serveGet sends a request with a token and a Host header and returns status and body.
func serveGet(t *testing.T, url, token, host string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Host = host
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func TestServeGuards(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"", serveToken} {
		listener := listenWatch(t, "127.0.0.1:0", token)
		serveWatch(t, listener, ServeConfig{Watcher: New(time.Now()), Token: token})
		url := "http://" + listener.Addr().String()
		for _, path := range []string{"/watch", "/clock", "/samples"} {
			if token != "" {
				for _, wrong := range []string{"", "0123456789abcdeF", serveToken + "0"} {
					if status, text := serveGet(t, url+path, wrong, ""); status != http.StatusUnauthorized || strings.Contains(text, serveToken) {
						t.Errorf("%s with token %q: %d %s", path, wrong, status, text)
					}
				}
				continue
			}
			if status, _ := serveGet(t, url+path, "", "evil.example:80"); status != http.StatusMisdirectedRequest {
				t.Errorf("%s under another name: %d", path, status)
			}
		}
		if status, text := serveGet(t, url+"/clock", token, ""); status != http.StatusOK || !strings.Contains(text, `"now":"`) {
			t.Errorf("/clock: %d %s", status, text)
		}
		if status, _ := serveGet(t, url+"/mark", token, ""); status != http.StatusMethodNotAllowed {
			t.Errorf("GET /mark: %d", status)
		}
		if status, _ := serveGet(t, url+"/else", token, ""); status != http.StatusNotFound {
			t.Errorf("/else: %d", status)
		}
	}
}

// TestServeMark rejects what is no time, or too far ahead.
func TestServeMark(t *testing.T) {
	served := newServedWatcher()
	s := &server{config: ServeConfig{Watcher: served.watcher}, started: time.Now()}
	for at, want := range map[string]int{
		"":    http.StatusBadRequest,
		"now": http.StatusBadRequest,
		s.started.Add(markAhead + time.Hour).Format(time.RFC3339Nano): http.StatusBadRequest,
		s.started.Add(time.Hour).Format(time.RFC3339Nano):             http.StatusOK,
	} {
		answer := httptest.NewRecorder()
		s.mark(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mark?at="+url.QueryEscape(at), nil))
		if answer.Code != want {
			t.Errorf("%q: %d, want %d", at, answer.Code, want)
		}
	}
	if pending := len(served.watcher.marks[0]); pending != 1 {
		t.Errorf("%d marks are pending", pending)
	}
}

// TestServeReaders checks that samplers run only while there are readers, and that readers over the limit are rejected.
func TestServeReaders(t *testing.T) {
	t.Parallel()
	served := newServedWatcher()
	listener := listenWatch(t, "127.0.0.1:0", "")
	serveWatch(t, listener, ServeConfig{Watcher: served.watcher})
	url := "http://" + listener.Addr().String()
	if _, text := serveGet(t, url+"/watch", "", ""); !strings.Contains(text, "a figure of a test") || served.reads.Load() > 0 {
		t.Fatalf("with no reader %d readings, /watch is %s", served.reads.Load(), text)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	var streams []io.Closer
	for range ServeReaders {
		response, err := (&http.Client{Transport: transport}).Get(url + "/samples")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		streams = append(streams, response.Body)
		if _, err := bufio.NewReader(response.Body).ReadSlice('}'); err != nil { // a sample has come
			t.Fatal(err)
		}
	}
	if status, text := serveGet(t, url+"/samples", "", ""); status != http.StatusServiceUnavailable || !strings.Contains(text, "8 readers") {
		t.Errorf("reader %d: %d %s", ServeReaders+1, status, text)
	}
	for _, stream := range streams {
		stream.Close()
	}
	still := func() bool {
		before := served.reads.Load()
		wait := time.NewTimer(100 * time.Millisecond)
		<-wait.C
		return served.reads.Load() == before
	}
	apptest.Await(t, "there are no readings, as there is no reader", still)
	response, err := (&http.Client{Transport: transport}).Get(url + "/samples")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	before := served.reads.Load()
	apptest.Await(t, "there are readings for another reader", func() bool { return served.reads.Load() > before })
}

// TestServeStuckReader has a reader that does not read. Memory is bounded, and other readers continue.
func TestServeStuckReader(t *testing.T) {
	t.Parallel()
	w := New(time.Now(), &Sampler{Kind: result.SamplerHost, Every: time.Millisecond, Read: func(context.Context) ([]result.Sample, error) {
		many := make([]result.Sample, 200)
		for i := range many {
			many[i] = result.Sample{Subject: strings.Repeat("x", 1000), Values: map[string]float64{"v": float64(i)}}
		}
		return many, nil
	}})
	b := newBroadcast(w)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); b.run(ctx) }()
	stuck, ok := b.join()
	if !ok {
		t.Fatal("no place for a first reader")
	}
	apptest.Await(t, "10,000 samples are lost", func() bool { return stuck.lost.Load() > 10_000 })
	b.leave(stuck)
	cancel()
	<-ended
	if n := len(stuck.lines); n != ServeBuffer {
		t.Errorf("%d samples wait", n)
	}
	if s, err := parseSample(lostLine(3, time.Second)); err != nil || s.Values["samples_lost_total"] != 3 || s.Error == "" {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestServeLive pauses reading a stream over a real connection.
func TestServeLive(t *testing.T) {
	t.Parallel()
	served := newServedWatcher()
	listener := listenWatch(t, "127.0.0.1:0", "")
	serveWatch(t, listener, ServeConfig{Watcher: served.watcher})
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /samples HTTP/1.1\r\nHost: localhost\r\n\r\n")
	apptest.Await(t, "there are 20 readings", func() bool { return served.reads.Load() > 20 })
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(response.Body)
	var last float64
	for last < 20 && lines.Scan() {
		s, err := parseSample(lines.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if s != nil && s.Sampler == result.SamplerHost {
			if v := s.Values["reads_total"]; v != last+1 {
				t.Fatalf("reading %g follows %g", v, last)
			}
			last++
		}
	}
	if last < 20 {
		t.Errorf("the stream ended after %g readings: %v", last, lines.Err())
	}
}

func FuzzParseSample(f *testing.F) {
	f.Add([]byte("{\"at_seconds\":1,\"sampler\":\"host\",\"values\":{\"x\":1}}\n\n{}\n"))
	f.Add([]byte("{\"at_seconds\":1e999,\"sampler\":\"\\u001b[2J\"}\nnull\n[]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for line := range bytes.Lines(text) {
			s, err := parseSample(bytes.TrimSuffix(line, []byte("\n")))
			if err != nil {
				return
			}
			if s != nil && (s.Sampler == "" || strings.ContainsAny(s.Sampler+s.Subject+s.Error, "\x1b\n\r")) {
				t.Fatalf("%+v", s)
			}
		}
	})
}
