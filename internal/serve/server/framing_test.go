package server

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
	"pgregory.net/rapid"

	"spillway/internal/serve/config"
)

// exchange sends text over a new connection, closes its sending half, and returns the
// statuses of all responses.
func exchange(tb testing.TB, address string, text []byte) (statuses []int) {
	tb.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		tb.Fatal(err)
	}
	_, err = c.Write(text)
	if err == nil {
		_ = c.(*net.TCPConn).CloseWrite() // fails if the server has closed the connection
	}
	for r := bufio.NewReader(c); ; {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return statuses
		}
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			tb.Fatalf("after %d: %v", statuses, err)
		}
		if resp.StatusCode != http.StatusContinue {
			statuses = append(statuses, resp.StatusCode)
		}
	}
}

// hidden is a request that must not be answered if a request before it has no clear end.
const hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"

// framingCase is a connection's whole input, and the statuses of its responses.
type framingCase struct {
	text string
	want []int
}

// The record of 9 bytes that the cases send.
const (
	framedThing  = `{"id":12}`
	framedChunks = "9\r\n" + framedThing + "\r\n0\r\n\r\n"
)

// framed returns a POST with further headers and a body, and the hidden request behind it.
func framed(headers, body string) string { return postThings + headers + "\r\n" + body + hidden }

