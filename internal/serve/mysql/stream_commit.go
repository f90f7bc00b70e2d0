package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"spillway/internal/serve/stream"
	"spillway/internal/serve/streamtables"
)

// Commit implements stream.Sink.
func (st *Stream) Commit(ctx context.Context, b *stream.Batch) error {
	w := &batchWriter{st: st, b: b}
	b.Level = stream.LevelLocal
	// A batch is many statements. The server bounds each of them, and ctx ends if there is no progress.
	err := st.db.onSession(ctx, forever, func(ctx context.Context, se *session) error {
		w.tableSession = tableSession{se}
		b.Session = se.ID
		var err error
		if w.table, err = st.prepareTables(ctx, se); err != nil {
			return err
		}
		if err := w.boundLocks(ctx); err != nil {
			return err
		}
		done, err := w.commitQuick(ctx)
		if !done && err == nil {
			err = streamtables.Commit(ctx, w, dialect, w.table.name, b)
		}
		if errors.Is(err, errUncounted) {
			if err = se.Exec(ctx, "ROLLBACK"); err == nil {
				b.Reset()
				b.RowByRow = true
				err = streamtables.Commit(ctx, w, dialect, w.table.name, b)
			}
		}
		if err != nil && se.IsValid() {
			if rollback := se.Exec(ctx, "ROLLBACK"); rollback != nil {
				err = errors.Join(err, se.Close()) // the server rolls back
			}
		}
		w.unboundLocks(ctx)
		return err
	})
	if err != nil && w.sent {
		return fmt.Errorf("%w: %w", stream.ErrUnconfirmed, err)
	}
	return st.classify(err)
}

// batchWriter writes one batch inside a transaction. It implements streamtables.Session.
type batchWriter struct {
	tableSession
	st    *Stream
	b     *stream.Batch
	table *checkedTable
	sent  bool // COMMIT was sent and not answered
	args  []driver.NamedValue

	noLockWait bool // the session does not wait for locks
}

// The server counts lock waits in whole seconds. Only MariaDB accepts 0.
const (
	waitSecond  = "SET innodb_lock_wait_timeout = 1"
	waitNothing = "SET innodb_lock_wait_timeout = 0"
)

// boundLocks sets how long the session waits for a lock, approximately. waitSecond is run
// once per session, and is prepared there afterwards.
func (w *batchWriter) boundLocks(ctx context.Context) error {
	if w.b.LockWait == 0 {
		return nil
	}
	if !w.prepared.Contains(waitSecond) {
		if _, err := w.exec(ctx, waitSecond, nil); err != nil {
			return err
		}
	}
	if w.b.LockWait >= time.Second/4 || !w.Server.MariaDB || w.manyRows() {
		return nil
	}
	w.noLockWait = true
	return w.session.Exec(ctx, waitNothing)
}

// manyRows reports whether a batch is too large to be given up for any lock, which may be one of the stream's own batches.
func (w *batchWriter) manyRows() bool {
	rows := 0
	for _, e := range w.b.Requests {
		rows += e.Records.Len()
	}
	return rows > rowsMax
}

// unboundLocks lets the session wait for locks again.
func (w *batchWriter) unboundLocks(ctx context.Context) {
	if w.noLockWait && w.IsValid() && w.session.Exec(ctx, waitSecond) != nil {
		_ = w.Close() // the pool opens a new one
	}
}

// Commit implements streamtables.Session.
func (w *batchWriter) Commit(ctx context.Context) error {
	var before semiSync
	counted := w.st.semiSync.Load()
	if counted {
		var err error
		if before, err = readSemiSyncStatus(ctx, w.session); err != nil {
			return err
		}
	}
	w.b.Committing()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.sent = true
	if err := w.commit(ctx); err != nil {
		// After a conflict with another node of a cluster, or a lock, the transaction was undone.
		w.sent = !isRefusal(err, numDeadlock, numLockWait, numRolledBack)
		return err
	}
	w.sent = false
	if !counted || !before.on {
		return nil
	}
	after, err := readSemiSyncStatus(ctx, w.session) // an error leaves the level that is certain
	if err == nil && before.covers(after) {
		w.b.Level = stream.LevelSemiSync
	}
	return nil
}
