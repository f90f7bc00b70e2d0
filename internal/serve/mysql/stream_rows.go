package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"strconv"

	"spillway/internal/serve/stream"
	"spillway/internal/serve/streamtables"
)

// singlyMax is the number of refused rows from which on they are inserted one by one instead of halved.
const singlyMax = 8

// InsertRows inserts rows in statements of powers of two, and halves those that the server refuses. It implements streamtables.Session.
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
	return streamtables.InsertKeys(ctx, w, dialect, w.table.name, w.b, requests)
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

// insertRange inserts all of the rows, a power of two, or none. With a key, it leaves out those whose
// keys the table has, and refuses others on its own.
func (w *batchWriter) insertRange(ctx context.Context, rows []stream.Row) (*stream.RowRefusal, error) {
	w.args = w.args[:0]
	if reason := w.bind(rows); reason != "" {
		return &stream.RowRefusal{Reason: reason}, nil
	}
	stored, err := w.exec(ctx, w.st.insert(len(rows)), w.args)
	w.b.Progress()
	if len(w.st.def.Key) > 0 && isRefusal(err, numDuplicate) {
		if done, err := w.insertMissing(ctx, rows); err != nil || done {
			return nil, err
		}
	}
	if refused, err := w.refused(ctx, err); err != nil || refused != nil {
		return refused, err
	}
	return w.countRows(rows, stored)
}

// bind adds the values of rows to the arguments. It returns the reason if the table does not hold one of them.
func (w *batchWriter) bind(rows []stream.Row) (reason string) {
	held := w.table.held
	for _, r := range rows {
		for i := range held {
			value, reason := held[i].value(r, i)
			if reason != "" {
				return reason
			}
			w.args = append(w.args, driver.NamedValue{Ordinal: len(w.args) + 1, Value: value})
		}
	}
	return ""
}

// insertMissing inserts those of the rows whose keys the table does not have. A key that several rows
// have is tried again with the next of them, because the first may be refused. done is false if the
// table has none of the keys, so that another unique index has refused the rows.
func (w *batchWriter) insertMissing(ctx context.Context, rows []stream.Row) (done bool, err error) {
	found, missing, repeated, err := w.findRows(ctx, rows)
	if err != nil || len(missing) == len(rows) {
		return false, err
	}
	w.noteFound(found)
	if err := w.InsertRows(ctx, missing); err != nil {
		return false, err
	}
	return true, w.InsertRows(ctx, repeated)
}

// noteFound notes the rows of a batch with a Mark that were not certainly inserted.
func (w *batchWriter) noteFound(rows []stream.Row) {
	if w.b.Mark != nil {
		stream.NoteFound(rows)
	}
}

// errEnded is the error of a transaction that the server has ended on its own.
var errEnded = errors.New("the server has ended the transaction")

// checkAlive returns an error if the transaction of a batch with a Mark no longer runs. The next statement would then be committed alone.
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
