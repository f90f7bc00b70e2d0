package feed

import "fmt"

// RowEncoder turns the values of one row into JSON and into a key.
type RowEncoder[V any] interface {
	AppendObject(dst []byte, values []V) []byte
	AppendKey(dst []byte, values []V) ([]byte, error)
}

// RowHandler takes the rows of one statement. The values are valid during the
// call. Reset forgets the rows taken, because the statement is run again.
type RowHandler[V any] interface {
	Row(e RowEncoder[V], values []V) error
	Reset()
}

// Discard is the handler of rows that are not needed.
type Discard[V any] struct{}

// Row does nothing.
func (Discard[V]) Row(RowEncoder[V], []V) error { return nil }

// Reset does nothing.
func (Discard[V]) Reset() {}

// Collect appends the rows of a feed's statement to rows. run runs the statement. An error
// leaves rows unchanged.
func Collect[V any](name string, rows *Rows, run func(RowHandler[V]) error) error {
	to := &collector[V]{rows: rows, start: rows.Len(), data: len(rows.Data)}
	if err := run(to); err != nil {
		to.Reset()
		return fmt.Errorf("read feed %s: %w", name, err)
	}
	to.finish()
	return nil
}

// CollectKeys keeps the key of each every-th row of a feed's statement, and of the last.
// run runs the statement.
func CollectKeys[V any](name string, every int, run func(RowHandler[V]) error) (Walk, error) {
	if every < 1 {
		return Walk{}, fmt.Errorf("walk feed %s: every %d-th row", name, every)
	}
	to := &walker[V]{every: every}
	if err := run(to); err != nil {
		return Walk{}, fmt.Errorf("walk feed %s: %w", name, err)
	}
	to.walk.Last = Key(to.last)
	return to.walk, nil
}

// collector appends the rows of a statement to Rows.
type collector[V any] struct {
	rows  *Rows
	start int // rows, and
	data  int // bytes, that were there before

	keys []byte // the keys of the new rows, one after the other
	ends []int  // where each ends
}

// Row appends a row.
func (c *collector[V]) Row(e RowEncoder[V], values []V) error {
	var err error
	if c.keys, err = e.AppendKey(c.keys, values); err != nil {
		return err
	}
	c.ends = append(c.ends, len(c.keys))
	c.rows.Begin()
	c.rows.Data = e.AppendObject(c.rows.Data, values)
	c.rows.End("") // until finish
	return nil
}

// Reset removes the rows appended. The statement failed or is run again.
func (c *collector[V]) Reset() {
	c.rows.Data = c.rows.Data[:c.data]
	c.rows.Ends = c.rows.Ends[:c.start]
	c.rows.Keys = c.rows.Keys[:c.start]
	c.keys, c.ends = c.keys[:0], c.ends[:0]
}

// finish sets the keys of all rows appended. They share one allocation.
func (c *collector[V]) finish() {
	all := Key(c.keys)
	start := 0
	for i, end := range c.ends {
		c.rows.Keys[c.start+i] = all[start:end]
		start = end
	}
}

// walker keeps the key of every n-th row of a statement, and of the last.
type walker[V any] struct {
	every int
	walk  Walk
	last  []byte
}

// Row counts a row.
func (w *walker[V]) Row(e RowEncoder[V], values []V) error {
	var err error
	if w.last, err = e.AppendKey(w.last[:0], values); err != nil {
		return err
	}
	w.walk.Count++
	if w.walk.Count%w.every == 0 {
		w.walk.Keys = append(w.walk.Keys, Key(w.last))
	}
	return nil
}

// Reset forgets the rows counted. The statement failed or is run again.
func (w *walker[V]) Reset() { w.walk, w.last = Walk{}, w.last[:0] }
