package sqlite

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/stream"
)

// Commit implements stream.Sink.
func (st *Stream) Commit(ctx context.Context, b *stream.Batch) error {
	err := st.run(ctx, func(conn *sqlite.Conn) error {
		w := &batchWriter{st: st, ctx: ctx, conn: conn, b: b, now: time.Now(), spoilers: make(map[rowKey]stream.RowRefusal)}
		for {
			known := len(w.spoilers)
			conn.SetInterrupt(ctx.Done())
			err := w.attempt()
			if len(w.spoilers) == known {
				return err
			}
			b.Reset() // again, without the rows that made the transaction fail
		}
	})
	return classify(ctx, err)
}

// classify marks errors after which the batch can be retried.
func classify(ctx context.Context, err error) error {
	switch {
	case err == nil || errors.Is(err, stream.ErrUnconfirmed) || errors.Is(err, stream.ErrHeld):
		return err
	case isTemporary(err) || ctx.Err() != nil:
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	return err
}

// isTemporary reports whether the same statement may succeed later.
func isTemporary(err error) bool {
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultBusy, sqlite.ResultLocked, sqlite.ResultInterrupt, sqlite.ResultIOErr, sqlite.ResultFull, sqlite.ResultNoMem,
		sqlite.ResultCantOpen, sqlite.ResultSchema, sqlite.ResultReadOnly, sqlite.ResultProtocol:
		return true
	}
	return false
}

// rowError returns why SQLite refuses a row, "" if the error is not certainly the row's.
func rowError(err error) string {
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultConstraint, sqlite.ResultMismatch, sqlite.ResultTooBig:
		return message(err)
	}
	return ""
}

