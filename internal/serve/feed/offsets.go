package feed

import "time"

// The rows beyond the window are divided into segments, each with its count and the key of
// every offsetStride-th row. To find the row at a deep offset, counts are summed from the
// top, and the rest is read by key. The database reads fewer than offsetStride rows for any
// offset.
//
// The segments start at an anchor, a row in the lower half of the window:
//
//	window:    row 0 … anchor …            its position is exact at every refresh
//	segments:  (anchor, last0] (last0, last1] … (last_n-1, last_n]
//
// New rows arrive above the anchor and move it down. Before it leaves the window, a higher
// row becomes the anchor, and the rows between them become a segment. Rows that are added or
// deleted inside a segment make its count wrong until it is counted again. The age of the
// oldest count is part of the response.
//
// The index compares keys only for equality. Its methods are pure. The window's sweeper is
// the only writer and holds the lock.
const (
	offsetStride  = 16   // rows that the database reads at most to find an offset
	segmentTarget = 2048 // rows per segment, about
	smallMax      = 64   // segments beyond rows/segmentTarget before small ones are joined
)

// offsets is the index of one window. The zero value is empty.
type offsets struct {
	anchored bool
	anchor   Key
	segments []segment
	complete bool // the last segment reaches the last row
	bytes    int  // memory of the segments, about
}

// segment is a run of rows after the previous segment's last key, up to and including last.
type segment struct {
	keys   []Key // key of the offsetStride-th row, of the 2*offsetStride-th, …
	last   Key   // the segment's lower bound; its row may be gone
	count  int
	readAt time.Time
}

// What a segment and a key need besides the key's text, about.
const (
	segmentBytes = 80
	keyBytes     = 24
)

// bytes returns the segment's memory, about.
func (s *segment) bytes() int {
	n := segmentBytes + len(s.last)
	for _, key := range s.keys {
		n += keyBytes + len(key)
	}
	return n
}

// location is where to read the row at an offset.
type location struct {
	after  Key // the row is after this key
	skip   int // and after this many more rows
	readAt time.Time
	end    bool // the offset is beyond the last row
}

// rows returns the number of rows in all segments.
func (o *offsets) rows() int {
	n := 0
	for i := range o.segments {
		n += o.segments[i].count
	}
	return n
}

// oldest returns the time of the oldest count; zero if there are no segments.
func (o *offsets) oldest() time.Time {
	var t time.Time
	for i := range o.segments {
		if r := o.segments[i].readAt; t.IsZero() || r.Before(t) {
			t = r
		}
	}
	return t
}

// locate finds the row at offset. anchorAt is the anchor's position in the window. It
// returns false while the index does not reach that far.
func (o *offsets) locate(offset, anchorAt int, now time.Time) (location, bool) {
	rest := offset - anchorAt - 1 // rows to skip after the anchor
	if !o.anchored || rest < 0 {
		return location{}, false
	}
	at := location{after: o.anchor, readAt: now}
	for i := range o.segments {
		s := &o.segments[i]
		if s.readAt.Before(at.readAt) {
			at.readAt = s.readAt
		}
		if rest < s.count {
			if k := min(rest/offsetStride, len(s.keys)); k > 0 {
				at.after, rest = s.keys[k-1], rest-k*offsetStride
			}
			at.skip = rest
			return at, true
		}
		rest -= s.count
		at.after = s.last
	}
	if o.complete {
		at.end = true
		return at, true
	}
	return location{}, false
}

// extend adds the result of a walk of at most limit rows after the last segment.
func (o *offsets) extend(w Walk, limit int, readAt time.Time) {
	if w.Count > 0 {
		s := segment{keys: w.Keys, last: w.Last, count: w.Count, readAt: readAt}
		o.segments = append(o.segments, s)
		o.bytes += s.bytes()
	}
	o.complete = w.Count < limit
}

// bottom returns the last key of the index.
func (o *offsets) bottom() Key { return o.top(len(o.segments)) }

// top returns the key after which segment i begins.
func (o *offsets) top(i int) Key {
	if i == 0 {
		return o.anchor
	}
	return o.segments[i-1].last
}

// raise makes the row at keys[to] the anchor. keys are the window's, the old anchor is at
// keys[from], and from > to.
func (o *offsets) raise(keys []Key, to, from int, readAt time.Time) {
	s := segment{last: o.anchor, count: from - to, readAt: readAt}
	for i := to + offsetStride; i <= from; i += offsetStride {
		s.keys = append(s.keys, keys[i].clone())
	}
	o.segments = append([]segment{s}, o.segments...)
	o.bytes += s.bytes()
	o.anchor = keys[to].clone()
}

// stalest returns the segments [from, to) to recount: the one with the oldest count, and
// small ones after it while the sum is within segmentTarget. This joins the small segments
// that raise makes.
func (o *offsets) stalest() (from, to int, ok bool) {
	if len(o.segments) == 0 {
		return 0, 0, false
	}
	for i := range o.segments {
		if o.segments[i].readAt.Before(o.segments[from].readAt) {
			from = i
		}
	}
	return from, o.joinable(from), true
}

// joinable returns the end of the run of segments from i that can become one.
func (o *offsets) joinable(i int) int {
	rows, to := o.segments[i].count, i+1
	for to < len(o.segments) && rows+o.segments[to].count <= segmentTarget {
		rows += o.segments[to].count
		to++
	}
	return to
}

// small returns the first run of at least two segments that can become one, if there are
// more than most segments beyond what the rows need.
func (o *offsets) small(most int) (from, to int, ok bool) {
	if len(o.segments) <= o.rows()/segmentTarget+most {
		return 0, 0, false
	}
	for i := range o.segments {
		if to := o.joinable(i); to-i >= 2 {
			return i, to, true
		}
	}
	return 0, 0, false
}

// replace replaces the segments [from, to). The new ones must reach the same lower bound.
func (o *offsets) replace(from, to int, fresh []segment) {
	for i := range fresh {
		o.bytes += fresh[i].bytes()
	}
	for i := range o.segments[from:to] {
		o.bytes -= o.segments[from+i].bytes()
	}
	segments := make([]segment, 0, len(o.segments)-(to-from)+len(fresh))
	segments = append(segments, o.segments[:from]...)
	segments = append(segments, fresh...)
	o.segments = append(segments, o.segments[to:]...)
}

// trim removes the last segment, to free its memory.
func (o *offsets) trim() {
	last := len(o.segments) - 1
	o.bytes -= o.segments[last].bytes()
	o.segments[last] = segment{}
	o.segments = o.segments[:last]
	o.complete = false
}
