//go:build !linux || portable

package server

import (
	"errors"
	"net"
)

// socket reads and writes a connection through net.TCPConn. The build tag portable selects
// it on Linux, for tests.
type socket struct{ tcp *net.TCPConn }

func (s *socket) bind(c *net.TCPConn) error {
	s.tcp = c
	return nil
}

func (s *socket) read(p []byte) (int, error)  { return s.tcp.Read(p) }
func (s *socket) write(p []byte) (int, error) { return s.tcp.Write(p) }

// refuseNew reports that only Linux can drain a listener's queue.
func refuseNew(*net.TCPListener) error { return errors.New("draining the accept queue requires Linux") }
