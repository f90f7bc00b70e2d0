package feed

import (
	"bytes"
	"fmt"
	"slices"
	"time"
)

// snapshot is a window as one statement read it. It never changes once it is
// published, so requests read it without a lock; the window's atomic pointer
// moves on to the next one.
type snapshot struct {
	rows    Rows
	next    []string       // next[i] is the cursor of row i
	index   map[Key]int    // position of each key
	cursors map[string]int // position of each cursor, so that a cursor in the window needs no decoding
	usual   int            // the default page size
	tags    []uint64       // of the pages of that size, by their start: hashing one costs as much as copying it
	first   *Rendered      // the page of that size at the start; nil if it has no rows
	full    bool           // the window's limit was reached: older rows may follow
	readAt  time.Time      // just before the statement ran: the rows are no older
	parked  bool           // nobody asked for a while: refresh before serving
}

// newSnapshot makes a snapshot of rows, which it keeps. When nothing changed
// since previous it shares that one's memory.
func newSnapshot(rows Rows, window, usual int, fingerprint uint32, readAt time.Time, previous *snapshot) (*snapshot, error) {
	full := rows.Len() >= window
	if previous != nil && previous.full == full && bytes.Equal(previous.rows.Data, rows.Data) && slices.Equal(previous.rows.Keys, rows.Keys) {
		same := *previous
		same.readAt, same.parked = readAt, false
		return &same, nil
	}
	s := &snapshot{
		rows:    rows,
		usual:   usual,
		tags:    make([]uint64, rows.Len()),
		next:    make([]string, rows.Len()),
		index:   make(map[Key]int, rows.Len()),
		cursors: make(map[string]int, rows.Len()),
		full:    full,
		readAt:  readAt,
	}
	var cursor []byte
	for i, key := range rows.Keys {
		if _, twice := s.index[key]; twice {
			return nil, fmt.Errorf("read window: two rows have the same key; the feed's key must be unique, add a column to it")
		}
		s.index[key] = i
		cursor = appendCursor(cursor[:0], fingerprint, key)
		s.next[i] = string(cursor)
		s.cursors[s.next[i]] = i
	}
	for i := range s.tags {
		if p, ok := s.page(i, usual); ok {
			s.tags[i] = p.Tag()
		}
	}
	if p, ok := s.page(0, usual); ok && p.Rows > 0 {
		s.first = &Rendered{Body: p.Append(nil), ETag: AppendETag(nil, p.Tag())}
	}
	return s, nil
}

// park returns a copy that must be refreshed before it is served, or, with
// false, one that may be served again.
func (s *snapshot) park(parked bool) *snapshot {
	c := *s
	c.parked = parked
	return &c
}

// page returns the rows from start, at most limit, when the snapshot holds all
// of them that there are; otherwise false. The answer shares the snapshot's
// memory.
func (s *snapshot) page(start, limit int) (Page, bool) {
	n := s.rows.Len()
	end := start + limit
	if end > n {
		if s.full {
			return Page{}, false // rows behind the window belong to this page
		}
		start, end = min(start, n), n
	}
	p := Page{Data: s.rows.Slice(start, end), Rows: end - start, Source: FromWindow, ReadAt: s.readAt}
	if end > start && (end < n || s.full) {
		p.Next = s.next[end-1]
	}
	if limit == s.usual && end > start {
		p.tag = s.tags[start]
		if start == 0 {
			p.Rendered = s.first
		}
	}
	return p, true
}
