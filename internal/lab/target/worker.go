package target

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// errTimeout says that a request took longer than the timeout.
var errTimeout = errors.New("no complete answer within the timeout")

// readBytes is the size of a worker's one read buffer.
const readBytes = 64 << 10

// Counters are what a worker has done since it was made.
type Counters struct {
	Connects   int64 // connections opened
	Reconnects int64 // of them, in place of one that the other side or an error had ended
	InFlight   int64 // integral of requests in flight over time, in request-nanoseconds
	Open       int64 // integral of open connections over time, in connection-nanoseconds
	OpenMax    int   // most connections open at once
	Unread     int64 // nanoseconds that answers lay ready before they were read
	Reads      int64 // answers that Unread sums
}

// Worker keeps connections to one target busy from one thread: an epoll loop
// over non-blocking sockets. It is for one goroutine, locked to its thread.
// Nothing is ever sent twice: a request that fails is reported, not repeated.
type Worker struct {
	clock         Clock
	endpoint      endpoint
	perConnection int
	timeout       int64
	observe       func(*Outcome)

	poller      *poller
	connections []connection
	free        []*connection // a stack: the last one used is used next
	inFlight    queue
	broken      []*connection // failed inside Start; told of by the next Wait
	turn        int           // of the local addresses
	sockets     int           // open now
	changed     int64         // when the integrals were last added to
	counters    Counters
	buffer      []byte
	handshakes  *handshakes // nil: connections are open when the kernel says so
}

// Start sends a request that was due at intended. It returns false when every
// connection is busy. now is the time on the worker's clock. How the request
// ends is told to the observer by a later Wait, never from inside Start.
func (w *Worker) Start(intended, now int64) bool {
	if len(w.free) == 0 {
		return false
	}
	c := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	c.outcome = Outcome{Intended: intended, Begin: now, Connection: int(c.key.connection)}
	w.count(now)
	w.inFlight.push(c)
	if c.state == stateIdle {
		c.outcome.Sent = now
		c.state = stateBusy
		w.fail(c, w.send(c))
		return true
	}
	w.fail(c, w.open(c))
	return true
}

// Wait tells the observer of every request that has ended. When none has, it
// waits for one until the time given, at most; then it returns. The observer may
// call Start.
func (w *Worker) Wait(until int64) error {
	if len(w.broken) > 0 {
		w.tellBroken()
		until = 0 // those who were told may have more to do
	}
	if oldest := w.inFlight.head; oldest != nil {
		until = min(until, oldest.outcome.Begin+w.timeout)
	}
	n, err := w.poller.wait(time.Duration(until - w.clock.Now()))
	if err != nil {
		return err
	}
	now := w.clock.Now()
	for i := range n {
		w.handle(&w.poller.events[i], now)
	}
	w.expire(now)
	return nil
}

// Busy is the number of requests in flight.
func (w *Worker) Busy() int { return w.inFlight.length }

// Free is the number of requests that Start would take.
func (w *Worker) Free() int { return len(w.free) }

// Counters returns what was done up to now.
func (w *Worker) Counters(now int64) Counters {
	w.count(now)
	return w.counters
}

// Open is the number of connections that are open or opening.
func (w *Worker) Open() int { return w.sockets }

// receiveQueueSample bounds the sockets that one look at the receive queues asks.
const receiveQueueSample = 32

// ReceiveQueues appends the bytes that lie unread in the sockets of the oldest
// requests in flight, a sample of them.
func (w *Worker) ReceiveQueues(sizes []int) []int {
	asked := 0
	for c := w.inFlight.head; c != nil && asked < receiveQueueSample; c = c.after {
		if c.fd < 0 {
			continue
		}
		if n, err := unix.IoctlGetInt(c.fd, unix.SIOCINQ); err == nil {
			sizes = append(sizes, n)
		}
		asked++
	}
	return sizes
}

