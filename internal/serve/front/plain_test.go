package front

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// plainRequests are what Plain accepts.
func plainRequests() []string {
	return []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET / HTTP/1.0\r\nHost: a\r\n\r\n",
		"HEAD /list?limit=5&a=//b HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /a//b/../%2f#?;=@: HTTP/1.1\r\nhost:a.b-c_d:80\r\n\r\n",
		"GET / HTTP/1.1\r\nX: \r\nHOST:  127.0.0.1:65535 \r\nConnection: close\r\nCookie: a=b\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nContent: 5\r\nContentLength: 5\r\nTEE: a\r\nExpected: a\r\nUpgrade-Insecure-Requests: 1\r\nTrail: a\r\nHosts: a\r\n\r\n",
		"GET / HTTP/1.1\r\nX: a:b\tc \xff\r\n!#$%&'*+-.^_`|~09: a\r\nHost: a\r\n\r\n",
	}
}

// otherRequests are what Plain does not accept.
func otherRequests() []string {
	var texts []string
	for _, line := range []string{
		"POST / HTTP/1.1", "get / HTTP/1.1", "GET  / HTTP/1.1", "GET\t/ HTTP/1.1", " GET / HTTP/1.1", "\r\nGET / HTTP/1.1", "\nGET / HTTP/1.1", "GET /", "GET / HTTP/0.9", "GET / HTTP/2.0",
		"GET / HTTP/1.2", "GET / http/1.1", "GET /  HTTP/1.1", "GET / HTTP/1.1 ", "GET / HTTP/1.1\t", "GET /a b HTTP/1.1", "GET /a\tb HTTP/1.1", "GET /\x00 HTTP/1.1", "GET /\x7f HTTP/1.1", "GET /a\rb HTTP/1.1",
		"GET /a\nb HTTP/1.1", "GET // HTTP/1.1", "GET //a/b HTTP/1.1", "GET http://a/ HTTP/1.1", "GET * HTTP/1.1", "GET a HTTP/1.1", "GET HTTP/1.1", "OPTIONS / HTTP/1.1", "HEADS / HTTP/1.1", "GET / HTTP/1.1\r", "",
	} {
		texts = append(texts, line+"\r\nHost: a\r\n\r\n")
	}
	for _, fields := range []string{
		"", "X: a\r\n", "Host: a\r\nHost: a\r\n", "Host: a\r\nhost: b\r\n", "Host:\r\n", "Host: \r\n", "Host: a b\r\n", "Host: a,b\r\n", "Host: a/b\r\n", "Host: a@b\r\n", "Host: [::1]\r\n", "Host: a:\r\n", "Host: a:x\r\n",
		"Host: a:123456\r\n", "Host: a:1:2\r\n", "Host: :80\r\n", "Host: \xc3\xa4\r\n", "Host: \ta\r\n", "Host : a\r\n", "Host\t: a\r\n", " Host: a\r\n", "Host: a\n", "Host: a\r", "Host: a\r\n\n", "Host: a\r\n\r\nX", "Host: a\r\n\r\n\r\n",
	} {
		texts = append(texts, "GET / HTTP/1.1\r\n"+fields+"\r\n")
	}
	for _, field := range []string{
		"X", ":", ": a", "X : a", "X\t: a", "X\x00: a", "X\x7f: a", "X\xff: a", "a b: c", " X: a", "\tX: a", "X: a\rb", "X: a\nb", "X: a\r", "\r", "\n", "X: a\n", "X: a\r\n b", "Content-Length: 0", "content-length: 5", "CONTENT-TYPE: a",
		"Content-Encoding: gzip", "Transfer-Encoding: chunked", "transfer-encoding: identity", "TE: trailers", "te:", "Trailer: X", "Expect: 100-continue", "EXPECT:", "Upgrade: h2c", "uPGRADE: websocket", "HTTP2-Settings: a",
	} {
		texts = append(texts, "GET / HTTP/1.1\r\n"+field+"\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n"+field+"\r\n\r\n")
	}
	return append(texts, "GET / HTTP/1.1\nHost: a\n\n", "GET / HTTP/1.1\r\nHost: a\r\n\n", "GET / HTTP/1.1\r\nHost: a\n\r\n", "GET /\r\n\r\n", "GET / HTTP/1.1\r\n\r\n")
}

// bodiless reports whether b is exactly one plain request without a body.
func bodiless(b []byte) bool {
	head, body, ok := Plain(b)
	return ok && head == len(b) && body == 0
}

func TestPlain(t *testing.T) {
	t.Parallel()
	for _, text := range plainRequests() {
		if !bodiless([]byte(text)) {
			t.Errorf("%q is not plain", text)
		}
		for i := range text {
			if bodiless([]byte(text[:i])) || bodiless([]byte(text[i+1:])) {
				t.Errorf("a part of %q is plain, at %d", text, i)
			}
		}
		for _, next := range append(plainRequests(), "\r\n", "\n", "\x00", "x\r\n\r\n") {
			if bodiless([]byte(text + next)) {
				t.Errorf("%q and %q are one plain request", text, next)
			}
		}
		checkPlain(t, []byte(text))
	}
	for _, text := range otherRequests() {
		if bodiless([]byte(text)) {
			t.Errorf("%q is plain", text)
		}
	}
}

