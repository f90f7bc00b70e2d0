package sqlite

import (
	"context"
	"slices"

	"zombiezen.com/go/sqlite"

	"spillway/internal/serve/stream"
	"spillway/internal/serve/streamtables"
)

// progressRows is the number of rows between two reports of progress.
const progressRows = 64

// storedRow is a row that the transaction has inserted.
type storedRow struct {
	id int64
	stream.Row
}

// InsertRows inserts the rows one by one. A refused row is undone alone. It implements
// streamtables.Session.
func (w *batchWriter) InsertRows(_ context.Context, rows []stream.Row) error {
	if len(rows) == 0 {
		return nil
	}
	stmt, err := w.conn.Prepare(w.st.insert)
	if err != nil {
		return w.refuseAll(rows, err)
	}
	for n, r := range rows {
		if n%progressRows == progressRows-1 {
			w.b.Progress()
		}
		if refused, ok := w.spoilers[rowOf(r)]; ok {
			r.Refuse(refused)
			continue
		}
		if reason := w.bindRow(stmt, r); reason != "" {
			r.Refuse(stream.RowRefusal{Reason: reason})
			continue
		}
		if err := w.insertRow(stmt, r); err != nil {
			return err
		}
	}
	return stmt.ClearBindings()
}

// InsertKeys implements streamtables.Session.
func (w *batchWriter) InsertKeys(ctx context.Context, requests []*stream.Entry) error {
	return streamtables.InsertKeys(ctx, w, dialect, w.st.resolved(), w.b, requests)
}

// insertRow inserts a row whose values are bound, or notes why it is refused.
func (w *batchWriter) insertRow(stmt *sqlite.Stmt, r stream.Row) error {
	err := stepOnce(stmt)
	switch {
	case err == nil && w.conn.Changes() == 0:
		return w.notInserted(r)
	case err == nil:
		if !slices.Contains(w.b.Trial, r.Entry) { // which is taken back before COMMIT
			w.stored = append(w.stored, storedRow{w.conn.LastInsertRowID(), r})
		}
		return nil
	}
	refused, ok := w.refusal(err)
	if !ok {
		return err
	}
	if w.conn.AutocommitEnabled() { // a trigger, or a constraint, has rolled back the transaction
		w.spoilers[rowOf(r)] = refused
		return err
	}
	r.Refuse(refused)
	return nil
}

// rowKey identifies a row of a batch.
type rowKey struct {
	entry *stream.Entry
	row   int
}

func rowOf(r stream.Row) rowKey { return rowKey{r.Entry, r.Row} }

// refuseAll refuses the rows of a drained batch whose INSERT cannot be prepared, for example
// because a table is missing. Batch.Verify then holds the batch. Of other batches, and for
// temporary errors, it returns err.
func (w *batchWriter) refuseAll(rows []stream.Row, err error) error {
	refused, ok := w.refusal(err)
	if !ok {
		return err
	}
	for _, r := range rows {
		r.Refuse(refused)
	}
	return nil
}

// refusal returns why SQLite refuses a row. ok is false if the error concerns the whole
// batch. In a drained batch, an error that is neither temporary nor certainly the row's own
// is a refusal too.
func (w *batchWriter) refusal(err error) (refused stream.RowRefusal, ok bool) {
	if reason := rowError(err); reason != "" {
		return stream.RowRefusal{Reason: reason}, true
	}
	if w.b.Mark == nil || isTemporary(err) {
		return stream.RowRefusal{}, false
	}
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultCorrupt, sqlite.ResultNotADB, sqlite.ResultPerm, sqlite.ResultMisuse:
		return stream.RowRefusal{}, false
	}
	return stream.RowRefusal{Reason: message(err), Unsure: true}, true
}
