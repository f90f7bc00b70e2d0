package feed

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"spillway/internal/serve/param"
)

// inBubble runs a check of rapid on virtual time, and passes its failure on. What rapid panics
// with when it has no more data comes from another line, so that rapid does not confuse the two.
func inBubble(t *testing.T, rt *rapid.T, check func(t *testing.T, rt *rapid.T)) {
	t.Helper()
	var failure any
	synctest.Test(t, func(t *testing.T) {
		defer func() { failure = recover() }()
		check(t, rt)
	})
	if rt.Failed() {
		rt.Fatal(failure)
	}
	if failure != nil {
		panic(failure)
	}
}

// TestPagesAgainstList compares every kind of page request with the list.
func TestPagesAgainstList(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) { inBubble(t, rt, checkPages) })
}

func checkPages(t *testing.T, rt *rapid.T) {
	tab := newTable(rapid.IntRange(0, 700).Draw(rt, "rows"))
	cfg := testConfig()
	cfg.Window = rapid.IntRange(1, 250).Draw(rt, "window")
	f := Open(cfg, tab)
	defer f.Close()
	newest := tab.newest()
	for range 20 {
		r := Request{Limit: rapid.IntRange(1, 100).Draw(rt, "limit")}
		first := 0
		if len(newest) > 0 && rapid.Bool().Draw(rt, "cursor") {
			first = rapid.IntRange(1, len(newest)).Draw(rt, "before")
			r.Before = string(appendCursor(nil, f.fingerprint, key(newest[first-1])))
		} else {
			first = rapid.IntRange(0, 750).Draw(rt, "offset")
			r.Offset = first
		}
		first = min(first, len(newest))
		want := newest[first:min(first+r.Limit, len(newest))]
		p, err := f.Page(context.Background(), time.Now(), r)
		if err != nil {
			rt.Fatalf("Page(%+v): %v", r, err)
		}
		if got := ids(t, p); !slices.Equal(got, want) {
			rt.Fatalf("Page(%+v) of %d rows, window %d: %v, want %v", r, len(newest), cfg.Window, got, want)
		}
		if more := first+r.Limit < len(newest); more && p.Next == "" {
			rt.Fatalf("Page(%+v): rows follow and next is empty", r)
		}
		if len(want) == 0 && p.Next != "" {
			rt.Fatalf("Page(%+v): an empty page has a next", r)
		}
	}
	if tab.walked >= offsetStride {
		rt.Fatalf("a statement skipped %d rows", tab.walked)
	}
}

// TestLongKeys asks for pages of a feed where only keys of two digits fit into a cursor.
func TestLongKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.Window, cfg.CursorMax = 40, 18
		f := Open(cfg, newTable(99))
		defer f.Close()
		for _, offset := range []int{0, 1, 35} { // within the window, and beyond
			if p, err := f.Page(t.Context(), time.Now(), Request{Offset: offset, Limit: 10}); !errors.Is(err, ErrLongKeys) {
				t.Errorf("offset %d, a page without a cursor for the next: %q, %v", offset, p.Next, err)
			}
		}
		for _, r := range []Request{{Offset: 80, Limit: 12}, {Offset: 87, Limit: 12}} { // a short last key, and no next page
			p, err := f.Page(t.Context(), time.Now(), r)
			if err != nil || p.Rows != 12 || len(p.Next) > cfg.CursorMax {
				t.Errorf("%+v: %d rows, next %q, %v", r, p.Rows, p.Next, err)
			}
		}
	})
}

// TestWalkWhileRowsArrive reads all pages by cursor, alternating between two replicas, and
// restarts one midway, while rows are inserted, deleted and commit late. Every row that is not
// deleted must be returned once.
func TestWalkWhileRowsArrive(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) { inBubble(t, rt, checkWalk) })
}

func checkWalk(t *testing.T, rt *rapid.T) {
	tab := newTable(rapid.IntRange(1, 600).Draw(rt, "rows"))
	replicas := []*Feed{Open(testConfig(), tab), Open(testConfig(), tab)}
	defer func() {
		for _, f := range replicas {
			f.Close()
		}
	}()
	start := tab.newest()
	gone := map[int]bool{}
	var walked []int
	r := Request{Limit: rapid.IntRange(1, 60).Draw(rt, "limit")}
	for {
		f := replicas[rapid.IntRange(0, 1).Draw(rt, "replica")]
		p, err := f.Page(context.Background(), time.Now(), r)
		if err != nil {
			rt.Fatal(err)
		}
		walked = append(walked, ids(t, p)...)
		if p.Next == "" {
			break
		}
		r.Before = p.Next
		switch rapid.IntRange(0, 3).Draw(rt, "event") {
		case 0:
			tab.insert(tab.newest()[0] + 7)
		case 1:
			victim := start[rapid.IntRange(0, len(start)-1).Draw(rt, "victim")]
			tab.remove(victim)
			gone[victim] = true
		case 2:
			tab.insert(start[rapid.IntRange(0, len(start)-1).Draw(rt, "late")] + 3)
		case 3:
			replicas[0].Close()
			replicas[0] = Open(testConfig(), tab)
		}
		if len(tab.newest()) == 0 {
			return
		}
	}
	seen := map[int]bool{}
	for _, i := range walked {
		if seen[i] {
			rt.Fatalf("row %d came twice", i)
		}
		seen[i] = true
	}
	if !slices.IsSortedFunc(walked, func(a, b int) int { return b - a }) {
		rt.Fatal("rows out of order")
	}
	for _, i := range start {
		if !seen[i] && !gone[i] {
			rt.Fatalf("row %d stayed and was skipped", i)
		}
	}
}

