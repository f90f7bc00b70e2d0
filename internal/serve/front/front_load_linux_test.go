//go:build !portable

package front

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"spillway/internal/apptest"
)

// hold keeps the only loop of a rig busy until the returned function is called.
func (r *rig) hold(t *testing.T) (release func()) {
	t.Helper()
	c := r.dial(t)
	c.send(holdRequest)
	apptest.Receive(t, "the answer that takes long", r.holding)
	return func() {
		r.release <- struct{}{}
		c.receive()
	}
}

// TestStopAcceptingAll: whatever is in the queue of the socket is answered before it is closed.
func TestStopAcceptingAll(t *testing.T) {
	t.Parallel()
	r := open(t, 1, nil)
	release := r.hold(t)
	clients := make([]*client, 3*acceptMax)
	for i := range clients {
		clients[i] = r.dial(t)
		clients[i].send([]string{keepRequest, closeRequest}[i%2])
	}
	stopped := make(chan error, 1)
	go func() { stopped <- r.StopAccepting(true) }()
	apptest.Await(t, "the loop is told", func() bool { return phase(r.phase.Load()) == draining })
	release()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if n := r.gate.entered.Load(); n != int64(len(clients))+1 {
		t.Errorf("%d of %d connections were accepted", n-1, len(clients))
	}
	for i, c := range clients {
		if got := c.receive(); got != c.LocalAddr().String() {
			t.Errorf("connection %d: %q", i, got)
		}
	}
	if _, err := net.Dial("tcp", r.address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a later connection: %v", err)
	}
	kept := clients[0]
	kept.ask(keepRequest)
	r.endAll(t)
	kept.wantEnd()
}

// endAll ends a rig whose StopAccepting has been called.
func (r *rig) endAll(t *testing.T) {
	t.Helper()
	r.End(context.Background())
	if _, err := r.Accept(); err != io.EOF {
		t.Errorf("Accept after End: %v", err)
	}
	r.stop = func() {}
	if n := r.gate.open.Load(); n != 0 {
		t.Errorf("%d connections are open after End", n)
	}
}

// TestEnd: requests that have arrived are answered, then all connections are closed.
func TestEnd(t *testing.T) {
	t.Parallel()
	r := open(t, 1, nil)
	clients := make([]*client, 2*eventsMax)
	for i := range clients {
		clients[i] = r.dial(t)
		clients[i].ask(keepRequest)
	}
	if err := r.StopAccepting(false); err != nil {
		t.Error(err)
	}
	holder := clients[0]
	holder.send(holdRequest)
	apptest.Receive(t, "the answer that takes long", r.holding)
	for _, c := range clients[2:] {
		c.send(keepRequest)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.endAll(t)
	}()
	apptest.Await(t, "the loop is told", func() bool { return phase(r.phase.Load()) == ending })
	r.release <- struct{}{}
	apptest.Receive(t, "the end", ended)
	holder.receive()
	for _, c := range clients[2:] {
		c.receive()
	}
	for _, c := range clients {
		c.wantEnd()
	}
}

// TestEndAnswersWhatWasGiven: a loop that ends also serves the connections that another has given it at last.
func TestEndAnswersWhatWasGiven(t *testing.T) {
	t.Parallel()
	r := &rig{}
	r.gate.limit = 1
	r.gate.Enter()
	f := &Front{cfg: Config{Loops: 1, RequestBytes: 4096, Gate: &r.gate, Answerer: func(*Loop, func(*Later) func()) Answerer { return &fakeAnswerer{rig: r} }}}
	var err error
	f.cfg.Socket, _ = listen(t)
	defer unix.Close(f.cfg.Socket)
	l, err := newLoop(f)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	if _, err := unix.Write(pair[0], []byte(keepRequest)); err != nil {
		t.Fatal(err)
	}
	l.inbox = append(l.inbox, &conn{fd: pair[1], answered: true})
	l.open.Add(1)
	l.end(false)
	answer := make([]byte, 1000)
	if n, err := unix.Read(pair[0], answer); err != nil || !strings.HasPrefix(string(answer[:max(n, 0)]), "HTTP/1.1 200 OK\r\n") {
		t.Errorf("%d bytes, %v", n, err)
	}
	if n, err := unix.Read(pair[0], answer); n != 0 || err != nil || r.gate.open.Load() != 0 {
		t.Errorf("at the end: %d, %v, %d open", n, err, r.gate.open.Load())
	}
}

