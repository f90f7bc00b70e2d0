package server

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/apptest"
	"spillway/internal/serve/config"
)

// startBodies serves a stream that accepts bodies of 300 kB, three at a time.
func startBodies(t *testing.T, change func(*Config)) (address string, s *Server) {
	t.Helper()
	route := openStream(t, &streamSink{})
	route.Limits.Bytes = 300_000
	url, s := start(t, &rows{n: 5}, func(c *Config) {
		c.Streams, c.BodyBytes, c.BodiesBytes = []StreamRoute{route}, 1<<20, 950_000
		if change != nil {
			change(c)
		}
	})
	return strings.TrimPrefix(url, "http://"), s
}

// dialBody connects and sends the beginning of a request.
func dialBody(t *testing.T, address, text string) *bufio.ReadWriter {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	both := bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c))
	sendPart(t, both, text)
	return both
}

func sendPart(t *testing.T, c *bufio.ReadWriter, text string) {
	t.Helper()
	_, err := c.WriteString(text)
	if err == nil {
		err = c.Flush()
	}
	if err != nil {
		t.Error(err)
	}
}

// wantHeld waits until the server holds n bytes of incomplete bodies.
func wantHeld(t *testing.T, s *Server, n int64) {
	t.Helper()
	apptest.AwaitState(t, fmt.Sprintf("bodies of %d bytes are under way", n), func() (string, bool) {
		held := s.bodies.held.Load()
		return fmt.Sprintf("%d bytes", held), held == n
	})
}

