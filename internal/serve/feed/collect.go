package feed

import (
	"fmt"
	"time"
)

// Row is the current row of a statement.
type Row interface {
	AppendObject(dst []byte) []byte
	AppendKey(dst []byte) ([]byte, error)
}

// RowHandler takes the rows of one statement, which are valid during the call. Start is called
// each time before the statement is run on a connection, and forgets the rows taken.
type RowHandler interface {
	Row(r Row) error
	Start()
}

// Discard is the handler of rows that are not needed.
type Discard struct{}

// Row does nothing.
func (Discard) Row(Row) error { return nil }

// Start does nothing.
func (Discard) Start() {}

// Collect appends the rows of a statement to rows, which a query's must be empty before. run
// runs the statement. An error leaves rows unchanged.
func Collect(def *Definition, rows *Rows, run func(RowHandler) error) error {
	var to RowHandler = (*unkeyed)(rows)
	n, bytes := rows.Len(), len(rows.Data)
	if !def.IsQuery() {
		to = &keyed{rows: rows, start: n, data: bytes}
	}
	if err := run(to); err != nil {
		rows.truncate(n, bytes)
		return fmt.Errorf("read %s: %w", def, err)
	}
	if to, ok := to.(*keyed); ok {
		to.finish()
	}
	return nil
}

// CollectKeys keeps the key of each every-th row of a feed's statement, and of the last.
// run runs the statement.
func CollectKeys(def *Definition, every int, run func(RowHandler) error) (Walk, error) {
	if every < 1 {
		return Walk{}, fmt.Errorf("walk %s: every %d-th row", def, every)
	}
	to := &walker{every: every}
	if err := run(to); err != nil {
		return Walk{}, fmt.Errorf("walk %s: %w", def, err)
	}
	to.walk.Last = Key(to.last)
	return to.walk, nil
}

// unkeyed appends the rows of a query to Rows.
type unkeyed Rows

// Row appends a row.
func (u *unkeyed) Row(r Row) error {
	rows := (*Rows)(u)
	if rows.Data == nil {
		rows.Data = make([]byte, 0, 64) // a small row
	}
	rows.Begin()
	rows.Data = r.AppendObject(rows.Data)
	return rows.EndUnkeyed()
}

// Start removes the rows appended.
func (u *unkeyed) Start() {
	rows := (*Rows)(u)
	rows.truncate(0, 0)
	rows.Began = time.Now()
}

// keyed appends the rows of a feed to Rows.
type keyed struct {
	rows  *Rows
	start int // rows, and
	data  int // bytes, that were there before

	keys []byte // the keys of the new rows, one after the other
	ends []int  // where each ends
}

// Row appends a row.
func (k *keyed) Row(r Row) error {
	var err error
	if k.keys, err = r.AppendKey(k.keys); err != nil {
		return err
	}
	k.ends = append(k.ends, len(k.keys))
	k.rows.Begin()
	k.rows.Data = r.AppendObject(k.rows.Data)
	k.rows.End("") // until finish
	return nil
}

// Start removes the rows appended.
func (k *keyed) Start() {
	k.rows.truncate(k.start, k.data)
	k.rows.Began = time.Now()
	k.keys, k.ends = k.keys[:0], k.ends[:0]
}

// finish sets the keys of all rows appended. They share one allocation.
func (k *keyed) finish() {
	all := Key(k.keys)
	start := 0
	for i, end := range k.ends {
		k.rows.Keys[k.start+i] = all[start:end]
		start = end
	}
}

// walker keeps the key of every n-th row of a statement, and of the last.
type walker struct {
	every int
	walk  Walk
	last  []byte
}

// Row counts a row.
func (w *walker) Row(r Row) error {
	var err error
	if w.last, err = r.AppendKey(w.last[:0]); err != nil {
		return err
	}
	w.walk.Count++
	if w.walk.Count%w.every == 0 {
		w.walk.Keys = append(w.walk.Keys, Key(w.last))
	}
	return nil
}

// Start forgets the rows counted.
func (w *walker) Start() { w.walk, w.last = Walk{}, w.last[:0] }
