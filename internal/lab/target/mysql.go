package target

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
)

// mysqlLink runs one prepared statement on one MySQL connection, below
// database/sql, whose pool would send a statement again.
type mysqlLink struct {
	conn      driver.Conn
	prepared  driver.Stmt
	raw       *atomic.Pointer[net.Conn]
	clock     Clock
	timeout   time.Duration
	statement *statement
	source    *Source
	values    []driver.NamedValue
	row       []driver.Value
}

// dialMySQL connects and prepares; both are part of the time to connect.
func (t *Target) dialMySQL(ctx context.Context, turn int, source *Source) (link, error) {
	raw := new(atomic.Pointer[net.Conn])
	conn, err := t.connectMySQL(ctx, turn, func(conn net.Conn) net.Conn {
		raw.Store(&conn)
		return conn
	})
	if err != nil {
		return nil, err
	}
	prepared, err := conn.Prepare(t.statement.render(func(int) string { return "?" }))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("prepare: %w", mysqlError(err))
	}
	return &mysqlLink{conn: conn, prepared: prepared, raw: raw, clock: t.config.Clock, timeout: t.config.Timeout, statement: &t.statement, source: source}, nil
}

// connectMySQL opens a connection through the driver, which knows every way to
// log in; wrap sees the socket first.
func (t *Target) connectMySQL(ctx context.Context, turn int, wrap func(net.Conn) net.Conn) (driver.Conn, error) {
	config := t.mysql.Clone()
	config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := t.network.dial(ctx, turn)
		if err != nil {
			return nil, err
		}
		return wrap(conn), nil
	}
	config.Timeout, config.ReadTimeout, config.WriteTimeout = t.config.Timeout, t.config.Timeout, t.config.Timeout
	config.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	conn, err := connector.Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", mysqlError(err))
	}
	return conn, nil
}

// mysqlError marks an error that the server answered with, and gives a broken
// connection its usual name.
func mysqlError(err error) error {
	var answered *mysql.MySQLError
	switch {
	case errors.As(err, &answered):
		return fmt.Errorf("%w: %w", errSQL, err)
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, mysql.ErrInvalidConn):
		return fmt.Errorf("%w: %w", errCutShort, err)
	}
	return err
}

func (l *mysqlLink) exchange(o *Outcome, _ bool) bool {
	l.source.next()
	l.values = l.values[:0]
	for i := range l.statement.values {
		v := &l.statement.values[i]
		value := driver.NamedValue{Ordinal: i + 1}
		if n, ok := v.integer(l.source); ok {
			value.Value = n
		} else {
			value.Value = v.string(l.source)
		}
		l.values = append(l.values, value)
	}
	o.Kind = l.statement.kind
	o.Sent = l.clock.Now()
	err := l.run(o)
	o.Done = l.clock.Now()
	if err == nil {
		return true
	}
	if o.Done-o.Sent >= int64(l.timeout) {
		err = errTimeout
	}
	o.Err = mysqlError(err)
	return errors.Is(o.Err, errSQL)
}

func (l *mysqlLink) run(o *Outcome) error {
	if l.statement.kind == Write {
		_, err := l.prepared.(driver.StmtExecContext).ExecContext(context.Background(), l.values)
		o.First = l.clock.Now()
		return err
	}
	rows, err := l.prepared.(driver.StmtQueryContext).QueryContext(context.Background(), l.values)
	o.First = l.clock.Now()
	if err != nil {
		return err
	}
	defer rows.Close()
	if n := len(rows.Columns()); cap(l.row) < n {
		l.row = make([]driver.Value, n)
	}
	for {
		if err := rows.Next(l.row[:len(rows.Columns())]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		for _, value := range l.row[:len(rows.Columns())] {
			o.BytesReceived += valueBytes(value)
		}
	}
}

// valueBytes is the size of a column's value; the driver does not tell what
// travelled.
func valueBytes(value driver.Value) int64 {
	switch v := value.(type) {
	case nil:
		return 0
	case []byte:
		return int64(len(v))
	case string:
		return int64(len(v))
	}
	return 8
}

func (l *mysqlLink) abort() {
	if conn := l.raw.Load(); conn != nil && *conn != nil {
		(*conn).SetDeadline(time.Unix(1, 0))
	}
}

func (l *mysqlLink) close() {
	l.prepared.Close()
	l.conn.Close()
}