func TestIdenticalRequestsShareOneStatement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(1000)
		f := Open(testConfig(), tab)
		defer f.Close()
		get(t, f, Request{})
		tab.set(func(tab *table) { tab.latency = time.Second })
		before := string(appendCursor(nil, f.fingerprint, key(tab.newest()[500])))
		var all sync.WaitGroup
		for range 800 {
			all.Go(func() {
				if p, err := f.Page(t.Context(), time.Now(), Request{Before: before}); err != nil || p.Rows != 10 {
					t.Errorf("%d rows, %v", p.Rows, err)
				}
			})
		}
		all.Wait()
		if tab.pages != 1 || f.Stats().Coalesced != 799 {
			t.Errorf("%d statements, %d coalesced; want 1, 799", tab.pages, f.Stats().Coalesced)
		}
	})
}

// TestPagesAfterQuickOnes: a page is read in the goroutine of its request if the last one was read quickly. If that request ends before
// the statement, those that share it read the page themselves.
func TestPagesAfterQuickOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(1000)
		f := Open(testConfig(), tab)
		defer f.Close()
		get(t, f, Request{})
		r := Request{Before: string(appendCursor(nil, f.fingerprint, key(tab.newest()[500])))}
		get(t, f, r)
		ask := func(ctx context.Context, want error, after time.Duration) {
			begin := time.Now()
			if _, err := f.Page(ctx, begin, r); !errors.Is(err, want) || time.Since(begin) != after {
				t.Errorf("%v after %v, want %v after %v", err, time.Since(begin), want, after)
			}
		}
		tab.set(func(tab *table) { tab.latency, tab.pages = time.Second, 0 })
		var all sync.WaitGroup
		all.Go(func() {
			ctx, leave := context.WithTimeout(t.Context(), time.Second/2)
			defer leave()
			ask(ctx, ErrBusy, time.Second/2)
		})
		synctest.Wait()
		all.Go(func() { ask(t.Context(), nil, 3*time.Second/2) })
		all.Wait()
		if tab.pages != 1 || f.Stats().Coalesced != 1 { // the first one was not read
			t.Errorf("%d pages, %d coalesced; want 1, 1", tab.pages, f.Stats().Coalesced)
		}
	})
}

func TestDeepOffsetsKeepUpWithRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(30_000)
		f := Open(testConfig(), tab)
		defer f.Close()
		last := tab.newest()[0]
		arrive := func(rows int) {
			for range rows {
				last += 10
				tab.insert(last)
			}
		}
		for round := range 60 {
			arrive(20)
			<-time.After(110 * time.Millisecond) // the window has read them
			offset := 5_000 + 301*round
			got, p := get(t, f, Request{Offset: offset})
			if want := tab.newest()[offset : offset+10]; !slices.Equal(got, want) {
				t.Fatalf("round %d: offset %d begins with %d, want %d", round, offset, got[0], want[0])
			}
			if p.CountedAt.IsZero() || p.Source != FromDatabase {
				t.Fatalf("offset %d: counted at %v, source %v", offset, p.CountedAt, p.Source)
			}
		}
		got, p := get(t, f, Request{Offset: 500_000})
		if len(got) != 0 || p.Next != "" {
			t.Errorf("behind the end: %v", got)
		}
		// Idle until there are more new rows than the window holds, then request again.
		<-time.After(10 * time.Second)
		arrive(1000)
		if got, _ := get(t, f, Request{Offset: 20_000}); got[0] != tab.newest()[20_000] {
			t.Errorf("after a pause: offset 20000 begins with %d, want %d", got[0], tab.newest()[20_000])
		}
		if tab.walked >= offsetStride {
			t.Errorf("a statement skipped %d rows", tab.walked)
		}
	})
}

