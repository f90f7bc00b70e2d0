package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"strconv"

	"spillway/internal/serve/stream"
	"spillway/internal/serve/streamtables"
)

// singlyMax is the number of refused rows from which on they are inserted one by one
// instead of halved.
const singlyMax = 8

// InsertRows inserts rows in statements of powers of two, and halves those that the server
// refuses. It implements streamtables.Session.
func (w *batchWriter) InsertRows(ctx context.Context, rows []stream.Row) error {
	insert := func(rows []stream.Row) (*stream.RowRefusal, error) { return w.insertRange(ctx, rows) }
	singly := func(rows []stream.Row) error { return w.insertSingly(ctx, rows) }
	for len(rows) > 0 {
		n := powerBelow(min(len(rows), w.st.most))
		if err := w.b.Bisect(rows[:n], singlyMax, insert, singly); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// InsertKeys implements streamtables.Session.
func (w *batchWriter) InsertKeys(ctx context.Context, requests []*stream.Entry) error {
	return streamtables.InsertKeys(ctx, w, dialect, *w.st.resolved.Load(), w.b, requests)
}

// insertSingly inserts the rows one by one.
func (w *batchWriter) insertSingly(ctx context.Context, rows []stream.Row) error {
	for i, r := range rows {
		refused, err := w.insertRange(ctx, rows[i:i+1])
		if err != nil {
			return err
		}
		if refused != nil {
			r.Refuse(*refused)
		}
	}
	return nil
}

// insertRange inserts all of the rows, a power of two, or none.
func (w *batchWriter) insertRange(ctx context.Context, rows []stream.Row) (*stream.RowRefusal, error) {
	w.args = w.args[:0]
	held := *w.st.held.Load()
	for _, r := range rows {
		for i := range held {
			value, reason := held[i].value(r, i)
			if reason != "" {
				return &stream.RowRefusal{Reason: reason}, nil
			}
			w.args = append(w.args, driver.NamedValue{Ordinal: len(w.args) + 1, Value: value})
		}
	}
	changed, err := w.exec(ctx, w.st.insert(len(rows), false), w.args)
	w.b.Progress()
	refused, err := w.refused(ctx, err)
	if err == nil && refused == nil {
		w.noteFound(rows, changed)
		return w.countRows(ctx, rows, changed)
	}
	if refused == nil || len(rows) > 1 || len(w.st.def.Key) == 0 || refused.Unsure {
		return refused, err
	}
	// The clause for the key has hidden the error; the plain statement shows it.
	_, err = w.exec(ctx, w.st.insert(1, true), w.args)
	return w.refused(ctx, err)
}

// noteFound notes the rows of a statement that it has not certainly inserted. The server
// counts 1 for an inserted row, 0 for one that exists, and 2 if a trigger has changed that.
// Of several rows, the sum does not tell.
func (w *batchWriter) noteFound(rows []stream.Row, changed int64) {
	if w.b.Mark != nil && len(w.st.def.Key) > 0 && (len(rows) > 1 || changed != 1) {
		stream.NoteFound(rows)
	}
}

// errEnded is the error of a transaction that the server has ended on its own.
var errEnded = errors.New("the server has ended the transaction")

// checkAlive returns an error if the transaction of a batch with a Mark no longer runs. The
// next statement would then be committed alone.
func (w *batchWriter) checkAlive(ctx context.Context) error {
	m := w.b.Mark
	rows, err := w.Rows(ctx, "SELECT last FROM spillway_epochs WHERE spool = ? AND epoch = ?", m.Spool, m.Epoch)
	if err != nil {
		return err
	}
	if len(rows) != 1 || rows[0][0] != strconv.FormatUint(m.First+uint64(len(m.Sums))-1, 10) {
		return errors.Join(errEnded, w.Close())
	}
	return nil
}
