package target

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// parsed is what a response came to, fed in pieces.
type parsed struct {
	done   bool
	err    error
	status int
	close  bool
	body   string
}

// feedAll feeds text in pieces that end where cuts says, then ends the
// connection when the response has not ended.
func feedAll(text string, head bool, cuts ...int) parsed {
	r := response{}
	r.reset(head, &Checks{lacks: [][]byte{{0}}})
	var done bool
	var err error
	start := 0
	for _, cut := range append(cuts, len(text)) {
		if err != nil || cut <= start || cut > len(text) {
			continue
		}
		done, err = r.feed([]byte(text[start:cut]))
		start = cut
	}
	if !done && err == nil {
		if err = r.eof(); err == nil {
			done = true
		}
	}
	return parsed{done, err, r.status, r.close, string(r.body)}
}

func TestResponse(t *testing.T) {
	f := func(name, text string, head bool, want parsed) {
		t.Helper()
		for cut := 1; cut <= len(text); cut++ {
			got := feedAll(text, head, cut)
			if got.done != want.done || !errors.Is(got.err, want.err) || (want.err == nil && got != want) {
				t.Fatalf("%s, cut at %d: got %+v, want %+v", name, cut, got, want)
			}
		}
	}
	ok := func(status int, close bool, body string) parsed {
		return parsed{done: true, status: status, close: close, body: body}
	}
	bad := parsed{err: errMalformed}
	short := parsed{err: errCutShort}

	f("length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", false, ok(200, false, "hello"))
	f("bare line feeds", "HTTP/1.1 200 OK\ncontent-length:5\n\nhello", false, ok(200, false, "hello"))
	f("no reason", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", false, ok(200, false, ""))
	f("equal lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab", false, ok(200, false, "ab"))
	f("close", "HTTP/1.1 200 OK\r\nConnection: foo, Close\r\nContent-Length: 1\r\n\r\nx", false, ok(200, true, "x"))
	f("old keep-alive", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx", false, ok(200, false, "x"))
	f("old", "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", false, ok(200, true, "x"))
	f("until close", "HTTP/1.1 200 OK\r\n\r\nall of it", false, ok(200, true, "all of it"))
	f("no content", "HTTP/1.1 204 No Content\r\n\r\n", false, ok(204, false, ""))
	f("not modified", "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", false, ok(304, false, ""))
	f("head", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", true, ok(200, false, ""))
	f("interim", "HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 103 Early\r\n\r\nHTTP/1.1 201 C\r\nContent-Length: 1\r\n\r\nx", false, ok(201, false, "x"))
	f("chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n, wonderfu\r\n1 \r\nl\r\n0\r\nTrailer: t\r\n\r\n", false, ok(200, false, "hello, wonderful"))
	f("chunked beats length", "HTTP/1.1 200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", false, ok(200, false, "x"))

	f("nothing", "x", false, short)
	f("cut in the headers", "HTTP/1.1 200 OK\r\nConte", false, short)
	f("cut in the body", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", false, short)
	f("cut in a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", false, short)
	f("cut before the trailers end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", false, short)

	f("another protocol", "SSH-2.0-OpenSSH_9.2\r\n", false, bad)
	f("version", "HTTP/2.0 200 OK\r\n\r\n", false, bad)
	f("status", "HTTP/1.1 2x0 OK\r\n\r\n", false, bad)
	f("small status", "HTTP/1.1 099 OK\r\n\r\n", false, bad)
	f("switching", "HTTP/1.1 101 Switching\r\n\r\n", false, bad)
	f("header", "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", false, bad)
	f("length", "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", false, bad)
	f("long length", "HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999\r\n\r\n", false, bad)
	f("two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", false, bad)
	f("encoding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", false, bad)
	f("chunk size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", false, bad)
	f("huge chunk size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", false, bad)
	f("chunk end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n", false, bad)
	f("more than asked for", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n\r\n", false, bad)
}

func TestResponseBounds(t *testing.T) {
	long := strings.Repeat("x", headerBytesMax)
	for name, text := range map[string]string{
		"one header":      "HTTP/1.1 200 OK\r\nX: " + long,
		"many headers":    "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", headerBytesMax/4),
		"status line":     long + long,
		"chunk extension": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + long[:chunkLineMax+1],
		"trailers":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("X: y\r\n", headerBytesMax/4),
	} {
		if got := feedAll(text, false, 1000, 5000); !errors.Is(got.err, errMalformed) {
			t.Errorf("%s: %v, want errMalformed", name, got.err)
		}
	}
}

// TestResponseAgainstStandard has the standard library write responses and
// checks that they are read the same, cut anywhere.
func TestResponseAgainstStandard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.StringN(0, 200, 300).Draw(t, "body")
		written := http.Response{
			StatusCode: rapid.SampledFrom([]int{200, 201, 301, 404, 503}).Draw(t, "status"),
			ProtoMajor: 1, ProtoMinor: 1,
			Body:          io.NopCloser(strings.NewReader(body)),
			ContentLength: int64(len(body)),
			Close:         rapid.Bool().Draw(t, "close"),
			Request:       &http.Request{Method: http.MethodGet},
		}
		if rapid.Bool().Draw(t, "chunked") {
			written.ContentLength = -1
			written.TransferEncoding = []string{"chunked"}
		}
		var text bytes.Buffer
		if err := written.Write(&text); err != nil {
			t.Fatal(err)
		}
		cuts := rapid.SliceOfN(rapid.IntRange(1, text.Len()), 0, 5).Draw(t, "cuts")
		got := feedAll(text.String(), false, cuts...)
		if !got.done || got.err != nil || got.status != written.StatusCode || got.body != body || got.close != written.Close {
			t.Fatalf("got %+v, want status %d, close %v and body %q", got, written.StatusCode, written.Close, body)
		}
	})
}

func FuzzResponse(f *testing.F) {
	for _, seed := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"HTTP/1.0 404 No\r\nConnection: close\r\n\r\nbody", "HTTP/1.1 100 C\r\n\r\nHTTP/1.1 204 N\r\n\r\n",
	} {
		f.Add(seed, uint(7), uint(20), false)
	}
	f.Fuzz(func(t *testing.T, text string, first, second uint, head bool) {
		whole := feedAll(text, head)
		size := uint(len(text) + 1)
		first %= size
		cut := feedAll(text, head, int(first), int(max(first, second%size)))
		same := whole.done == cut.done && (whole.err == nil) == (cut.err == nil)
		if !same || whole.err == nil && whole != cut {
			t.Fatalf("whole %+v, cut %+v", whole, cut)
		}
		if whole.done == (whole.err != nil) {
			t.Fatalf("both done and failed, or neither: %+v", whole)
		}
		if whole.done {
			compareWithStandard(t, text, head, whole)
		}
	})
}

