package sqlite

import (
	"zombiezen.com/go/sqlite"

	"spillway/internal/serve/stream"
)

// progressRows is the number of rows between two reports of progress.
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
		// Reset returns the error of a failed step again.
		if resetErr := stmt.Reset(); err == nil {
			err = resetErr
		}
		if err == nil {
			continue
		}
		reason := refusal(err)
		if reason == "" || w.conn.AutocommitEnabled() { // a trigger can end the transaction
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
