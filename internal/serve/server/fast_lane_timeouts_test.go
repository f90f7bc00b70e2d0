//go:build linux && !portable

package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
	"spillway/internal/serve/feed"
)

// dialLane returns a connection that ends after a minute. Its receive buffer has about so many bytes; 0: as many as usual.
func (l *lane) dialLane(t *testing.T, buffer int) *net.TCPConn {
	t.Helper()
	var d net.Dialer
	if buffer > 0 {
		d.Control = func(_, _ string, raw syscall.RawConn) (err error) {
			failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, buffer) })
			return errors.Join(failed, err)
		}
	}
	c, err := d.DialContext(t.Context(), "tcp", l.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// readAll reads a connection until its end.
func readAll(t *testing.T, c net.Conn) string {
	t.Helper()
	text, err := io.ReadAll(c)
	if err != nil {
		t.Fatalf("after %d bytes: %v", len(text), err)
	}
	return string(text)
}

// TestFastLaneTimeouts: the limits of time are those of the regular lane, with the same responses.
func TestFastLaneTimeouts(t *testing.T) {
	t.Parallel()
	hello := get("/hello")
	for name, c := range map[string]timedOut{
		"silent":                 {"", "", "HTTP/1.1 408 "},
		"idle":                   {hello, "", ""},
		"slow header":            {hello[:20], "", "HTTP/1.1 408 "},
		"slow header afterwards": {hello, hello[:20], "HTTP/1.1 408 "},
		"idle in both lanes":     {get("/probe/database"), hello, "HTTP/1.1 200 "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			withMoreTime(t, 200*time.Millisecond, func(t *testing.T, limit time.Duration) string { return tryTimeout(t, c, limit) })
		})
	}
}

// timedOut is what a client sends that is then silent.
type timedOut struct {
	text string // sent at first
	more string // sent after the first response; "": nothing
	end  string // begins what comes last; "": nothing comes
}

// tryTimeout lets both lanes close a connection that waits for longer than limit, and returns how they answer it wrongly.
func tryTimeout(t *testing.T, c timedOut, limit time.Duration) (wrong string) {
	t.Helper()
	fast, regular := startLanes(t, func(c *Config) { c.ReadTimeout, c.IdleTimeout = limit, limit })
	var texts []string
	for _, l := range []*lane{fast, regular} {
		began := time.Now()
		first, rest, err := l.outwait(t, c.text, c.more)
		if took := time.Since(began); took < limit/2 { // deadlines may be early by half
			t.Errorf("closed after %s, before half of %s", took, limit)
		}
		if err != nil || !strings.HasPrefix(rest, c.end) || c.end == "" && rest != "" {
			return fmt.Sprintf("%q at the end, %v, want %q", rest, err, c.end)
		}
		texts = append(texts, l.comparable(first+rest))
	}
	if texts[0] != texts[1] {
		return fmt.Sprintf("\n   fast: %q\nregular: %q", texts[0], texts[1])
	}
	sameRequests(t, fast, regular)
	return ""
}

// outwait sends text, reads its response if it is whole, sends more, and reads until the server closes the connection.
func (l *lane) outwait(t *testing.T, text, more string) (first, rest string, err error) {
	t.Helper()
	c := l.dialLane(t, 0)
	if _, err := io.WriteString(c, text); err != nil {
		return "", "", err
	}
	if strings.HasSuffix(text, "\r\n\r\n") {
		if first, err = readResponse(c); err != nil {
			return first, "", err
		}
	}
	if _, err := io.WriteString(c, more); err != nil {
		return first, "", err
	}
	all, err := io.ReadAll(c)
	return first, string(all), err
}

// readResponse reads a response, and returns what has arrived.
func readResponse(c net.Conn) (string, error) {
	var text strings.Builder
	r, err := http.ReadResponse(bufio.NewReader(io.TeeReader(c, &text)), nil)
	if err != nil {
		return text.String(), err
	}
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, r.Body)
	return text.String(), err
}

// largePage serves pages of almost the largest size that an event loop answers.
func largePage(t *testing.T) func(*Config) {
	t.Helper()
	f := feed.Open(listConfig(), &rows{n: 200, pad: `,"text":"` + strings.Repeat("x", quickBytes/100-50) + `"`})
	t.Cleanup(f.Close)
	return func(c *Config) { c.Feeds = append(c.Feeds, FeedRoute{Paths: []string{"/large"}, Feed: f}) }
}

const largeRequest = "/large?limit=100"

