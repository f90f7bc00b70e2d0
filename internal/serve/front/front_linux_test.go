//go:build !portable

package front

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
)

// Requests that a fakeAnswerer knows.
const (
	keepRequest  = "GET /keep HTTP/1.1\r\nHost: a\r\n\r\n"
	closeRequest = "GET /close HTTP/1.1\r\nHost: a\r\n\r\n"
	largeRequest = "GET /large HTTP/1.1\r\nHost: a\r\n\r\n"
	lastRequest  = "GET /last HTTP/1.1\r\nHost: a\r\n\r\n"
	holdRequest  = "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"
	otherRequest = "GET /other HTTP/1.1\r\nHost: a\r\n\r\n"
)

// respond returns a response.
func respond(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// largeResponse is larger than what the buffers of a connection hold.
func largeResponse() string { return respond(strings.Repeat("0123456789abcdef", 1<<20)) }

// fakeAnswerer answers by path: /keep keeps the connection, /close closes it, /large and /last do so with a large response, and
// /hold keeps the loop until it is released.
type fakeAnswerer struct {
	answered atomic.Int64
	rig      *rig
	known    func(*Later) (wake func())
}

// Repeat implements front.Answerer.
func (*fakeAnswerer) Repeat(dst, _ []byte, _ netip.AddrPort) ([]byte, bool, bool) {
	return dst, false, false
}

func (a *fakeAnswerer) Answer(dst, request []byte, body int, peer netip.AddrPort) (response []byte, keep, ok bool, later *Later) {
	if bytes.HasPrefix(request, []byte("POST /wait")) {
		return dst, false, false, a.wait(string(request[len(request)-body:]))
	}
	response, keep, ok = a.answer(dst, request, peer)
	return response, keep, ok, nil
}

func (a *fakeAnswerer) answer(dst, request []byte, peer netip.AddrPort) (response []byte, keep, ok bool) {
	a.answered.Add(1)
	path := string(bytes.Fields(request)[1])
	switch path {
	case "/keep", "/close":
		return append(dst, respond(peer.String())...), path == "/keep", true
	case "/large", "/last":
		return append(dst, a.rig.large...), path == "/large", true
	case "/hold":
		a.rig.holding <- struct{}{}
		<-a.rig.release
		return append(dst, respond("")...), true, true
	}
	return dst, false, false
}

// waitRequest begins a request of a number of bytes that waits until the test says its answer, which is the body.
func waitRequest(size int) string {
	return fmt.Sprintf("POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", size)
}

// waiter is a request that waits in a loop.
type waiter struct {
	Later
	answerer *fakeAnswerer
	body     string
	left     chan bool
	ended    chan bool // whether the limit was over
}

// answer makes the answer known.
func (w *waiter) answer() {
	if wake := w.answerer.known(&w.Later); wake != nil {
		wake()
	}
}

// wait has a request wait.
func (a *fakeAnswerer) wait(body string) *Later {
	w := &waiter{answerer: a, body: body, left: make(chan bool, 2), ended: make(chan bool, 1)}
	w.Limit = time.Duration(a.rig.limit.Load())
	w.Respond = func(dst []byte, over bool) ([]byte, bool) {
		w.ended <- over
		return append(dst, respond(w.body)...), true
	}
	w.Left = func() { w.left <- true }
	a.rig.waiters <- w
	return &w.Later
}

// fakeGate counts connections.
type fakeGate struct {
	limit              int64
	open, refused      atomic.Int64
	entered, belowZero atomic.Int64
}

func (g *fakeGate) Enter() bool {
	if g.open.Add(1) > g.limit {
		g.open.Add(-1)
		g.refused.Add(1)
		return false
	}
	g.entered.Add(1)
	return true
}

func (g *fakeGate) Leave() {
	if g.open.Add(-1) < 0 {
		g.belowZero.Add(1)
	}
}

// rig is a Front under test.
type rig struct {
	*Front
	gate      fakeGate
	address   string
	large     string
	answerers []*fakeAnswerer
	given     chan *Conn // what Accept returned
	holding   chan struct{}
	release   chan struct{}
	waiters   chan *waiter
	limit     atomic.Int64 // of waiters
	stop      func()       // stops accepting and ends; for once
}

// refusal is what connections beyond the limit get.
const refusal = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

// open runs a Front on a free port until the test ends.
func open(t *testing.T, loops int, change func(*Config, *fakeGate)) *rig {
	t.Helper()
	r := &rig{given: make(chan *Conn, 100), holding: make(chan struct{}), release: make(chan struct{}), waiters: make(chan *waiter, 1000), large: largeResponse()}
	r.gate.limit = 1_000_000
	cfg := Config{
		Loops: loops, Gate: &r.gate, Refusal: []byte(refusal), RequestBytes: 4096, BodyBytes: 1000, FirstTimeout: time.Hour, IdleTimeout: time.Hour,
		Answerer: func(_ *Loop, known func(*Later) (wake func())) Answerer {
			a := &fakeAnswerer{rig: r, known: known}
			r.answerers = append(r.answerers, a)
			return a
		},
	}
	cfg.Socket, r.address = listen(t)
	if change != nil {
		change(&cfg, &r.gate)
	}
	f, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Front = f
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for c, err := f.Accept(); err != io.EOF; c, err = f.Accept() {
			if err != nil {
				t.Error(err)
				continue
			}
			r.given <- c
		}
	}()
	r.stop = sync.OnceFunc(func() {
		if err := f.StopAccepting(false); err != nil {
			t.Error(err)
		}
		f.End(context.Background())
		<-accepted
	})
	t.Cleanup(func() {
		r.stop()
		if n := r.gate.open.Load(); n != 0 || r.gate.belowZero.Load() != 0 {
			t.Errorf("%d connections are open in the end", n)
		}
	})
	return r
}