// Close closes every connection; requests in flight end untold.
func (w *Worker) Close() error {
	if w.handshakes != nil {
		w.handshakes.close()
	}
	for i := range w.connections {
		w.hangUp(&w.connections[i])
	}
	return w.poller.close()
}

// count adds the time since the last change to the integrals.
func (w *Worker) count(now int64) {
	w.counters.InFlight += int64(w.inFlight.length) * (now - w.changed)
	w.counters.Open += int64(w.sockets) * (now - w.changed)
	w.changed = now
}

// open begins a connection for c's request and sends the request with it if the
// connection is there at once, as it is on one host.
func (w *Worker) open(c *connection) error {
	if err := c.refused; err != nil {
		c.refused = nil
		return err
	}
	if w.handshakes != nil {
		c.state = stateDialing
		c.key.generation++
		w.handshakes.begin(c.key, w.turn)
		w.turn++
		return nil
	}
	fd, established, err := w.endpoint.open(w.turn)
	w.turn++
	if err != nil {
		return err
	}
	if w.endpoint.family != unix.AF_UNIX && w.perConnection != 1 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
			socketClose(fd)
			return fmt.Errorf("set TCP_NODELAY: %w", err)
		}
	}
	w.opened(c, fd)
	c.state = stateConnecting
	now := w.clock.Now()
	if err := w.send(c); err != nil {
		return err
	}
	if established || len(c.unsent) == 0 { // else still connecting
		c.outcome.Connected, c.outcome.Sent = now, now
		c.state = stateBusy
	}
	events := uint32(watched)
	if len(c.unsent) > 0 {
		events |= unix.EPOLLOUT
		c.armedWrite = true
	}
	if err := w.poller.add(fd, events, c.key); err != nil {
		return fmt.Errorf("watch socket: %w", err)
	}
	return nil
}

// opened counts a new socket and puts it into c's place.
func (w *Worker) opened(c *connection, fd int) {
	w.counters.Connects++
	w.sockets++
	w.counters.OpenMax = max(w.counters.OpenMax, w.sockets)
	if c.opened && c.lost {
		w.counters.Reconnects++
	}
	c.fd, c.opened, c.lost, c.carried, c.armedWrite, c.ending = fd, true, false, 0, false, false
	c.key.generation++
}

// last says whether c's connection ends behind the request it carries.
func (w *Worker) last(c *connection) bool {
	return w.perConnection > 0 && c.carried >= w.perConnection
}

// send writes c's next request, as much as the kernel takes.
func (w *Worker) send(c *connection) error {
	c.carried++
	b := c.protocol.request(c.carried == 1, w.last(c))
	c.outcome.BytesSent = len(b)
	n, errno := socketWrite(c.fd, b)
	switch {
	case errno == unix.EAGAIN:
		n = 0
	case errno != 0:
		return sendError(c, errno)
	}
	if n == len(b) {
		return nil
	}
	c.unsent = append(c.unsent[:0], b[n:]...)
	return w.armWrite(c)
}

// armWrite has EPOLLOUT watched; a socket that is still to be added gets it then.
func (w *Worker) armWrite(c *connection) error {
	if c.armedWrite || c.state == stateConnecting {
		return nil
	}
	c.armedWrite = true
	return w.poller.change(c.fd, watched|unix.EPOLLOUT, c.key)
}

func sendError(c *connection, errno unix.Errno) error {
	if c.state == stateConnecting {
		return fmt.Errorf("connect: %w", errno)
	}
	return fmt.Errorf("send request: %w", errno)
}

// flush writes what is left of a request.
func (w *Worker) flush(c *connection, now int64) error {
	if c.state == stateConnecting {
		errno, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		if errno != 0 {
			return fmt.Errorf("connect: %w", unix.Errno(errno))
		}
		c.outcome.Connected, c.outcome.Sent = now, now
		c.state = stateBusy
	}
	for len(c.unsent) > 0 {
		n, errno := socketWrite(c.fd, c.unsent)
		switch {
		case errno == unix.EAGAIN:
			return nil
		case errno != 0:
			return sendError(c, errno)
		}
		c.unsent = append(c.unsent[:0], c.unsent[n:]...)
	}
	c.armedWrite = false
	return w.poller.change(c.fd, watched, c.key)
}

