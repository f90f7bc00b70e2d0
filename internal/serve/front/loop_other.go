//go:build !linux || portable

package front

import (
	"context"
	"errors"
	"io"
	"net"
)

// Supported: only Linux has the calls that loops need. The build tag portable leaves them out there, for tests.
const Supported = false

// Front is not supported.
type Front struct{}

// Open fails.
func Open(Config) (*Front, error) { return nil, errors.ErrUnsupported }

// Accept returns io.EOF.
func (*Front) Accept() (*Conn, error) { return nil, io.EOF }

// StopAccepting does nothing.
func (*Front) StopAccepting(bool) error { return nil }

// End does nothing.
func (*Front) End(context.Context) {}

// Half returns false.
func (*Front) Half() bool { return false }

// TakeBack does nothing.
func (*Front) TakeBack(*Conn) bool { return false }

// Conn is not used.
type Conn struct {
	*net.TCPConn
	Handed Handed
}

// Detach fails.
func (*Conn) Detach() error { return errors.ErrUnsupported }

// conn is a connection of a loop. There is none here.
type conn struct{}

const readable = 1
