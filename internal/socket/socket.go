// Package socket reads and writes network connections at little cost.
package socket

import (
	"net"
	"syscall"
)

// Conn is a connection that has a socket.
type Conn interface {
	net.Conn
	syscall.Conn
}

// wrapped is a connection that is read and written by IO.
type wrapped struct {
	net.Conn
	io IO
}

func (w *wrapped) Read(p []byte) (int, error)  { return w.io.Read(p) }
func (w *wrapped) Write(p []byte) (int, error) { return w.io.Write(p) }

// Wrap returns a connection that reads and writes c by IO, or c if it has no socket.
func Wrap(c net.Conn) net.Conn {
	w := &wrapped{Conn: c}
	if s, ok := c.(Conn); !ok || w.io.Bind(s) != nil {
		return c
	}
	return w
}