// listen returns a listening socket in non-blocking mode.
func listen(t *testing.T) (socket int, address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return takeSocket(t, ln), ln.Addr().String()
}

// takeSocket returns the socket of a listener, which it closes.
func takeSocket(t *testing.T, ln net.Listener) (socket int) {
	t.Helper()
	defer ln.Close()
	raw, err := ln.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	failed := raw.Control(func(fd uintptr) { socket, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(failed, err); err != nil {
		t.Fatal(err)
	}
	return socket
}

// client is a connection to a rig.
type client struct {
	*net.TCPConn
	t *testing.T
	r *bufio.Reader
}

func (r *rig) dial(t *testing.T) *client {
	t.Helper()
	c, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &client{c.(*net.TCPConn), t, bufio.NewReader(c)}
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatal(err)
	}
}

// receive reads a response.
func (c *client) receive() (body string) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}

// ask sends a request and reads its response.
func (c *client) ask(text string) (body string) {
	c.t.Helper()
	c.send(text)
	return c.receive()
}

// wantEnd expects that the server has closed the connection.
func (c *client) wantEnd() {
	c.t.Helper()
	if left, err := io.ReadAll(c.r); err != nil || len(left) > 0 {
		c.t.Errorf("at the end: %q, %v", left, err)
	}
}