// askSlowly sends a request for the large page that an event loop answers, over a connection with small buffers. It returns when
// the connection is handed over with the rest of the response.
func (l *lane) askSlowly(t *testing.T) *net.TCPConn {
	t.Helper()
	apptest.Await(t, "the regular server has no connection", func() bool { return l.http.GetOpenConnectionsCount() == 0 })
	before, handed := l.regular.Load(), l.listener.Load().handed.Load()
	if err := unix.SetsockoptInt(l.listener.Load().socket, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil { // connections inherit it
		t.Fatal(err)
	}
	c := l.dialLane(t, 4096)
	if _, err := io.WriteString(c, get(largeRequest)); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the connection is handed over", func() bool { return l.listener.Load().handed.Load() > handed })
	if n := l.regular.Load() - before; n > 0 {
		t.Fatal("the regular server was asked")
	}
	return c
}

// warmUp asks for the large page once, so that its window is read, and returns the response.
func (l *lane) warmUp(t *testing.T) string {
	t.Helper()
	text := l.converse(t, input{[]string{get(largeRequest)}, true}).text
	if again := l.converse(t, input{[]string{get(largeRequest)}, true}).text; again != text || len(text) < quickBytes*3/4 {
		t.Fatalf("the page has %d bytes, and again %d", len(text), len(again))
	}
	apptest.Await(t, "the regular server has no connection", func() bool { return l.http.GetOpenConnectionsCount() == 0 })
	return text
}

// TestFastLaneSlowReader: responses that a client reads slowly are complete, whatever it sends or does meanwhile.
func TestFastLaneSlowReader(t *testing.T) {
	t.Parallel()
	l := startLane(t, 1, largePage(t))
	page := l.warmUp(t)
	for name, finish := range map[string]func(*net.TCPConn) string{
		"half-closed": func(c *net.TCPConn) string { _ = c.CloseWrite(); return "" },
		"next":        func(c *net.TCPConn) string { _, _ = io.WriteString(c, farewell); return "HTTP/1.1 404 " },
		"not HTTP":    func(c *net.TCPConn) string { _, _ = io.WriteString(c, "\x00\r\n\r\n"); return "HTTP/1.1 400 " },
	} {
		c := l.askSlowly(t)
		want := finish(c)
		rest, ok := strings.CutPrefix(l.comparable(readAll(t, c)), page)
		if !ok || !strings.HasPrefix(rest, want) || want == "" && rest != "" {
			t.Errorf("%s: whole page %v, then %.300q", name, ok, rest)
		}
	}
}

// TestFastLaneSlowReaderIsIdle: a connection whose responses were read slowly may then be idle, and is closed without a word.
func TestFastLaneSlowReaderIsIdle(t *testing.T) {
	t.Parallel()
	large := largePage(t)
	l := startLane(t, 1, func(c *Config) { large(c); c.IdleTimeout = 200 * time.Millisecond })
	page := l.warmUp(t)
	c := l.askSlowly(t)
	if text := l.comparable(readAll(t, c)); text != page {
		t.Errorf("%d bytes of %d: …%q", len(text), len(page), text[max(0, len(text)-300):])
	}
	l.wantNoErrors(t)
}

// wantNoErrors expects that no request was counted that could not be read.
func (l *lane) wantNoErrors(t *testing.T) {
	t.Helper()
	apptest.Await(t, "no connection is open", func() bool { return l.listener.Load().open.Load() == 0 })
	for code := range l.unknown.meter.statuses[4].codes {
		if n := l.unknown.meter.statuses[4].codes[code].Load(); n > 0 {
			t.Errorf("%d responses of %d are counted", n, 400+code)
		}
	}
}

// TestFastLaneWriteTimeout: a client that does not read is cut off, in the middle of a response.
func TestFastLaneWriteTimeout(t *testing.T) {
	t.Parallel()
	large := largePage(t)
	l := startLane(t, 1, func(c *Config) { large(c); c.WriteTimeout = 300 * time.Millisecond })
	patient := startLane(t, 1, large) // serves the same feed
	page := patient.warmUp(t)
	began := time.Now()
	c := l.askSlowly(t)
	apptest.Await(t, "no connection is open", func() bool { return l.listener.Load().open.Load() == 0 })
	if took := time.Since(began); took < l.cfg.WriteTimeout/2 {
		t.Errorf("cut off after %s", took)
	}
	text, _ := io.ReadAll(c)
	if got := l.comparable(string(text)); !strings.HasPrefix(page, got) || got == "" || got == page {
		t.Errorf("%d bytes arrived: …%q", len(text), text[max(0, len(text)-300):])
	}
	l.wantNoErrors(t)
}

// TestFastLaneReaderVanishes: a client may reset a connection of which a response is being written.
func TestFastLaneReaderVanishes(t *testing.T) {
	t.Parallel()
	l := startLane(t, 1, largePage(t))
	l.warmUp(t)
	for _, linger := range []int{0, -1} {
		c := l.askSlowly(t)
		if err := c.SetLinger(linger); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		l.wantNoErrors(t)
	}
}
