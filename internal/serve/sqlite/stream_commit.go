package sqlite

import (
	"context"
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
		if err := sqlitex.Execute(conn, "BEGIN IMMEDIATE", nil); err != nil {
			return err
		}
		w := &batchWriter{st: st, conn: conn, b: b, now: time.Now()}
		committed, err := w.fill()
		if err == nil && !committed {
			if err = sqlitex.Execute(conn, "COMMIT", nil); err != nil && sqlite.ErrCode(err).ToPrimary() == sqlite.ResultIOErr {
				err = fmt.Errorf("%w: %w", stream.ErrUnconfirmed, err)
			}
		}
		if !conn.AutocommitEnabled() {
			conn.SetInterrupt(nil) // the end of ctx must not leave the transaction open
			err = errors.Join(err, sqlitex.Execute(conn, "ROLLBACK", nil))
		}
		return err
	})
	return classify(ctx, err)
}

// classify marks errors after which the batch can be retried.
func classify(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, stream.ErrUnconfirmed) {
		return err
	}
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultBusy, sqlite.ResultLocked, sqlite.ResultInterrupt, sqlite.ResultIOErr, sqlite.ResultFull, sqlite.ResultNoMem, sqlite.ResultCantOpen, sqlite.ResultSchema:
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	return err
}

// refusal returns why SQLite refuses a row, "" if the error is not the row's.
func refusal(err error) string {
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultConstraint, sqlite.ResultMismatch, sqlite.ResultTooBig:
		text := err.Error()
		// The driver adds words to SQLite's: "sqlite: step: UNIQUE constraint ...".
		for _, prefix := range []string{"sqlite: ", "step: "} {
			text = strings.TrimPrefix(text, prefix)
		}
		return text
	}
	return ""
}

// batchWriter writes one batch inside a transaction.
type batchWriter struct {
	st   *Stream
	conn *sqlite.Conn
	b    *stream.Batch
	now  time.Time
	text []byte
}

// fill writes the batch. committed reports that an earlier attempt was committed; the
// results are then set.
func (w *batchWriter) fill() (committed bool, err error) {
	if w.b.Mark != nil {
		if committed, err = w.mark(); committed || err != nil {
			return committed, err
		}
	} else if err = w.exec("INSERT INTO spillway_batches (id, created_at) VALUES (?, ?)", w.b.ID[:], w.now.UnixMicro()); sqlite.ErrCode(err).ToPrimary() == sqlite.ResultConstraint {
		return true, w.readResults()
	}
	if err != nil {
		return false, err
	}
	for _, e := range w.b.Keyed(nil) {
		if err := w.findKey(e); err != nil {
			return false, err
		}
	}
	if err := w.insertRows(); err != nil {
		return false, err
	}
	for _, e := range w.b.Keyed(nil) {
		outcome, err := e.OutcomeNow()
		if err != nil {
			return false, err
		}
		err = w.exec("INSERT INTO spillway_requests (stream, key, fingerprint, outcome, expires_at) VALUES (?, ?, ?, ?, ?)",
			w.st.def.Name, e.Key, e.Fingerprint[:], outcome, e.Expires.UnixMicro())
		if err != nil {
			return false, err
		}
	}
	return false, w.finish()
}

func (w *batchWriter) finish() error {
	results, err := w.b.Results()
	if err != nil {
		return err
	}
	if results != nil {
		if err := w.keepResults(results); err != nil {
			return err
		}
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

// readResults reads the results of the attempt that was committed.
func (w *batchWriter) readResults() error {
	var results []byte
	err := sqlitex.Execute(w.conn, "SELECT results FROM spillway_batches WHERE id = ?", &sqlitex.ExecOptions{
		Args: []any{w.b.ID[:]}, ResultFunc: func(stmt *sqlite.Stmt) error {
			results = columnBytes(stmt, 0)
			return nil
		},
	})
	if err != nil {
		return err
	}
	return w.b.SetResults(results)
}

func columnBytes(stmt *sqlite.Stmt, column int) []byte {
	data := make([]byte, stmt.ColumnLen(column))
	stmt.ColumnBytes(column, data)
	return data
}

// findKey sets the result of a request whose idempotency key exists, or deletes the key if
// it has expired.
func (w *batchWriter) findKey(e *stream.Entry) error {
	expired := false
	err := sqlitex.Execute(w.conn, "SELECT fingerprint, outcome, expires_at FROM spillway_requests WHERE stream = ? AND key = ?", &sqlitex.ExecOptions{
		Args: []any{w.st.def.Name, e.Key}, ResultFunc: func(stmt *sqlite.Stmt) error {
			if expired = stmt.ColumnInt64(2) < w.now.UnixMicro(); !expired {
				e.Found(columnBytes(stmt, 0), columnBytes(stmt, 1))
			}
			return nil
		},
	})
	if err != nil || !expired {
		return err
	}
	return w.exec("DELETE FROM spillway_requests WHERE stream = ? AND key = ?", w.st.def.Name, e.Key)
}

// spoolTable is created in the transaction of a spool's batch if it is missing.
const spoolTable = `CREATE TABLE IF NOT EXISTS spillway_spools (
	id BLOB PRIMARY KEY,
	stream TEXT NOT NULL,
	after INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	results BLOB,
	updated_at INTEGER NOT NULL
) WITHOUT ROWID`

// mark stores which groups of a spool the batch contains. stored reports that the database
// already has them; the results are then set.
func (w *batchWriter) mark() (stored bool, err error) {
	m := w.b.Mark
	if err := w.exec(spoolTable); err != nil {
		return false, err
	}
	err = sqlitex.Execute(w.conn, "SELECT after, sequence, results FROM spillway_spools WHERE id = ?", &sqlitex.ExecOptions{
		Args: []any{m.Spool[:]}, ResultFunc: func(stmt *sqlite.Stmt) error {
			var err error
			if stored, err = m.Compare(uint64(stmt.ColumnInt64(0)), uint64(stmt.ColumnInt64(1))); stored {
				err = w.b.SetResults(columnBytes(stmt, 2))
			}
			return err
		},
	})
	if stored || err != nil {
		return stored, err
	}
	return false, w.exec("INSERT OR REPLACE INTO spillway_spools (id, stream, after, sequence, updated_at) VALUES (?, ?, ?, ?, ?)",
		m.Spool[:], m.Name, int64(m.After), int64(m.Last), w.now.UnixMicro())
}

// keepResults stores the results in the row that identifies the batch.
func (w *batchWriter) keepResults(results []byte) error {
	if w.b.Mark != nil {
		return w.exec("UPDATE spillway_spools SET results = ? WHERE id = ?", results, w.b.Mark.Spool[:])
	}
	return w.exec("UPDATE spillway_batches SET results = ? WHERE id = ?", results, w.b.ID[:])
}
