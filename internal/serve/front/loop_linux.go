//go:build !portable

package front

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	eventsMax   = 256                  // that a loop takes at once
	acceptMax   = 64                   // connections that it accepts at once
	acceptFull  = 4                    // times in a row that all of them come before it accepts more at once
	backlog     = 64                   // events from which on it leaves new connections to other loops
	leaveMax    = 8                    // rounds in a row in which it does so
	acceptPause = 5 * time.Millisecond // after an error of accept, such as no free descriptor
	shortWait   = 10                   // milliseconds that a loop waits without telling the scheduler
	manyElse    = 10                   // requests elsewhere in that time after which it does so again
	outKept     = 256 << 10            // largest buffer of responses that a loop keeps, in bytes
	handedMax   = 256                  // connections that wait for Accept before goroutines hold them
)

// phase is how far a Front has come.
type phase int32

const (
	serving  phase = iota
	leaving        // accepts nothing more
	draining       // accepts what is in the queue, and nothing more
	ending         // answers what has arrived and what waits, and closes what is open
	aborting       // closes what is open
)

// Supported: there are loops.
const Supported = true

// Front runs the loops of a listening socket. Use Open, then Accept until io.EOF, StopAccepting and End, once each.
type Front struct {
	cfg       Config
	loops     []*loop
	phase     atomic.Int32
	handed    chan taken
	accepting sync.WaitGroup // loops that accept
	running   sync.WaitGroup // loops
	spilled   sync.WaitGroup // goroutines that hold connections for Accept
	failing   sync.Once
	failed    chan struct{} // closed after failure is set
	failure   error         // of the socket
}

// taken is a connection on its way to Accept.
type taken struct {
	Handed
	fd   int
	peer netip.AddrPort
}

// Open starts the loops. If it fails, the socket stays the caller's.
func Open(cfg Config) (*Front, error) {
	f := &Front{cfg: cfg, handed: make(chan taken, handedMax), failed: make(chan struct{})}
	prepare(cfg.Socket, !cfg.Shared)
	for range cfg.Loops {
		l, err := newLoop(f)
		if err != nil {
			for _, l := range f.loops {
				l.closePoller()
			}
			return nil, fmt.Errorf("open event loop: %w", err)
		}
		f.loops = append(f.loops, l)
	}
	f.accepting.Add(len(f.loops))
	for _, l := range f.loops {
		f.running.Go(l.run)
	}
	return f, nil
}

// Accept returns the next connection that the loops do not serve, io.EOF after End, or why the socket does not accept any more.
func (f *Front) Accept() (*Conn, error) {
	select {
	case t, ok := <-f.handed:
		if !ok {
			return nil, io.EOF
		}
		return newConn(t), nil
	case <-f.failed:
		return nil, f.failure
	}
}

// StopAccepting closes the socket, after the connections in its queue are accepted if all is set.
func (f *Front) StopAccepting(all bool) error {
	next := leaving
	if all {
		next = draining
	}
	f.advance(next)
	f.accepting.Wait()
	for all && f.acceptLate() {
	}
	if err := unix.Close(f.cfg.Socket); err != nil {
		return fmt.Errorf("close listening socket: %w", err)
	}
	return nil
}

// End answers the requests that have arrived and those that wait, closes the connections that the loops have, and ends them. When
// ctx ends, those that still wait are closed. It follows StopAccepting.
func (f *Front) End(ctx context.Context) {
	f.advance(ending)
	stop := context.AfterFunc(ctx, func() { f.advance(aborting) })
	f.running.Wait()
	stop()
	for _, l := range f.loops { // not before, because any of them may be notified until then
		_ = l.closePoller() // nothing is polled
	}
	f.spilled.Wait()
	close(f.handed)
}

// TakeBack has a loop serve a connection again that Accept has returned, after Detach and when nothing is left to read or to
// write. The caller closes its Conn, and the place in the gate is the loop's. It returns false if the Front has ended; then
// nothing has happened.
func (f *Front) TakeBack(c *Conn) bool {
	again := &conn{fd: c.detached, peer: c.peer, answered: true, handed: c.Handed.Times}
	if f.emptiest(nil).give(again) {
		return true
	}
	closeSocket(c.detached)
	return false
}

