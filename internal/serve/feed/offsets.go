package feed

import "time"

// Deep offsets. The rows behind the window are cut into segments, each with its
// count and the key of every stride-th row. The row at an offset is found by
// summing counts from the top and then asked for by key, so that the database
// walks fewer than offsetStride rows whatever the offset.
//
// The segments hang from an anchor, a row in the lower half of the window:
//
//	window:    row 0 … anchor …            its position is exact at every refresh
//	segments:  (anchor, last0] (last0, last1] … (last_n-1, last_n]
//
// New rows come in above the anchor and move it down; before it leaves the
// window the rows between it and a higher anchor become a segment of their own,
// whose keys the window holds. Rows that come, go or commit late inside a
// segment make its count wrong until it is walked again: that is the age which
// an answer states.
//
// The index compares keys for equality only. Its methods are pure; the window's
// sweeper is the one writer and holds the lock.
const (
	offsetStride  = 16   // rows the database walks at most to find an offset
	segmentTarget = 2048 // rows in a segment, about
	sliversMax    = 64   // segments beyond rows/segmentTarget before small ones are joined
)

// offsets is the index of one window. The zero value is empty.
type offsets struct {
	anchored bool
	anchor   Key
	segments []segment
	complete bool // the last segment reaches the last row
}

// segment is a run of rows behind the previous segment's last key, down to last
// and with it.
type segment struct {
	keys   []Key // key of the offsetStride-th row, of the 2*offsetStride-th, …
	last   Key   // the segment's lower bound; its row may be gone by now
	count  int
	readAt time.Time
}

// location says how to read the row at an offset.
type location struct {
	after  Key // the row comes after this key
	skip   int // and after this many rows more
	readAt time.Time
	end    bool // the offset lies behind the last row
}

// rows returns how many rows the segments count.
func (o *offsets) rows() int {
	n := 0
	for i := range o.segments {
		n += o.segments[i].count
	}
	return n
}

// oldest returns when the segment with the oldest count was walked; the zero
// time when there is none.
func (o *offsets) oldest() time.Time {
	var t time.Time
	for i := range o.segments {
		if r := o.segments[i].readAt; t.IsZero() || r.Before(t) {
			t = r
		}
	}
	return t
}

// locate finds the row at offset, where the anchor is the row at position
// anchorAt. It is false while the index does not reach that far.
func (o *offsets) locate(offset, anchorAt int, now time.Time) (location, bool) {
	rest := offset - anchorAt - 1 // rows to leave out behind the anchor
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

// extend adds what a walk of at most limit rows behind the last segment saw.
func (o *offsets) extend(w Walk, limit int, readAt time.Time) {
	if w.Count > 0 {
		o.segments = append(o.segments, segment{keys: w.Keys, last: w.Last, count: w.Count, readAt: readAt})
	}
	o.complete = w.Count < limit
}

// bottom returns the key behind which the index knows nothing.
func (o *offsets) bottom() Key { return o.top(len(o.segments)) }

// top returns the key behind which segment i begins.
func (o *offsets) top(i int) Key {
	if i == 0 {
		return o.anchor
	}
	return o.segments[i-1].last
}

// raise makes the row at keys[to] the anchor, where the old anchor is at
// keys[from] and from > to. keys are the window's.
func (o *offsets) raise(keys []Key, to, from int, readAt time.Time) {
	s := segment{last: o.anchor, count: from - to, readAt: readAt}
	for i := to + offsetStride; i <= from; i += offsetStride {
		s.keys = append(s.keys, keys[i])
	}
	o.segments = append([]segment{s}, o.segments...)
	o.anchor = keys[to]
}

// stalest picks what to walk again: the run of segments [from, to) whose count is
// the oldest, together with small neighbours below it as long as the sum stays within
// segmentTarget, so that the slivers that raise makes are joined.
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

// joinable returns the end of the run of segments from i on that may become one.
func (o *offsets) joinable(i int) int {
	rows, to := o.segments[i].count, i+1
	for to < len(o.segments) && rows+o.segments[to].count <= segmentTarget {
		rows += o.segments[to].count
		to++
	}
	return to
}

// slivers picks the first run of at least two segments that may become one, when
// there are more than most segments beyond what the rows need.
func (o *offsets) slivers(most int) (from, to int, ok bool) {
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

// replace puts the segments that a new walk of the run [from, to) saw in its place. They
// must reach the same lower bound as the run did.
func (o *offsets) replace(from, to int, fresh []segment) {
	segments := make([]segment, 0, len(o.segments)-(to-from)+len(fresh))
	segments = append(segments, o.segments[:from]...)
	segments = append(segments, fresh...)
	o.segments = append(segments, o.segments[to:]...)
}