// handle deals with one event; woke is when the wait for it ended.
func (w *Worker) handle(e *unix.EpollEvent, woke int64) {
	if e.Fd == handshakeKey {
		w.takeDialed()
		return
	}
	c := &w.connections[e.Fd]
	if c.key.generation != e.Pad || c.state == stateClosed {
		return // of a socket that is closed already
	}
	if c.armedWrite && e.Events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		if err := w.flush(c, w.clock.Now()); err != nil {
			w.end(c, err, w.clock.Now())
			return
		}
	}
	c.ending = c.ending || e.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	if c.state != stateConnecting {
		w.read(c, woke)
	}
}

// readsMax bounds the buffers read from one connection before the others have
// their turn.
const readsMax = 64

// read takes what has come of an answer. The kernel tells of it once, so it
// reads until there is no more.
func (w *Worker) read(c *connection, woke int64) {
	for range readsMax {
		n, errno := socketRead(c.fd, w.buffer)
		if errno == unix.EAGAIN {
			return
		}
		if c.state == stateIdle { // the other side ended it, or speaks unasked
			w.count(w.clock.Now())
			w.hangUp(c)
			c.lost = true
			return
		}
		now := w.clock.Now()
		w.counters.Unread += now - woke
		w.counters.Reads++
		if errno != 0 {
			w.end(c, fmt.Errorf("read answer: %w", errno), now)
			return
		}
		if c.outcome.First == 0 && n > 0 {
			c.outcome.First = now
		}
		c.outcome.BytesReceived += int64(n)
		done, err := c.protocol.feed(w.buffer[:n])
		if done || err != nil {
			w.end(c, err, now)
			return
		}
		if n < len(w.buffer) && !c.ending {
			return // that was all: more will be told of
		}
	}
	w.tellAgain(c)
}

// tellAgain has the kernel tell once more of what is there.
func (w *Worker) tellAgain(c *connection) {
	events := uint32(watched)
	if c.armedWrite {
		events |= unix.EPOLLOUT
	}
	if err := w.poller.change(c.fd, events, c.key); err != nil {
		w.end(c, fmt.Errorf("watch socket: %w", err), w.clock.Now())
	}
}

// end finishes c's request and tells the observer, once the connection is ready
// for the next one.
func (w *Worker) end(c *connection, err error, now int64) {
	o := &c.outcome
	o.Done, o.Err = now, err
	w.count(now)
	w.inFlight.remove(c)
	reuse := false
	if err == nil {
		reuse = c.protocol.answer(o)
	}
	if reuse && !w.last(c) && len(c.unsent) == 0 && !c.ending {
		c.state = stateIdle
	} else {
		w.hangUp(c)
		c.lost = !w.last(c)
	}
	w.free = append(w.free, c)
	w.observe(o)
}

// hangUp closes c's socket, if it has one.
func (w *Worker) hangUp(c *connection) {
	if c.fd >= 0 {
		socketClose(c.fd)
		w.sockets--
	}
	c.fd = -1
	c.state = stateClosed
	c.unsent = c.unsent[:0]
}

// fail notes a request that failed inside Start.
func (w *Worker) fail(c *connection, err error) {
	if err == nil {
		return
	}
	c.outcome.Err = err
	w.broken = append(w.broken, c)
}

// tellBroken ends the requests that failed inside Start.
func (w *Worker) tellBroken() {
	now := w.clock.Now()
	broken := w.broken
	w.broken = nil
	for _, c := range broken {
		w.end(c, c.outcome.Err, now)
	}
}

// expire ends the requests that are older than the timeout.
func (w *Worker) expire(now int64) {
	for c := w.inFlight.head; c != nil && now-c.outcome.Begin >= w.timeout; c = w.inFlight.head {
		w.end(c, errTimeout, now)
	}
}