// take returns the next connection that was handed over. The test closes it.
func (r *rig) take(t *testing.T) *Conn {
	t.Helper()
	c := apptest.Receive(t, "a connection that is handed over", r.given)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (r *rig) wantOpen(t *testing.T, n int64) {
	t.Helper()
	apptest.AwaitState(t, fmt.Sprint(n, " connections are open"), func() (string, bool) {
		open := r.gate.open.Load()
		return fmt.Sprint(open, " are"), open == n
	})
}

// TestBusyElsewhere: a loop that keeps its processor while it waits, because many requests are answered elsewhere, serves as others do.
func TestBusyElsewhere(t *testing.T) {
	t.Parallel()
	var looks atomic.Uint64
	r := open(t, 1, func(c *Config, _ *fakeGate) { c.Elsewhere = func() uint64 { return manyElse * looks.Add(1) } })
	c := r.dial(t)
	for range 3 {
		seen := looks.Load()
		apptest.Await(t, "the loop has waited for nothing", func() bool { return looks.Load() > seen+1 })
		if got := c.ask(keepRequest); got != c.LocalAddr().String() {
			t.Errorf("the peer is %s", got)
		}
	}
	c.send(otherRequest)
	r.take(t)
	r.gate.Leave()
}

// TestKeptConnectionsAreBalanced: connections that stay open are spread over the loops, and served there.
func TestKeptConnectionsAreBalanced(t *testing.T) {
	t.Parallel()
	for _, loops := range []int{1, 2, 4} {
		r := open(t, loops, nil)
		const count = 60
		clients := make([]*client, count)
		for i := range clients {
			clients[i] = r.dial(t)
			if got := clients[i].ask(keepRequest); got != clients[i].LocalAddr().String() {
				t.Errorf("the peer is %s", got)
			}
		}
		before := make([]int64, loops)
		for i, a := range r.answerers {
			before[i] = a.answered.Load()
		}
		for _, c := range clients {
			c.ask(keepRequest) // whoever answers now has the connection
		}
		open := make([]int64, loops)
		for i, l := range r.loops {
			open[i] = l.open.Load()
			if n := r.answerers[i].answered.Load() - before[i]; n != open[i] {
				t.Errorf("loop %d of %d answers %d requests of %d connections", i, loops, n, open[i])
			}
		}
		if slices.Max(open)-slices.Min(open) > 2 {
			t.Errorf("the loops have %d connections", open)
		}
		r.stop()
		for _, c := range clients {
			c.wantEnd()
		}
	}
}

// TestShortConnections: each connection gets its response and its end, and nothing stays.
func TestShortConnections(t *testing.T) {
	t.Parallel()
	for _, loops := range []int{1, 2, 4} {
		r := open(t, loops, nil)
		var clients sync.WaitGroup
		for range 8 {
			clients.Go(func() {
				for range 50 {
					if text, err := converse(r.address, closeRequest); err != nil || !strings.HasPrefix(text, "HTTP/1.1 200 OK\r\n") {
						t.Errorf("%q, %v", text, err)
					}
				}
			})
		}
		clients.Wait()
		r.wantOpen(t, 0)
		if n := r.gate.entered.Load(); n != 400 {
			t.Errorf("%d connections", n)
		}
		for i, l := range r.loops {
			if n := l.open.Load(); n != 0 {
				t.Errorf("loop %d has %d connections", i, n)
			}
		}
	}
}

// converse sends text over a new connection and returns all that is answered.
func converse(address, text string) (string, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}

// TestHandedOver: what no loop answers is handed over with what was read, and served elsewhere.
func TestHandedOver(t *testing.T) {
	t.Parallel()
	r := open(t, 2, nil)
	for _, c := range []struct {
		first, text string
	}{
		{"", otherRequest}, {keepRequest, otherRequest}, {"", "GET"}, {keepRequest, "G"}, {"", "\x00"}, {keepRequest, keepRequest + keepRequest}, {"", "POST / HTTP/1.1\r\n"},
	} {
		dialed := r.dial(t)
		if c.first != "" {
			dialed.ask(c.first)
		}
		dialed.send(c.text)
		given := r.take(t)
		if h := given.Handed; string(h.Read) != c.text || h.Times != 1 || h.Unsent != nil || h.Close || h.Expired {
			t.Errorf("%q: %+v", c.text, h)
		}
		if given.RemoteAddr().String() != dialed.LocalAddr().String() || given.LocalAddr().String() != dialed.RemoteAddr().String() {
			t.Errorf("from %s to %s", given.RemoteAddr(), given.LocalAddr())
		}
		if _, err := io.WriteString(given, "answer"); err != nil {
			t.Error(err)
		}
		if err := given.CloseWrite(); err != nil {
			t.Error(err)
		}
		if text, err := io.ReadAll(dialed.r); string(text) != "answer" || err != nil {
			t.Errorf("%q, %v", text, err)
		}
		dialed.send("more")
		more := make([]byte, 4)
		if err := given.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(given, more); err != nil || string(more) != "more" {
			t.Errorf("%q, %v", more, err)
		}
		r.gate.Leave()
	}
	r.wantOpen(t, 0)
}

// TestTimeouts: a connection without a request is closed after its last response, and handed over if it never had one. The other
// limit is out of reach: a process may stand still for longer than a short one before it sends a request.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	const limit = 50 * time.Millisecond
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		r := open(t, 2, func(c *Config, _ *fakeGate) { c.Shared, c.FirstTimeout, c.IdleTimeout = true, time.Hour, limit })
		began := time.Now()
		answered := r.dial(t)
		answered.ask(keepRequest)
		answered.wantEnd()
		if took := time.Since(began); took < limit {
			t.Errorf("closed after %s, before %s", took, limit)
		}
		r.wantOpen(t, 0)
	})
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		r := open(t, 2, func(c *Config, _ *fakeGate) { c.Shared, c.FirstTimeout, c.IdleTimeout = true, limit, time.Hour })
		began := time.Now()
		silent := r.dial(t)
		given := r.take(t)
		if took := time.Since(began); took < limit {
			t.Errorf("handed over after %s, before %s", took, limit)
		}
		if h := given.Handed; !h.Expired || h.Read != nil || h.Times != 1 || given.RemoteAddr().String() != silent.LocalAddr().String() {
			t.Errorf("%+v", h)
		}
		r.wantOpen(t, 1)
		r.gate.Leave()
	})
}

