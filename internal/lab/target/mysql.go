package target

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/database"
)

// mysqlConn runs one prepared statement on one MySQL connection. It uses the
// driver below database/sql, whose pool would send a statement again.
type mysqlConn struct {
	conn      driver.Conn // of database.ConnectMySQL
	prepared  driver.Stmt
	raw       net.Conn
	clock     Clock
	statement *statement
	source    *Source
	values    []driver.NamedValue
	row       []driver.Value
}

// dialMySQL connects and prepares. Both count as connecting.
func (t *Target) dialMySQL(ctx context.Context, number int, source *Source) (blockingConn, error) {
	c := &mysqlConn{clock: t.config.Clock, statement: &t.statement, source: source}
	deadline, _ := ctx.Deadline()
	config := t.mysql.Clone()
	config.DialFunc = func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		if c.raw, err = t.network.dial(ctx, number); err != nil {
			return nil, err
		}
		return c.raw, c.raw.SetDeadline(deadline)
	}
	config.Timeout, config.ReadTimeout, config.WriteTimeout = 0, 0, 0 // the deadline covers them all
	session, err := database.ConnectMySQL(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", mysqlError(err, deadline))
	}
	c.conn = session
	if c.prepared, err = c.conn.Prepare(t.statement.render(func(int) string { return "?" })); err != nil {
		c.conn.Close()
		return nil, fmt.Errorf("prepare: %w", mysqlError(err, deadline))
	}
	return c, nil
}

// mysqlError marks an error answer of the server with errSQL, and a broken
// connection with errTimeout after the deadline and with errCutShort before it.
func mysqlError(err error, deadline time.Time) error {
	switch {
	case is[*mysql.MySQLError](err):
		return fmt.Errorf("%w: %w", errSQL, err)
	case !time.Now().Before(deadline):
		return errTimeout
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, mysql.ErrInvalidConn):
		return fmt.Errorf("%w: %w", errCutShort, err)
	}
	return err
}

func (c *mysqlConn) exchange(o *Outcome, deadline time.Time, _ bool) bool {
	c.source.Next()
	c.values = c.values[:0]
	for i := range c.statement.values {
		v := &c.statement.values[i]
		value := driver.NamedValue{Ordinal: i + 1}
		if n, ok := v.integer(c.source); ok {
			value.Value = n
		} else {
			value.Value = v.string(c.source)
		}
		c.values = append(c.values, value)
	}
	o.Kind = c.statement.kind
	if o.Err = c.raw.SetDeadline(deadline); o.Err != nil {
		return false
	}
	o.Sent = c.clock.Now()
	err := c.run(o)
	o.Done = c.clock.Now()
	if err == nil {
		return true
	}
	o.Err = mysqlError(err, deadline)
	return errors.Is(o.Err, errSQL)
}

func (c *mysqlConn) run(o *Outcome) error {
	if c.statement.kind == Write {
		_, err := c.prepared.(driver.StmtExecContext).ExecContext(context.Background(), c.values)
		o.First = c.clock.Now()
		return err
	}
	rows, err := c.prepared.(driver.StmtQueryContext).QueryContext(context.Background(), c.values)
	o.First = c.clock.Now()
	if err != nil {
		return err
	}
	n := len(rows.Columns())
	if cap(c.row) < n {
		c.row = make([]driver.Value, n)
	}
	for {
		if err := rows.Next(c.row[:n]); err != nil {
			closeErr := rows.Close() // reads further results, which may hold an error
			if errors.Is(err, io.EOF) {
				return closeErr
			}
			return err
		}
		for _, value := range c.row[:n] {
			o.BytesReceived += valueBytes(value)
		}
	}
}

// valueBytes is the size of a column's value. The driver does not report the
// bytes on the wire.
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

func (c *mysqlConn) abort() { c.raw.SetDeadline(time.Unix(1, 0)) }

func (c *mysqlConn) close() {
	c.prepared.Close()
	c.conn.Close()
}
