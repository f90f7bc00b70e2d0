//go:build linux && !portable

package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/popup"
)

// laneHeaderBytes is the header limit of the servers here.
const laneHeaderBytes = 2048

// lane is a server that answers by event loops, or only by fasthttp.
type lane struct {
	*Server
	address string
	peer    netip.AddrPort
	regular *atomic.Int64 // requests that fasthttp's server answered
	stopNow context.CancelFunc
}

// startLanes runs two servers that differ only in their event loops. Tests that send many requests to them do not run in parallel: a
// loop keeps a processor while it expects the next request, and loops of several servers take it from each other.
func startLanes(tb testing.TB, change func(*Config)) (fast, regular *lane) {
	tb.Helper()
	return startLane(tb, 1, change), startLane(tb, -1, change)
}

// startLane runs a server with engines of its own, which have the same contents as those of others.
func startLane(tb testing.TB, loops int, change func(*Config)) *lane {
	tb.Helper()
	list := listConfig()
	open := func(c feed.Config) *feed.Feed {
		f := feed.Open(c, &loopRows{rows{n: 5000, pad: orderPad}})
		tb.Cleanup(f.Close)
		return f
	}
	bare := list
	bare.Envelope = feed.EnvelopeNone
	now := time.Unix(1_700_000_000, 0).UTC()
	popups := popupRouteOf(tb, popup.Config{Store: popup.NewMemory(1000, nil), Now: func() time.Time { return now }}, popupCampaign(1))
	cfg := Config{
		Feeds: []FeedRoute{
			{Paths: []string{"/list", "/alias/list"}, Feed: open(list), Columns: feed.Columns{"id", "name"}},
			{Paths: []string{"/bare"}, Feed: open(bare)},
		},
		Queries: append(uncachedQueries(tb), QueryRoute{Paths: []string{"/q", "/q/{a}"}, Query: openQuery(tb, &answers{rows: 20}, nil)}),
		Popup:   &popups, Streams: []StreamRoute{openStream(tb, &streamSink{})}, Log: slog.New(slog.DiscardHandler),
		Files:  []File{{Path: "/openapi.json", Type: "application/json", Read: func() []byte { return []byte(`{"openapi":"3.1.0"}`) }}},
		Probes: &Probes{Database: func(context.Context) error { return nil }},
		HTTP: config.HTTP{
			Connections: 1000, HeaderBytes: laneHeaderBytes, BodyBytes: 1000, BodiesBytes: 1 << 20, CompressBytes: 1 << 20, Loops: loops,
			ReadTimeout: time.Hour, WriteTimeout: time.Hour, IdleTimeout: time.Hour, DrainTimeout: time.Minute,
		},
	}
	if change != nil {
		change(&cfg)
	}
	s := New(cfg)
	s.ids.last.Store(1 << 40) // so that all ids have the same length
	s.pauses.clientCheck = time.Hour
	s.pauses.linger = time.Minute
	if s.rate != nil {
		s.rate.neverRefill()
	}
	l := &lane{Server: s, regular: new(atomic.Int64)}
	handle := s.http.Handler
	s.http.Handler = func(ctx *fasthttp.RequestCtx) {
		l.regular.Add(1)
		handle(ctx)
	}
	l.address, l.stopNow = serveUntil(tb, s)
	l.peer = netip.MustParseAddrPort(l.address)
	return l
}

// input is what a client sends: pieces that the server reads one by one, then perhaps farewell, then the end of its sending half.
type input struct {
	pieces []string
	half   bool // without farewell
}

// farewell shows that a connection is still open after an input, and what the server takes for a request.
const farewell = "GET /farewell HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

// outcome is what a client sees.
type outcome struct {
	text string // all that was answered
	end  string // how the connection has ended
}

// converse sends an input over a new connection.
func (l *lane) converse(tb testing.TB, in input) outcome {
	tb.Helper()
	dialed, err := net.Dial("tcp", l.address)
	if err != nil {
		tb.Fatal(err)
	}
	c := dialed.(*net.TCPConn)
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		tb.Fatal(err)
	}
	var text bytes.Buffer
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(&text, struct{ io.Reader }{c})
		ended <- err
	}()
	pieces := in.pieces
	if !in.half {
		pieces = append(pieces[:len(pieces):len(pieces)], farewell)
	}
	for i, piece := range pieces {
		if i > 0 {
			awaitRead(c, func() bool { return len(ended) > 0 })
		}
		if _, err := io.WriteString(c, piece); err != nil {
			break // the connection has ended
		}
	}
	_ = c.CloseWrite() // as above
	err = <-ended
	o := outcome{text: l.comparable(text.String())}
	switch {
	case len(pieces) > 1 && (err == nil || isReset(err)):
		o.end = "closed or reset" // by whether a piece came before it was closed, or after
	case err == nil:
		o.end = "closed"
	case isReset(err):
		o.end = "reset"
	default:
		o.end = err.Error()
	}
	return o
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// awaitRead returns when the server, which is in this process, has read all that c has sent, or it is over.
func awaitRead(c net.Conn, over func() bool) {
	self := c.LocalAddr().(*net.TCPAddr).AddrPort()
	self = netip.AddrPortFrom(self.Addr().Unmap(), self.Port())
	fd := -1
	for pause := 10 * time.Microsecond; !over(); pause = min(2*pause, time.Millisecond) {
		if peer, _ := peerOf(fd); peer != self {
			fd = descriptorFrom(self)
		}
		if unread, err := unix.IoctlGetInt(fd, unix.TIOCINQ); fd >= 0 && err == nil && unread == 0 {
			return
		}
		<-time.After(pause)
	}
}

