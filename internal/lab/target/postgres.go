package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// errSQL is wrapped by an error answer of a database.
var errSQL = fmt.Errorf("%w: SQL error", errStatus)

// preparedName is what a connection's prepared statement is called.
const preparedName = "spillway"

// postgresLink runs one prepared statement on one PostgreSQL connection.
type postgresLink struct {
	conn      *pgconn.PgConn
	raw       net.Conn
	clock     Clock
	timeout   time.Duration
	statement *statement
	source    *Source
	arguments []byte   // the values of one request, one behind the other …
	values    [][]byte // … and where they are
}

// dialPostgres connects and prepares; both are part of the time to connect.
func (t *Target) dialPostgres(ctx context.Context, turn int, source *Source) (link, error) {
	ctx, cancel := context.WithTimeout(ctx, t.config.Timeout)
	defer cancel()
	config := t.postgres.Copy()
	config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return t.network.dial(ctx, turn)
	}
	config.LookupFunc = func(context.Context, string) ([]string, error) { return []string{t.network.address}, nil }
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	sql := t.statement.render(func(i int) string { return "$" + strconv.Itoa(i) })
	if _, err := conn.Prepare(ctx, preparedName, sql, nil); err != nil {
		conn.Close(ctx)
		return nil, fmt.Errorf("prepare: %w", sqlError(err))
	}
	return &postgresLink{
		conn: conn, raw: conn.Conn(), clock: t.config.Clock, timeout: t.config.Timeout, statement: &t.statement, source: source,
		values: make([][]byte, len(t.statement.values)),
	}, nil
}

// sqlError marks an error that the server answered with.
func sqlError(err error) error {
	var answered *pgconn.PgError
	if errors.As(err, &answered) {
		return fmt.Errorf("%w: %w", errSQL, err)
	}
	return err
}

func (l *postgresLink) exchange(o *Outcome, _ bool) bool {
	l.source.next()
	l.bind()
	if err := l.raw.SetDeadline(time.Now().Add(l.timeout)); err != nil {
		o.Err = err
		return false
	}
	o.Kind = l.statement.kind
	o.Sent = l.clock.Now()
	o.BytesSent = len(l.arguments)
	reader := l.conn.ExecPrepared(context.Background(), preparedName, l.values, nil, nil)
	for reader.NextRow() {
		if o.First == 0 {
			o.First = l.clock.Now()
		}
		for _, value := range reader.Values() {
			o.BytesReceived += int64(len(value))
		}
	}
	tag, err := reader.Close()
	o.Done = l.clock.Now()
	if o.First == 0 {
		o.First = o.Done
	}
	switch {
	case err != nil:
		o.Err = sqlError(err)
	case tag.Insert(), tag.Update(), tag.Delete(): // also behind WITH
		o.Kind = Write
	}
	return !l.conn.IsClosed()
}

// bind writes the values of this request as text.
func (l *postgresLink) bind() {
	l.arguments = l.arguments[:0]
	ends := make([]int, 0, 16)
	for i := range l.statement.values {
		l.arguments = l.statement.values[i].append(l.arguments, l.source)
		ends = append(ends, len(l.arguments))
	}
	start := 0
	for i, end := range ends {
		l.values[i] = l.arguments[start:end]
		start = end
	}
}

func (l *postgresLink) abort() { l.raw.SetDeadline(time.Unix(1, 0)) }

func (l *postgresLink) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	l.conn.Close(ctx)
}