// fail makes Accept return why no connection can be accepted any more.
func (f *Front) fail(errno syscall.Errno) {
	f.failing.Do(func() {
		f.failure = os.NewSyscallError("accept", errno)
		close(f.failed)
	})
}

func (f *Front) advance(to phase) {
	f.phase.Store(int32(to))
	for _, l := range f.loops {
		l.wake()
	}
}

// hand passes a connection to Accept without waiting for it.
func (f *Front) hand(t taken) {
	select {
	case f.handed <- t:
	default:
		f.spilled.Go(func() {
			select {
			case f.handed <- t:
			case <-f.failed: // nobody may accept any more
				closeSocket(t.fd)
				f.cfg.Gate.Leave()
			}
		})
	}
}

// emptiest returns the loop with the fewest connections, l if it has no more than one more. l may be nil.
func (f *Front) emptiest(l *loop) *loop {
	best, least := l, int64(math.MaxInt64)
	if l != nil {
		least = l.open.Load() - 1
	}
	for _, other := range f.loops {
		if n := other.open.Load(); n < least {
			best, least = other, n
		}
	}
	return best
}

// loop is one event loop on a thread of its own.
type loop struct {
	front    *Front
	answerer Answerer
	own      *Loop  // for the answerer
	poller   int    // epoll
	bell     int    // eventfd: the phase, inbox or answers have changed; guarded by ringing, -1: closed
	wake     func() // rings it
	now      time.Time
	in, out  []byte
	events   [eventsMax]unix.EpollEvent
	conns    []*conn  // by descriptor
	fresh    queue    // have sent nothing yet
	idle     queue    // have been answered
	partial  queue    // have sent a part of a request
	queues   []*queue // these three, and those that wait for answers, by their limits
	sent     []*Later // room for answers
	begun    bool     // a request waits since the last round
	unknown  int      // answers
	spare    *conn
	others   uint64 // requests elsewhere until the last look

	accepts  bool      // the socket is polled
	left     int       // rounds in which it was left to others
	batch    int       // connections to accept at once
	full     int       // times in a row that so many came
	resumeAt time.Time // after an error of accept; zero: there was none

	open    atomic.Int64 // connections
	ringing sync.Mutex   // guards bell
	mu      sync.Mutex   // guards what follows
	inbox   []*conn      // given to the loop
	answers []*Later     // that are known
	ended   bool         // nothing more may be given
}

func newLoop(f *Front) (*loop, error) {
	l := &loop{front: f, in: make([]byte, f.cfg.RequestBytes), poller: -1, bell: -1, batch: 1}
	l.wake = l.ring
	l.own = &Loop{poll: l.pollOwn, ring: l.wake, finish: l.finish}
	l.answerer = f.cfg.Answerer(l.own, l.known)
	l.queues = []*queue{&l.fresh, &l.idle, &l.partial}
	l.fresh = queue{limit: f.cfg.FirstTimeout, over: func(c *conn) { l.handOver(c, Handed{Read: c.held, Expired: true}) }}
	l.idle, l.partial = queue{limit: f.cfg.IdleTimeout, over: l.close}, l.fresh
	var err error
	if l.poller, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	if l.bell, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err == nil {
		if err = l.poll(l.bell, unix.EPOLLIN); err == nil {
			err = l.listen()
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.closePoller())
	}
	return l, nil
}

func (l *loop) closePoller() error {
	l.ringing.Lock()
	defer l.ringing.Unlock()
	err := unix.Close(l.poller)
	if l.bell >= 0 {
		err = errors.Join(err, unix.Close(l.bell))
		l.bell = -1
	}
	return err
}