// descriptorFrom returns the server's descriptor of the connection from a client; -1: there is none yet.
func descriptorFrom(client netip.AddrPort) int {
	const gapMax = 64 // between two descriptors: the lowest free one is used
	for fd, last := 3, 3; fd-last < gapMax; fd++ {
		from, used := peerOf(fd)
		if from == client {
			return fd
		}
		if used {
			last = fd
		}
	}
	return -1
}

// peerOf returns the peer of a descriptor, if it is a connection that has one, and whether the descriptor is in use.
func peerOf(fd int) (peer netip.AddrPort, used bool) {
	name, err := unix.Getpeername(fd)
	if four, ok := name.(*unix.SockaddrInet4); ok && err == nil {
		return netip.AddrPortFrom(netip.AddrFrom4(four.Addr), uint16(four.Port)), true
	}
	return netip.AddrPort{}, err != unix.EBADF
}

// comparable returns an answer without what another server would answer differently.
func (l *lane) comparable(text string) string {
	text = regexp.MustCompile(`(\n(?:Date|Age|Retry-After|Spillway-Offset|retry): )[^\r\n]*`).ReplaceAllString(text, "${1}…")
	return regexp.MustCompile(fmt.Sprintf("%08x-[0-9a-f]+", l.ids.boot)).ReplaceAllString(text, "ID")
}

// difference sends an input to both lanes, and returns how their answers differ; "" if they do not.
func difference(tb testing.TB, fast, regular *lane, in input) string {
	tb.Helper()
	a, b := fast.converse(tb, in), regular.converse(tb, in)
	if a == b {
		return ""
	}
	return fmt.Sprintf("%q, half %v:\n   fast: %s, %q\nregular: %s, %q", in.pieces, in.half, a.end, a.text, b.end, b.text)
}

// get returns a request with further headers, each with its end.
func get(target string, headers ...string) string {
	return "GET " + target + " HTTP/1.1\r\nHost: a\r\n" + strings.Join(headers, "") + "\r\n"
}

