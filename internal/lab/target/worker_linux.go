package target

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// hasWorkers reports whether this system has Worker.
const hasWorkers = true

// connectionState is the state of a connection of a Worker.
type connectionState uint8

const (
	stateClosed     connectionState = iota // no socket
	stateIdle                              // open, no request
	stateDialing                           // a request waits for a handshake in another goroutine
	stateConnecting                        // a request waits for the kernel to connect
	stateBusy                              // a request is being written or answered
)

// connection is a slot for one socket at a time.
type connection struct {
	protocol   protocol
	fd         int // -1: none
	key        eventKey
	state      connectionState
	armedWrite bool   // EPOLLOUT is watched
	ending     bool   // the peer has closed its side: read until the end
	opened     bool   // had a socket before
	lost       bool   // the last socket ended unexpectedly
	carried    int    // requests on this socket
	unsent     []byte // rest of a request that the kernel has not taken yet
	connectErr error  // of Connect; the first request reports it
	outcome    Outcome

	before, after *connection // requests in flight, in order of Begin
}

// watched are the events of a socket. EPOLLOUT is added only while something
// waits to be written. With EPOLLET the kernel reports each event once, and need
// not look at the socket again.
const watched = unix.EPOLLIN | unix.EPOLLRDHUP | edgeTriggered

// edgeTriggered is EPOLLET, which package unix defines as a negative number.
const edgeTriggered = 1 << 31

// events are those that are watched now.
func (c *connection) events() uint32 {
	if c.armedWrite {
		return watched | unix.EPOLLOUT
	}
	return watched
}

// queue holds the connections with a request in flight, oldest first: the next
// timeout is at its head.
type queue struct {
	head, tail *connection
	length     int
}

func (q *queue) push(c *connection) {
	c.before, c.after = q.tail, nil
	if q.tail != nil {
		q.tail.after = c
	} else {
		q.head = c
	}
	q.tail = c
	q.length++
}

func (q *queue) remove(c *connection) {
	if c.before != nil {
		c.before.after = c.after
	} else {
		q.head = c.after
	}
	if c.after != nil {
		c.after.before = c.before
	} else {
		q.tail = c.before
	}
	c.before, c.after = nil, nil
	q.length--
}

// Worker drives connections to one target with an epoll loop over non-blocking
// sockets. It belongs to one goroutine that is locked to its thread. It never
// sends a request twice: a failed request is reported, not repeated.
type Worker struct {
	clock         Clock
	endpoint      endpoint
	perConnection int
	timeout       int64
	observe       func(*Outcome)
	mix           *mix
	source        *Source

	poller      *poller
	connections []connection
	free        []*connection // a stack: the connection used last is used next
	inFlight    queue
	failed      []*connection // failed inside Start; reported by the next Wait
	number      int           // of connections opened; selects the local address
	sockets     int           // open now
	changed     int64         // when the integrals were last updated
	counters    Counters
	buffer      []byte
	handshakes  *handshakes // nil: a connection needs no handshake
}

// NewWorker returns worker number of a run with that many connections, none of
// them open. EventLoop must be true. observe receives every outcome.
func (t *Target) NewWorker(number, connections int, observe func(*Outcome)) (*Worker, error) {
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	w := &Worker{
		clock: t.config.Clock, perConnection: t.config.PerConnection, timeout: int64(t.config.Timeout),
		observe: observe, mix: &t.mix, source: t.source(number), poller: p, connections: make([]connection,
			connections), free: make([]*connection, 0, connections),
		buffer: make([]byte, readBytes), number: number, changed: t.config.Clock.Now(),
	}
	if t.network.socket != "" {
		w.endpoint = unixEndpoint(t.network.socket)
	} else {
		w.endpoint = tcpEndpoint(*t.network.place.Load(), t.network.sources)
	}
	if t.SQL() {
		if w.handshakes, err = newHandshakes(p, connections, t.dialPostgres); err != nil {
			return nil, errors.Join(err, p.close())
		}
	}
	memory := new(scratch)
	for i := range w.connections {
		c := &w.connections[len(w.connections)-1-i] // the first is used first
		c.fd = -1
		c.key.connection = int32(len(w.connections) - 1 - i)
		c.protocol = t.newProtocol(w.source, memory)
		w.free = append(w.free, c)
	}
	return w, nil
}

