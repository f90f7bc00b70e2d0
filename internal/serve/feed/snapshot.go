package feed

import (
	"bytes"
	"fmt"
	"slices"
	"time"
)

// snapshot is a window as one statement read it. It is immutable once published, so
// requests read it without a lock.
type snapshot struct {
	rows    Rows
	next    []string       // next[i] is the cursor of row i; "" if its key is too long
	index   map[Key]int    // position of each key
	cursors map[string]int // position of each cursor: one in the window needs no decoding
	usual   int            // the default page size
	shape   Envelope       // of the pages
	tags    []uint64       // hashes of the pages of that size, by start
	first   *Rendered      // the page of that size at the start; nil if it has no rows
	full    bool           // the window's limit was reached; older rows may exist
	readAt  time.Time      // just before the statement ran; the rows are no older
	parked  bool           // unused for a while; must be refreshed before it is served
	bytes   int64          // memory
}

// indexBytes is the memory of a row besides its data, its key and its cursor.
const indexBytes = 160

// newSnapshot makes a snapshot of rows, which it keeps. If nothing has changed since
// previous, it shares that snapshot's memory.
func newSnapshot(rows Rows, window, usual int, fingerprint uint32, cursorMax int, shape Envelope, readAt time.Time,
	previous *snapshot,
) (*snapshot, error) {
	full := rows.Len() >= window
	if previous != nil && previous.full == full && bytes.Equal(previous.rows.Data, rows.Data) && slices.Equal(previous.rows.Keys, rows.Keys) {
		same := *previous
		same.readAt, same.parked = readAt, false
		return &same, nil
	}
	s := &snapshot{
		rows:    rows,
		usual:   usual,
		shape:   shape,
		tags:    make([]uint64, rows.Len()),
		next:    make([]string, rows.Len()),
		index:   make(map[Key]int, rows.Len()),
		cursors: make(map[string]int, rows.Len()),
		full:    full,
		readAt:  readAt,
	}
	s.bytes = int64(cap(rows.Data) + indexBytes*rows.Len())
	var cursor []byte
	for i, key := range rows.Keys {
		if _, twice := s.index[key]; twice {
			return nil, fmt.Errorf("read window: two rows have the same key; make the feed's key unique, for example with another column")
		}
		s.index[key] = i
		if cursorFits(key, cursorMax) {
			cursor = appendCursor(cursor[:0], fingerprint, key)
			s.next[i] = string(cursor)
			s.cursors[s.next[i]] = i
		}
		s.bytes += int64(len(key) + len(s.next[i]))
	}
	for i := range s.tags {
		if p, ok := s.page(&Request{Offset: i, Limit: usual}); ok {
			s.tags[i] = p.Tag()
		}
	}
	if p, ok := s.page(&Request{Limit: usual}); ok && p.Rows > 0 {
		s.first = &Rendered{Body: p.Append(nil), ETag: AppendETag(nil, p.Tag())}
		s.bytes += int64(cap(s.first.Body))
	}
	return s, nil
}

// park returns a copy that must be refreshed before it is served; with false, one that may
// be served.
func (s *snapshot) park(parked bool) *snapshot {
	c := *s
	c.parked = parked
	return &c
}

// release forgets the compressed forms of a snapshot that is followed by next, unless next
// has the same. next may be nil.
func (s *snapshot) release(next *snapshot) {
	if s.first != nil && (next == nil || next.first != s.first) {
		s.first.Forms.Release()
	}
}

// page returns the page that r asks for. It returns false if some of it is beyond the
// snapshot, or if the page has no cursor. The page shares the snapshot's memory.
func (s *snapshot) page(r *Request) (Page, bool) {
	start, limit := r.Offset, r.Limit
	if r.Before != "" {
		before, ok := s.cursors[r.Before]
		if !ok {
			return Page{}, false
		}
		start = before + 1
	}
	n := s.rows.Len()
	end := start + limit
	if end > n {
		if s.full {
			return Page{}, false // the page continues beyond the window
		}
		start, end = min(start, n), n
	}
	p := Page{Data: s.rows.Slice(start, end), Rows: end - start, Source: FromWindow, ReadAt: s.readAt, Envelope: s.shape}
	if end > start && (end < n || s.full) {
		if p.Next = s.next[end-1]; p.Next == "" {
			return Page{}, false
		}
	}
	if limit == s.usual && end > start {
		p.tag = s.tags[start]
		if start == 0 {
			p.Rendered = s.first
		}
	}
	return p, true
}