// quickRequests are requests that event loops answer.
func quickRequests() map[string]string {
	return map[string]string{
		"hello":                 get("/hello"),
		"hello, a parameter":    get("/hello?a=b"),
		"HEAD":                  strings.Replace(get("/hello"), "GET", "HEAD", 1),
		"HEAD of a page":        strings.Replace(get("/list"), "GET", "HEAD", 1),
		"document":              get("/openapi.json"),
		"1.0":                   "GET /hello HTTP/1.0\r\nHost: a\r\n\r\n",
		"1.0, keep-alive":       "GET /list HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
		"1.0, Keep-Alive":       "GET /list HTTP/1.0\r\nHost: a\r\nconnection: Keep-Alive\r\n\r\n",
		"1.0, a list":           "GET /list HTTP/1.0\r\nHost: a\r\nConnection: foo, keep-alive\r\n\r\n",
		"1.0, close":            "GET /list HTTP/1.0\r\nHost: a\r\nConnection: close\r\n\r\n",
		"close":                 get("/list", "Connection: close\r\n"),
		"Close":                 get("/list", "Connection: Close\r\n"),
		"keep-alive":            get("/list", "Connection: keep-alive\r\n"),
		"close twice":           get("/list", "Connection: close\r\n", "Connection: keep-alive\r\n"),
		"close, in a list":      get("/list", "Connection: foo, close\r\n"),
		"Connection: Upgrade":   get("/list", "Connection: Upgrade\r\n"),
		"Connection: TE":        get("/list", "Connection: TE, keep-alive,, ;\r\n"),
		"empty Connection":      get("/list", "Connection:\r\n"),
		"page":                  get("/list"),
		"page at an alias":      get("/alias/list?"),
		"page without envelope": get("/bare?limit=5"),
		"offset":                get("/list?offset=7&limit=3"),
		"limit":                 get("/list?limit=100"),
		"fields":                get("/list?fields=id"),
		"fields, all":           get("/list?fields=id,name&fields="),
		"percent":               get("/list?%6cimit=%31"),
		"plus":                  get("/list?limit=5&a=+"),
		"slashes":               get("/alias/list?a//b/../c"),
		"fragment":              get("/list?a#b?c"),
		"tag *":                 get("/list", "If-None-Match: *\r\n"),
		"gzip":                  get("/list", "Accept-Encoding: gzip\r\n"),
		"zstd":                  get("/list?limit=50", "Accept-Encoding: gzip;q=0.5, zstd\r\n"),
		"codings in two lines":  get("/list?limit=50", "Accept-Encoding: gzip;q=0.5\r\n", "accept-encoding: zstd, *;q=0\r\n"),
		"identity":              get("/list", "Accept-Encoding: identity\r\n"),
		"Accept":                get("/list", "Accept: text/html, */*;q=0.1\r\n"),
		"request id":            get("/list", "X-Request-Id: trace-1\r\n"),
		"unsafe request id":     get("/list", "X-Request-Id: <a>\r\n"),
		"origin":                get("/list", "Origin: https://app.example\r\n"),
		"foreign origin":        get("/list", "Origin: https://evil.example\r\n"),
		"host":                  "GET /list HTTP/1.1\r\nHost: app.example:80\r\n\r\n",
		"HOST":                  "GET /list HTTP/1.1\r\nHOST:APP.example\r\n\r\n",
		"address":               "GET /list HTTP/1.1\r\nhost:   127.0.0.1:8080  \r\n\r\n",
		"browser":               get("/list", browserHeaders),
		"answer":                get("/q?a=1"),
		"answer, gzip":          get("/q?a=1", "Accept-Encoding: gzip\r\n"),
		"answer, HEAD":          strings.Replace(get("/q?a=1"), "GET", "HEAD", 1),
		"answer, in its path":   get("/q/1"),
		"answer, encoded":       get("/q/%31"),
		"popup not due":         get("/popup?user=7"),
		"tab in a value":        get("/list", "X: \ta\tb \t\r\n"),
		"bytes above 127":       get("/list?a=\xff\xc3\xa4", "X: \xff\r\n"),
		"empty value":           get("/list", "X:\r\n", "Y: \r\n"),
		"strange names":         get("/list", "!#$%&'*+-.^_`|~09: a\r\n"),
		"cookies":               get("/list", "Cookie: a=b; c\r\n", "Cookie: d\r\n"),
		"range":                 get("/list", "Range: bytes=0-5\r\n", "If-Modified-Since: Sat, 29 Oct 1994 19:43:31 GMT\r\n"),
		"forwarded":             get("/list", "X-Forwarded-For: 1.2.3.4\r\n", "X-HTTP-Method-Override: POST\r\n", "X-Original-URL: /hello\r\n"),
		"long":                  ofLength(laneHeaderBytes),
		"shorter":               ofLength(laneHeaderBytes - 1),
	}
}

// skipped says whether the i-th case is left out of a short run, which has one of n, and each run others.
func skipped(i, n int) bool { return testing.Short() && (i+shortTurn)%n > 0 }

var shortTurn = rand.IntN(1 << 20)

// some returns about a third of the requests with -short, another one each time, and all otherwise.
func some(requests map[string]string) map[string]string {
	for name := range requests {
		if testing.Short() && rand.IntN(3) > 0 {
			delete(requests, name)
		}
	}
	return requests
}

// browserHeaders are what browsers send.
const browserHeaders = "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36\r\n" +
	"Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n" +
	"Accept-Language: de-AT,de;q=0.8,en-US;q=0.5,en;q=0.3\r\nCache-Control: no-cache\r\nPragma: no-cache\r\nSec-Fetch-Mode: navigate\r\n" +
	"Upgrade-Insecure-Requests: 1\r\nPriority: u=0, i\r\nReferer: http://a/list\r\nCookie: session=abc\r\nConnection: keep-alive\r\n"

// ofLength returns a request of n bytes.
func ofLength(n int) string {
	return get("/list", "X: "+strings.Repeat("x", n-len(get("/list"))-len("X: \r\n"))+"\r\n")
}

