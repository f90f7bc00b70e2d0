package target

import (
	"context"
	"fmt"
	"strconv"

	"zombiezen.com/go/sqlite"
)

// sqliteLink runs one prepared statement on one connection to a SQLite file, in
// this process: what it costs is part of the generator's own CPU.
type sqliteLink struct {
	conn      *sqlite.Conn
	prepared  *sqlite.Stmt
	stop      context.CancelFunc
	clock     Clock
	statement *statement
	source    *Source
}

func (t *Target) dialSQLite(ctx context.Context, _ int, source *Source) (link, error) {
	conn, err := sqlite.OpenConn(t.config.path, sqlite.OpenReadWrite)
	if err != nil {
		return nil, fmt.Errorf("open SQLite file: %w", err)
	}
	conn.SetBusyTimeout(t.config.Timeout)
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	conn.SetInterrupt(ctx.Done())
	prepared, err := conn.Prepare(t.statement.render(func(i int) string { return "?" + strconv.Itoa(i) }))
	if err != nil {
		stop()
		conn.Close()
		return nil, fmt.Errorf("prepare: %w: %w", errSQL, err)
	}
	return &sqliteLink{conn: conn, prepared: prepared, stop: stop, clock: t.config.Clock, statement: &t.statement, source: source}, nil
}

func (l *sqliteLink) exchange(o *Outcome, _ bool) bool {
	l.source.next()
	o.Kind = l.statement.kind
	for i := range l.statement.values {
		v := &l.statement.values[i]
		if n, ok := v.integer(l.source); ok {
			l.prepared.BindInt64(i+1, n)
		} else {
			l.prepared.BindText(i+1, v.string(l.source))
		}
	}
	o.Sent = l.clock.Now()
	err := l.run(o)
	o.Done = l.clock.Now()
	if o.First == 0 {
		o.First = o.Done
	}
	if err != nil {
		o.Err = sqliteError(err)
	}
	return true
}

func (l *sqliteLink) run(o *Outcome) error {
	for {
		row, err := l.prepared.Step()
		if err != nil {
			l.prepared.Reset()
			return err
		}
		if !row {
			return l.prepared.Reset()
		}
		if o.First == 0 {
			o.First = l.clock.Now()
		}
		for column := range l.prepared.ColumnCount() {
			o.BytesReceived += int64(l.prepared.ColumnLen(column))
		}
	}
}

// sqliteError says of a database that stayed locked that it took too long.
func sqliteError(err error) error {
	if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultBusy {
		return fmt.Errorf("%w: %w", errTimeout, err)
	}
	return fmt.Errorf("%w: %w", errSQL, err)
}

func (l *sqliteLink) abort() { l.stop() }

func (l *sqliteLink) close() {
	l.stop()
	l.prepared.Finalize()
	l.conn.Close()
}