// TestGivenMeanwhile: a loop that was woken for a connection also serves one that it is given while it answers others.
func TestGivenMeanwhile(t *testing.T) {
	t.Parallel()
	r := open(t, 1, nil)
	give := func() *os.File {
		t.Helper()
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		client := os.NewFile(uintptr(pair[0]), "client")
		t.Cleanup(func() { _ = client.Close() })
		r.gate.Enter()
		if !r.loops[0].give(&conn{fd: pair[1], answered: true}) {
			t.Fatal("the loop has ended")
		}
		return client
	}
	first, second := r.dial(t), r.dial(t)
	first.ask(keepRequest)
	second.ask(keepRequest)
	first.send(holdRequest)
	apptest.Receive(t, "the first answer", r.holding)
	second.send(holdRequest) // comes with the bell for the connection, and before it
	before := give()
	r.release <- struct{}{}
	apptest.Receive(t, "the second answer", r.holding)
	meanwhile := give()
	r.release <- struct{}{}
	for i, client := range []*os.File{meanwhile, before} {
		if err := client.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(client, closeRequest); err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(client); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 200 OK\r\n") {
			t.Errorf("connection %d: %q, %v", i, text, err)
		}
	}
}

// TestNoDescriptors: a loop that gets no descriptor leaves the socket for a while, and then accepts.
func TestNoDescriptors(t *testing.T) {
	r := open(t, 1, nil)
	kept, waiting := r.dial(t), r.dial(t)
	kept.ask(keepRequest)
	info, err := os.Open(fmt.Sprintf("/proc/self/fdinfo/%d", r.loops[0].poller))
	if err != nil {
		t.Fatal(err)
	}
	defer info.Close()
	polled := func() bool {
		text := make([]byte, 1<<16)
		n, err := info.ReadAt(text, 0)
		if err != nil && err != io.EOF {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text[:n])) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "tfd:" && fields[1] == fmt.Sprint(r.cfg.Socket) {
				return true
			}
		}
		return false
	}
	if !polled() {
		t.Fatal("the socket is not polled")
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	restore := sync.OnceFunc(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	})
	defer restore()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	waiting.send(closeRequest)
	apptest.Await(t, "the socket is left", func() bool { return !polled() })
	kept.ask(keepRequest)
	if n := r.gate.entered.Load(); n != 1 {
		t.Errorf("%d connections were accepted", n)
	}
	restore()
	waiting.receive()
	waiting.wantEnd()
	if text, err := converse(r.address, closeRequest); err != nil || text == "" {
		t.Errorf("afterwards: %q, %v", text, err)
	}
}

// flood sends requests over kept and short connections until the returned function is called, which returns their number.
func (r *rig) flood(t *testing.T) (stop func() int64) {
	t.Helper()
	var ended atomic.Bool
	var answered atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		c := r.dial(t)
		clients.Go(func() {
			defer c.Close()
			answer := make([]byte, 4096)
			for !ended.Load() {
				if _, err := io.WriteString(c, keepRequest); err != nil {
					t.Error(err)
					return
				}
				if _, err := c.Read(answer); err != nil {
					t.Error(err)
					return
				}
				answered.Add(1)
			}
		})
		clients.Go(func() {
			for !ended.Load() {
				if _, err := converse(r.address, closeRequest); err != nil {
					t.Error(err)
					return
				}
				answered.Add(1)
			}
		})
	}
	apptest.Await(t, "a hundred requests are answered", func() bool { return answered.Load() > 100 })
	return func() int64 {
		ended.Store(true)
		clients.Wait()
		return answered.Load()
	}
}

// TestCollection: loops do not hold up the collection of garbage, whether they answer a flood or wait for hours.
func TestCollection(t *testing.T) {
	r := open(t, 2*runtime.GOMAXPROCS(0), func(c *Config, _ *fakeGate) { c.FirstTimeout, c.IdleTimeout = time.Hour, time.Hour })
	collect := func(when string) {
		t.Helper()
		for range 5 {
			collected := make(chan struct{})
			go func() {
				runtime.GC()
				close(collected)
			}()
			apptest.Receive(t, "a collection of garbage, "+when, collected)
		}
	}
	r.dial(t).ask(keepRequest)
	collect("idle")
	stop := r.flood(t)
	collect("in a flood")
	if stop() == 0 {
		t.Error("there was no flood")
	}
}