// Start sends a request that was due at intended. It returns false if every
// connection is busy. now is the time on the worker's clock. A later Wait reports
// the outcome; Start never does.
func (w *Worker) Start(intended, now int64) bool {
	if len(w.free) == 0 {
		return false
	}
	c := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	number := w.mix.draw(w.source)
	c.outcome = Outcome{Intended: intended, Begin: now, Connection: int(c.key.connection), Request: w.mix.label(number), number: number}
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

// Wait reports every request that has ended to the observer. If none has, it
// waits for the first one until the given time. The observer may call Start.
func (w *Worker) Wait(until int64) error {
	if len(w.failed) > 0 {
		w.reportFailed()
		until = 0 // the observer may have started more requests
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

// Abandon ends every request in flight. Their class is result.Unfinished.
func (w *Worker) Abandon() {
	now := w.clock.Now()
	for w.inFlight.head != nil {
		w.end(w.inFlight.head, errUnfinished, now)
	}
	w.failed = nil
}

// Busy is the number of requests in flight.
func (w *Worker) Busy() int { return w.inFlight.length }

// Free is the number of requests that Start would accept.
func (w *Worker) Free() int { return len(w.free) }

// Counters returns the totals up to now.
func (w *Worker) Counters(now int64) Counters {
	w.count(now)
	return w.counters
}

// Open is the number of connections that are open or opening.
func (w *Worker) Open() int { return w.sockets }

// Close closes every connection. Requests in flight are not reported.
func (w *Worker) Close() error {
	if w.handshakes != nil {
		w.handshakes.close()
	}
	for i := range w.connections {
		w.disconnect(&w.connections[i])
	}
	return w.poller.close()
}

// count updates the integrals to now.
func (w *Worker) count(now int64) {
	w.counters.InFlight += int64(w.inFlight.length) * (now - w.changed)
	w.counters.Open += int64(w.sockets) * (now - w.changed)
	w.changed = now
}

// open starts a connection for c's request. If the kernel connects at once, as it
// does on one host, it also sends the request.
func (w *Worker) open(c *connection) error {
	if err := c.connectErr; err != nil {
		c.connectErr = nil
		return err
	}
	if w.handshakes != nil {
		c.state = stateDialing
		c.key.generation++
		w.handshakes.begin(c.key, w.number, w.clock.deadline(c.outcome.Begin, time.Duration(w.timeout)))
		w.number++
		return nil
	}
	fd, established, err := w.endpoint.open(w.number)
	w.number++
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
	c.armedWrite = len(c.unsent) > 0
	if err := w.poller.add(fd, c.events(), c.key); err != nil {
		return fmt.Errorf("watch socket: %w", err)
	}
	return nil
}

// opened counts a new socket and stores it in c.
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

// last reports whether c's connection ends after the request that it carries.
func (w *Worker) last(c *connection) bool {
	return w.perConnection > 0 && c.carried >= w.perConnection
}

// send writes as much of c's next request as the kernel takes.
func (w *Worker) send(c *connection) error {
	c.carried++
	b := c.protocol.request(c.outcome.number, c.carried == 1, w.last(c))
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

// armWrite watches EPOLLOUT. A socket that is not watched yet gets it in open.
func (w *Worker) armWrite(c *connection) error {
	if c.armedWrite || c.state == stateConnecting {
		return nil
	}
	c.armedWrite = true
	return w.poller.change(c.fd, c.events(), c.key)
}

func sendError(c *connection, errno unix.Errno) error {
	if c.state == stateConnecting {
		return fmt.Errorf("connect: %w", errno)
	}
	return fmt.Errorf("send request: %w", errno)
}

// flush writes the rest of a request.
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

// handle processes one event. woke is the time at which the wait for it ended.
func (w *Worker) handle(e *unix.EpollEvent, woke int64) {
	if e.Fd == handshakeKey {
		w.takeDialed()
		return
	}
	c := &w.connections[e.Fd]
	if c.key.generation != e.Pad || c.state == stateClosed {
		return // the socket is already closed
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

// readsMax is the number of buffers read from one connection before the others
// are served.
const readsMax = 64

// read takes the available bytes of an answer. The kernel reports them once, so
// it reads until there are no more.
func (w *Worker) read(c *connection, woke int64) {
	for range readsMax {
		n, errno := socketRead(c.fd, w.buffer)
		if errno == unix.EAGAIN {
			return
		}
		if c.state == stateIdle { // the peer closed it, or sent bytes without a request
			w.count(w.clock.Now())
			w.disconnect(c)
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
			return // more bytes cause another event
		}
	}
	if err := w.poller.change(c.fd, c.events(), c.key); err != nil { // makes the kernel report the unread bytes again
		w.end(c, fmt.Errorf("watch socket: %w", err), w.clock.Now())
	}
}

// end finishes c's request, prepares the connection for the next one, and reports
// the outcome.
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
		w.disconnect(c)
		c.lost = !w.last(c)
	}
	w.free = append(w.free, c)
	w.observe(o)
}

// disconnect closes c's socket, if it has one.
func (w *Worker) disconnect(c *connection) {
	if c.fd >= 0 {
		socketClose(c.fd)
		w.sockets--
	}
	c.fd = -1
	c.state = stateClosed
	c.unsent = c.unsent[:0]
}

// fail records a request that failed inside Start.
func (w *Worker) fail(c *connection, err error) {
	if err == nil {
		return
	}
	c.outcome.Err = err
	w.failed = append(w.failed, c)
}

// reportFailed ends the requests that failed inside Start.
func (w *Worker) reportFailed() {
	now := w.clock.Now()
	failed := w.failed
	w.failed = nil
	for _, c := range failed {
		w.end(c, c.outcome.Err, now)
	}
}

// expire ends the requests that have exceeded the timeout. One that failed inside Start
// has ended already, and the next Wait reports it before it expires those after it.
func (w *Worker) expire(now int64) {
	for c := w.inFlight.head; c != nil && c.outcome.Err == nil && now-c.outcome.Begin >= w.timeout; c = w.inFlight.head {
		w.end(c, errTimeout, now)
	}
}
