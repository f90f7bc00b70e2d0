package target

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bytes of the MySQL protocol that matter here.
const (
	mysqlStmtPrepare = 0x16
	mysqlStmtExecute = 0x17
	mysqlTypeInteger = 0x08 // 64 bits
	mysqlTypeText    = 0xfd

	mysqlNotMariaDB    = 1 << 0 // MariaDB's extended capabilities are not there
	mysqlCompress      = 1 << 5
	mysqlPlainEOF      = 1 << 24 // the client takes an OK packet for the end of rows (CLIENT_DEPRECATE_EOF)
	mysqlCachedColumns = 1 << 4  // extended: MariaDB may leave the columns out (MARIADB_CLIENT_CACHE_METADATA)
	mysqlPacketMax     = 1<<24 - 1
)

// lastPrepared is MariaDB's number for the statement that the connection prepared
// last (MariaDB 10.2 and newer). MySQL has no such number, and a connection's own
// numbers are not known to the engine: MySQL is driven through its driver.
const lastPrepared = 0xffffffff

// mysqlSession is what was agreed on when a connection was opened.
type mysqlSession struct {
	plainEOF      bool // no EOF packet behind the columns
	cachedColumns bool // a byte says whether columns follow
}

// mysqlProtocol runs one prepared statement on one connection of the lean engine.
type mysqlProtocol struct {
	statement *statement
	session   *mysqlSession
	source    *Source
	scratch   *scratch
	reply     mysqlReply
}

func (p *mysqlProtocol) request(_, _ bool) []byte {
	p.source.next()
	p.reply.reset(p.session)
	b := append(p.scratch.request[:0], 0, 0, 0, 0, mysqlStmtExecute) // length to come
	b = binary.LittleEndian.AppendUint32(b, lastPrepared)
	b = append(b, 0, 1, 0, 0, 0) // no cursor; once
	if n := len(p.statement.values); n > 0 {
		for range (n + 7) / 8 {
			b = append(b, 0) // none is NULL
		}
		b = append(b, 1) // the types follow
		types := len(b)
		for range n {
			b = append(b, mysqlTypeText, 0)
		}
		for i := range n {
			v := &p.statement.values[i]
			if number, ok := v.integer(p.source); ok {
				b[types+2*i] = mysqlTypeInteger
				b = binary.LittleEndian.AppendUint64(b, uint64(number))
				continue
			}
			at := len(b)
			b = append(b, 0xfd, 0, 0, 0) // a length of three bytes
			b = v.append(b, p.source)
			putUint24(b[at+1:], len(b)-at-4)
		}
	}
	putUint24(b, len(b)-4)
	p.scratch.request = b
	return b
}

func putUint24(b []byte, n int) { b[0], b[1], b[2] = byte(n), byte(n>>8), byte(n>>16) }

func (p *mysqlProtocol) feed(b []byte) (bool, error) {
	if len(b) > 0 {
		return p.reply.feed(b)
	}
	return false, errCutShort
}

func (p *mysqlProtocol) answer(o *Outcome) bool {
	o.Kind = p.statement.kind
	if p.reply.failure != "" {
		o.Err = fmt.Errorf("%w: %s", errSQL, p.reply.failure)
	}
	return true
}

// A mysqlTap is the driver's connection until the engine takes it over: it keeps
// what the client asked for in the handshake, and lets nothing through once the
// connection is taken.
type mysqlTap struct {
	net.Conn
	mu    sync.Mutex
	hello []byte // the client's first packet
	taken bool
}

func (c *mysqlTap) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken {
		return len(b), nil // the driver's goodbye
	}
	if c.hello == nil {
		c.hello = append(c.hello, b[:min(len(b), 64)]...)
	}
	return c.Conn.Write(b)
}

// session reads from the client's first packet what was agreed on.
func (c *mysqlTap) session() (*mysqlSession, error) {
	const capabilities, extended = 4, 4 + 4 + 4 + 1 + 19 // behind them: largest packet, character set, filler
	if len(c.hello) < extended+4 {
		return nil, errNotPlain
	}
	agreed := binary.LittleEndian.Uint32(c.hello[capabilities:])
	if agreed&(mysqlCompress|mysqlNotMariaDB) != 0 {
		return nil, errNotPlain
	}
	return &mysqlSession{
		plainEOF:      agreed&mysqlPlainEOF != 0,
		cachedColumns: binary.LittleEndian.Uint32(c.hello[extended:])&mysqlCachedColumns != 0,
	}, nil
}