// checkPlain checks that another parser takes a plain request for one request without a body, and all of it. That parser may
// refuse it, but only for what does not concern its end.
func checkPlain(t *testing.T, b []byte) {
	t.Helper()
	reader := bufio.NewReader(bytes.NewReader(b))
	r, err := http.ReadRequest(reader)
	if err != nil {
		if !refusesContent(err) {
			t.Fatalf("%q: %v", b, err)
		}
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || len(body) > 0 || r.ContentLength != 0 || len(r.TransferEncoding) > 0 || len(r.Trailer) > 0 {
		t.Errorf("%q has a body: %q, %v", b, body, err)
	}
	if left, _ := io.ReadAll(reader); len(left) > 0 {
		t.Errorf("%q: %q is left", b, left)
	}
	method, rest, _ := strings.Cut(string(b), " ")
	target, _, _ := strings.Cut(rest, " ")
	if r.Method != method || r.RequestURI != target || r.URL.Host != "" || r.Host == "" {
		t.Errorf("%q is %s %s for the host %q", b, r.Method, r.RequestURI, r.Host)
	}
	fields := 1 // Host is not among the others
	for _, values := range r.Header {
		fields += len(values)
	}
	if lines := bytes.Count(b, []byte("\n")) - 2; fields != lines {
		t.Errorf("%q has %d lines and %d fields", b, lines, fields)
	}
}

// refusesContent reports whether net/http refuses an escape in a path, or a character in a field.
func refusesContent(err error) bool {
	var escape url.EscapeError
	return errors.As(err, &escape) || strings.HasPrefix(err.Error(), "malformed MIME header line")
}

// FuzzPlain: a plain request is one for net/http too, and nothing else.
func FuzzPlain(f *testing.F) {
	for _, text := range append(plainRequests(), otherRequests()...) {
		f.Add([]byte(text))
		f.Add([]byte("GET /" + text))
		f.Add([]byte("HEAD / HTTP/1.0\r\nX: a" + text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if bodiless(b) {
			checkPlain(t, b)
		}
	})
}

// TestPlainPost: the length of the body is told exactly, or the request is not plain.
func TestPlainPost(t *testing.T) {
	t.Parallel()
	for fields, want := range map[string]int{
		"Content-Length: 0": 0, "Content-Length: 5": 5, "content-length:5": 5, "CONTENT-LENGTH:  5 ": 5, "Content-Length: 123456789": 123456789,
		"Content-Type: application/json\r\nContent-Length: 5": 5, "X: y\r\nContent-Length: 5\r\nCookie: a": 5,
	} {
		for _, host := range []string{"Host: a\r\n" + fields, fields + "\r\nHost: a"} {
			text := "POST /a?b HTTP/1.1\r\n" + host + "\r\n\r\n"
			for _, body := range []string{"", "12345", text} {
				if head, n, ok := Plain([]byte(text + body)); !ok || head != len(text) || n != want {
					t.Errorf("%q: %d, %d, %v", text+body, head, n, ok)
				}
			}
			for i := range text {
				if _, _, ok := Plain([]byte(text[:i])); ok {
					t.Errorf("%q is plain", text[:i])
				}
			}
			checkPlainPost(t, text, want)
		}
	}
	for _, field := range []string{
		"X: y", "Content-Length: -1", "Content-Length: +5", "Content-Length: 05", "Content-Length: 0x5", "Content-Length: 5,5", "Content-Length: 5 5", "Content-Length:\t5",
		"Content-Length:", "Content-Length: a", "Content-Length: 1234567890", "Content-Length : 5", " Content-Length: 5", "Content-Length: 5\r\nContent-Length: 5", "Content-Length: 5\x00",
		"Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked", "Content-Length: 5\r\nExpect: 100-continue", "Content-Length: 5\r\nContent-Encoding: gzip",
		"Content-Length: 5\r\nTE: a", "Content-Length: 5\r\nUpgrade: h2c", "Content-Length: 5\r\n folded", "Content-Length: 5\nX: y", "X: y\rContent-Length: 5", "Content-Length: 5\r\nHost: b",
	} {
		text := "POST / HTTP/1.1\r\nHost: a\r\n" + field + "\r\n\r\n12345"
		if _, _, ok := Plain([]byte(text)); ok {
			t.Errorf("%q is plain", text)
		}
	}
	for _, line := range []string{"PUT / HTTP/1.1", "post / HTTP/1.1", "POST  / HTTP/1.1", "POST * HTTP/1.1", "POST http://a/ HTTP/1.1", "POST // HTTP/1.1", "POST / HTTP/2.0", "POST /"} {
		if _, _, ok := Plain([]byte(line + "\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345")); ok {
			t.Errorf("%q is plain", line)
		}
	}
}

// checkPlainPost checks that another parser sees the same body.
func checkPlainPost(t *testing.T, head string, length int) {
	t.Helper()
	request, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head)))
	if err != nil || request.ContentLength != int64(length) || len(request.TransferEncoding) > 0 {
		t.Errorf("%q: another parser sees %v, %v", head, request, err)
	}
}
