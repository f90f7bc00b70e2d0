//go:build !linux || portable

package front

import (
	"context"
	"errors"
	"io"
	"net"
	"time"
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

// Loop is not used.
type Loop struct{}

// Watch fails.
func (*Loop) Watch(int, Watcher) error { return errors.ErrUnsupported }

// Unwatch does nothing.
func (*Loop) Unwatch(int) {}

// AwaitRoom fails.
func (*Loop) AwaitRoom(int, bool) error { return errors.ErrUnsupported }

// After does nothing.
func (*Loop) After(func()) {}

// Add does nothing.
func (*Loop) Add(*Alarm) {}

// Remove does nothing.
func (*Loop) Remove(*Alarm) {}

// Now returns the time.
func (*Loop) Now() time.Time { return time.Now() }

// Answered does nothing.
func (*Loop) Answered(*Later) {}

// Post returns false.
func (*Loop) Post(func()) bool { return false }

// Receive fails.
func Receive(int, []byte) (int, error) { return 0, errors.ErrUnsupported }

// Send fails.
func Send(int, []byte) (int, error) { return 0, errors.ErrUnsupported }
