package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/database"
	"spillway/internal/serve/stream"
)

// Commit implements stream.Sink.
func (st *Stream) Commit(ctx context.Context, b *stream.Batch) error {
	pooled, err := st.db.acquireWriter(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	defer st.db.releaseWriter(pooled)
	conn := pooled.Conn().PgConn()
	if err := st.prepareTables(ctx, conn, b.Mark != nil); err != nil {
		return st.classify(err)
	}
	b.Session = uint64(conn.PID())
	if b.Mark != nil || b.RowByRow {
		return st.stepwise(ctx, conn, b)
	}
	steps := make([]step, 0, 6) // with keys, rows, and what commitSteps appends
	steps = append(steps, step{st.begin, nil, nil}, step{st.batch, st.batchArgs(b, b.ID), nil})
	if keyed := b.Keyed(nil); len(keyed) > 0 {
		args, err := st.encodeKeys(b, keyed)
		if err != nil {
			return err
		}
		steps = append(steps, step{st.keys, args, nil})
	}
	if rows := b.Rows(nil); len(rows) > 0 {
		steps = append(steps, step{st.rows, encodeRows(st.schema.Columns(), rows), nil})
	}
	failed, err := st.commitSteps(ctx, conn, b, steps)
	if err == nil || errors.Is(err, stream.ErrUnconfirmed) || errors.Is(err, stream.ErrTransient) {
		return err
	}
	return st.recover(ctx, conn, b, failed, err)
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

// batchArgs returns the arguments of the statement that stores a batch id.
func (st *Stream) batchArgs(b *stream.Batch, id [16]byte) [][]byte {
	t := st.timeoutsOf(b)
	return [][]byte{t.texts[0], t.texts[1], id[:]}
}

// commitSteps runs the last steps of a transaction and COMMIT in one round trip, and waits
// for the answer to COMMIT for as long as the connection lasts. On an error it returns the
// step that failed, or -1 if nothing was sent. If COMMIT may have been executed, the error
// wraps ErrUnconfirmed.
func (st *Stream) commitSteps(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch, steps []step) (failed int, err error) {
	finish := step{statement: st.finish}
	if len(b.Forget) > 0 {
		finish = step{st.finishForget, [][]byte{encodeIDs(b.Forget)}, nil}
	}
	c := commit{conn: conn, guard: database.CommitGuardOf(conn)}
	steps = c.append(steps, finish, st.commit)
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
		b.Progress()
		c.recheck(ctx, statementLimit(b))
	}
	b.Level = c.level
	st.reset(conn)
	return failed, err
}

// recover continues after commitSteps has failed at a step: the server refused the step, or
// nothing was sent.
func (st *Stream) recover(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch, failed int, err error) error {
	var pgErr *pgconn.PgError
	if !isDefinite(err, &pgErr) {
		st.reset(conn)
		return st.classify(err)
	}
	if failed >= 0 { // inside the transaction
		if err := exec(ctx, conn, "ROLLBACK"); err != nil {
			return fmt.Errorf("%w: %w", stream.ErrTransient, err)
		}
	}
	if isOutdated(pgErr) || pgErr.Code == stateNoPreparedStatement {
		st.dropPrepared(ctx, conn)
	}
	if failed == 1 && pgErr.Code == stateUniqueViolation {
		return st.replay(ctx, conn, b)
	}
	if failed > 1 && isData(pgErr) {
		b.Progress()
		return st.stepwise(ctx, conn, b)
	}
	if failed > 1 {
		err = blocked(err)
	}
	return st.classify(err)
}

// blocked marks a lock timeout as one of a request of the batch. A lock timeout while the
// batch id is stored is due to another attempt of the same batch.
func blocked(err error) error {
	var pgErr *pgconn.PgError
	if isDefinite(err, &pgErr) && pgErr.Code == stateLockTimeout {
		return fmt.Errorf("%w: %w", stream.ErrBlocked, err)
	}
	return err
}

// reset makes the pool check its idle connections if this one is closed.
func (st *Stream) reset(conn *pgconn.PgConn) {
	if conn.IsClosed() {
		st.db.pool.Reset()
	}
}

func (st *Stream) dropPrepared(ctx context.Context, conn *pgconn.PgConn) {
	se := sessionOf(conn)
	for _, s := range []*statement{
		st.begin, st.commit, st.batch, st.settings, st.finish, st.finishForget, st.keys, st.moveKey, st.mark, st.drained, st.rows,
		st.savepoint, st.release, st.back,
	} {
		if se.prepared.Contains(s.name) {
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

// replay takes the results of the attempt that was committed. What it has stored may not
// have reached a standby yet, so a commit of its own confirms it.
func (st *Stream) replay(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch) error {
	result := conn.ExecParams(ctx, "SELECT results FROM spillway_batches WHERE id = $1", [][]byte{b.ID[:]},
		[]uint32{pgtype.UUIDOID}, binaryFormat, binaryFormat).Read()
	if result.Err != nil {
		return fmt.Errorf("%w: read the results of a committed batch: %w", stream.ErrUnconfirmed, result.Err)
	}
	if len(result.Rows) == 0 {
		return fmt.Errorf("%w: the batch id no longer exists", stream.ErrTransient)
	}
	if err := b.SetResults(result.Rows[0][0]); err != nil {
		return err
	}
	return st.confirmEarlier(ctx, conn, b)
}

// confirmEarlier commits a write of its own: a batch id that nothing else uses. When it
// returns nil, all that was committed before is as safe as that. No transaction is open.
func (st *Stream) confirmEarlier(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch) error {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	var err error
	for range 2 { // a pooler may lose a prepared statement
		b.Progress()
		var failed int
		if failed, err = st.commitSteps(ctx, conn, b, []step{{st.begin, nil, nil}, {st.batch, st.batchArgs(b, id), nil}}); err == nil {
			return nil
		}
		var pgErr *pgconn.PgError
		if !isDefinite(err, &pgErr) {
			break
		}
		if failed >= 0 && exec(ctx, conn, "ROLLBACK") != nil || !st.db.worthRetrying(err) {
			break
		}
	}
	return fmt.Errorf("%w: confirm an earlier attempt: %w", stream.ErrUnconfirmed, err)
}

// stepwise stores a batch that contains something the database refuses: an existing
// idempotency key, or rows. Each step is a round trip.
func (st *Stream) stepwise(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch) error {
	known, err := st.tryStepwise(ctx, conn, b)
	if err == nil && !known {
		return nil
	}
	if errors.Is(err, stream.ErrUnconfirmed) {
		return err
	}
	var pgErr *pgconn.PgError
	answered := err == nil || errors.Is(err, stream.ErrHeld) || isDefinite(err, &pgErr)
	if !answered {
		st.reset(conn)
		return st.classify(err)
	}
	if rollback := exec(ctx, conn, "ROLLBACK"); rollback != nil {
		return fmt.Errorf("%w: %w", stream.ErrTransient, errors.Join(err, rollback))
	}
	switch {
	case known && b.Mark != nil:
		return st.confirmEarlier(ctx, conn, b)
	case known:
		return st.replay(ctx, conn, b)
	case errors.Is(err, stream.ErrHeld):
		return err
	case pgErr.Code == stateUniqueViolation: // another process has stored the idempotency key, or the epoch
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	return st.classify(err)
}

// tryStepwise returns true if the database has the batch, or groups of it. The caller then
// ends the transaction, as after an error.
func (st *Stream) tryStepwise(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch) (known bool, err error) {
	b.Reset()
	// A constraint that is checked at COMMIT would fail the whole batch.
	if err := exec(ctx, conn, "BEGIN; SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
		return false, err
	}
	if b.Mark != nil {
		if known, err = st.judgeMark(ctx, conn, b); known || err != nil {
			return known, err
		}
	} else if err := st.run(ctx, conn, step{st.batch, st.batchArgs(b, b.ID), nil}); err != nil {
		var pgErr *pgconn.PgError
		return isDefinite(err, &pgErr) && pgErr.Code == stateUniqueViolation, err
	}
	b.Progress()
	if err := st.fill(ctx, conn, b); err != nil {
		return false, blocked(err)
	}
	b.Progress()
	results, err := b.Results()
	if err != nil {
		return false, err
	}
	var last []step
	switch {
	case b.Mark != nil:
		if err := st.verify(ctx, conn, b); err != nil {
			return false, err
		}
		last = st.markSteps(b.Mark, results)
	case results != nil:
		r := conn.ExecParams(ctx, "UPDATE spillway_batches SET results = $2 WHERE id = $1", [][]byte{b.ID[:], results},
			[]uint32{pgtype.UUIDOID, pgtype.ByteaOID}, binaryFormat, nil).Read()
		if r.Err != nil {
			return false, r.Err
		}
	}
	_, err = st.commitSteps(ctx, conn, b, last)
	return false, err
}

// fill stores the rows and the idempotency keys.
func (st *Stream) fill(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch) error {
	found, err := st.findKeys(ctx, conn, b)
	if err != nil {
		return err
	}
	if err := st.insertRows(ctx, conn, b, b.Rows(nil)); err != nil {
		return err
	}
	return st.storeKeys(ctx, conn, b, found)
}

// run runs one step.
func (st *Stream) run(ctx context.Context, conn *pgconn.PgConn, s step) error {
	descriptions, err := st.describe(ctx, conn, []step{s})
	if err != nil {
		return err
	}
	_, err = pipeline(ctx, conn, []step{s}, descriptions)
	return err
}