// strangeLines are request lines and targets that few clients send.
func strangeLines() []string {
	lines := []string{
		"GET /hello", "GET /hello HTTP/0.9", "GET /hello HTTP/2.0", "GET /hello HTTP/1.2", "GET /hello HTTP/1.10", "GET /hello http/1.1",
		"GET /hello HTTP/1.1 ", "GET /hello  HTTP/1.1", "GET  /hello HTTP/1.1", " GET /hello HTTP/1.1", "GET\t/hello HTTP/1.1", "GET /hello\tHTTP/1.1",
		"GET /hello HTTP/1.1\t", "GET /hello /list HTTP/1.1", "GET /hello HTTP/1.1 HTTP/1.1", "GET /hello HTTP/1.0 HTTP/1.1", "GET HTTP/1.1", "GET  HTTP/1.1",
		"get /hello HTTP/1.1", "Get /hello HTTP/1.1", "gET /hello HTTP/1.1", "head /hello HTTP/1.1", "GETS /hello HTTP/1.1", "G /hello HTTP/1.1",
		"POST /hello HTTP/1.1", "PUT /list HTTP/1.1", "DELETE /list HTTP/1.1", "OPTIONS /list HTTP/1.1", "OPTIONS * HTTP/1.1", "TRACE /hello HTTP/1.1",
		"CONNECT a:80 HTTP/1.1", "PRI * HTTP/2.0", "PATCH /list HTTP/1.1", "QUERY /list HTTP/1.1", "\r\nGET /hello HTTP/1.1", "\r\n\r\nGET /hello HTTP/1.1",
		"\nGET /hello HTTP/1.1", "\rGET /hello HTTP/1.1", "\x00GET /hello HTTP/1.1", "\xef\xbb\xbfGET /hello HTTP/1.1", "", "\x16\x03\x01",
	}
	for _, target := range []string{
		"*", "http://a/hello", "http://b/hello", "HTTP://a/hello", "https://a/list?limit=1", "http://a", "http://a:80/hello", "http://u:p@a/hello",
		"//a/hello", "//hello", "///hello", "/\\a/hello", "/hello//", "//", "/", "hello", "a:80", "?", "/?", "/hello?", "/hello??", "/hello/", "/hello;a=b",
		"/%2fhello", "/%2Fhello", "/hello%2f", "/hell%6f", "/hell%6F", "/hello%", "/hello%0", "/hello%zz", "/hello%00", "/hello%0d%0aX:y", "/hello%20",
		"/%2e%2e/hello", "/../hello", "/./hello", "/a/../hello", "/hello/.", "/hello/..", "/hello/../list", "/..", "/.", "/%5c", "/\\hello", "/hello\\",
		"/hello#", "/hello#a", "/#hello", "/list#?limit=1", "/hello:80", "/:80", "/@a", "/http://a/hello", "/hello?http://a/", "/hello?a=//b/c", "/hello\x7f",
		"/hello\x00", "/hello\x01", "/hello\x80", "/hell\xc3\xb6", "/hello\"", "/hello<>", "/hello{}|^`", "/HELLO", "/List", "/alias/list/", "/alias//list", "//alias/list",
		"/list?limit=0", "/list?limit=101", "/list?limit=x", "/list?limit=%31", "/list?limit=1&limit=2", "/list?offset=199", "/list?offset=3000", "/list?before=x",
		"/list?offset=1&before=x", "/list?fields=x", "/list?fields=", "/list?limit=1;offset=2", "/list?&&=&", "/list?limit", "/list?%6cimit=1", "/list?limit=1#x",
		"/bare?limit=2&limit=3&x=%0d%0a", "/bare?limit=100&offset=100", "/q", "/q?a=", "/q?a", "/q?a=new", "/q?b=1", "/q?a=1&a=2", "/q?a=%00", "/q?a=1&fields=id", "/q/", "/q/new", "/q/%zz", "/q/%00", "/q/..", "/q/1/", "/q/1?a=2", "/q/1?b=2", "/q//1", "/%71/1",
		"/popup", "/popup?user=", "/popup?user=new", "/popup?user=7&user=8", "/popup?user=7&placement=checkout", "/popup?user=7&placement=x", "/popup?user=7&x=y",
		"/popup?user=7&clock_offset=25h", "/popup/click", "/probe/empty", "/probe/database", "/probe/redis?key=a", "/openapi.json?", "/favicon.ico",
		"/" + strings.Repeat("a", laneHeaderBytes), "/hello?" + strings.Repeat("a/", laneHeaderBytes/4),
	} {
		lines = append(lines, "GET "+target+" HTTP/1.1", "HEAD "+target+" HTTP/1.0")
	}
	return lines
}