// TestFloodStarvesNobody: goroutines that wait go on while loops answer a flood.
func TestFloodStarvesNobody(t *testing.T) {
	t.Parallel()
	r := open(t, 2*runtime.GOMAXPROCS(0), nil)
	stop := r.flood(t)
	defer stop()
	there, back := make(chan int), make(chan int)
	go func() {
		defer close(back)
		for i := range there {
			<-time.After(time.Microsecond)
			back <- i
		}
	}()
	for i := range 100 {
		there <- i
		if got := apptest.Receive(t, "a goroutine that waits", back); got != i {
			t.Errorf("wait %d is over, want %d", got, i)
		}
	}
	close(there)
	<-back
	c := r.dial(t)
	c.send(otherRequest)
	if given := r.take(t); string(given.Handed.Read) != otherRequest {
		t.Errorf("%+v", given.Handed)
	}
	r.gate.Leave()
}

// TestManyIdleConnections: idle connections cost little memory, and each still gets its answer.
func TestManyIdleConnections(t *testing.T) {
	count := manyConnections(t)
	r := open(t, 1, nil)
	address, err := netip.ParseAddrPort(r.address)
	if err != nil {
		t.Fatal(err)
	}
	clients := make([]int, 0, count)
	defer func() {
		for _, fd := range clients {
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // leaves no address behind
			_ = unix.Close(fd)
		}
	}()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	answer := make([]byte, 1000)
	ask := func(fd int) {
		if _, err := unix.Write(fd, []byte(keepRequest)); err != nil {
			t.Fatal(err)
		}
		if n, err := unix.Read(fd, answer); err != nil || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 200 OK\r\n") {
			t.Fatalf("%q, %v", answer[:max(n, 0)], err)
		}
	}
	for range count {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, fd)
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: address.Addr().As4(), Port: int(address.Port())}); err != nil {
			t.Fatal(err)
		}
		ask(fd)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / int64(count); each > 1024 {
		t.Errorf("a connection takes %d bytes", each)
	}
	for _, fd := range clients {
		ask(fd)
	}
	if n := r.gate.open.Load(); n != int64(count) {
		t.Errorf("%d connections are open", n)
	}
}

// manyConnections returns 10,000, 500 with -short, or as many connections as the limit of descriptors allows, and raises that limit.
func manyConnections(t *testing.T) int {
	t.Helper()
	want, others := 10_000, 200
	if testing.Short() {
		want = 500
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	raised := unix.Rlimit{Cur: min(limit.Max, uint64(2*want+others)), Max: limit.Max}
	if raised.Cur > limit.Cur {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err != nil {
			t.Fatal(err)
		}
		limit.Cur = raised.Cur
	}
	count := min(want, (int(min(limit.Cur, 1<<20))-others)/2)
	if count < want {
		t.Logf("%d connections, because of a limit of %d descriptors", count, limit.Cur)
	}
	return count
}

// TestQueue: whoever waits the longest is first, whatever leaves in between.
func TestQueue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q := queue{limit: time.Second}
		now := time.Unix(0, 0)
		var want []*conn
		for _, step := range rapid.SliceOf(rapid.IntRange(0, 1000)).Draw(t, "steps") {
			now = now.Add(time.Duration(step) * time.Millisecond)
			switch at := step % (len(want) + 1); {
			case step%3 > 0:
				c := &conn{since: now}
				q.add(c)
				want = append(want, c)
			case at < len(want):
				q.remove(want[at])
				want = append(want[:at:at], want[at+1:]...)
			}
			got := 0
			for c := q.first; c != nil; c = c.next {
				if got == len(want) || c != want[got] || c.waits != &q {
					t.Fatalf("connection %d is another", got)
				}
				got++
			}
			if got != len(want) {
				t.Fatalf("%d connections of %d", got, len(want))
			}
			if late := q.overdue(now); late != nil && (late != want[0] || now.Sub(late.since) < q.limit) || late == nil && got > 0 && now.Sub(want[0].since) >= q.limit {
				t.Fatalf("overdue at %s: %v", now, late)
			}
		}
	})
}
