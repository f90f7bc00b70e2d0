// Package front accepts connections, and answers requests in event loops. A loop recognizes requests; it does not interpret them.
// It does not wait either: an answer that is not known yet is Later, and the loop sends it when it is. Connections with any other
// request are handed over with the bytes that were read, and are the caller's from then on, unless it gives them back.
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
	Repeat(dst, request []byte, peer netip.AddrPort) (response []byte, keep, ok bool)
	// Answer appends the response to a plain request, whose last bytes are its body, to dst. It must not wait. keep says whether the
	// connection stays open. If later is not nil, it is the answer, and the other results are not used. Otherwise, if ok is false, the
	// request has had no effect, and is to be answered elsewhere. peer is the client's address. The request is not used after Answer.
	Answer(dst, request []byte, body int, peer netip.AddrPort) (response []byte, keep, ok bool, later *Later)
}

// Later is the answer to a request that waits. An Answerer may use one again after Respond, unless the limit was over.
type Later struct {
	Limit  time.Duration // after which Respond is called in any case; 0: none
	Inside bool          // the answer comes by Loop.Answered, and known is not called
	// Respond is Answer when the answer is known, or when the limit is over. The loop calls it once, also when the client has left.
	Respond func(dst []byte, over bool) (response []byte, keep bool)
	// Left is called before Respond when the client has closed its sending half or the connection has ended: once or twice.
	Left func()

	conn *conn // nil: its connection has ended
	over bool  // Respond was called before the answer was known
}

// Gate limits the connections. Its methods may be called concurrently.
type Gate interface {
	Enter() bool // one more may be open
	Leave()      // one that entered is closed
}

// Config says what is accepted and who answers. All fields but Elsewhere are needed.
type Config struct {
	Socket int  // listening, in non-blocking mode; closed by StopAccepting
	Shared bool // other processes use the socket too: clients need not send anything to be accepted
	Loops  int  // at least 1
	// Answerer returns the one of a loop, which may use loop in its methods. It calls known, once for each Later that is not Inside, when
	// the answer is known, and soon after that what known returns, unless that is nil: the loop sends all answers that are known by
	// then. Both are called from any goroutine, also before Answer has returned it.
	Answerer     func(loop *Loop, known func(*Later) (wake func())) Answerer
	Gate         Gate
	Refusal      []byte        // response to a connection that may not enter
	RequestBytes int           // the largest request that loops answer, with its body
	BodyBytes    int           // the largest body whose rest a loop waits for
	FirstTimeout time.Duration // until the first byte of a connection, or from a request's first to its last; then it is handed over
	IdleTimeout  time.Duration // between requests; then the connection is closed
	// Elsewhere counts the requests on connections that were handed over. While they are many, loops that wait keep their processors, so
	// that no more threads work than the process was given. nil: they are not counted.
	Elsewhere func() uint64
}

// Handed is the state of a connection that is handed over. It has entered the gate.
type Handed struct {
	Read    []byte // from the connection: the begin of a request
	Unsent  []byte // rest of a response, to be sent first
	Close   bool   // after Unsent
	Times   int    // how often it was handed over, with this one
	Expired bool   // nothing followed within FirstTimeout
}
