package feed

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

// Collector appends the rows of a statement to Rows.
type Collector[V any] struct {
	rows  *Rows
	start int // rows, and
	data  int // bytes, that were there before

	keys []byte // the keys of the new rows, one after the other
	ends []int  // where each ends
}

// NewCollector returns a collector that appends to rows.
func NewCollector[V any](rows *Rows) *Collector[V] {
	return &Collector[V]{rows: rows, start: rows.Len(), data: len(rows.Data)}
}

// Row appends a row.
func (c *Collector[V]) Row(e RowEncoder[V], values []V) error {
	var err error
	if c.keys, err = e.AppendKey(c.keys, values); err != nil {
		return err
	}
	c.ends = append(c.ends, len(c.keys))
	c.rows.Begin()
	c.rows.Data = e.AppendObject(c.rows.Data, values)
	c.rows.End("") // until Finish
	return nil
}

// Reset removes the rows appended. The statement failed or is run again.
func (c *Collector[V]) Reset() {
	c.rows.Data = c.rows.Data[:c.data]
	c.rows.Ends = c.rows.Ends[:c.start]
	c.rows.Keys = c.rows.Keys[:c.start]
	c.keys, c.ends = c.keys[:0], c.ends[:0]
}

// Finish sets the keys of all rows appended. They share one allocation.
func (c *Collector[V]) Finish() {
	all := Key(c.keys)
	start := 0
	for i, end := range c.ends {
		c.rows.Keys[c.start+i] = all[start:end]
		start = end
	}
}

// Walker keeps the key of every n-th row of a statement, and of the last.
type Walker[V any] struct {
	every int
	walk  Walk
	last  []byte
}

// NewWalker returns a walker that keeps each every-th key.
func NewWalker[V any](every int) *Walker[V] { return &Walker[V]{every: every} }

// Row counts a row.
func (w *Walker[V]) Row(e RowEncoder[V], values []V) error {
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
func (w *Walker[V]) Reset() { w.walk, w.last = Walk{}, w.last[:0] }

// Walk returns what was counted.
func (w *Walker[V]) Walk() Walk {
	w.walk.Last = Key(w.last)
	return w.walk
}