// wantText reads an answer, compares its status, and looks for texts in its body.
func wantText(t *testing.T, c *bufio.ReadWriter, status int, parts ...string) *http.Response {
	t.Helper()
	resp, err := http.ReadResponse(c.Reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range append(parts, "") {
		if resp.StatusCode != status || !strings.Contains(string(body), part) {
			t.Errorf("%d %s, want %d with %q", resp.StatusCode, body, status, part)
		}
	}
	return resp
}

const (
	postThings  = "POST /things HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
	largeThing  = postThings + "Content-Length: 300000\r\n\r\n"
	chunkThings = postThings + "Transfer-Encoding: chunked\r\n\r\n"
)

// TestBodiesBytes: the total size of bodies on all connections is limited, even if some are
// aborted. Small bodies are accepted at the same time.
func TestBodiesBytes(t *testing.T) {
	t.Parallel()
	address, s := startBodies(t, nil)
	half := dialBody(t, address, largeThing+`{"id":1}`)
	gone, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(gone, chunkThings+"8\r\n{\"id\":2}\r\n"); err != nil { // breaks off between two chunks
		t.Fatal(err)
	}
	chunks := dialBody(t, address, chunkThings+"8\r\n{\"id\":3}\r\n")
	wantHeld(t, s, 900_000)
	for _, text := range []string{largeThing, chunkThings + "1000\r\n", postThings + "Content-Length: 300000\r\nExpect: 100-continue\r\n\r\n"} {
		resp := wantText(t, dialBody(t, address, text), 503, "too-many-bodies", "http.bodies_bytes")
		if resp.Header.Get("Retry-After") == "" || !resp.Close {
			t.Errorf("%v", resp.Header)
		}
	}
	if a := send(t, "http://"+address+"/things", `{"id":4}`); a.status != 200 {
		t.Errorf("a small body: %d %s", a.status, a.body)
	}
	if n := s.bodies.refused.Load(); n != 3 {
		t.Errorf("%d are counted as refused", n)
	}
	_ = gone.Close()
	wantHeld(t, s, 600_000)
	sendPart(t, half, strings.Repeat(" ", 300_000-8))
	wantText(t, half, 200, `"stored":1`)
	sendPart(t, chunks, "0\r\n\r\n")
	wantText(t, chunks, 200, `"stored":1`)
	wantHeld(t, s, 0) // although both connections are open
	for range 5 {     // on one connection, one by one
		sendPart(t, half, largeThing+`{"id":5}`+strings.Repeat(" ", 300_000-8))
		wantText(t, half, 200, `"stored":1`)
	}
	asked := dialBody(t, address, postThings+"Content-Length: 8\r\nExpect: 100-continue\r\n\r\n")
	wantText(t, asked, 100)
	sendPart(t, asked, `{"id":6}`)
	wantText(t, asked, 200, `"stored":1`)
	wantHeld(t, s, 0)
}

// TestBodiesBehindTLS: the limit also applies to TLS connections.
func TestBodiesBehindTLS(t *testing.T) {
	t.Parallel()
	certificate := httptest.NewTLSServer(http.NotFoundHandler())
	defer certificate.Close()
	address, s := startBodies(t, func(c *Config) {
		c.TLS = &tls.Config{Certificates: certificate.TLS.Certificates, MinVersion: tls.VersionTLS12}
	})
	pool := certificate.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	c, err := tls.Dial("tcp", address, &tls.Config{RootCAs: pool, ServerName: "example.com"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, largeThing+"["); err != nil {
		t.Fatal(err)
	}
	wantHeld(t, s, 300_000)
	_ = c.Close()
	wantHeld(t, s, 0)
}

// TestBodyBrokenOff: if the client leaves between two chunks of a body, nothing is stored,
// with and without TLS.
func TestBodyBrokenOff(t *testing.T) {
	t.Parallel()
	certificate := httptest.NewTLSServer(http.NotFoundHandler())
	defer certificate.Close()
	for _, secure := range []bool{false, true} {
		sink := &streamSink{}
		route := openStream(t, sink)
		url, s := start(t, &rows{n: 5}, func(c *Config) {
			c.Streams, c.BodyBytes, c.BodiesBytes = []StreamRoute{route}, 1<<20, 1<<20
			if secure {
				c.TLS = &tls.Config{Certificates: certificate.TLS.Certificates, MinVersion: tls.VersionTLS12}
			}
		})
		var c interface {
			io.ReadWriter
			CloseWrite() error
		}
		plain, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer plain.Close()
		c = plain.(*net.TCPConn)
		if secure {
			pool := certificate.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
			c = tls.Client(plain, &tls.Config{RootCAs: pool, ServerName: "example.com"})
		}
		if _, err := io.WriteString(c, chunkThings+"8\r\n{\"id\":3}\r\n"); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		both := bufio.NewReadWriter(bufio.NewReader(c), nil)
		wantText(t, both, 400, "request ended early")
		wantHeld(t, s, 0)
		sink.mu.Lock()
		if sink.rows != 0 {
			t.Errorf("TLS %v: %d records of half a body are stored", secure, sink.rows)
		}
		sink.mu.Unlock()
	}
}

// TestBodyWhereNoneIsRead: requests whose body is not read do not count against the limit.
func TestBodyWhereNoneIsRead(t *testing.T) {
	t.Parallel()
	address, s := startBodies(t, func(c *Config) { c.Keys = []string{"one-key-of-sixteen"} })
	for _, c := range []struct {
		line   string
		status int
		part   string
	}{
		{"POST /nothing", 404, "not-found"},
		{"PUT /things", 413, "4096 bytes"},
		{"GET /things", 413, "4096 bytes"},
		{"GET /list", 413, "4096 bytes"},
		{"POST /list", 413, "4096 bytes"},
		{"POST /things", 401, "unauthorized"},
	} {
		wantText(t, dialBody(t, address, c.line+" HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n"), c.status, c.part)
		if c.status == 413 {
			conn := dialBody(t, address, c.line+" HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"+fmt.Sprintf("%x\r\n%s\r\n", 5000, strings.Repeat(" ", 5000)))
			wantText(t, conn, c.status, c.part)
		}
	}
	wantHeld(t, s, 0)
}

// TestRefusedBodyIsAnswered: a client that continues to send a refused body still gets the
// answer.
func TestRefusedBodyIsAnswered(t *testing.T) {
	t.Parallel()
	address, _ := startBodies(t, nil)
	const size = 8 << 20
	c := dialBody(t, address, fmt.Sprintf(postThings+"Content-Length: %d\r\n\r\n", size))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.Copy(c.Writer, strings.NewReader(strings.Repeat(" ", size))) // the server may close first
	}()
	<-sent
	wantText(t, c, 413, "300000 bytes")
}

// TestRefusedBodiesHaveTheirOwnIDs: each refusal has an id that no other request had.
func TestRefusedBodiesHaveTheirOwnIDs(t *testing.T) {
	t.Parallel()
	address, _ := startBodies(t, nil)
	seen := map[string]bool{}
	for range 3 {
		c := dialBody(t, address, "GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n")
		seen[wantText(t, c, 404).Header.Get("X-Request-Id")] = true
		sendPart(t, c, postThings+"Content-Length: 9000000\r\n\r\n")
		seen[wantText(t, c, 413).Header.Get("X-Request-Id")] = true
	}
	if len(seen) != 6 || seen[""] {
		t.Errorf("ids of six requests: %v", seen)
	}
}

// BenchmarkReceived measures the cost of the limit on bodies per small body, including the
// lookup of path and method.
func BenchmarkReceived(b *testing.B) {
	route := openStream(b, &streamSink{})
	s := New(Config{Streams: []StreamRoute{route}, HTTP: config.HTTP{BodyBytes: 1000, BodiesBytes: 1 << 20}, Log: slog.New(slog.DiscardHandler)})
	var ctx fasthttp.RequestCtx
	ctx.Request.Header.SetMethod("POST")
	ctx.Request.Header.SetRequestURI("/things")
	ctx.Request.Header.SetContentLength(100)
	b.ReportAllocs()
	for b.Loop() {
		s.received(&ctx.Request.Header)
		s.dropBody(&ctx)
	}
}

// BenchmarkReceivedGet measures the checks of a GET from a browser, on top of fasthttp's.
func BenchmarkReceivedGet(b *testing.B) {
	s := New(Config{HTTP: config.HTTP{BodyBytes: 1000, BodiesBytes: 1 << 20}, Log: slog.New(slog.DiscardHandler)})
	for name, headers := range map[string]string{
		"lines=1": "",
		"lines=8": "User-Agent: Mozilla/5.0 (X11; Linux x86_64) Chrome/140\r\nAccept: application/json\r\nAccept-Encoding: gzip, br, zstd\r\n" +
			"Accept-Language: en-US,en;q=0.9\r\nConnection: keep-alive\r\nReferer: https://app.example/orders\r\nCookie: theme=dark\r\n",
	} {
		b.Run(name, func(b *testing.B) {
			var h fasthttp.RequestHeader
			if err := h.Read(bufio.NewReader(strings.NewReader("GET /list HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n"))); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				s.received(&h)
			}
		})
	}
}
