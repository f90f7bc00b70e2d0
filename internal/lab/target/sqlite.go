package target

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"zombiezen.com/go/sqlite"
)

// sqliteConn runs one prepared statement on one connection to a SQLite file. It
// runs in this process, so its CPU time counts as the generator's.
type sqliteConn struct {
	conn      *sqlite.Conn
	prepared  *sqlite.Stmt
	stop      context.CancelFunc
	clock     Clock
	statement *statement
	source    *Source
}

func (t *Target) dialSQLite(ctx context.Context, _ int, source *Source) (blockingConn, error) {
	conn, err := sqlite.OpenConn(t.config.path, sqlite.OpenReadWrite)
	if err != nil {
		return nil, fmt.Errorf("open SQLite file: %w", err)
	}
	deadline, _ := ctx.Deadline()
	conn.SetBusyTimeout(time.Until(deadline))
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	conn.SetInterrupt(ctx.Done())
	prepared, err := conn.Prepare(t.statement.render(func(i int) string { return "?" + strconv.Itoa(i) }))
	if err != nil {
		stop()
		conn.Close()
		return nil, fmt.Errorf("prepare: %w: %w", errSQL, err)
	}
	return &sqliteConn{conn: conn, prepared: prepared, stop: stop, clock: t.config.Clock, statement: &t.statement, source: source}, nil
}

func (c *sqliteConn) exchange(o *Outcome, deadline time.Time, _ bool) bool {
	c.source.next()
	o.Kind = c.statement.kind
	for i := range c.statement.values {
		v := &c.statement.values[i]
		if n, ok := v.integer(c.source); ok {
			c.prepared.BindInt64(i+1, n)
		} else {
			c.prepared.BindText(i+1, v.string(c.source))
		}
	}
	c.conn.SetBusyTimeout(time.Until(deadline))
	o.Sent = c.clock.Now()
	interrupt := time.AfterFunc(time.Until(deadline), c.stop)
	err := c.run(o)
	o.Done = c.clock.Now()
	inTime := interrupt.Stop()
	if o.First == 0 {
		o.First = o.Done
	}
	switch {
	case err != nil && !inTime:
		o.Err = errTimeout
	case err != nil:
		o.Err = sqliteError(err)
	}
	return inTime // an interrupted connection stays interrupted
}

func (c *sqliteConn) run(o *Outcome) error {
	for {
		row, err := c.prepared.Step()
		if err != nil {
			c.prepared.Reset()
			return err
		}
		if !row {
			return c.prepared.Reset()
		}
		if o.First == 0 {
			o.First = c.clock.Now()
		}
		for column := range c.prepared.ColumnCount() {
			o.BytesReceived += int64(c.prepared.ColumnLen(column))
		}
	}
}

// sqliteError classifies an error. A database that stayed locked is a timeout.
func sqliteError(err error) error {
	if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultBusy {
		return fmt.Errorf("%w: %w", errTimeout, err)
	}
	return fmt.Errorf("%w: %w", errSQL, err)
}

func (c *sqliteConn) abort() { c.stop() }

func (c *sqliteConn) close() {
	c.stop()
	c.prepared.Finalize()
	c.conn.Close()
}