// TestSweepHealsDeletedRows deletes old rows and waits until the sweep has corrected the index.
func TestSweepHealsDeletedRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(30_000)
		f := Open(testConfig(), tab)
		defer f.Close()
		get(t, f, Request{Offset: 29_000})
		for _, i := range tab.newest()[10_000:12_000] {
			tab.remove(i)
		}
		end := time.Now().Add(5 * time.Second)
		for time.Now().Before(end) {
			get(t, f, Request{Offset: 20_000})
			<-time.After(50 * time.Millisecond)
		}
		got, p := get(t, f, Request{Offset: 20_000})
		if want := tab.newest()[20_000]; got[0] != want {
			t.Errorf("offset 20000 begins with %d, want %d", got[0], want)
		}
		if age := time.Since(p.CountedAt); age > 5*time.Second {
			t.Errorf("counted %v ago", age)
		}
		if s := f.Stats(); s.SegmentRows == 0 || s.SegmentAgeSeconds > 5 {
			t.Errorf("stats: %d rows counted, %v s ago", s.SegmentRows, s.SegmentAgeSeconds)
		}
	})
}

func TestOffsetWhileDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(5000)
		f := Open(testConfig(), tab)
		defer f.Close()
		get(t, f, Request{})
		tab.set(func(tab *table) { tab.down = errDown })
		if _, err := f.Page(t.Context(), time.Now(), Request{Offset: 3000}); err == nil {
			t.Error("a deep offset was answered while the database is down")
		}
	})
}

func TestRequestErrors(t *testing.T) {
	t.Parallel()
	tab := newTable(500)
	f := open(t, tab, nil)
	other := Definition{Name: "/other", Key: []KeyColumn{{Name: "id"}}}
	for name, c := range map[string]struct {
		r    Request
		want error
	}{
		"limit":          {Request{Limit: 101}, ErrRequest},
		"negative limit": {Request{Limit: -1}, ErrRequest},
		"offset":         {Request{Offset: 1_000_001}, ErrRequest},
		"both":           {Request{Offset: 1, Before: "x"}, ErrRequest},
		"arguments":      {Request{Args: []string{"x"}}, ErrRequest},
		"broken cursor":  {Request{Before: "no cursor"}, ErrCursor},
		"long cursor":    {Request{Before: strings.Repeat("A", 1<<16)}, ErrCursor},
		"foreign cursor": {Request{Before: string(appendCursor(nil, other.fingerprint(), key(10)))}, ErrCursor},
	} {
		if _, err := f.Page(t.Context(), time.Now(), c.r); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if s := f.Stats(); s.Refused != 0 {
		t.Errorf("%d of the client's mistakes counted as refused", s.Refused)
	}
}

func TestWindowHitAllocatesNothing(t *testing.T) {
	tab := newTable(500)
	cfg := func(c *Config) {
		c.Refresh, c.Timeout = time.Hour, time.Hour
		c.IdleAfter, c.StaleMax = 2*time.Hour, 2*time.Hour
		c.Params = []param.Param{{Name: "city", Type: param.Text}}
	}
	f := open(t, tab, cfg)
	args := []string{"Köln"}
	_, p := get(t, f, Request{Args: args})
	now := time.Now()
	for name, r := range map[string]Request{
		"first page": {Args: args},
		"offset":     {Args: args, Offset: 120, Limit: 37},
		"cursor":     {Args: args, Before: p.Next},
	} {
		if n := testing.AllocsPerRun(1000, func() {
			if p, err := f.Page(context.Background(), now, r); err != nil || p.Source != FromWindow || p.Tag() == 0 {
				t.Fatal(err, p.Source)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}

func BenchmarkPage(b *testing.B) {
	f := open(b, newTable(500), func(c *Config) { c.Refresh = time.Hour; c.IdleAfter = 2 * time.Hour })
	get(b, f, Request{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			p, err := f.Page(context.Background(), time.Now(), Request{})
			if err != nil || p.Tag() == 0 {
				b.Error(err)
			}
		}
	})
}

// The first page is rendered by its snapshot and equals the output of Append.
func TestRenderedFirstPage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRenderedFirstPage)
}

func testRenderedFirstPage(t *testing.T) {
	f := open(t, newTable(30), nil)
	for _, r := range []Request{{}, {Limit: 10}} {
		_, p := get(t, f, r)
		if p.Rendered == nil || string(p.Rendered.Body) != string(p.Append(nil)) || string(p.Rendered.ETag) != string(AppendETag(nil, p.Tag())) {
			t.Errorf("%+v: rendered %+v", r, p.Rendered)
		}
	}
	for _, r := range []Request{{Offset: 1}, {Limit: 9}} {
		if _, p := get(t, f, r); p.Rendered != nil {
			t.Errorf("%+v is rendered as %s", r, p.Rendered.Body)
		}
	}
}
