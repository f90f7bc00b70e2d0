package mysql

import (
	"database/sql/driver"

	"spillway/internal/serve/feed"
)

// rowSink encodes rows.
type rowSink struct {
	rows  *feed.Rows
	start int // rows, and
	data  int // bytes, that were there before

	keys []byte // the keys of the new rows, one behind the other
	ends []int  // where each ends
}

func (s *rowSink) row(c *columns, values []driver.Value) error {
	var err error
	if s.keys, err = c.appendKey(s.keys, values); err != nil {
		return err
	}
	s.ends = append(s.ends, len(s.keys))
	s.rows.Begin()
	s.rows.Data = c.appendObject(s.rows.Data, values)
	s.rows.End("") // until setKeys
	return nil
}

func (s *rowSink) reset() {
	s.rows.Data = s.rows.Data[:s.data]
	s.rows.Ends = s.rows.Ends[:s.start]
	s.rows.Keys = s.rows.Keys[:s.start]
	s.keys, s.ends = s.keys[:0], s.ends[:0]
}

// setKeys sets the keys of all new rows, which share one allocation.
func (s *rowSink) setKeys() {
	all := feed.Key(s.keys)
	start := 0
	for i, end := range s.ends {
		s.rows.Keys[s.start+i] = all[start:end]
		start = end
	}
}

// keySink keeps the key of each every-th row.
type keySink struct {
	every int
	walk  feed.Walk
	last  []byte
}

func (s *keySink) row(c *columns, values []driver.Value) error {
	var err error
	if s.last, err = c.appendKey(s.last[:0], values); err != nil {
		return err
	}
	s.walk.Count++
	if s.walk.Count%s.every == 0 {
		s.walk.Keys = append(s.walk.Keys, feed.Key(s.last))
	}
	return nil
}

func (s *keySink) reset() { s.walk, s.last = feed.Walk{}, s.last[:0] }