// TestUnreadResponse: what a client does not read at once is left to others.
func TestUnreadResponse(t *testing.T) {
	t.Parallel()
	r := open(t, 1, nil)
	for _, request := range []string{largeRequest, lastRequest} {
		c := r.dial(t)
		c.send(request)
		given := r.take(t)
		h := given.Handed
		if h.Close != (request == lastRequest) || len(h.Unsent) == 0 || !strings.HasSuffix(r.large, string(h.Unsent)) || len(h.Read) > 0 {
			t.Fatalf("%s: %d bytes, %v", request, len(h.Unsent), h.Close)
		}
		go func() {
			if _, err := given.Write(h.Unsent); err != nil {
				t.Error(err)
			}
		}()
		if body := c.receive(); respond(body) != r.large {
			t.Errorf("%d bytes arrived", len(body))
		}
		r.gate.Leave()
		if loop := r.loops[0]; cap(loop.out) > outKept {
			t.Errorf("a buffer of %d bytes is kept", cap(loop.out))
		}
	}
}

// TestClientsThatEnd: a client may end its sending half, or reset the connection, at any time.
func TestClientsThatEnd(t *testing.T) {
	t.Parallel()
	r := open(t, 2, func(c *Config, _ *fakeGate) { c.Shared = true })
	for _, text := range []string{"", keepRequest, closeRequest} {
		c := r.dial(t)
		if text != "" {
			c.send(text)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if text != "" {
			c.receive()
		}
		c.wantEnd()
	}
	half := r.dial(t)
	half.send("GET /")
	if err := half.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	given := r.take(t)
	if rest, err := io.ReadAll(given); len(rest) > 0 || err != nil || string(given.Handed.Read) != "GET /" {
		t.Errorf("%q, %v", rest, err)
	}
	r.gate.Leave()
	r.wantOpen(t, 0)
	for _, text := range []string{"", keepRequest} {
		for range 20 {
			c := r.dial(t)
			if text != "" {
				c.ask(text)
			}
			r.wantOpen(t, 1)
			if err := c.SetLinger(0); err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
			r.wantOpen(t, 0)
		}
	}
	if text, err := converse(r.address, closeRequest); err != nil || !strings.HasPrefix(text, "HTTP/1.1 200 OK\r\n") {
		t.Errorf("afterwards: %q, %v", text, err)
	}
}

// TestGate: a connection beyond the limit gets the refusal, and is closed.
func TestGate(t *testing.T) {
	t.Parallel()
	r := open(t, 2, func(_ *Config, g *fakeGate) { g.limit = 2 })
	first, second := r.dial(t), r.dial(t)
	first.ask(keepRequest)
	second.ask(keepRequest)
	for range 20 {
		if text, err := converse(r.address, keepRequest); text != refusal || err != nil {
			t.Errorf("%q, %v", text, err)
		}
	}
	if n := r.gate.refused.Load(); n != 20 {
		t.Errorf("%d refused", n)
	}
	_ = first.Close()
	r.wantOpen(t, 1)
	r.dial(t).ask(keepRequest)
	second.ask(keepRequest)
}

// TestUnixSocket: the clients of a Unix socket are on this machine.
func TestUnixSocket(t *testing.T) {
	t.Parallel()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("@front-test-%d", os.Getpid()), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	open(t, 2, func(c *Config, _ *fakeGate) {
		if err := unix.Close(c.Socket); err != nil {
			t.Error(err)
		}
		c.Socket = takeSocket(t, ln)
	})
	for range 5 {
		c, err := net.Dial("unix", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, keepRequest); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); string(body) != "127.0.0.1:0" || err != nil {
			t.Errorf("the peer is %s, %v", body, err)
		}
	}
}