func (l *loop) poll(fd int, events uint32) error {
	if err := unix.EpollCtl(l.poller, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// listen polls the socket. Of several loops that wait, a new connection wakes one.
func (l *loop) listen() error {
	l.accepts = true
	return l.poll(l.front.cfg.Socket, unix.EPOLLIN|unix.EPOLLEXCLUSIVE)
}

func (l *loop) ignoreSocket() {
	if l.accepts {
		l.accepts = false
		_ = unix.EpollCtl(l.poller, unix.EPOLL_CTL_DEL, l.front.cfg.Socket, nil) // it is polled
	}
}

// ring wakes the loop. The caller does not hold mu: the loop takes it at once.
func (l *loop) ring() {
	l.ringing.Lock()
	defer l.ringing.Unlock()
	if l.bell < 0 {
		return
	}
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(l.bell, one[:]) // it fails only when it is full, and then the loop wakes too
}

// run serves until the Front ends. The thread is the loop's for good, and ends with it.
func (l *loop) run() {
	runtime.LockOSThread()
	defer l.own.end()
	stopped := false
	for {
		if l.begun && l.unknown == 1 {
			runtime.Gosched() // what it waits for may need this processor
		}
		l.begun = false
		n := l.wait(l.timeout())
		l.now = time.Now()
		l.own.now = l.now
		l.round(n)
		l.expire()
		l.own.settle()
		switch at := phase(l.front.phase.Load()); {
		case at == serving:
			l.resume()
		case !stopped:
			stopped = true
			l.stop(at == draining)
		case at >= ending && l.end(at == aborting):
			return
		}
	}
}

// wait returns the number of events, after at most timeout milliseconds; -1: no limit.
//
// At first the scheduler is not told that the thread waits. Otherwise its monitor would take the processor away, and the loop
// would have to find another one, as often as requests come. A collection of garbage interrupts the wait by a signal.
func (l *loop) wait(timeout int) int {
	first := timeout
	if timeout < 0 || timeout > shortWait {
		first = shortWait
	}
	n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(l.poller), uintptr(unsafe.Pointer(&l.events[0])), eventsMax,
		uintptr(first), 0, 0)
	if errno != 0 {
		return 0 // interrupted
	}
	if n > 0 || first == timeout || l.keepsProcessor() {
		return int(n)
	}
	if timeout > 0 {
		timeout -= first
	}
	n, _, errno = syscall.Syscall6(syscall.SYS_EPOLL_PWAIT, uintptr(l.poller), uintptr(unsafe.Pointer(&l.events[0])), eventsMax,
		uintptr(timeout), 0, 0)
	if errno != 0 {
		return 0 // as above
	}
	return int(n)
}

// round handles n events. New connections come last, because the others have waited longer.
func (l *loop) round(n int) {
	accept := false
	for i := range n {
		switch fd := int(l.events[i].Fd); {
		case fd == l.front.cfg.Socket && l.accepts: // otherwise the number may be another one's
			accept = true
		case fd == l.bell:
			var count [8]byte
			_, _ = unix.Read(l.bell, count[:])
			l.collect(false) // not before: the bell may have rung again since
			l.deliver()
			l.own.takePosted(false)
		case l.own.watchers[fd] != nil:
			l.own.watchers[fd].Ready()
		case fd < len(l.conns) && l.conns[fd] != nil:
			if c := l.conns[fd]; c.later != nil {
				l.stir(c, l.events[i].Events)
			} else {
				l.read(c)
			}
		}
	}
	if !accept || !l.accepts {
		return
	}
	if n > backlog && l.left < leaveMax && len(l.front.loops) > 1 {
		l.left++
		return
	}
	l.left = 0
	l.acceptSome()
}

// acceptSome accepts about as many connections as wait. To learn from accept that none is left costs more than to poll again: the
// kernel makes a socket first.
func (l *loop) acceptSome() {
	switch empty := l.accept(l.batch); {
	case empty:
		l.batch, l.full = max(1, l.batch/2), 0
	case l.full < acceptFull:
		l.full++
	default:
		l.batch, l.full = min(2*l.batch, acceptMax), 0
	}
}

// accept serves new connections, at most so many, and reports whether the queue is empty.
func (l *loop) accept(most int) (empty bool) {
	for range most {
		fd, peer, errno := accept(l.front.cfg.Socket)
		switch errno {
		case 0:
		case unix.EAGAIN:
			return true
		case unix.EINTR, unix.ECONNABORTED:
			continue // the client has left
		case unix.EINVAL, unix.EBADF, unix.ENOTSOCK: // somebody has shut it down
			l.ignoreSocket()
			l.front.fail(errno)
			return true
		default:
			l.ignoreSocket()
			l.resumeAt = l.now.Add(acceptPause)
			return false
		}
		if !l.front.cfg.Gate.Enter() {
			l.refuse(fd)
			continue
		}
		l.open.Add(1)
		c := l.spare
		if c == nil {
			c = new(conn)
		}
		l.spare = nil
		c.fd, c.peer = fd, peer
		l.read(c)
	}
	return false
}

// resume accepts again after a pause.
func (l *loop) resume() {
	if !l.resumeAt.IsZero() && !l.now.Before(l.resumeAt) {
		l.resumeAt = time.Time{}
		if l.listen() != nil {
			l.accepts = false
			l.resumeAt = l.now.Add(acceptPause)
		}
	}
}

// refuse answers a connection beyond the limit. What it has sent is read: otherwise close would reset the connection, and the
// client might not see the response.
func (l *loop) refuse(fd int) {
	_, _ = send(fd, l.front.cfg.Refusal) // an empty socket buffer takes it at once
	_, _ = receive(fd, l.in)
	closeSocket(fd)
}

// read reads a request, or what is left of one.
func (l *loop) read(c *conn) {
	room := l.in
	begun := copy(room, c.held)
	if begun > 0 {
		room = room[:c.size] // what follows is another request
	}
	n, errno := receive(c.fd, room[begun:])
	switch {
	case errno == unix.EAGAIN && begun > 0:
		return
	case errno == unix.EAGAIN:
		l.keep(c)
		return
	case errno == 0 && n == 0 && begun > 0:
		l.handOver(c, Handed{Read: c.held})
		return
	case errno != 0 || n == 0:
		l.close(c)
		return
	}
	l.answer(c, room[:begun+n])
}

// answer answers a request, has it wait for its rest or for its answer, or hands the connection over.
func (l *loop) answer(c *conn, request []byte) {
	if len(request) < c.size {
		l.hold(c, request, c.size)
		return
	}
	response, keep, ok := l.answerer.Repeat(l.out[:0], request, c.peer)
	if !ok {
		head, body, plain := Plain(request)
		switch size := head + body; {
		case !plain || size < len(request) || size > len(l.in):
		case size == len(request):
			var later *Later
			if response, keep, ok, later = l.answerer.Answer(l.out[:0], request, body, c.peer); later != nil {
				l.begin(c, later)
				return
			}
		case body <= l.front.cfg.BodyBytes:
			l.hold(c, request, size)
			return
		}
	}
	l.respond(c, request, response, keep, ok)
}

// respond sends the response to a request, or hands the connection over if ok is false.
func (l *loop) respond(c *conn, request, response []byte, keep, ok bool) {
	l.keepOut(response)
	if !ok {
		l.handOver(c, Handed{Read: bytes.Clone(request)})
		return
	}
	give := send
	if !keep {
		give = sendLast
	}
	sent, errno := give(c.fd, response)
	if errno != 0 && errno != unix.EAGAIN {
		l.close(c)
		return
	}
	first := !c.answered
	c.answered, c.held, c.size = true, nil, 0
	switch {
	case sent < len(response):
		l.handOver(c, Handed{Unsent: bytes.Clone(response[sent:]), Close: !keep})
	case keep && first && l.watches(c) && l.front.emptiest(l) != l:
		l.unwatch(c)
		l.keep(c)
	case keep:
		l.keep(c)
	default:
		endSending(c.fd)
		l.close(c)
	}
}

// keepOut keeps the buffer of a response.
func (l *loop) keepOut(response []byte) {
	if response != nil && cap(response) <= outKept {
		l.out = response
	}
}

// keep waits for the next request of a connection, in this loop or in another.
func (l *loop) keep(c *conn) {
	if l.watches(c) {
		l.change(c, polled)
		l.await(c)
		return
	}
	if other := l.front.emptiest(l); other != l && other.give(c) {
		l.open.Add(-1)
		return
	}
	l.adopt(c)
}

// give has the loop serve a connection, unless it has ended. The caller must not use c any more.
func (l *loop) give(c *conn) bool {
	l.mu.Lock()
	ended := l.ended
	if !ended {
		l.open.Add(1)
		l.inbox = append(l.inbox, c)
	}
	l.mu.Unlock()
	if !ended {
		l.ring()
	}
	return !ended
}

// collect adopts the connections that were given to the loop.
func (l *loop) collect(last bool) {
	l.mu.Lock()
	given := l.inbox
	l.inbox = nil
	l.ended = l.ended || last
	l.mu.Unlock()
	for _, c := range given {
		l.adopt(c)
	}
}

// adopt polls a connection that waits for a request.
func (l *loop) adopt(c *conn) {
	if !l.watch(c) {
		l.close(c)
		return
	}
	l.await(c)
}

// watch polls a connection, unless it does so already. It returns false if there is no memory for that.
func (l *loop) watch(c *conn) bool {
	if l.watches(c) {
		return true
	}
	if l.poll(c.fd, polled) != nil {
		return false
	}
	for c.fd >= len(l.conns) {
		l.conns = append(l.conns, make([]*conn, max(64, len(l.conns)))...)
	}
	l.conns[c.fd], c.events = c, polled
	return true
}

// watches reports whether a connection is polled.
func (l *loop) watches(c *conn) bool { return c.fd < len(l.conns) && l.conns[c.fd] == c }

// unwatch polls a connection no more.
func (l *loop) unwatch(c *conn) {
	if c.waits != nil {
		c.waits.remove(c)
	}
	_ = unix.EpollCtl(l.poller, unix.EPOLL_CTL_DEL, c.fd, nil) // it is polled
	l.conns[c.fd] = nil
}

// await queues a connection that waits for a request.
func (l *loop) await(c *conn) {
	c.since = l.now
	if c.answered {
		c.waitIn(&l.idle)
	} else {
		c.waitIn(&l.fresh)
	}
}

// forget takes a connection out of the loop. The caller closes or passes on its descriptor.
func (l *loop) forget(c *conn) {
	l.open.Add(-1)
	if c.waits != nil {
		c.waits.remove(c)
	}
	if l.watches(c) {
		l.conns[c.fd] = nil
	}
	if c.later != nil {
		c.later.conn = nil
		c.later.Left()
	}
	*c = conn{}
	l.spare = c
}

func (l *loop) close(c *conn) {
	fd := c.fd
	l.forget(c)
	closeSocket(fd) // which ends polling it
	l.front.cfg.Gate.Leave()
}

// handOver gives a connection away.
func (l *loop) handOver(c *conn, h Handed) {
	h.Times = c.handed + 1
	t := taken{Handed: h, fd: c.fd, peer: c.peer}
	if l.watches(c) {
		l.unwatch(c)
	}
	l.forget(c)
	l.front.hand(t)
}

// timeout returns the milliseconds until something is due; -1: nothing will be.
func (l *loop) timeout() int {
	due := l.resumeAt
	if at := l.own.due(); due.IsZero() || !at.IsZero() && at.Before(due) {
		due = at
	}
	for _, q := range l.queues {
		if at := q.due(); !at.IsZero() && (due.IsZero() || at.Before(due)) {
			due = at
		}
	}
	if due.IsZero() {
		return -1
	}
	return int(max(0, (due.Sub(l.now)+time.Millisecond-1)/time.Millisecond))
}

// expire ends the waits that have taken too long.
func (l *loop) expire() {
	for _, q := range l.queues {
		for c := q.overdue(l.now); c != nil; c = q.overdue(l.now) {
			q.over(c)
		}
	}
}

// stop stops accepting.
func (l *loop) stop(all bool) {
	l.resumeAt = time.Time{}
	for all && !l.accept(acceptMax) && l.resumeAt.IsZero() {
	}
	l.ignoreSocket()
	l.resumeAt = time.Time{}
	l.front.accepting.Done()
}