// headerCases differ in their headers.
func headerCases() map[string]framingCase {
	good, refused := []int{200, 404}, []int{400}
	return map[string]framingCase{
		"length":                     {framed("Content-Length: 9\r\n", framedThing), good},
		"chunks":                     {framed("Transfer-Encoding: chunked\r\n", framedChunks), good},
		"chunks in other case":       {framed("transfer-encoding: CHUNKED\r\n", framedChunks), good},
		"body of a GET":              {"GET /list HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n" + framedThing + hidden, good},
		"continued":                  {framed("Expect: 100-continue\r\nContent-Length: 9\r\n", framedThing), good},
		"length and chunks":          {framed("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), refused},
		"chunks and length":          {framed("Transfer-Encoding: chunked\r\nCONTENT-LENGTH: 5\r\n", "0\r\n\r\n"), refused},
		"chunks and length 0":        {framed("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", framedChunks), refused},
		"GET, length and chunks":     {"GET /list HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden, refused},
		"two lengths":                {framed("Content-Length: 9\r\nContent-Length: 0\r\n", framedThing), refused},
		"a length twice":             {framed("Content-Length: 9\r\ncontent-length: 9\r\n", framedThing), refused},
		"a list of lengths":          {framed("Content-Length: 9, 9\r\n", framedThing), refused},
		"length with sign":           {framed("Content-Length: +9\r\n", framedThing), refused},
		"negative length":            {framed("Content-Length: -1\r\n", framedThing), refused},
		"hexadecimal length":         {framed("Content-Length: 0x9\r\n", framedThing), refused},
		"no digits":                  {framed("Content-Length: \r\n", framedThing), refused},
		"length beyond 64 bits":      {framed("Content-Length: 18446744073709551625\r\n", framedThing), refused},
		"space before colon":         {framed("Content-Length : 9\r\n", framedThing), refused},
		"coding, space before colon": {framed("Transfer-Encoding : chunked\r\n", framedChunks), refused},
		"two credentials":            {framed("Authorization: Bearer a\r\nContent-Length: 9\r\nauthorization: Bearer b\r\n", framedThing), refused},
		"GET, two credentials":       {"GET /list HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer a\r\n\r\n" + hidden, refused},
		"two codings":                {framed("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", framedChunks), refused},
		"coding twice":               {framed("Transfer-Encoding: chunked, chunked\r\n", framedChunks), refused},
		"unknown coding":             {framed("Transfer-Encoding: xchunked\r\n", framedChunks), refused},
		"gzip coding":                {framed("Transfer-Encoding: gzip, chunked\r\n", framedChunks), refused},
		"identity":                   {framed("Transfer-Encoding: identity\r\nContent-Length: 9\r\n", framedThing), refused},
		"identity, no length":        {framed("Transfer-Encoding: identity\r\n", ""), refused},
		"identity of a GET":          {"GET /list HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n" + hidden, refused},
		"coding behind a tab":        {framed("Transfer-Encoding:\tchunked\r\n", framedChunks), good},
		"coding behind a control":    {framed("Transfer-Encoding: \x0bchunked\r\n", framedChunks), refused},
		"coding in HTTP/1.0":         {strings.Replace(framed("Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n", framedChunks), "1.1", "1.0", 1), refused},
		"folded length":              {framed("Content-Length:\r\n 9\r\n", framedThing), refused},
		"folded coding":              {framed("Transfer-Encoding:\r\n\tchunked\r\n", framedChunks), refused},
		"length in a folded line":    {framed("X: a\r\n Content-Length: 9\r\n", framedThing), refused},
		"folded first line":          {"POST /things HTTP/1.1\r\n Host: a\r\nContent-Length: 9\r\n\r\n" + framedThing + hidden, refused},
		"line feed in a value":       {framed("X: a\nContent-Length: 9\r\n", framedThing), refused},
		"line feeds end a header":    {"GET /list HTTP/1.1\r\nHost: a\r\nX: a\n\n" + hidden, refused},
		"line feed behind a line":    {"GET /list HTTP/1.1\r\nHost: a\n\r\n" + hidden, refused},
		"carriage return in a value": {framed("X: a\rContent-Length: 9\r\n", framedThing), refused},
		"two idempotency keys":       {framed("Idempotency-Key: a\r\nIdempotency-Key: b\r\nContent-Length: 9\r\n", framedThing), []int{400, 404}},
		"NUL in a value":             {framed("X: a\x00\r\nContent-Length: 9\r\n", framedThing), refused},
		"NUL in a name":              {framed("X\x00: a\r\nContent-Length: 9\r\n", framedThing), refused},
		"line without colon":         {framed("Content-Length\r\n", framedThing), refused},
		"line without name":          {framed(": 9\r\n", framedThing), refused},
		"space in a name":            {framed("Content Length: 9\r\n", ""), refused},
		"two hosts":                  {"GET /list HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + hidden, refused},
		"no host":                    {"GET /list HTTP/1.1\r\nX: a\r\n\r\n" + hidden, refused},
		"shorter than its length":    {postThings + "Content-Length: 10\r\n\r\n" + framedThing, refused},
	}
}

// chunkCases differ in their chunks.
func chunkCases() map[string]framingCase {
	good, refused := []int{200, 404}, []int{400}
	return map[string]framingCase{
		"chunk extension":           {framed("Transfer-Encoding: chunked\r\n", "9;a=\"b\"\r\n"+framedThing+"\r\n0;c\r\n\r\n"), good},
		"trailer":                   {framed("Transfer-Encoding: chunked\r\n", "9\r\n"+framedThing+"\r\n0\r\nX: y\r\n\r\n"), good},
		"line feed in an extension": {framed("Transfer-Encoding: chunked\r\n", "9;a\n"+framedThing+"\r\n0\r\n\r\n"), refused},
		"line feed behind a size":   {framed("Transfer-Encoding: chunked\r\n", "9\n"+framedThing+"\r\n0\r\n\r\n"), refused},
		"size with prefix":          {framed("Transfer-Encoding: chunked\r\n", "0x9\r\n"+framedThing+"\r\n0\r\n\r\n"), refused},
		"size with sign":            {framed("Transfer-Encoding: chunked\r\n", "+9\r\n"+framedThing+"\r\n0\r\n\r\n"), refused},
		"negative size":             {framed("Transfer-Encoding: chunked\r\n", "-1\r\n"+framedThing+"\r\n0\r\n\r\n"), refused},
		"size beyond 64 bits":       {framed("Transfer-Encoding: chunked\r\n", "10000000000000009\r\n"+framedThing+"\r\n0\r\n\r\n"), refused},
		"longer than its size":      {framed("Transfer-Encoding: chunked\r\n", "8\r\n"+framedThing+"\r\n0\r\n\r\n"), refused},
		"line feed behind a chunk":  {framed("Transfer-Encoding: chunked\r\n", "9\r\n"+framedThing+"\n0\r\n\r\n"), refused},
		"length in a trailer":       {framed("Transfer-Encoding: chunked\r\n", "9\r\n"+framedThing+"\r\n0\r\nContent-Length: 9\r\n\r\n"), refused},
		"coding in a trailer":       {framed("Transfer-Encoding: chunked\r\n", "9\r\n"+framedThing+"\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"), refused},
		"no last chunk":             {postThings + "Transfer-Encoding: chunked\r\n\r\n9\r\n" + framedThing + "\r\n", refused},
	}
}

// TestFraming: requests whose end is ambiguous are refused, and their connection is closed.
// Whatever follows is not taken for a request.
func TestFraming(t *testing.T) {
	t.Parallel()
	address, _ := startBodies(t, nil)
	for _, cases := range []map[string]framingCase{headerCases(), chunkCases()} {
		for name, c := range cases {
			if got := exchange(t, address, []byte(c.text)); !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
		}
	}
}

// FuzzFraming: the requests that the server sees are those that net/http sees, one by one,
// until either of them refuses one.
func FuzzFraming(f *testing.F) {
	s := New(Config{
		HTTP: config.HTTP{
			Connections: 1000, HeaderBytes: 8192, BodyBytes: 4096, BodiesBytes: 1 << 20, ReadTimeout: time.Hour,
			WriteTimeout: time.Hour, IdleTimeout: time.Hour, DrainTimeout: time.Minute,
		},
		Log: slog.New(slog.DiscardHandler),
	})
	var mu sync.Mutex
	var seen []string
	s.http.Handler = func(ctx *fasthttp.RequestCtx) {
		request := string(ctx.Method()) + " " + string(ctx.RequestURI())
		s.serve(ctx)
		mu.Lock()
		defer mu.Unlock()
		if ctx.Response.StatusCode() == fasthttp.StatusNotFound { // the body was read, if there was one
			seen = append(seen, request)
		}
	}
	address := serveOn(f, s)
	for _, headers := range []string{
		"", "Content-Length: 3\r\n", "Content-Length: 3\r\nContent-Length: 3\r\n", "Transfer-Encoding: chunked\r\n",
		"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: identity\r\n", "X: a\r\n Content-Length: 3\r\n",
		"X: a\nContent-Length: 3\r\n", "Connection: close\r\n", "Expect: 100-continue\r\nContent-Length: 3\r\n",
	} {
		for _, body := range []string{"", "abc", "3\r\nabc\r\n0\r\n\r\n", "3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n", "3\nabc\r\n0\r\n\r\n"} {
			f.Add([]byte("POST /a HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n" + body + hidden))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 4096 {
			return
		}
		mu.Lock()
		seen = nil
		mu.Unlock()
		exchange(t, address, text)
		mu.Lock()
		defer mu.Unlock()
		reader := bufio.NewReader(bytes.NewReader(text))
		for i, got := range seen {
			r, err := http.ReadRequest(reader)
			if err != nil {
				return
			}
			if want := r.Method + " " + r.RequestURI; got != want {
				t.Fatalf("request %d is %q, and %q for net/http", i, got, want)
			}
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return
			}
		}
	})
}

// serveOn runs s until the test ends and returns its address.
func serveOn(tb testing.TB, s *Server) string {
	tb.Helper()
	address, _ := serveUntil(tb, s)
	return address
}

// serveUntil is serveOn with a function that stops the server.
func serveUntil(tb testing.TB, s *Server) (address string, stop context.CancelFunc) {
	tb.Helper()
	ln, err := Listen(tb.Context(), "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ln, func() {}) }()
	tb.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			tb.Errorf("Run: %v", err)
		}
	})
	return ln.Addr().String(), stop
}

// TestOnlyAsWritten: a path is served only in the spelling of the configuration, which rules of a proxy in front are about.
func TestOnlyAsWritten(t *testing.T) {
	t.Parallel()
	s := New(Config{Streams: []StreamRoute{openStream(t, &streamSink{})}, Probes: &Probes{}, Log: slog.New(slog.DiscardHandler)})
	spelling := regexp.MustCompile(`^((?i:https?)://[^/?#]*)?(/things|/hello)(\?.*)?$`)
	for _, target := range []string{"/things", "/things?a", "/things?a#b", "http://a/things?/b", "HTTPS://a:80/things"} {
		var header fasthttp.RequestHeader
		header.SetRequestURI(target)
		if got, _ := s.entryOf(&header); got == nil || !spelling.MatchString(target) {
			t.Errorf("%s is not served", target)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(rapid.SampledFrom([]string{
			"/", "//", "things", "%74hings", "t%68ings", "hello", "..", ".", "?", "#", "http://a", "x://a", "://", "@", "%2f", "%2F", "%", "\\", "a", "b=c",
		}), 1, 6).Draw(t, "parts")
		var ctx fasthttp.RequestCtx
		ctx.Request.Header.SetRequestURI(strings.Join(parts, ""))
		ctx.Request.Header.SetHost(rapid.SampledFrom([]string{"a", "", "b:1"}).Draw(t, "host"))
		got, _ := s.entryOf(&ctx.Request.Header)
		want := spelling.FindSubmatch(ctx.RequestURI())
		switch {
		case want == nil && got != nil, want != nil && got != s.routes[string(want[2])]:
			t.Fatalf("%s is served: %t", ctx.RequestURI(), got != nil)
		case got != nil && string(ctx.URI().PathOriginal()) != string(want[2]):
			t.Fatalf("the parameters of %s are those of %s", ctx.RequestURI(), ctx.URI().PathOriginal())
		}
	})
}

// TestOtherSpellings: both lanes answer other spellings of a path with 404.
func TestOtherSpellings(t *testing.T) {
	t.Parallel()
	for _, loops := range []int{1, -1} {
		url, _ := start(t, &rows{n: 10}, func(c *Config) { c.Loops = loops })
		for target, want := range map[string]string{
			"/alias/list": "200", "http://b/alias/list": "200", "//alias/list": "404", "/alias//list": "404", "/./alias/list": "404",
			"/alias/./list": "404", "/x/../alias/list": "404", "/%61lias/list": "404", "/alias%2flist": "404", "/%2falias/list": "404",
			"/alias/list/": "404", "/alias/list/.": "404", "/alias/list%20": "404", "/alias/list#a": "404", "x/y://b/alias/list": "400",
			"foo://b/alias/list": "404",
		} {
			for range 2 { // the second time from memory
				if got := raw(t, url, "GET "+target+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(got, want) {
					t.Errorf("loops %d, %s: %s, want %s", loops, target, got, want)
				}
			}
		}
		if got := raw(t, url, "GET //b/alias/list HTTP/1.0\r\n\r\n"); !strings.HasPrefix(got, "404") {
			t.Errorf("loops %d, a host in place of a segment: %s", loops, got)
		}
	}
}
