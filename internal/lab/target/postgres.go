package target

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// errSQL is wrapped by an error answer of a database.
var errSQL = fmt.Errorf("%w: SQL error", errStatus)

// preparedName is the name of a connection's prepared statement.
const preparedName = "spillway"

// connectPostgres connects and prepares through pgx and returns the connection,
// which carries postgresProtocol from then on. Both count as connecting. Of several
// hosts, pgx takes the first that accepts the connection.
func (t *Target) connectPostgres(ctx context.Context, number int) (net.Conn, error) {
	config := t.postgres.Copy()
	config.DialFunc = func(ctx context.Context, _, address string) (net.Conn, error) {
		if len(t.hosts) > 0 {
			return t.network.dialAddress(ctx, number, address)
		}
		return t.network.dial(ctx, number)
	}
	config.LookupFunc = func(_ context.Context, host string) ([]string, error) {
		if len(t.hosts) > 0 {
			return t.hosts[host], nil
		}
		return []string{host}, nil // DialFunc chooses
	}
	if len(t.hosts) > 0 && config.ConnectTimeout == 0 {
		config.ConnectTimeout = t.config.Timeout / time.Duration(len(t.hosts)+1) // a silent host leaves time for the next
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	sql := t.statement.render(func(i int) string { return "$" + strconv.Itoa(i) })
	if _, err := conn.Prepare(ctx, preparedName, sql, nil); err != nil {
		conn.Close(ctx)
		return nil, fmt.Errorf("prepare: %w", postgresError(err))
	}
	var taken *pgconn.HijackedConn
	if err = conn.SyncConn(ctx); err == nil { // a reader in the background would take an answer
		taken, err = conn.Hijack()
	}
	if err != nil {
		conn.Close(ctx)
		return nil, fmt.Errorf("take the connection over: %w", err)
	}
	return taken.Conn, nil
}

// postgresError marks an error answer of the server with errSQL.
func postgresError(err error) error {
	if is[*pgconn.PgError](err) {
		return fmt.Errorf("%w: %w", errSQL, err)
	}
	return err
}

// Bounds of a PostgreSQL answer.
const (
	postgresMessageMax = 1 << 30 // the server's limit for a row
	postgresKeepMax    = 8 << 10 // of an error or a command tag
)

// postgresProtocol runs one prepared statement on one connection. It sends the
// same messages as libpq, in one write.
type postgresProtocol struct {
	statement *statement
	source    *Source
	scratch   *scratch
	reply     postgresReply
}

func (p *postgresProtocol) request(int, bool, bool) []byte {
	p.source.Next()
	p.reply.reset()
	b := p.scratch.request[:0]
	b = append(b, 'B', 0, 0, 0, 0, 0) // Bind: length, set below, and the unnamed portal
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
	b = append(b, "D\x00\x00\x00\x06P\x00"...)                // Describe the portal
	b = append(b, "E\x00\x00\x00\x09\x00\x00\x00\x00\x00"...) // Execute: all rows
	b = append(b, "S\x00\x00\x00\x04"...)                     // Sync
	p.scratch.request = b
	return b
}

func (p *postgresProtocol) feed(b []byte) (bool, error) {
	if len(b) > 0 {
		return p.reply.feed(b)
	}
	if failure := p.reply.failure; failure != "" { // the server's reason for closing
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

// postgresReply parses the messages of an answer up to ReadyForQuery. The bytes
// may be split anywhere.
type postgresReply struct {
	header  [5]byte
	have    int    // bytes of the header so far
	rest    int64  // bytes of the message still to come
	kept    []byte // of an error or a command tag
	failure string // text of the first error
	wrote   bool   // the command tag is INSERT, UPDATE, DELETE or MERGE
	ready   bool
}

func (r *postgresReply) reset() { *r = postgresReply{kept: r.kept[:0]} }

func (r *postgresReply) feed(b []byte) (done bool, err error) {
	for len(b) > 0 {
		if r.ready {
			return false, fmt.Errorf("%w: %d bytes after its end", errMalformed, len(b))
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
			r.endMessage()
		}
	}
	return r.ready, nil
}

func (r *postgresReply) endMessage() {
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

// postgresFailure formats the fields of an error: severity, message, code.
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
