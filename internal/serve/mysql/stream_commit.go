package mysql

import (
	"context"
	"crypto/rand"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/serve/stream"
)

// Commit implements stream.Sink.
func (st *Stream) Commit(ctx context.Context, b *stream.Batch) error {
	w := &batchWriter{st: st, b: b}
	// A batch is many statements. The server bounds each of them, and ctx ends if there is
	// no progress.
	err := st.db.onSession(ctx, context.WithCancel, func(ctx context.Context, se *session) error {
		w.ctx, w.se = ctx, se
		b.Session = se.ID
		if err := st.prepareTables(ctx, se, b.Mark != nil); err != nil {
			return err
		}
		if err := w.boundLocks(); err != nil {
			return err
		}
		err := w.write()
		if err != nil && se.IsValid() {
			if rollback := se.Exec(ctx, "ROLLBACK"); rollback != nil {
				err = errors.Join(err, se.Close()) // the server rolls back
			}
		}
		w.unboundLocks()
		return err
	})
	if err != nil && w.sent {
		return fmt.Errorf("%w: %w", stream.ErrUnconfirmed, err)
	}
	return st.classify(err)
}

// batchWriter writes one batch inside a transaction.
type batchWriter struct {
	st   *Stream
	b    *stream.Batch
	ctx  context.Context // for the duration of write
	se   *session
	sent bool // COMMIT was sent and not answered
	args []driver.NamedValue

	keys map[*stream.Entry]*keyRow // rows that keys have, of other requests

	unsure bool // the last refusal may be the server's

	noLockWait bool // the session does not wait for locks
}

// The server counts lock waits in whole seconds. Only MariaDB accepts 0.
const (
	waitSecond  = "SET innodb_lock_wait_timeout = 1"
	waitNothing = "SET innodb_lock_wait_timeout = 0"
)

// boundLocks sets how long the session waits for a lock, approximately. waitSecond is run
// once per session, and is prepared there afterwards.
func (w *batchWriter) boundLocks() error {
	if w.b.LockWait == 0 {
		return nil
	}
	if !w.se.prepared.Contains(waitSecond) {
		if _, err := w.se.exec(w.ctx, waitSecond, nil); err != nil {
			return err
		}
	}
	if w.b.LockWait >= time.Second/4 || !w.se.Server.MariaDB || w.manyRows() {
		return nil
	}
	w.noLockWait = true
	return w.se.Exec(w.ctx, waitNothing)
}

// manyRows reports whether a batch is too large to be given up for any lock, which may be
// one of the stream's own batches.
func (w *batchWriter) manyRows() bool {
	rows := 0
	for _, e := range w.b.Requests {
		rows += e.Records.Len()
	}
	return rows > rowsMax
}

// unboundLocks lets the session wait for locks again.
func (w *batchWriter) unboundLocks() {
	if w.noLockWait && w.se.IsValid() && w.se.Exec(w.ctx, waitSecond) != nil {
		_ = w.se.Close() // the pool opens a new one
	}
}

func (w *batchWriter) write() error {
	w.b.Level = stream.LevelLocal
	if err := w.se.Exec(w.ctx, "START TRANSACTION"); err != nil {
		return err
	}
	found, err := w.identify()
	switch {
	case err != nil:
		return err
	case found:
		// What an earlier transaction has stored is known to be durable, and replicated, once
		// a later one is.
		var id [16]byte
		_, _ = rand.Read(id[:]) // never fails
		if err := w.insertID(id); err != nil {
			return err
		}
		return w.commit()
	}
	w.b.Progress()
	if err := w.fill(); err != nil {
		if isRefusal(err, numLockWait) {
			return fmt.Errorf("%w: %w", stream.ErrBlocked, err)
		}
		return err
	}
	if err := w.finish(); err != nil {
		return err
	}
	return w.commit()
}

// identify inserts the batch's id, or compares its Mark. found reports that nothing of the
// batch is to be stored; the transaction has written nothing then.
func (w *batchWriter) identify() (found bool, err error) {
	if w.b.Mark != nil {
		return w.mark()
	}
	err = w.insertID(w.b.ID)
	var refused *mysql.MySQLError
	if !errors.As(err, &refused) || refused.Number != numDuplicate {
		return false, err
	}
	if err := w.readResults(); err != nil {
		return false, err
	}
	return true, w.se.Exec(w.ctx, "START TRANSACTION")
}

