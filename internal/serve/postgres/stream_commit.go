package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/database"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/streamtables"
)

// Commit implements stream.Sink.
func (st *Stream) Commit(ctx context.Context, b *stream.Batch) error {
	pooled, err := st.db.acquireWriter(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	defer st.db.releaseWriter(pooled)
	conn := pooled.Conn().PgConn()
	table, err := st.prepareTables(ctx, conn)
	if err != nil {
		return st.classify(err)
	}
	b.Session = uint64(conn.PID())
	rows := b.Rows(nil)
	inexact := func(r stream.Row) bool { return table.refuses(r) != "" }
	if b.Mark != nil || b.RowByRow || slices.ContainsFunc(rows, inexact) {
		return st.stepwise(ctx, conn, table, b)
	}
	done, confirm, err := st.commitQuick(ctx, conn, table, b, rows)
	if done {
		return err
	}
	t := st.timeoutsOf(b)
	steps := make([]step, 0, 6) // with keys, rows, and what commitSteps appends
	steps = append(steps, step{st.begin, nil, nil}, step{st.batch, [][]byte{t.texts[0], t.texts[1], b.ID[:]}, nil})
	if keyed := b.Keyed(nil); len(keyed) > 0 {
		args, err := st.encodeKeys(b, keyed)
		if err != nil {
			return err
		}
		steps = append(steps, step{st.keys, args, nil})
	}
	if len(rows) > 0 {
		steps = append(steps, step{table.rows, table.encode(rows), st.countSkipped(b, rows)})
	}
	finish := step{statement: table.finish}
	if len(b.Forget) > 0 {
		finish = step{table.finishForget, [][]byte{encodeIDs(b.Forget)}, nil}
	}
	failed, err := st.commitSteps(ctx, conn, b, steps, finish)
	switch {
	case err == nil:
		confirm()
		return nil
	case settled(err):
		return err
	}
	return st.recover(ctx, conn, table, b, failed, err)
}

// timeouts are the arguments of settingsList: the time that a statement may wait for a lock,
// and the time that it may take.
type timeouts struct {
	lockWait, limit time.Duration
	texts           [2][]byte
}

// statementLimit is a little less than the whole attempt, so that the server ends a statement
// before the attempt is given up. 0: there is no limit.
func statementLimit(b *stream.Batch) time.Duration { return b.Limit() - b.Limit()/10 }

// timeoutsOf returns the timeouts of a batch. Most batches of a stream have the same.
func (st *Stream) timeoutsOf(b *stream.Batch) *timeouts {
	lockWait, limit := b.LockWait, statementLimit(b)
	if t := st.timeouts.Load(); t != nil && t.lockWait == lockWait && t.limit == limit {
		return t
	}
	t := &timeouts{lockWait, limit, [2][]byte{milliseconds(lockWait), milliseconds(limit)}}
	st.timeouts.Store(t)
	return t
}

func milliseconds(d time.Duration) []byte {
	if d <= 0 {
		return []byte{} // the session's setting
	}
	return strconv.AppendInt(nil, max(1, d.Milliseconds()), 10)
}

// commitSteps runs the last steps of a transaction, finish and COMMIT in one round trip, and waits
// for the answer to COMMIT for as long as the connection lasts. On an error it returns the
// step that failed, or -1 if nothing was sent. If COMMIT may have been executed, the error
// wraps ErrUnconfirmed.
func (st *Stream) commitSteps(
	ctx context.Context, conn *pgconn.PgConn, b *stream.Batch, steps []step, finish step,
) (failed int, err error) {
	c := commit{conn: conn, guard: database.CommitGuardOf(conn)}
	return st.runSteps(ctx, conn, b, &c, c.append(steps, finish, st.commit))
}

// runSteps runs all steps of a batch and waits for the end of the transaction.
func (st *Stream) runSteps(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch, c *commit, steps []step) (failed int, err error) {
	descriptions, err := st.describe(ctx, conn, steps)
	if err != nil {
		return -1, err
	}
	b.Committing()
	if ctx.Err() != nil { // the attempt ended before that
		return -1, fmt.Errorf("%w: %w", stream.ErrTransient, context.Cause(ctx))
	}
	failed, err = c.run(ctx, steps, descriptions)
	if err == nil {
		b.Committed()
		c.recheck(ctx, statementLimit(b))
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && failsWith(pgErr, tableChanged) {
		st.table.Store(nil)
	}
	b.Level = c.level
	st.reset(conn)
	return failed, err
}

// settled reports whether an error of a transaction says what became of it.
func settled(err error) bool {
	return err == nil || errors.Is(err, stream.ErrUnconfirmed) || errors.Is(err, stream.ErrTransient)
}

// recover continues after commitSteps has failed at a step: the server refused the step, or
// nothing was sent.
func (st *Stream) recover(ctx context.Context, conn *pgconn.PgConn, table *checkedTable, b *stream.Batch, failed int, err error) error {
	var pgErr *pgconn.PgError
	if !isDefinite(err, &pgErr) {
		st.reset(conn)
		return st.classify(err)
	}
	if failed >= 0 && conn.TxStatus() != 'I' { // inside the transaction
		if err := exec(ctx, conn, "ROLLBACK"); err != nil {
			return fmt.Errorf("%w: %w", stream.ErrTransient, err)
		}
	}
	if isStale(pgErr) {
		st.dropPrepared(ctx, conn, table)
	}
	if failed == 1 && pgErr.Code == stateUniqueViolation || failed > 1 && isData(pgErr) {
		b.Progress()
		return st.stepwise(ctx, conn, table, b)
	}
	// A lock timeout while the id is stored is due to another attempt of the same batch.
	if failed > 1 && dialect.Locked(err) {
		err = fmt.Errorf("%w: %w", stream.ErrBlocked, err)
	}
	return st.classify(err)
}

// reset makes the pool check its idle connections if this one is closed.
func (st *Stream) reset(conn *pgconn.PgConn) {
	if conn.IsClosed() {
		st.db.pool.Reset()
	}
}

func (st *Stream) dropPrepared(ctx context.Context, conn *pgconn.PgConn, table *checkedTable) {
	se := sessionOf(conn)
	for _, s := range []*statement{
		st.begin, st.commit, st.batch, table.finish, table.finishForget, st.keys, table.rows, st.savepoint, st.release, st.back,
		st.quickBatch, table.quick, table.quickRow,
	} {
		if s != nil && se.prepared.Contains(s.name) {
			_ = se.drop(ctx, conn, s.name) // the next use reports an error
		}
	}
}

func exec(ctx context.Context, conn *pgconn.PgConn, sql string) error {
	_, err := conn.Exec(ctx, sql).ReadAll()
	return err
}

// describe prepares the statements of steps on the connection. It returns nils while
// statements are not prepared. The result is valid until the next call for the connection.
func (st *Stream) describe(ctx context.Context, conn *pgconn.PgConn, steps []step) ([]*pgconn.StatementDescription, error) {
	se := sessionOf(conn)
	descriptions := slices.Grow(se.descriptions[:0], len(steps))[:len(steps)]
	se.descriptions = descriptions
	clear(descriptions)
	if st.db.unprepared.active() {
		return descriptions, nil
	}
	for i, s := range steps {
		p, err := se.prepare(ctx, conn, s.statement)
		if err != nil {
			return nil, err
		}
		descriptions[i] = p.description
	}
	return descriptions, nil
}

// stepwise stores a batch that comes from a spool, or that contains something the database
// refuses: an existing id or idempotency key, or rows. Each step is a round trip.
func (st *Stream) stepwise(ctx context.Context, conn *pgconn.PgConn, table *checkedTable, b *stream.Batch) error {
	b.Reset()
	err := streamtables.Commit(ctx, batchSession{tableSession{conn}, st, table, b}, dialect, *st.resolved.Load(), b)
	if err == nil {
		return nil
	}
	st.reset(conn)
	if !conn.IsClosed() && conn.TxStatus() != 'I' {
		if rollback := exec(ctx, conn, "ROLLBACK"); rollback != nil && !errors.Is(err, stream.ErrUnconfirmed) {
			return fmt.Errorf("%w: %w", stream.ErrTransient, errors.Join(err, rollback))
		}
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && isStale(pgErr) {
		st.dropPrepared(ctx, conn, table)
	}
	if errors.Is(err, stream.ErrUnconfirmed) || errors.Is(err, stream.ErrHeld) {
		st.db.worthRetrying(err) // a COMMIT that confirms an earlier attempt is repeated
		return err
	}
	return st.classify(err)
}

// batchSession is a connection on which a batch is stored step by step. It implements
// streamtables.Session.
type batchSession struct {
	tableSession
	st    *Stream
	table *checkedTable
	b     *stream.Batch
}

// Begin implements streamtables.Session. A constraint that is checked at COMMIT would fail the
// whole batch.
func (s batchSession) Begin(ctx context.Context) error {
	sql := "BEGIN; SET CONSTRAINTS ALL IMMEDIATE"
	t := s.st.timeoutsOf(s.b)
	for i, name := range []string{"lock_timeout", "statement_timeout"} {
		if len(t.texts[i]) > 0 {
			sql += fmt.Sprintf("; SET LOCAL %s = %s", name, t.texts[i])
		}
	}
	return exec(ctx, s.conn, sql+"; SELECT true"+settings(s.st.def))
}

// InsertRows implements streamtables.Session. It halves a part that the server refuses until one
// round trip can insert its rows one by one.
func (s batchSession) InsertRows(ctx context.Context, rows []stream.Row) error {
	insert := func(rows []stream.Row) (*stream.RowRefusal, error) { return s.insertRange(ctx, rows) }
	singly := func(rows []stream.Row) error { return s.insertSingly(ctx, rows) }
	for part := range slices.Chunk(rows, rowsMax) {
		if err := s.b.Bisect(part, singlyMax, insert, singly); err != nil {
			return err
		}
	}
	return nil
}

// InsertKeys implements streamtables.Session.
func (s batchSession) InsertKeys(ctx context.Context, requests []*stream.Entry) error {
	args, err := s.st.encodeKeys(s.b, requests)
	if err != nil {
		return err
	}
	steps := []step{{s.st.keys, args, nil}}
	descriptions, err := s.st.describe(ctx, s.conn, steps)
	if err != nil {
		return err
	}
	_, err = pipeline(ctx, s.conn, steps, descriptions)
	s.b.Progress()
	return err
}

// Commit implements streamtables.Session.
func (s batchSession) Commit(ctx context.Context) error {
	_, err := s.st.commitSteps(ctx, s.conn, s.b, nil, step{statement: s.table.finish})
	return err
}
