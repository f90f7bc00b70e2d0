//go:build !linux || portable

package server

import "time"

// socket reads and writes a connection through net.Conn. The build tag portable selects
// it on Linux, for tests.
type socket struct{ conn netConn }

func (s *socket) bind(c netConn) error {
	s.conn = c
	return nil
}

func (s *socket) read(p []byte) (int, error)  { return s.conn.Read(p) }
func (s *socket) write(p []byte) (int, error) { return s.conn.Write(p) }

// expectAcks does nothing: only Linux has the option.
func (c *conn) expectAcks(time.Duration) {}

// refuseNew does nothing: only Linux can keep new connections out.
func refuseNew(int) {}