func (w *batchWriter) insertID(id [16]byte) error {
	_, err := w.se.exec(w.ctx, "INSERT INTO spillway_batches (id, created_at) VALUES (?, UTC_TIMESTAMP(6))", w.values(id[:]))
	return err
}

// finish stores what became of the records, and deletes the ids of earlier batches.
func (w *batchWriter) finish() error {
	if w.b.Mark != nil {
		if err := w.verify(); err != nil {
			return err
		}
	}
	results, err := w.b.Results()
	switch {
	case err != nil:
		return err
	case w.b.Mark != nil:
		err = w.insertDrained(results)
	case results != nil:
		_, err = w.se.exec(w.ctx, "UPDATE spillway_batches SET results = ? WHERE id = ?", w.values(results, w.b.ID[:]))
	}
	if err != nil {
		return err
	}
	return w.forget()
}

// verify makes sure that no record is refused for a condition of the server.
func (w *batchWriter) verify() error {
	held := w.b.Verify()
	if held == nil || len(w.b.Trial) == 0 {
		return held
	}
	if err := w.se.Exec(w.ctx, "SAVEPOINT trial"); err != nil {
		return err
	}
	if err := w.insertRows(w.b.TrialRows()); err != nil {
		return err
	}
	if err := w.se.Exec(w.ctx, "ROLLBACK TO SAVEPOINT trial"); err != nil {
		return err
	}
	return w.b.VerifyTrial(held)
}

// commit commits the transaction, and sets the batch's Level.
func (w *batchWriter) commit() error {
	var before semiSync
	counted := w.st.semiSync.Load()
	if counted {
		var err error
		if before, err = readSemiSyncStatus(w.ctx, w.se); err != nil {
			return err
		}
	}
	w.b.Committing()
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	w.sent = true
	if err := w.se.commit(w.ctx); err != nil {
		w.sent = !isRolledBack(err)
		return err
	}
	w.sent = false
	if !counted || !before.on {
		return nil
	}
	after, err := readSemiSyncStatus(w.ctx, w.se) // an error leaves the level that is certain
	if err == nil && before.covers(after) {
		w.b.Level = stream.LevelSemiSync
	}
	return nil
}

// fill stores the rows and the idempotency keys.
func (w *batchWriter) fill() error {
	if err := w.findKeys(w.b.Keyed(nil)); err != nil {
		return err
	}
	if err := w.insertRows(w.b.Rows(nil)); err != nil {
		return err
	}
	return w.insertKeys(w.b.Keyed(nil))
}

// values returns the arguments of a statement. They are valid until the next call.
func (w *batchWriter) values(values ...any) []driver.NamedValue {
	w.args = w.args[:0]
	for _, v := range values {
		w.push(v)
	}
	return w.args
}

func (w *batchWriter) push(v driver.Value) {
	w.args = append(w.args, driver.NamedValue{Ordinal: len(w.args) + 1, Value: v})
}

// readResults reads the results of the attempt that was committed.
func (w *batchWriter) readResults() error {
	if err := w.se.Exec(w.ctx, "ROLLBACK"); err != nil {
		return err
	}
	rows, err := w.se.texts(w.ctx, "SELECT results FROM spillway_batches WHERE id = ?", w.b.ID[:])
	if err != nil {
		return fmt.Errorf("%w: read the results of a committed batch: %w", stream.ErrUnconfirmed, err)
	}
	if len(rows) != 1 {
		return fmt.Errorf("%w: the batch id no longer exists", stream.ErrTransient)
	}
	return w.b.SetResults([]byte(rows[0][0]))
}

// forget deletes the ids of batches that are no longer needed.
func (w *batchWriter) forget() error {
	if len(w.b.Forget) == 0 {
		return nil
	}
	sql := []byte("DELETE FROM spillway_batches WHERE id IN (")
	for i, id := range w.b.Forget {
		if i > 0 {
			sql = append(sql, ',')
		}
		sql = fmt.Appendf(sql, "x'%x'", id[:])
	}
	return w.se.Exec(w.ctx, string(append(sql, ')')))
}
