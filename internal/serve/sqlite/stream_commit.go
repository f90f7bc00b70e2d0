package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/stream"
	"spillway/internal/serve/streamtables"
)

// Commit implements stream.Sink.
func (st *Stream) Commit(ctx context.Context, b *stream.Batch) error {
	err := st.run(ctx, func(conn *sqlite.Conn) error {
		w := &batchWriter{tableSession: tableSession{conn}, st: st, b: b, spoilers: make(map[rowKey]stream.RowRefusal)}
		for {
			known := len(w.spoilers)
			err := w.attempt(ctx)
			if len(w.spoilers) == known {
				return err
			}
			b.Reset() // again, without the rows that made the transaction fail
			st.unwatch(conn)
			st.watch(ctx)
		}
	})
	return classify(ctx, err)
}

// classify marks errors after which the batch can be retried.
func classify(ctx context.Context, err error) error {
	switch {
	case err == nil || errors.Is(err, stream.ErrUnconfirmed) || errors.Is(err, stream.ErrHeld):
		return err
	case isTemporary(err) || errors.Is(err, ErrReplaced) || ctx.Err() != nil:
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

// batchWriter writes one batch inside a transaction. It implements streamtables.Session.
type batchWriter struct {
	tableSession
	st *Stream
	b  *stream.Batch

	stored   []storedRow                  // in this attempt
	spoilers map[rowKey]stream.RowRefusal // rows that make the transaction fail
}

// attempt runs the transaction. Rows that make it fail are added to spoilers.
func (w *batchWriter) attempt(ctx context.Context) error {
	w.stored = w.stored[:0]
	err := streamtables.Commit(ctx, w, dialect, w.st.resolved(), w.b)
	if !w.conn.AutocommitEnabled() {
		w.st.unwatch(w.conn) // the end of ctx must not leave the transaction open
		err = errors.Join(err, w.exec("ROLLBACK"))
	}
	return err
}

// Begin implements streamtables.Session.
func (w *batchWriter) Begin(context.Context) error {
	if err := w.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	return w.st.checkSchema(w.conn)
}

// Commit implements streamtables.Session. Nothing interrupts a COMMIT.
func (w *batchWriter) Commit(ctx context.Context) error {
	w.st.unwatch(w.conn)
	w.b.Committing()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := w.exec("COMMIT")
	switch code := sqlite.ErrCode(err); {
	case err == nil:
		if err = w.st.db.moved(w.st.file); err != nil { // the new file does not have the batch
			return fmt.Errorf("%w: %w", stream.ErrUnconfirmed, err)
		}
		return nil
	case code.ToPrimary() == sqlite.ResultIOErr:
		return fmt.Errorf("%w: %w", stream.ErrUnconfirmed, err)
	case code == sqlite.ResultConstraintForeignKey:
		return errors.Join(err, w.findBroken(err))
	}
	return err
}

func (w *batchWriter) exec(sql string) error { return sqlitex.Execute(w.conn, sql, nil) }

// findBroken adds the rows to spoilers that break a DEFERRED foreign key of the table. Only
// at COMMIT does SQLite report that there is one. If no row is found, because a trigger has
// written to another table or the table has no rowid, a batch of one row refuses it, and a
// drained batch is held.
func (w *batchWriter) findBroken(cause error) error {
	rows, err := texts(w.conn, "SELECT rowid FROM pragma_foreign_key_check(?, NULLIF(?, '')) WHERE rowid IS NOT NULL",
		w.st.table.Name, w.st.table.Schema)
	if err != nil {
		return fmt.Errorf("find the rows that break a foreign key: %w", err)
	}
	broken := make(map[string]bool, len(rows))
	for _, row := range rows {
		broken[row[0]] = true
	}
	refused, known := stream.RowRefusal{Reason: message(cause)}, len(w.spoilers)
	for _, r := range w.stored {
		if broken[strconv.FormatInt(r.id, 10)] || len(w.stored) == 1 {
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
