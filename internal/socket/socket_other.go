//go:build !linux || portable

package socket

// IO reads and writes a connection through net.Conn. The build tag portable selects it on Linux, for tests.
type IO struct{ conn Conn }

// Bind makes s that of a connection. It is called first, once.
func (s *IO) Bind(c Conn) error {
	s.conn = c
	return nil
}

// Read implements io.Reader.
func (s *IO) Read(p []byte) (int, error) { return s.conn.Read(p) }

// Write implements io.Writer.
func (s *IO) Write(p []byte) (int, error) { return s.conn.Write(p) }
