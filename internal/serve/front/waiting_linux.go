//go:build !portable

package front

import (
	"bytes"
	"time"

	"golang.org/x/sys/unix"
)

// polled are the events of a connection that waits for nothing but a request.
const polled = unix.EPOLLIN | unix.EPOLLRDHUP

// keepsProcessor reports whether many requests were answered elsewhere since the last call.
func (l *loop) keepsProcessor() bool {
	before := l.others
	if l.front.cfg.Elsewhere != nil {
		l.others = l.front.cfg.Elsewhere()
	}
	return l.others-before >= manyElse
}

// hold keeps the begin of a request of that size until more of it comes. What follows the request stays in the socket.
func (l *loop) hold(c *conn, begin []byte, size int) {
	if c.held == nil {
		if !l.watch(c) {
			l.close(c)
			return
		}
		c.held, c.size, c.since = make([]byte, 0, size), size, l.now
		c.waitIn(&l.partial)
	}
	c.held = append(c.held[:0], begin...)
}

// begin has a request wait for its answer.
func (l *loop) begin(c *conn, later *Later) {
	l.begun = l.begun || !later.Inside
	l.unknown++
	c.held, c.size = nil, 0
	later.conn, later.over, c.later = c, false, later
	if !l.watch(c) {
		l.close(c)
		return
	}
	if c.since = l.now; later.Limit > 0 {
		c.waitIn(l.waitingFor(later.Limit))
	} else if c.waits != nil {
		c.waits.remove(c)
	}
}

// waitingFor returns the connections whose answers have a limit.
func (l *loop) waitingFor(limit time.Duration) *queue {
	for _, q := range l.queues[3:] {
		if q.limit == limit {
			return q
		}
	}
	q := &queue{limit: limit, over: func(c *conn) { l.finish(c.later, true) }}
	l.queues = append(l.queues, q)
	return q
}

// known notes that an answer can be sent. The loop does so after wake. It may be called from any goroutine.
func (l *loop) known(later *Later) (wake func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers = append(l.answers, later)
	if len(l.answers) > 1 {
		return nil // the first one's is to be called
	}
	return l.wake
}

// deliver sends the answers that are known.
func (l *loop) deliver() {
	l.mu.Lock()
	answers := l.answers
	l.answers = l.sent[:0]
	l.mu.Unlock()
	for _, later := range answers {
		if !later.over {
			l.finish(later, false)
		}
	}
	clear(answers)
	l.sent = answers
}

// finish responds to a request that has waited.
func (l *loop) finish(later *Later, over bool) {
	l.unknown--
	c := later.conn
	later.conn, later.over = nil, over
	response, keep := later.Respond(l.out[:0], over)
	if c == nil {
		l.keepOut(response)
		return
	}
	c.later = nil
	l.respond(c, nil, response, keep, true)
}

// stir handles an event of a connection whose request waits. What the client sends meanwhile stays in the socket.
func (l *loop) stir(c *conn, events uint32) {
	switch {
	case events&(unix.EPOLLHUP|unix.EPOLLERR) != 0:
		l.close(c)
	case events&unix.EPOLLRDHUP != 0:
		l.change(c, 0)
		if !pending(c.fd) {
			c.later.Left()
		}
	default:
		l.change(c, unix.EPOLLRDHUP)
	}
}

// change sets the events that are polled, besides errors.
func (l *loop) change(c *conn, events uint32) {
	if c.events != events {
		c.events = events
		_ = unix.EpollCtl(l.poller, unix.EPOLL_CTL_MOD, c.fd, &unix.EpollEvent{Events: events, Fd: int32(c.fd)}) // it is polled
	}
}

// end closes all connections but those whose requests wait, after it has answered what has arrived. It reports whether none is
// left. With abort, it closes those too.
func (l *loop) end(abort bool) (over bool) {
	l.collect(true)
	for n := l.wait(0); n > 0; n = l.wait(0) {
		l.round(n)
		l.own.settle()
	}
	over = true
	for _, c := range l.conns {
		switch {
		case c == nil:
		case abort:
			l.close(c)
		case c.later != nil:
			over = false
		case len(c.held) > 0:
			l.handOver(c, Handed{Read: bytes.Clone(c.held)})
		default:
			l.close(c)
		}
	}
	return over
}