// compareWithStandard checks that what we take, net/http takes for the same. It
// refuses more than we do, and that is no difference.
func compareWithStandard(t *testing.T, text string, head bool, ours parsed) {
	method := http.MethodGet
	if head {
		method = http.MethodHead
	}
	reader := bufio.NewReader(strings.NewReader(text))
	for {
		theirs, err := http.ReadResponse(reader, &http.Request{Method: method})
		if err != nil {
			return
		}
		if theirs.StatusCode < 200 && theirs.StatusCode != 101 {
			continue
		}
		body, err := io.ReadAll(theirs.Body)
		if err == nil && (theirs.StatusCode != ours.status || string(body) != ours.body && len(body) <= checkedBodyMax) {
			t.Fatalf("ours %+v, net/http has status %d and body %q", ours, theirs.StatusCode, body)
		}
		return
	}
}

func BenchmarkResponse(b *testing.B) {
	text := []byte("HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Sat, 21 Nov 2026 07:58:54 GMT\r\nContent-Type: text/plain\r\nContent-Length: 1500\r\nConnection: keep-alive\r\n\r\n" + strings.Repeat("x", 1500))
	var r response
	var checks Checks
	b.ReportAllocs()
	for b.Loop() {
		r.reset(false, &checks)
		if done, err := r.feed(text); !done || err != nil {
			b.Fatal(done, err)
		}
	}
}