// TestDrainAfterAnError: a loop that stops accepts the whole queue, also shortly after an error.
func TestDrainAfterAnError(t *testing.T) {
	t.Parallel()
	socket, address := listen(t)
	gate := &fakeGate{limit: 1000}
	f := &Front{cfg: Config{
		Socket: socket, Gate: gate, RequestBytes: 4096, BodyBytes: 1000, FirstTimeout: time.Hour, IdleTimeout: time.Hour,
		Answerer: func(*Loop, func(*Later) func()) Answerer { return &fakeAnswerer{} },
	}}
	l, err := newLoop(f)
	if err != nil {
		t.Fatal(err)
	}
	f.loops = []*loop{l}
	const count = 3 * acceptMax
	for range count {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	f.accepting.Add(1)
	l.resumeAt = time.Now().Add(time.Hour)
	l.stop(true)
	if n := gate.entered.Load(); n != count {
		t.Errorf("%d of %d connections in the queue were accepted", n, count)
	}
	l.end(false)
	if err := errors.Join(l.closePoller(), unix.Close(socket)); err != nil || gate.open.Load() != 0 {
		t.Errorf("%v, %d connections are open", err, gate.open.Load())
	}
}

// TestHalf: the front knows of clients that are connected and have sent nothing, on its own port only.
func TestHalf(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", ":0"} { // the second takes IPv6 too, where there is any
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			start := func() (r *rig) {
				var port int
				r = open(t, 1, func(c *Config, _ *fakeGate) {
					_ = unix.Close(c.Socket)
					ln, err := net.Listen("tcp", address)
					if err != nil {
						t.Fatal(err)
					}
					port, c.Socket = ln.Addr().(*net.TCPAddr).Port, takeSocket(t, ln)
				})
				r.address = fmt.Sprintf("127.0.0.1:%d", port)
				return r
			}
			apptest.Await(t, "a silent client is known", func() bool { // the kernel hides it for a second
				r, other := start(), start()
				r.dial(t)
				if other.Half() {
					t.Fatal("a client is known on another port")
				}
				return r.Half()
			})
		})
	}
}
