// Package front accepts connections, and answers in event loops what needs no waiting. A loop recognizes requests; it does not
// interpret them. Connections with any other request are handed over with the bytes that were read, and are the caller's from
// then on, unless it gives them back.
//
// Loops accept from one socket. A connection that stays open after its first response goes to the loop with the fewest, so that
// the loops are equally busy; connections for a single request are answered by whoever accepts them. A loop that has many
// requests to answer leaves new connections to the others.
package front

import (
	"net/netip"
	"time"
)

// Answerer answers the requests of one loop. It is used by one goroutine at a time.
type Answerer interface {
	// Repeat is Answer for a request with the same bytes as an earlier one, which was plain. It may always return false.
	Repeat(dst, request []byte) (response []byte, keep, ok bool)
	// Answer appends the response to a plain request to dst. It must not wait. keep says whether the connection stays open.
	// If ok is false, the request has had no effect, and is to be answered elsewhere. peer is the client's address.
	Answer(dst, request []byte, peer netip.AddrPort) (response []byte, keep, ok bool)
}

// Gate limits the connections. Its methods may be called concurrently.
type Gate interface {
	Enter() bool // one more may be open
	Leave()      // one that entered is closed
}

// Config says what is accepted and who answers. All fields are needed.
type Config struct {
	Socket       int             // listening, in non-blocking mode; closed by StopAccepting
	Shared       bool            // other processes use the socket too: clients need not send anything to be accepted
	Loops        int             // at least 1
	Answerer     func() Answerer // for each loop
	Gate         Gate
	Refusal      []byte        // response to a connection that may not enter
	RequestBytes int           // the largest request that loops answer
	FirstTimeout time.Duration // until the first byte of a connection; then it is handed over
	IdleTimeout  time.Duration // between requests; then the connection is closed
}

// Handed is the state of a connection that is handed over. It has entered the gate.
type Handed struct {
	Read    []byte // from the connection: the begin of a request
	Unsent  []byte // rest of a response, to be sent first
	Close   bool   // after Unsent
	Times   int    // how often it was handed over, with this one
	Expired bool   // it sent nothing within FirstTimeout
}