// dialMySQLWire connects as dialMySQL does, prepares, and takes the socket over.
// The caller closes it.
func (t *Target) dialMySQLWire(ctx context.Context, turn int) (fd int, err error) {
	fd, session, err := t.takeMySQL(ctx, turn)
	if err != nil {
		return -1, err
	}
	if *t.mysqlSession.Load() != *session {
		unix.Close(fd)
		return -1, fmt.Errorf("prepare: %w: the server agrees on something else than at first", errMalformed)
	}
	return fd, nil
}

// checkMySQLWire says whether the lean engine can drive the target.
func (t *Target) checkMySQLWire(ctx context.Context) (bool, error) {
	fd, session, err := t.takeMySQL(ctx, 0)
	if errors.Is(err, errNotPlain) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	t.mysqlSession.Store(session)
	return true, unix.Close(fd)
}

func (t *Target) takeMySQL(ctx context.Context, turn int) (fd int, session *mysqlSession, err error) {
	if t.mysql.TLS != nil || t.mysql.TLSConfig != "" && t.mysql.TLSConfig != "false" {
		return -1, nil, errNotPlain
	}
	var tap *mysqlTap
	conn, err := t.connectMySQL(ctx, turn, func(conn net.Conn) net.Conn {
		tap = &mysqlTap{Conn: conn}
		return tap
	})
	if err != nil {
		return -1, nil, err
	}
	defer func() {
		tap.mu.Lock()
		tap.taken = true
		tap.mu.Unlock()
		conn.Close()
	}()
	if _, encrypted := tap.Conn.(*tls.Conn); encrypted {
		return -1, nil, errNotPlain
	}
	if session, err = tap.session(); err != nil {
		return -1, nil, err
	}
	if err := tap.SetDeadline(time.Now().Add(t.config.Timeout)); err != nil {
		return -1, nil, fmt.Errorf("prepare: %w", err)
	}
	if err := session.prepare(tap.Conn, t.statement.render(func(int) string { return "?" })); err != nil {
		return -1, nil, fmt.Errorf("prepare: %w", err)
	}
	fd, err = duplicate(tap.Conn)
	return fd, session, err
}

// prepare sends the statement and reads the whole answer.
func (s *mysqlSession) prepare(conn io.ReadWriter, sql string) error {
	request := append([]byte{0, 0, 0, 0, mysqlStmtPrepare}, sql...)
	if len(request)-4 >= mysqlPacketMax {
		return fmt.Errorf("%w: the statement is too long", errMalformed)
	}
	putUint24(request, len(request)-4)
	if _, err := conn.Write(request); err != nil {
		return err
	}
	first, err := readMySQLPacket(conn)
	if err != nil {
		return err
	}
	switch {
	case len(first) > 0 && first[0] == 0xff:
		return fmt.Errorf("%w: %s", errSQL, mysqlFailure(first))
	case len(first) < 9 || first[0] != 0:
		return fmt.Errorf("%w: answer of %d bytes", errMalformed, len(first))
	}
	for _, n := range []int{int(binary.LittleEndian.Uint16(first[7:])), int(binary.LittleEndian.Uint16(first[5:]))} { // parameters, columns
		if n > 0 && !s.plainEOF {
			n++
		}
		for range n {
			if _, err := readMySQLPacket(conn); err != nil {
				return err
			}
		}
	}
	return nil
}

func readMySQLPacket(conn io.Reader) ([]byte, error) {
	var header [4]byte
	if _, err := io.ReadFull(conn, header[:]); err != nil {
		return nil, err
	}
	packet := make([]byte, uint24(header[:]))
	_, err := io.ReadFull(conn, packet)
	return packet, err
}

func uint24(b []byte) int { return int(b[0]) | int(b[1])<<8 | int(b[2])<<16 }

// mysqlFailure is the text of an error packet.
func mysqlFailure(packet []byte) string {
	if len(packet) < 3 {
		return "error"
	}
	code, text := binary.LittleEndian.Uint16(packet[1:]), packet[3:]
	if len(text) >= 6 && text[0] == '#' {
		return fmt.Sprintf("Error %d (%s): %s", code, text[1:6], text[6:])
	}
	return fmt.Sprintf("Error %d: %s", code, text)
}

// lengthEncoded reads an integer of one, three, four or nine bytes. ok is false
// when it is not whole.
func lengthEncoded(b []byte) (n uint64, size int, ok bool) {
	if len(b) == 0 {
		return 0, 0, false
	}
	size = 1
	switch b[0] {
	case 0xfb, 0xff:
		return 0, 0, false
	case 0xfc:
		size = 3
	case 0xfd:
		size = 4
	case 0xfe:
		size = 9
	default:
		return uint64(b[0]), 1, true
	}
	if len(b) < size {
		return 0, 0, false
	}
	for i := size - 1; i >= 1; i-- {
		n = n<<8 | uint64(b[i])
	}
	return n, size, true
}
