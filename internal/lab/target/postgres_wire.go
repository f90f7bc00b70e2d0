package target

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bounds of a PostgreSQL answer.
const (
	postgresMessageMax = 1 << 30 // the server's own limit of a row
	postgresKeepMax    = 8 << 10 // of an error or a command tag
)

// postgresProtocol runs one prepared statement on one connection of the lean
// engine: the messages that libpq sends for it, in one write.
type postgresProtocol struct {
	statement *statement
	source    *Source
	scratch   *scratch
	reply     postgresReply
}

func (p *postgresProtocol) request(_, _ bool) []byte {
	p.source.next()
	p.reply.reset()
	b := p.scratch.request[:0]
	b = append(b, 'B', 0, 0, 0, 0, 0) // length to come; the unnamed portal
	b = append(b, preparedName...)
	b = append(b, 0, 0, 0) // every parameter is text
	b = binary.BigEndian.AppendUint16(b, uint16(len(p.statement.values)))
	for i := range p.statement.values {
		at := len(b)
		b = append(b, 0, 0, 0, 0)
		b = p.statement.values[i].append(b, p.source)
		binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	}
	b = append(b, 0, 0) // every column as text
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-1))
	b = append(b, "D\x00\x00\x00\x06P\x00"...)                // describe the portal, as libpq does
	b = append(b, "E\x00\x00\x00\x09\x00\x00\x00\x00\x00"...) // execute: all rows
	b = append(b, "S\x00\x00\x00\x04"...)                     // sync
	p.scratch.request = b
	return b
}

func (p *postgresProtocol) feed(b []byte) (bool, error) {
	if len(b) > 0 {
		return p.reply.feed(b)
	}
	if failure := p.reply.failure; failure != "" { // its last words
		return false, fmt.Errorf("%w: %s", errCutShort, failure)
	}
	return false, errCutShort
}

func (p *postgresProtocol) answer(o *Outcome) bool {
	o.Kind = p.statement.kind
	switch {
	case p.reply.failure != "":
		o.Err = fmt.Errorf("%w: %s", errSQL, p.reply.failure)
	case p.reply.wrote:
		o.Kind = Write
	}
	return true
}

// postgresReply counts the messages of an answer up to ReadyForQuery, at
// whatever places their bytes are cut.
type postgresReply struct {
	header  [5]byte
	have    int    // bytes of header that are there
	rest    int64  // bytes of the message still to come
	kept    []byte // of an error or a command tag
	failure string // text of the first error
	wrote   bool   // the command tag is of INSERT, UPDATE, DELETE or MERGE
	ready   bool
}

func (r *postgresReply) reset() { *r = postgresReply{kept: r.kept[:0]} }

func (r *postgresReply) feed(b []byte) (done bool, err error) {
	for len(b) > 0 {
		if r.ready {
			return false, fmt.Errorf("%w: %d bytes behind its end", errMalformed, len(b))
		}
		if r.have < len(r.header) {
			n := copy(r.header[r.have:], b)
			r.have += n
			b = b[n:]
			if r.have < len(r.header) {
				break
			}
			r.rest = int64(binary.BigEndian.Uint32(r.header[1:])) - 4
			if r.rest < 0 || r.rest > postgresMessageMax {
				return false, fmt.Errorf("%w: message %q of %d bytes", errMalformed, r.header[0], r.rest)
			}
		}
		n := min(r.rest, int64(len(b)))
		if (r.header[0] == 'E' || r.header[0] == 'C') && len(r.kept) < postgresKeepMax {
			r.kept = append(r.kept, b[:min(n, int64(postgresKeepMax-len(r.kept)))]...)
		}
		b = b[n:]
		if r.rest -= n; r.rest == 0 {
			r.end()
		}
	}
	return r.ready, nil
}

// end takes a whole message.
func (r *postgresReply) end() {
	switch r.header[0] {
	case 'Z':
		r.ready = true
	case 'C':
		verb, _, _ := bytes.Cut(r.kept, []byte{' '})
		switch string(verb) {
		case "INSERT", "UPDATE", "DELETE", "MERGE":
			r.wrote = true
		}
	case 'E':
		if r.failure == "" {
			r.failure = postgresFailure(r.kept)
		}
	}
	r.kept = r.kept[:0]
	r.have = 0
}

// postgresFailure puts the fields of an error together: severity, message, code.
func postgresFailure(fields []byte) string {
	var severity, message, code string
	for field := range bytes.SplitSeq(fields, []byte{0}) {
		if len(field) == 0 {
			continue
		}
		switch value := string(field[1:]); field[0] {
		case 'S':
			severity = value
		case 'M':
			message = value
		case 'C':
			code = value
		}
	}
	return fmt.Sprintf("%s: %s (SQLSTATE %s)", severity, message, code)
}

// errNotPlain says that a connection is encrypted and the lean engine cannot
// drive it.
var errNotPlain = errors.New("the connection is encrypted")

// dialPostgresWire connects and prepares as dialPostgres does, and takes the
// socket over. The caller closes it.
func (t *Target) dialPostgresWire(ctx context.Context, turn int) (fd int, err error) {
	l, err := t.dialPostgres(ctx, turn, nil)
	if err != nil {
		return -1, err
	}
	conn := l.(*postgresLink).conn
	if _, encrypted := conn.Conn().(*tls.Conn); encrypted {
		l.close()
		return -1, errNotPlain
	}
	taken, err := conn.Hijack()
	if err != nil {
		l.close()
		return -1, fmt.Errorf("take the connection over: %w", err)
	}
	defer taken.Conn.Close()
	return duplicate(taken.Conn)
}

// duplicate returns another descriptor of a connection's socket, which does not
// block.
func duplicate(conn net.Conn) (fd int, err error) {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return -1, errNotPlain
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("take the connection over: %w", err)
	}
	var duplicateErr error
	err = raw.Control(func(old uintptr) {
		fd, duplicateErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err = errors.Join(err, duplicateErr); err != nil {
		return -1, fmt.Errorf("take the connection over: %w", err)
	}
	return fd, nil
}