// message returns the text of SQLite's error, without the words that the driver adds, as in
// "sqlite: step: UNIQUE constraint ...".
func message(err error) string {
	text := err.Error()
	for _, prefix := range []string{"sqlite: ", "step: ", "prepare: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	return text
}

// batchWriter writes one batch inside a transaction.
type batchWriter struct {
	st   *Stream
	ctx  context.Context // of the call of Commit
	conn *sqlite.Conn
	b    *stream.Batch
	now  time.Time
	text []byte

	stored   []storedRow                          // in this attempt
	keys     map[*stream.Entry][]stream.StoredKey // what the file has under the requests' keys, the newest first
	spoilers map[rowKey]stream.RowRefusal         // rows that make the transaction fail
}

// attempt runs the transaction. Rows that make it fail are added to spoilers.
func (w *batchWriter) attempt() (err error) {
	w.stored, w.keys = w.stored[:0], nil
	if err := w.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	defer func() {
		if !w.conn.AutocommitEnabled() {
			w.conn.SetInterrupt(nil) // the end of ctx must not leave the transaction open
			err = errors.Join(err, w.exec("ROLLBACK"))
		}
	}()
	if err := w.st.checkSchema(w.conn); err != nil {
		return err
	}
	found, err := w.fill()
	if err == nil && found {
		err = w.confirm()
	}
	if err != nil {
		return err
	}
	return w.commit()
}

// confirm writes a row of its own. Its COMMIT makes what an earlier transaction has stored as
// safe as itself: that transaction may be in the log and not on the disk.
func (w *batchWriter) confirm() error {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return w.exec("INSERT INTO spillway_batches (id, created_at) VALUES (?, ?)", id[:], w.now.UnixMicro())
}

// commit sends COMMIT, which nothing interrupts.
func (w *batchWriter) commit() error {
	w.conn.SetInterrupt(nil)
	w.b.Committing()
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	err := w.exec("COMMIT")
	switch code := sqlite.ErrCode(err); {
	case err == nil:
		return nil
	case code.ToPrimary() == sqlite.ResultIOErr:
		return fmt.Errorf("%w: %w", stream.ErrUnconfirmed, err)
	case code == sqlite.ResultConstraintForeignKey:
		return errors.Join(err, w.findBroken(err))
	}
	return err
}

// findBroken adds the rows to spoilers that break a DEFERRED foreign key of the table. Only
// at COMMIT does SQLite report that there is one. If no row is found, because a trigger has
// written to another table or the table has no rowid, a batch of one row refuses it, and a
// drained batch is held.
func (w *batchWriter) findBroken(cause error) error {
	broken := make(map[int64]bool)
	err := sqlitex.Execute(w.conn, "SELECT rowid FROM pragma_foreign_key_check(?, NULLIF(?, '')) WHERE rowid IS NOT NULL", &sqlitex.ExecOptions{
		Args: []any{w.st.table.Name, w.st.table.Schema}, ResultFunc: func(stmt *sqlite.Stmt) error {
			broken[stmt.ColumnInt64(0)] = true
			return nil
		},
	})
	if err != nil {
		return fmt.Errorf("find the rows that break a foreign key: %w", err)
	}
	refused, known := stream.RowRefusal{Reason: message(cause)}, len(w.spoilers)
	for _, r := range w.stored {
		if broken[r.id] || len(w.stored) == 1 {
			w.spoilers[rowOf(r.Row)] = refused
		}
	}
	if len(w.spoilers) > known || w.b.Mark == nil {
		return nil
	}
	refused.Unsure = true
	for _, r := range w.stored {
		w.spoilers[rowOf(r.Row)] = refused
	}
	return nil
}

// fill writes the batch. found reports that an earlier attempt was committed; the results
// are then set.
func (w *batchWriter) fill() (found bool, err error) {
	if w.b.Mark != nil {
		found, err = w.judgeMark()
	} else {
		found, err = w.writeID()
	}
	if found || err != nil {
		return found, err
	}
	if err := w.findKeys(); err != nil {
		return false, err
	}
	if err := w.insertRows(w.b.Rows(nil)); err != nil {
		return false, err
	}
	if w.b.Mark != nil {
		if err := w.verify(); err != nil {
			return false, err
		}
	}
	if err := w.writeKeys(); err != nil {
		return false, err
	}
	return false, w.finish()
}

// verify makes sure that no record is refused for a condition of the database.
func (w *batchWriter) verify() error {
	held := w.b.Verify()
	if held == nil || len(w.b.Trial) == 0 {
		return held
	}
	stored := len(w.stored)
	if err := w.exec("SAVEPOINT trial"); err != nil {
		return err
	}
	if err := w.insertRows(w.b.TrialRows()); err != nil {
		return err
	}
	w.stored = w.stored[:stored]
	if err := w.exec("ROLLBACK TO trial"); err != nil {
		return err
	}
	return w.b.VerifyTrial(held)
}

// writeID stores the batch's id. If it is there, writeID sets the results of the attempt
// that was committed.
func (w *batchWriter) writeID() (found bool, err error) {
	err = w.exec("INSERT INTO spillway_batches (id, created_at) VALUES (?, ?)", w.b.ID[:], w.now.UnixMicro())
	if sqlite.ErrCode(err).ToPrimary() != sqlite.ResultConstraint {
		return false, err
	}
	var results []byte
	err = sqlitex.Execute(w.conn, "SELECT results FROM spillway_batches WHERE id = ?", &sqlitex.ExecOptions{
		Args: []any{w.b.ID[:]}, ResultFunc: func(stmt *sqlite.Stmt) error {
			results = columnBytes(stmt, 0)
			return nil
		},
	})
	if err != nil {
		return false, err
	}
	return true, w.b.SetResults(results)
}

// finish stores the results in the row that identifies the batch.
func (w *batchWriter) finish() error {
	results, err := w.b.Results()
	if err != nil {
		return err
	}
	if w.b.Mark != nil {
		err = w.writeMark(results)
	} else if results != nil {
		err = w.exec("UPDATE spillway_batches SET results = ? WHERE id = ?", results, w.b.ID[:])
	}
	if err != nil {
		return err
	}
	for _, id := range w.b.Forget {
		if err := w.exec("DELETE FROM spillway_batches WHERE id = ?", id[:]); err != nil {
			return err
		}
	}
	return nil
}

func (w *batchWriter) exec(sql string, args ...any) error {
	return sqlitex.Execute(w.conn, sql, &sqlitex.ExecOptions{Args: args})
}

func columnBytes(stmt *sqlite.Stmt, column int) []byte {
	data := make([]byte, stmt.ColumnLen(column))
	stmt.ColumnBytes(column, data)
	return data
}