// strangeHeaders are fields that few clients send, after one Host and before another field.
func strangeHeaders() []string {
	headers := []string{
		"Host: a", "host: a", "Host: b", "Host:", "Host : a", " Host: b", "\tHost: b", "X-Host: b", "X: y\r\n Host: b", "X: y\r\n\tz", ": a", ":", "a", "a b: c", " ", "\t",
		"X : a", "X\t: a", "X\x0b: a", "X\x00: a", "X\r: a", "\x00: a", "X: a\x00", "X: \x01", "X: \x0b\x0c", "X: \x7f", "X: a\rb", "X: a\nb", "X: a\r\r", "X: a\n", "X: a\r\n",
		"X\xff: a", "(X): a", "X/Y: a", "X,Y: a", "X[]: a", "{X}: a", "X=Y: a", "\"X\": a", "@X: a", "X;Y: a", "X?: a", "X\\: a", "X<>: a", "X: a:b", "X::a", "X:\t", "X\x85: a", "é: a",
		"Expect: 100-continue", "expect: 100-CONTINUE", "Expect: 200-ok", "Expect:", "TE: trailers", "te: chunked", "Trailer: X", "Trailer: Content-Length", "trailer:",
		"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__", "Upgrade: websocket\r\nConnection: Upgrade", "HTTP2-Settings: a", "Upgrade: TLS/1.2",
		"Connection: close, X\r\nX: y", "Connection: close\r\nConnection: close", "Connection: keep-alive\r\nConnection: close", "Connection: CLOSE", "Connection:close ", "Connection:\tclose",
		"Connection : close", "Connection: \"close\"", "Connection: close;q=0", "Connection: host", "Proxy-Connection: keep-alive", "Keep-Alive: timeout=5", "Connection: \x01",
		"Content-Type: text/plain", "content-type: multipart/form-data; boundary=x", "Content-Encoding: gzip", "Content-Lengthy: 5", "Content: 5", "X-Content-Length: 5",
		"Accept: text/event-stream", "Accept: text/event-stream;q=0, */*", "Last-Event-ID: 7", "If-None-Match: *", "If-None-Match: W/\"a\", *", "If-None-Match:", "If-Match: \"a\"",
		"Accept-Encoding: gzip\r\nAccept-Encoding: zstd;q=0.1", "Accept-Encoding: *", "Accept-Encoding: gzip;q=x", "Accept-Encoding:", "Accept-Encoding: zstd;q=1.000",
		"Origin: null", "Origin: HTTPS://APP.example", "Origin: https://app.example\r\nOrigin: https://evil.example", "X-Request-Id: a\r\nX-Request-Id: b", "X-Request-Id: " + strings.Repeat("a", 129),
		"Authorization: Bearer a", "Cookie: a=b; a=c", "X: " + strings.Repeat("y", laneHeaderBytes), strings.Repeat("X", laneHeaderBytes) + ": y",
		strings.Repeat("X: y\r\n", laneHeaderBytes/8) + "X: y", "User-Agent: a\r\nUser-Agent: b", "Referer: \xff", "Content-Disposition: a",
	}
	for _, size := range []int{-40, -3, -2, -1, 0, 1, 2, 3} {
		headers = append(headers, "X: "+strings.Repeat("y", laneHeaderBytes+size-len(get("/hello", "X: \r\n", "Y: z\r\n"))))
	}
	return headers
}

// smugglers are heads whose end or body proxies and servers have been known to read differently. A body follows.
func smugglers() []string {
	return []string{
		"Content-Length: 0", "content-length: 0", "Content-Length: 5", "Content-Length: 6\r\nContent-Length: 5", "Content-Length: 5\r\nContent-Length: 5", "Content-Length: 5, 5", "Content-Length: 5,6",
		"Content-Length: +5", "Content-Length: -5", "Content-Length: 05", "Content-Length: 0x5", "Content-Length: 5 ", "Content-Length:  5", "Content-Length:\t5", "Content-Length: 5\x0b", "Content-Length: \x0c5",
		"Content-Length: 5_", "Content-Length: 5 5", "Content-Length: 5;", "Content-Length: \"5\"", "Content-Length:", "Content-Length: ", "Content-Length: a", "Content-Length: 1e1", "Content-Length: 5.0",
		"Content-Length: 18446744073709551616", "Content-Length: 9223372036854775808", "Content-Length: ٥", "Content-Length : 5", "Content-Length\t: 5", "Content-Length\x0b: 5", "Content-Length\x00: 5", " Content-Length: 5",
		"Content\x00-Length: 5", "Content-Length\r: 5", "\x00Content-Length: 5", "\xff\xfeContent-Length: 5", "Content_Length: 5", "Content-Length\xa0: 5", "Content-Len\r\ngth: 5", "Content-Length:\r\n 5", "X: y\nContent-Length: 5",
		"X: y\rContent-Length: 5", "X: y\r\n\rContent-Length: 5", "X: y\x00Content-Length: 5", "X:\nContent-Length: 5", "Content-Length=5", "Content Length: 5", "X: y\r\r\nContent-Length: 5",
		"Transfer-Encoding: chunked", "transfer-encoding: CHUNKED", "Transfer-Encoding: chunked\r\nContent-Length: 5", "Content-Length: 5\r\nTransfer-Encoding: chunked", "Content-Length: 0\r\nTransfer-Encoding: chunked",
		"Transfer-Encoding: identity", "Transfer-Encoding: identity, chunked", "Transfer-Encoding: chunked, identity", "Transfer-Encoding: gzip", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: xchunked",
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: x", "Transfer-Encoding: x\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked, chunked",
		"Transfer-Encoding : chunked", "Transfer-Encoding\t: chunked", " Transfer-Encoding: chunked", "\tTransfer-Encoding: chunked", "Transfer-Encoding:chunked", "Transfer-Encoding:\tchunked", "Transfer-Encoding:\x0bchunked",
		"Transfer-Encoding: \x00chunked", "Transfer-Encoding: chunked\x00", "Transfer-Encoding: \"chunked\"", "Transfer-Encoding: 'chunked'", "Transfer-Encoding: chunked;a=b", "Transfer-Encoding: chunk", "Transfer-Encoding: chu\r\n nked",
		"Transfer-Encoding:\r\n chunked", "Transfer-Encoding:\r\n\tchunked", "Transfer-Encoding:\n chunked", "X: y\nTransfer-Encoding: chunked", "X: y\rTransfer-Encoding: chunked", "X: y\r\n Transfer-Encoding: chunked", "X:\x0aTransfer-Encoding: chunked",
		"Transfer-Encoding\r\n: chunked", "Transfer-Encoding\x00: chunked", "Transfer_Encoding: chunked", "Transfer Encoding: chunked", "Transfer-Encoding: ", "Transfer-Encoding:", "Transfer-Encoding: \xffchunked", "Transfer\xadEncoding: chunked",
		"Transfer-Encoding: chunKed", "TRANSFER-ENCODING: chunked", "tRANSFER-eNCODING: chunked", "Transfer-Encoding: chunked\r", "Foo: bar\r\nTransfer-Encoding: chunked\r\nFoo: bar", "Trailer: Content-Length\r\nTransfer-Encoding: chunked",
		"Transfer-Encodıng: chunked", "Tran\u017ffer-Encoding: chunked", "Content-\u212aength: 5", "Connection: Content-Length\r\nContent-Length: 5", "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked",
		"Expect: 100-continue\r\nContent-Length: 5", "Expect: 100-continue\r\nTransfer-Encoding: chunked", "Upgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 5", "Content-Length: 5\r\nConnection: close",
	}
}

