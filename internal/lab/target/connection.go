package target

import "golang.org/x/sys/unix"

// protocol speaks one connection's protocol, one request at a time.
type protocol interface {
	// request returns the bytes of the next request. first says that the
	// connection is new, last that it ends behind this request. The bytes are
	// good until the next call.
	request(first, last bool) []byte
	// feed takes bytes of the answer and reports whether it has ended. No bytes
	// are the end of the connection.
	feed(b []byte) (done bool, err error)
	// answer judges a complete answer into o and reports whether the
	// connection can carry another request.
	answer(o *Outcome) (reuse bool)
}

// connectionState is what a connection waits for.
type connectionState uint8

const (
	stateClosed     connectionState = iota // no socket
	stateIdle                              // open, no request
	stateDialing                           // its request waits for a handshake; no socket yet
	stateConnecting                        // its request waits for the connection
	stateBusy                              // its request is being written or answered
)

// connection is one place for a socket; sockets follow each other in it.
type connection struct {
	protocol   protocol
	fd         int
	key        eventKey
	state      connectionState
	armedWrite bool   // EPOLLOUT is watched
	ending     bool   // the other side has ended the connection: read to its end
	opened     bool   // had a socket before
	lost       bool   // the last socket ended unasked
	carried    int    // requests on this socket
	unsent     []byte // rest of a request that the kernel did not take at once
	refused    error  // what Connect came to; the first request tells
	outcome    Outcome

	before, after *connection // requests in flight, in order of Begin
}

// watched is what a socket is watched for all its life; EPOLLOUT is added only
// while something waits to be written. Events are told once, when they come
// (EPOLLET): the kernel then need not look at each socket a second time.
const watched = unix.EPOLLIN | unix.EPOLLRDHUP | edgeTriggered

// edgeTriggered is EPOLLET, which package unix has as a negative number.
const edgeTriggered = 1 << 31

// queue holds the connections with a request in flight, oldest first, so that
// a timeout is found at its head.
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

// scratch is memory that the connections of one goroutine build their requests in.
type scratch struct {
	request []byte
	word    []byte
}
