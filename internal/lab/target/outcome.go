package target

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/lab/result"
)

// Clock counts nanoseconds on the monotonic clock. Copies of a clock agree.
type Clock struct{ start time.Time }

// NewClock returns a clock that reads zero now.
func NewClock() Clock { return Clock{time.Now()} }

// Now returns the nanoseconds since the clock's start.
func (c Clock) Now() int64 { return int64(time.Since(c.start)) }

// At returns the reading at a time of the host's clock, as long as that is not set.
func (c Clock) At(t time.Time) int64 {
	now := time.Now()
	return int64(now.Sub(c.start) + t.Sub(now))
}

// deadline is the time at which a request that began at the given time has used
// its timeout up.
func (c Clock) deadline(begin int64, timeout time.Duration) time.Time {
	return c.start.Add(time.Duration(begin) + timeout)
}

// Kind is the effect of a request on the target's data.
type Kind uint8

// The kinds. GET, HEAD and OPTIONS are reads and other HTTP methods are writes.
// Statements and commands are classified by their verb.
const (
	Other Kind = iota
	Read
	Write
)

// Outcome describes one finished request. Times are nanoseconds on the run's
// Clock. A time is zero if the request did not get that far.
type Outcome struct {
	Intended  int64 // the request was due
	Begin     int64 // a connection took it: connecting or writing begins
	Connected int64 // the connection that it had to open was open
	Sent      int64 // its bytes were handed to the kernel
	First     int64 // the first bytes of the answer were read
	Done      int64 // the last bytes were read, or the failure was noticed

	Connection    int // number of the connection that carried it
	Request       int // index of its name in Target.Names
	Kind          Kind
	Status        int // HTTP status; zero for other targets
	BytesSent     int
	BytesReceived int64
	Err           error // nil: answered as expected; otherwise see Classify

	number int   // of the request in the mix
	call   *Call // instead of a request of the mix
}

// Counters are totals of a worker or session.
type Counters struct {
	Connects   int64 // connections opened
	Reconnects int64 // of them, replacements for a connection that the peer or an error ended
	InFlight   int64 // integral of requests in flight over time, in request-nanoseconds
	Open       int64 // integral of open connections over time, in connection-nanoseconds
	OpenMax    int   // most connections open at once
	Unread     int64 // nanoseconds that answers were ready before they were read
	Reads      int64 // number of answers in Unread
}

// errTimeout is the error of a request that exceeded the timeout.
var errTimeout = errors.New("no complete answer within the timeout")

// errUnfinished is the error of a request that was given up in flight.
var errUnfinished = errors.New("in flight when the run was interrupted")

// errTLS is wrapped by every failed TLS handshake.
var errTLS = errors.New("TLS handshake")

// Classify returns the class of an outcome's error. err is not nil.
func Classify(err error) result.ErrorClass {
	switch {
	case errors.Is(err, errUnfinished):
		return result.Unfinished
	case errors.Is(err, errStatus):
		return result.StatusError
	case errors.Is(err, errRedirect):
		return result.Redirect
	case errors.Is(err, errCheck):
		return result.CheckError
	case errors.Is(err, errMalformed):
		return result.Protocol
	case errors.Is(err, errTimeout), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return result.Timeout
	case errors.Is(err, errCutShort), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return result.Reset
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return classifyErrno(errno)
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return result.Resolve
	}
	if isTLS(err) {
		return result.TLSError
	}
	return result.Other
}

func classifyErrno(errno unix.Errno) result.ErrorClass {
	switch errno {
	case unix.ECONNREFUSED, unix.ENOENT: // ENOENT: no such Unix socket
		return result.Refused
	case unix.ECONNRESET, unix.EPIPE, unix.ECONNABORTED, unix.ENOTCONN:
		return result.Reset
	case unix.ETIMEDOUT, unix.EAGAIN: // EAGAIN: a Unix socket whose accept queue is full
		return result.Timeout
	case unix.EADDRNOTAVAIL, unix.EADDRINUSE:
		return result.NoLocalPort
	case unix.EMFILE, unix.ENFILE:
		return result.NoFile
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EHOSTDOWN:
		return result.Unreachable
	}
	return result.Other
}

func isTLS(err error) bool {
	alerted, ok := errors.AsType[*net.OpError](err)
	return ok && alerted.Op == "remote error" || // how crypto/tls reports an alert of the peer
		errors.Is(err, errTLS) || is[tls.RecordHeaderError](err) || is[tls.AlertError](err) || is[*tls.CertificateVerificationError](err) ||
		is[x509.UnknownAuthorityError](err) || is[x509.HostnameError](err)
}

// is reports whether an error, or one that it wraps, has the type.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
