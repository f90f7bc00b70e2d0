package feed

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// walkAll indexes all rows after the anchor in t, like the sweeper.
func walkAll(t *rapid.T, tab *table, o *offsets, limit int) {
	for !o.complete {
		w, err := tab.Keys(t.Context(), Range{After: o.bottom(), Limit: limit}, offsetStride)
		if err != nil {
			t.Fatal(err)
		}
		o.extend(w, limit, time.Unix(1, 0))
	}
}

// TestOffsetsAgainstList checks that locate finds every row without a long skip, also after
// the anchor was raised and segments were joined.
func TestOffsetsAgainstList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := newTable(rapid.IntRange(201, 3000).Draw(t, "rows"))
		limit := rapid.IntRange(offsetStride, 600).Draw(t, "segment")
		newest := tab.newest()
		at := rapid.IntRange(0, 150).Draw(t, "anchor")
		o := &offsets{anchored: true, anchor: key(newest[at])}
		walkAll(t, tab, o, limit)

		for range rapid.IntRange(0, 5).Draw(t, "raises") {
			for range rapid.IntRange(1, 90).Draw(t, "inserts") {
				tab.insert(tab.newest()[0] + 10)
			}
			newest = tab.newest()
			from := slices.Index(newest, id(o.anchor))
			to := rapid.IntRange(0, from-1).Draw(t, "to")
			keys := make([]Key, from+1)
			for i := range keys {
				keys[i] = key(newest[i])
			}
			o.raise(keys, to, from, time.Unix(2, 0))
			if from, to, ok := o.small(0); ok && rapid.Bool().Draw(t, "join") {
				rejoin(t, tab, o, from, to)
			}
		}
		checkEvery(t, tab, o)
	})
}

// rejoin walks consecutive segments again, like the sweeper.
func rejoin(t *rapid.T, tab *table, o *offsets, from, to int) {
	last := o.segments[to-1].last
	w, err := tab.Keys(t.Context(), Range{After: o.top(from), Until: last, Limit: 1 << 20}, offsetStride)
	if err != nil {
		t.Fatal(err)
	}
	o.replace(from, to, []segment{{keys: w.Keys, last: last, count: w.Count, readAt: time.Unix(3, 0)}})
}

func checkEvery(t *rapid.T, tab *table, o *offsets) {
	newest := tab.newest()
	at := slices.Index(newest, id(o.anchor))
	for offset := at + 1; offset <= len(newest)+3; offset++ {
		loc, ok := o.locate(offset, at, time.Unix(9, 0))
		if !ok {
			t.Fatalf("offset %d of %d is not located", offset, len(newest))
		}
		if loc.end != (offset >= len(newest)) {
			t.Fatalf("offset %d of %d: end = %v", offset, len(newest), loc.end)
		}
		if loc.end {
			continue
		}
		if loc.skip >= offsetStride {
			t.Fatalf("offset %d: skip %d", offset, loc.skip)
		}
		if got := tab.run(Range{After: loc.after, Skip: loc.skip, Limit: 1}); got[0] != newest[offset] {
			t.Fatalf("offset %d: row %d, want %d", offset, got[0], newest[offset])
		}
	}
}

// TestOffsetsAfterSweep changes rows in all segments and checks that one walk of every segment
// corrects the index.
func TestOffsetsAfterSweep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := newTable(rapid.IntRange(300, 2000).Draw(t, "rows"))
		o := &offsets{anchored: true, anchor: key(tab.newest()[50])}
		walkAll(t, tab, o, 200)
		for i := range rapid.IntRange(0, 200).Draw(t, "changes") {
			// Below the anchor rows are deleted, and rows commit late.
			low := tab.newest()[51:]
			if len(low) == 0 {
				break
			}
			pick := low[rapid.IntRange(0, len(low)-1).Draw(t, "row"+strconv.Itoa(i))]
			if rapid.Bool().Draw(t, "remove"+strconv.Itoa(i)) {
				tab.remove(pick)
			} else {
				tab.insert(pick - 1 - i%9)
			}
		}
		for i := 0; i < len(o.segments); i++ {
			last, toEnd := o.segments[i].last, i == len(o.segments)-1
			r := Range{After: o.top(i), Until: last, Limit: 1 << 20}
			if toEnd {
				r.Until = ""
			}
			w, err := tab.Keys(t.Context(), r, offsetStride)
			if err != nil {
				t.Fatal(err)
			}
			if w.Count == 0 {
				o.replace(i, i+1, nil)
				i--
				continue
			}
			if toEnd {
				last = w.Last
			}
			o.replace(i, i+1, []segment{{keys: w.Keys, last: last, count: w.Count, readAt: time.Unix(5, 0)}})
		}
		if want := len(tab.newest()) - 51; o.rows() != want {
			t.Fatalf("%d rows counted, want %d", o.rows(), want)
		}
		checkEvery(t, tab, o)
	})
}

func TestOffsetsEmpty(t *testing.T) {
	var o offsets
	if _, ok := o.locate(5, 0, time.Unix(0, 0)); ok {
		t.Error("an empty index located an offset")
	}
	if !o.oldest().IsZero() || o.rows() != 0 {
		t.Errorf("empty index: oldest %v, rows %d", o.oldest(), o.rows())
	}
	if _, _, ok := o.stalest(); ok {
		t.Error("an empty index has a stalest segment")
	}
}
