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
// each time before the statement is run on a connection, and forgets the rows taken. Len counts those.
type RowHandler interface {
	Row(r Row) error
	Start()
	Len() int
}

// Discard is the handler of rows that are not needed.
type Discard struct{}

// Row does nothing.
func (Discard) Row(Row) error { return nil }

// Start does nothing.
func (Discard) Start() {}

// Len returns 0.
func (Discard) Len() int { return 0 }

// Collect appends the rows of a statement to rows, which a query's must be empty before. run
// runs the statement. An error leaves rows unchanged.
func Collect(def *Definition, rows *Rows, run func(RowHandler) error) error {
	to := &collector{rows: rows, query: def.IsQuery(), start: rows.Len(), data: len(rows.Data)}
	if err := run(to); err != nil {
		rows.truncate(to.start, to.data)
		return fmt.Errorf("read %s: %w", def, err)
	}
	to.finish()
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

// collector appends rows to Rows.
type collector struct {
	rows  *Rows
	query bool // whose rows have no keys
	start int  // rows, and
	data  int  // bytes, that were there before

	keys []byte // the keys of the new rows, one after the other
	ends []int  // where each ends
}

// Row appends a row.
func (c *collector) Row(r Row) error {
	if !c.query {
		var err error
		if c.keys, err = r.AppendKey(c.keys); err != nil {
			return err
		}
		c.ends = append(c.ends, len(c.keys))
	} else if c.rows.Data == nil {
		c.rows.Data = make([]byte, 0, 64) // a small row
	}
	c.rows.Begin()
	c.rows.Data = r.AppendObject(c.rows.Data)
	if c.query {
		return c.rows.EndUnkeyed()
	}
	c.rows.End("") // until finish
	return nil
}

// Start removes the rows appended.
func (c *collector) Start() {
	c.rows.truncate(c.start, c.data)
	c.rows.Began = time.Now()
	c.keys, c.ends = c.keys[:0], c.ends[:0]
}

// Len returns how many rows were appended.
func (c *collector) Len() int { return c.rows.Len() - c.start }

// finish sets the keys of all rows appended. They share one allocation.
func (c *collector) finish() {
	all := Key(c.keys)
	start := 0
	for i, end := range c.ends {
		c.rows.Keys[c.start+i] = all[start:end]
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

// Len returns how many rows were counted.
func (w *walker) Len() int { return w.walk.Count }