// smuggled are bodies that have a request in them or behind them.
func smuggled() []string {
	return []string{
		"", "12345", hidden, "12345" + hidden, "0\r\n\r\n", "0\r\n\r\n" + hidden, "5\r\n12345\r\n0\r\n\r\n" + hidden, "5;a=b\r\n12345\r\n0;c\r\nX: y\r\n\r\n" + hidden,
		"5\n12345\n0\n\n" + hidden, "0\r\nContent-Length: 5\r\n\r\n" + hidden, "0x5\r\n12345\r\n0\r\n\r\n" + hidden, "\r\n" + hidden, "1\r\nZ\r\nQ\r\n\r\n", "00000\r\n\r\n" + get("/hello"),
	}
}

// agree fails the test if the lanes answer an input differently, whether the client waits afterwards or ends.
func agree(t *testing.T, fast, regular *lane, pieces ...string) {
	t.Helper()
	for _, half := range []bool{false, true} {
		if d := difference(t, fast, regular, input{pieces, half}); d != "" {
			t.Error(d)
		}
	}
}

// TestFastLaneAnswers: event loops answer what needs no waiting, like the regular server.
func TestFastLaneAnswers(t *testing.T) {
	fast, regular := startLanes(t, nil)
	for name, text := range quickRequests() {
		agree(t, fast, regular, text) // whoever asks first may have to wait
		before := fast.regular.Load()
		if d := difference(t, fast, regular, input{[]string{text}, true}); d != "" {
			t.Error(d)
		}
		if n := fast.regular.Load(); n != before || fast.elsewhere.Load() != uint64(n) {
			t.Errorf("%s: the regular server was asked, or %d requests are counted", name, fast.elsewhere.Load())
		}
	}
	sameRequests(t, fast, regular)
}

// sameRequests compares what both lanes have counted.
func sameRequests(t *testing.T, fast, regular *lane) {
	t.Helper()
	counted := func(l *lane) string {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(l.Server)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "spillway_http_requests_total" {
				return f.String()
			}
		}
		return ""
	}
	if a, b := counted(fast), counted(regular); a != b || a == "" {
		t.Errorf("counted by the fast lane\n%s\nand by the regular one\n%s", a, b)
	}
}

