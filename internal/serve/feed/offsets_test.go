package feed

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
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
	t.Parallel()
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
	bytes := 0
	for i := range o.segments {
		bytes += o.segments[i].bytes()
	}
	if bytes != o.bytes {
		t.Fatalf("the segments need %d bytes, accounted are %d", bytes, o.bytes)
	}
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
	t.Parallel()
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
	t.Parallel()
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

// The first count of a deep offset is within sweep_share too: in a minute, counting takes at
// most the share of that minute and of the one before.
func TestCountingKeepsToItsShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(300_000)
		cfg := testConfig()
		cfg.SweepShare, cfg.Refresh, cfg.IdleAfter = 0.01, 10*time.Second, time.Hour
		f := Open(cfg, tab)
		defer f.Close()
		get(t, f, Request{})
		tab.set(func(tab *table) { tab.latency = 100 * time.Millisecond })
		begin := time.Now()
		var err error
		for time.Since(begin) < 10*time.Minute {
			if _, err = f.Page(t.Context(), time.Now(), Request{Offset: 290_000}); err == nil {
				break
			}
			if !errors.Is(err, ErrCounting) {
				t.Fatal(err)
			}
			spent, allowed := time.Duration(tab.counted())*100*time.Millisecond, 600*time.Millisecond+time.Since(begin)/100
			if spent > allowed+200*time.Millisecond {
				t.Fatalf("%v of counting in %v, the share is 1 %%", spent, time.Since(begin))
			}
		}
		if walks := tab.counted(); walks < 50 {
			t.Errorf("%d segments are counted in 10 minutes: the share is not used", walks)
		}
	})
}

// The counts of all windows stay within sweep_bytes, and are freed when nobody needs them.
func TestCountsAreBoundedAndFreed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(60_000)
		cfg := byCity(3)
		cfg.SweepBytes, cfg.Refresh = 100_000, time.Second
		f := Open(cfg, tab)
		defer f.Close()
		deep := func(city string, offset int) error {
			_, err := f.Page(t.Context(), time.Now(), Request{Args: []string{city}, Offset: offset})
			return err
		}
		if err := deep("a", 20_000); err != nil {
			t.Fatal(err)
		}
		for _, city := range []string{"b", "a"} {
			if err := deep(city, 50_000); !errors.Is(err, ErrCounting) || !strings.Contains(err.Error(), "sweep_bytes") {
				t.Errorf("%s, beyond the limit of memory: %v", city, err)
			}
			if n := f.Stats().SegmentBytes; n < 50_000 || n > 100_000 {
				t.Errorf("%d bytes of counts, limit 100000", n)
			}
		}
		next := tab.newest()[0]
		for range 2000 { // rows that arrive are counted as well
			next += 10
			tab.insert(next)
		}
		if err := deep("a", 1000); err != nil {
			t.Error(err)
		}
		end := time.Now().Add(90 * time.Second)
		for time.Now().Before(end) { // a is idle for a minute, b is not
			_ = deep("b", 5000)
			<-time.After(time.Second)
		}
		if err := deep("b", 40_000); err != nil {
			t.Errorf("after the counts of a could go: %v", err)
		}
		if n := f.Stats().SegmentBytes; n > 100_000 {
			t.Errorf("%d bytes of counts, limit 100000", n)
		}
		<-time.After(sweepKeep + 2*sweepRest)
		if s := f.Stats(); s.SegmentBytes != 0 || s.SegmentRows != 0 {
			t.Errorf("idle: %d bytes, %d rows", s.SegmentBytes, s.SegmentRows)
		}
		if err := deep("b", 40_000); err != nil {
			t.Errorf("after the counts were freed: %v", err)
		}
	})
}

// A crowd of rows that arrives at once, above the anchor or after the last row, is not counted
// beyond sweep_bytes either.
func TestCountingACrowdIsBounded(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]int{"above": 1_000_000, "below": -10_000_000} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tab := newTable(10_000)
				cfg := testConfig()
				cfg.SweepBytes, cfg.Refresh = 100_000, time.Second
				f := Open(cfg, tab)
				defer f.Close()
				get(t, f, Request{Offset: 20_000}) // beyond the last row: everything is counted
				before := tab.counted()
				tab.set(func(tab *table) {
					crowd := make([]int, 0, 400_000)
					for i := range cap(crowd) {
						crowd = append(crowd, first+i)
					}
					tab.ids = append(crowd, tab.ids...)
					slices.Sort(tab.ids)
				})
				<-time.After(2 * cfg.Refresh)
				end := time.Now().Add(10 * time.Second)
				for time.Now().Before(end) {
					_, _ = f.Page(t.Context(), time.Now(), Request{Offset: 20_000})
					<-time.After(cfg.Refresh)
				}
				// A segment of 2,048 rows needs about 4 kB, so about 25 of them fit.
				if n := tab.counted() - before; n > 100 {
					t.Errorf("%d segments are counted where about 25 fit", n)
				}
				if n := f.Stats().SegmentBytes; n > int64(cfg.SweepBytes) {
					t.Errorf("%d bytes of counts, limit %d", n, cfg.SweepBytes)
				}
				if first > 0 {
					get(t, f, Request{Offset: 20_000})
				}
			})
		})
	}
}

// A segment that needs more memory than there is, due to its long keys or because the one
// before was small, is not counted again and again.
func TestSegmentThatDoesNotFit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(10_000)
		tab.set(func(tab *table) {
			tab.latency = time.Millisecond
			for i := range tab.ids {
				tab.ids[i] += 1_000_000_000
			}
		})
		cfg := testConfig()
		cfg.SweepBytes, cfg.IdleAfter = 4300, time.Hour
		f := Open(cfg, tab)
		defer f.Close()
		for range 10 {
			if _, err := f.Page(t.Context(), time.Now(), Request{Offset: 5000}); !errors.Is(err, ErrCounting) {
				t.Fatal(err)
			}
			<-time.After(time.Second)
		}
		if n := tab.counted(); n > 2 {
			t.Errorf("a segment is counted %d times", n)
		}
	})
}

// A request for a deep offset whose window is parked, or has lost its older rows, at this moment
// looks at the window again instead of asking the sweeper in vain.
func TestDeepOffsetOfAParkedWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testDeepOffsetOfAParkedWindow)
}

func testDeepOffsetOfAParkedWindow(t *testing.T) {
	f := open(t, newTable(10_000), func(cfg *Config) { cfg.Refresh, cfg.IdleAfter = time.Hour, time.Hour })
	get(t, f, Request{Offset: 500})
	w := (*f.windows.Load())[""]
	s := w.current.Load()
	short := *s
	short.full = false
	for name, now := range map[string]*snapshot{"parked": s.park(true), "short": &short} {
		w.current.Store(now)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := w.locate(ctx, s, 9000); !errors.Is(err, errDropped) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

// A sweeper that no request has told how far to count does not count.
func TestSweeperWithoutTarget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(1000)
		tab.latency = time.Millisecond
		f := Open(testConfig(), tab)
		defer f.Close()
		get(t, f, Request{})
		(*f.windows.Load())[""].sweep()
		<-time.After(time.Second)
		if n := tab.counted(); n > 0 {
			t.Errorf("%d statements", n)
		}
	})
}
