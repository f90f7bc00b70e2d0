//go:build !portable

package front

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const readable = unix.EPOLLIN

// conn is a connection that a loop serves.
type conn struct {
	fd         int
	peer       netip.AddrPort
	answered   bool   // at least one request
	handed     int    // how often it was handed over
	events     uint32 // that are polled
	held       []byte // begin of a request
	size       int    // of that request; 0: nothing is held
	later      *Later // the answer to the request that waits; nil: none does
	since      time.Time
	waits      *queue // nil: for nothing
	prev, next *conn
}

// waitIn puts a connection at the end of a queue, and takes it out of the one that it is in.
func (c *conn) waitIn(q *queue) {
	if c.waits != nil {
		c.waits.remove(c)
	}
	q.add(c)
}

// pollOwn is Loop.poll.
func (l *loop) pollOwn(fd int, events uint32) error {
	if events == 0 {
		return unix.EpollCtl(l.poller, unix.EPOLL_CTL_DEL, fd, nil)
	}
	return l.poll(fd, events)
}

// queue is connections that wait, the longest waiting first.
type queue struct {
	limit       time.Duration
	over        func(*conn) // ends the wait of one that has waited for longer
	first, last *conn
}

func (q *queue) add(c *conn) {
	c.waits, c.prev, c.next = q, q.last, nil
	if q.last != nil {
		q.last.next = c
	} else {
		q.first = c
	}
	q.last = c
}

func (q *queue) remove(c *conn) {
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		q.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		q.last = c.prev
	}
	c.waits, c.prev, c.next = nil, nil, nil
}

// due returns when the first connection will have waited too long; zero: none waits.
func (q *queue) due() time.Time {
	if q.first == nil {
		return time.Time{}
	}
	return q.first.since.Add(q.limit)
}

// overdue returns a connection that has waited too long, or nil.
func (q *queue) overdue(now time.Time) *conn {
	if q.first == nil || now.Before(q.due()) {
		return nil
	}
	return q.first
}
