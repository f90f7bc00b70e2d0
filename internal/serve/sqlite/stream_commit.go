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
	err := st.write(ctx, func(conn *sqlite.Conn) error {
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
			conn.SetInterrupt(nil) // the end of ctx does not keep the transaction open
			err = errors.Join(err, sqlitex.Execute(conn, "ROLLBACK", nil))
		}
		return err
	})
	return classify(ctx, err)
}

// classify wraps errors after which the batch may be tried again.
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

// refusal returns why SQLite refuses a row, "" when the error is not the row's.
func refusal(err error) string {
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultConstraint, sqlite.ResultMismatch, sqlite.ResultTooBig:
		text := err.Error()
		// The driver's words are around SQLite's: "sqlite: step: UNIQUE constraint ...".
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

// fill writes the batch. It reports true, with the Results set, when an earlier
// attempt was committed.
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

// readResults takes the Results of the attempt that was committed.
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

// findKey sets the Result of a request whose key is there, or deletes the key if it
// has expired.
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

// progressRows are the rows that are told of as a batch's progress.
const progressRows = 64

func (w *batchWriter) insertRows() error {
	rows := w.b.Rows(nil)
	if len(rows) == 0 {
		return nil
	}
	stmt, err := w.conn.Prepare(w.st.insert)
	if err != nil {
		return err
	}
	columns := w.st.schema.Columns()
	for n, r := range rows {
		if n%progressRows == progressRows-1 {
			w.b.Progress()
		}
		for i, c := range columns {
			w.bind(stmt, i, c.Type, r)
		}
		_, err := stmt.Step()
		// Reset reports a failed step once more.
		if resetErr := stmt.Reset(); err == nil {
			err = resetErr
		}
		if err == nil {
			continue
		}
		reason := refusal(err)
		if reason == "" || w.conn.AutocommitEnabled() { // a trigger may end the transaction
			return err
		}
		r.Entry.Result.Refused = append(r.Entry.Result.Refused, stream.RowRefusal{Row: r.Row, Reason: reason})
	}
	return stmt.ClearBindings()
}

func (w *batchWriter) bind(stmt *sqlite.Stmt, column int, t stream.Type, r stream.Row) {
	param := column + 1
	if r.Null(r.Row, column) {
		stmt.BindNull(param)
		return
	}
	switch t {
	case stream.Integer:
		stmt.BindInt64(param, r.Integer(r.Row, column))
	case stream.Real:
		stmt.BindFloat(param, r.Real(r.Row, column))
	case stream.Boolean:
		stmt.BindBool(param, r.Boolean(r.Row, column))
	case stream.Timestamp:
		w.text = r.AppendTime(w.text[:0], r.Row, column)
		stmt.BindText(param, string(w.text))
	case stream.UUID:
		w.text = r.AppendUUID(w.text[:0], r.Row, column)
		stmt.BindText(param, string(w.text))
	default:
		stmt.BindText(param, string(r.Bytes(r.Row, column)))
	}
}