// TestFastLaneAgrees: both lanes answer strange requests, and those that others hide in them, with the same bytes.
func TestFastLaneAgrees(t *testing.T) {
	fast, regular := startLanes(t, nil)
	for i, line := range strangeLines() {
		if skipped(i, 3) {
			continue
		}
		agree(t, fast, regular, line+"\r\nHost: a\r\n\r\n")
	}
	for i, header := range strangeHeaders() {
		agree(t, fast, regular, get("/hello", header+"\r\n", "Y: z\r\n"))
		if skipped(i, 6) {
			continue
		}
		agree(t, fast, regular, strings.Replace(get("/hello", header+"\r\n"), "HTTP/1.1", "HTTP/1.0", 1))
		agree(t, fast, regular, "GET /hello HTTP/1.1\r\n"+header+"\r\nHost: a\r\n\r\n")
	}
	for _, host := range []string{"", " ", "a b", "a,b", "a/b", "a@b", "[::1]", "[::1]:80", "::1", "a:", "a:x", "a:999999", ":80", "a:80:80", "ä", "%61", "a?b", "a#b", "a\tb", "http://a", "A", "a."} {
		agree(t, fast, regular, "GET /list HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
	}
	sameRequests(t, fast, regular)
}

// TestFastLaneIsNotSmuggledThrough: requests whose end is ambiguous are answered as by the regular server.
func TestFastLaneIsNotSmuggledThrough(t *testing.T) {
	fast, regular := startLanes(t, nil)
	for i, header := range smugglers() {
		for j, body := range smuggled() {
			if skipped(i+j, 7) {
				continue
			}
			in := input{[]string{get("/hello", header+"\r\n") + body}, (i/2+j)%2 == 0}
			if i%2 == 0 {
				in.pieces = []string{get("/list", header+"\r\n"), body}
			}
			if d := difference(t, fast, regular, in); d != "" {
				t.Error(d)
			}
		}
	}
}

// TestFastLaneInPieces: it does not matter how a connection's requests arrive.
func TestFastLaneInPieces(t *testing.T) {
	fast, regular := startLanes(t, nil)
	quick, slow, last := get("/list?limit=2"), get("/probe/database"), get("/hello", "Connection: close\r\n")
	for i := range len(quick) + 1 {
		if skipped(i, 5) {
			continue
		}
		agree(t, fast, regular, quick[:i], quick[i:])
	}
	posted := "POST /hello HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
	for _, texts := range [][]string{
		{quick, quick},
		{quick, quick, quick},
		{quick, slow},
		{slow, quick},
		{quick, slow, quick},
		{slow, quick, slow},
		{quick, last},
		{last, quick},
		{quick, posted, quick},
		{posted, quick},
		{quick, "x\r\n\r\n"},
		{quick, "\r\n"},
		{quick, "\r\n", quick},
		{quick, "G"},
		{quick, quick + "G"},
		{quick + slow, quick},
		{quick, get("/nothing"), quick},
		{quick, "GET /hello HTTP/1.0\r\nHost: a\r\n\r\n", quick},
		{last, last},
		{quick, "\x00"},
		{quick, ofLength(laneHeaderBytes + 1), quick},
		{ofLength(laneHeaderBytes), ofLength(laneHeaderBytes), quick},
		{ofLength(laneHeaderBytes - 9), quick},
		{quick, get("/hello", "Content-Length: 3\r\n"), "abc", quick},
	} {
		agree(t, fast, regular, texts...)
		whole := strings.Join(texts, "")
		agree(t, fast, regular, whole)
		for _, i := range []int{1, len(texts[0]) - 1, len(texts[0]), len(texts[0]) + 1, len(whole) - 1} {
			if testing.Short() && i > 1 && i != len(texts[0])+1 {
				continue
			}
			agree(t, fast, regular, whole[:min(i, len(whole))], whole[min(i, len(whole)):])
		}
	}
	single := get("/hello")
	var letters []string
	for i := range len(single) {
		letters = append(letters, single[i:i+1])
	}
	agree(t, fast, regular, letters...)
	sameRequests(t, fast, regular)
}

// TestFastLaneAnyByte puts each byte in each kind of place of a request; with -short, one of the two ways
// for the bytes with a meaning and the last ones.
func TestFastLaneAnyByte(t *testing.T) {
	fast, regular := startLanes(t, nil)
	const short = "\x00\t\n\r 1:/Aa\x7f\x80\xff"
	const text = "GET /list?limit=1 HTTP/1.1\r\nHost: ab\r\nX-y: z\r\n\r\n"
	for at := range text {
		for b := range 256 {
			if b > '1' && b <= '9' || b > 'b' && b <= 'z' || b > 'B' && b <= 'Z' || b > 0x80 && b < 0xff {
				continue // like their neighbours
			}
			changes := []string{text[:at] + string([]byte{byte(b)}) + text[at+1:], text[:at] + string([]byte{byte(b)}) + text[at:]}
			if known := strings.IndexByte(short, byte(b)); testing.Short() {
				if known < 0 {
					continue
				}
				changes = changes[(at+known)%2:][:1]
			}
			for _, changed := range changes {
				if d := difference(t, fast, regular, input{[]string{changed}, true}); d != "" {
					t.Error(d)
				}
			}
		}
	}
}

// laneVariants change what the lanes serve.
func laneVariants(tb testing.TB) map[string]func(*Config) {
	return map[string]func(*Config){
		"origins":      func(c *Config) { c.CORSOrigins = []string{"https://app.example"} },
		"any origin":   func(c *Config) { c.CORSOrigins = []string{"*"} },
		"hosts":        func(c *Config) { c.Hosts = []string{"app.example", "127.0.0.1"} },
		"uncompressed": func(c *Config) { c.CompressBytes = 0 },
		"access log":   func(c *Config) { c.AccessLog = discardedLog(tb) },
		"keys":         func(c *Config) { c.Feeds[0].Access, c.ReadKeys = Key, []string{"a"} },
		"rate":         func(c *Config) { c.RatePerMinute, c.RateBurst, c.RateClients = 1, 100, 1000 },
		"proxies": func(c *Config) {
			c.Proxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
			c.RatePerMinute, c.RateBurst, c.RateClients = 1, 3, 1000
		},
		"strict": func(c *Config) {
			c.Feeds[0].Strict, c.Feeds[1].Strict, c.Queries[0].Strict, c.Streams[0].Strict, c.Popup.Strict = true, true, true, true, true
		},
		"caching": func(c *Config) { c.Feeds[1].Caching = SharedCaching{MaxAge: time.Minute} },
		"down": func(c *Config) {
			c.Down = []DownRoute{{Reads: []string{"/down"}, Retry: func() time.Duration { return time.Second }}}
		},
	}
}

// TestFastLaneVariants: the lanes agree with other settings, and while they stop.
func TestFastLaneVariants(t *testing.T) {
	try := func(t *testing.T, fast, regular *lane) {
		t.Helper()
		for _, text := range some(quickRequests()) {
			agree(t, fast, regular, text)
		}
		agree(t, fast, regular, get("/list"), get("/list"))
		agree(t, fast, regular, get("/down"))
		sameRequests(t, fast, regular)
	}
	for name, change := range laneVariants(t) {
		t.Run(name, func(t *testing.T) {
			fast, regular := startLanes(t, change)
			try(t, fast, regular)
		})
	}
	t.Run("draining", func(t *testing.T) {
		fast, regular := startLanes(t, nil)
		agree(t, fast, regular, get("/list"))
		fast.draining.Store(true)
		regular.draining.Store(true)
		try(t, fast, regular)
	})
}

// TestFastLaneNotModified: the tags of one lane are those of the other.
func TestFastLaneNotModified(t *testing.T) {
	fast, regular := startLanes(t, nil)
	for _, target := range []string{"/list", "/list?limit=50", "/list?fields=id", "/bare", "/q?a=1", "/openapi.json", "/list?offset=3000"} {
		for i, coding := range []string{"", "Accept-Encoding: gzip\r\n", "Accept-Encoding: zstd\r\n", "Accept-Encoding: br\r\n"} {
			if testing.Short() && i > 1 {
				continue
			}
			agree(t, fast, regular, get(target, coding))
			_, rest, ok := strings.Cut(fast.converse(t, input{[]string{get(target, coding)}, true}).text, "ETag: ")
			tag, _, _ := strings.Cut(rest, "\r\n")
			if !ok {
				t.Fatalf("%s has no tag", target)
			}
			for _, line := range []string{tag, "W/" + tag, `"a", ` + tag, tag + "x", strings.Trim(tag, `"`), strings.ToUpper(tag), ""} {
				agree(t, fast, regular, get(target, coding, "If-None-Match: "+line+"\r\n"))
			}
			if text := fast.converse(t, input{[]string{get(target, coding, "If-None-Match: "+tag+"\r\n")}, true}).text; !strings.HasPrefix(text, "HTTP/1.1 304 ") {
				t.Errorf("%s with its tag %s: %q", target, tag, text)
			}
		}
	}
}

// FuzzFastLane: both lanes answer any bytes alike, in up to three pieces.
func FuzzFastLane(f *testing.F) {
	changes := []func(*Config){
		nil,
		func(c *Config) {
			c.CORSOrigins, c.Hosts = []string{"https://app.example"}, []string{"app.example", "a"}
		},
		func(c *Config) { c.HeaderBytes = 64 },
		nil, // while stopping
	}
	var lanes [][2]*lane
	for _, change := range changes {
		fast, regular := startLanes(f, change)
		lanes = append(lanes, [2]*lane{fast, regular})
	}
	for _, l := range lanes[3] {
		l.draining.Store(true)
	}
	seeds := strangeLines()
	for i := range seeds {
		seeds[i] += "\r\nHost: a\r\n\r\n"
	}
	for _, header := range append(strangeHeaders(), smugglers()...) {
		seeds = append(seeds, get("/list", header+"\r\n", "Y: z\r\n")+"5\r\n12345\r\n0\r\n\r\n"+hidden)
	}
	for _, text := range quickRequests() {
		seeds = append(seeds, text, text+text)
	}
	for i, text := range seeds {
		if skipped(i, 7) {
			continue
		}
		if len(text) < 4096 {
			f.Add([]byte(text), uint16(i*7), uint16(len(text)/2), uint8(i))
			f.Add([]byte(text), uint16(0), uint16(0), uint8(i)|0x80)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, first, second uint16, variant uint8) {
		if len(text) > 4096 || bytes.Contains(bytes.ToLower(text), []byte("event-stream")) { // which does not end
			return
		}
		a, b := min(int(first), len(text)), min(int(second), len(text))
		a, b = min(a, b), max(a, b)
		var pieces []string
		for _, piece := range [][]byte{text[:a], text[a:b], text[b:]} {
			if len(piece) > 0 {
				pieces = append(pieces, string(piece))
			}
		}
		l := lanes[int(variant/2)%len(lanes)]
		for range 1 + 2*(variant>>7) { // responses are remembered the second time
			if d := difference(t, l[0], l[1], input{pieces, variant%2 == 1}); d != "" {
				t.Error(d)
			}
		}
	})
}
