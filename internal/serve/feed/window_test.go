package feed

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// ask requests page 1 every interval for a duration, and returns the pages.
func ask(t *testing.T, f *Feed, interval, while time.Duration) (pages []Page, failures []error) {
	t.Helper()
	for end := time.Now().Add(while); time.Now().Before(end); {
		p, err := f.Page(t.Context(), time.Now(), Request{})
		if err != nil {
			failures = append(failures, err)
		} else {
			pages = append(pages, p)
		}
		<-time.After(interval)
	}
	return pages, failures
}

func TestOneStatementPerRefresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(500)
		f := Open(testConfig(), tab)
		defer f.Close()
		pages, failures := ask(t, f, time.Millisecond, 10*time.Second)
		if len(pages) != 10_000 || len(failures) > 0 {
			t.Fatalf("%d pages, failures %v", len(pages), failures)
		}
		tab.set(func(tab *table) {
			if tab.reads < 99 || tab.reads > 101 || tab.pages+tab.walks > 0 {
				t.Errorf("%d windows read in 10 s at a refresh of 100 ms, %d pages, %d walks", tab.reads, tab.pages, tab.walks)
			}
		})
	})
}

func TestIdleReadsNothingAndFirstRequestWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(500)
		tab.latency = 5 * time.Millisecond
		f := Open(testConfig(), tab)
		defer f.Close()
		ask(t, f, 10*time.Millisecond, time.Second)
		<-time.After(3 * time.Second) // IdleAfter is 2 s
		before := f.Stats().Refreshes
		<-time.After(time.Hour)
		if n := f.Stats().Refreshes - before; n > 0 {
			t.Errorf("%d refreshes in an idle hour", n)
		}
		if err := f.Ready(time.Now()); err != nil {
			t.Errorf("an idle feed is not ready: %v", err)
		}
		if s := f.Stats(); s.AgeSeconds != 0 {
			t.Errorf("an idle feed's age is %v", s.AgeSeconds)
		}
		tab.insert(99_999)
		start := time.Now()
		got, p := get(t, f, Request{})
		if got[0] != 99_999 {
			t.Errorf("the first page after idling begins with %d", got[0])
		}
		if waited := time.Since(start); waited != 5*time.Millisecond || p.ReadAt.Before(start) {
			t.Errorf("waited %v for a window read at %v", waited, p.ReadAt)
		}
	})
}

func TestChangesShowWithinOneRefresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(500)
		f := Open(testConfig(), tab)
		defer f.Close()
		get(t, f, Request{})
		newest := tab.newest()
		for name, change := range map[string]func(){
			"newest":       func() { tab.insert(newest[0] + 10) },
			"out of order": func() { tab.insert(newest[3] + 1) },
			"updated":      func() { tab.set(func(tab *table) { tab.note[newest[2]] = "changed" }) },
			"deleted":      func() { tab.remove(newest[1]) },
		} {
			_, before := get(t, f, Request{})
			change()
			<-time.After(101 * time.Millisecond)
			got, after := get(t, f, Request{})
			if before.Tag() == after.Tag() {
				t.Errorf("%s: the tag did not change", name)
			}
			if want := tab.newest()[:10]; !slices.Equal(got, want) {
				t.Errorf("%s: page %v, want %v", name, got, want)
			}
		}
		_, before := get(t, f, Request{})
		<-time.After(500 * time.Millisecond)
		if _, after := get(t, f, Request{}); before.Tag() != after.Tag() || !after.ReadAt.After(before.ReadAt) {
			t.Errorf("nothing changed: tags %x and %x, read %v and %v", before.Tag(), after.Tag(), before.ReadAt, after.ReadAt)
		}
	})
}

func TestOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(500)
		f := Open(testConfig(), tab)
		defer f.Close()
		get(t, f, Request{})
		tab.set(func(tab *table) { tab.down = errDown })
		down := time.Now()
		var age time.Duration
		for time.Since(down) < 9*time.Second {
			p, err := f.Page(t.Context(), time.Now(), Request{})
			if err != nil {
				t.Fatalf("after %v: %v; stale rows are good for 10 s", time.Since(down), err)
			}
			if a := time.Since(p.ReadAt); a < age {
				t.Fatalf("the age fell from %v to %v", age, a)
			} else {
				age = a
			}
			<-time.After(50 * time.Millisecond)
		}
		if err := f.Ready(time.Now()); err != nil {
			t.Errorf("not ready within the bound: %v", err)
		}
		<-time.After(1500 * time.Millisecond)
		before := f.Stats()
		if _, failures := ask(t, f, 100*time.Millisecond, 20*time.Second); len(failures) != 200 || !errors.Is(failures[0], ErrUnavailable) {
			t.Errorf("past the bound: %d of 200 refused, %v", len(failures), failures[:min(1, len(failures))])
		}
		if n := f.Stats().Refreshes - before.Refreshes; n > 25 {
			t.Errorf("%d attempts in 20 s of outage", n)
		}
		if err := f.Ready(time.Now()); err == nil || strings.Contains(err.Error(), errDown.Error()) {
			t.Errorf("ready = %v, want an error without the database's text", err)
		}
		tab.set(func(tab *table) { tab.down = nil })
		<-time.After(1100 * time.Millisecond)
		if got, _ := get(t, f, Request{}); !slices.Equal(got, tab.newest()[:10]) {
			t.Errorf("after the outage: %v", got)
		}
		if err := f.Ready(time.Now()); err != nil {
			t.Errorf("after the outage: %v", err)
		}
	})
}

func TestOutageFromTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(500)
		tab.down = errDown
		f := Open(testConfig(), tab)
		defer f.Close()
		if _, err := f.Page(t.Context(), time.Now(), Request{}); !errors.Is(err, ErrUnavailable) || !errors.Is(err, errDown) {
			t.Errorf("err = %v, want ErrUnavailable and the database's error", err)
		}
		if err := f.Ready(time.Now()); err == nil {
			t.Error("ready without a window")
		}
		tab.set(func(tab *table) { tab.down = nil })
		if err := f.Warm(t.Context()); err != nil {
			t.Errorf("Warm: %v", err)
		}
	})
}

func TestIdleThenDownServesStale(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(500)
		f := Open(testConfig(), tab)
		defer f.Close()
		get(t, f, Request{})
		<-time.After(5 * time.Second) // idle, 5 s old
		tab.set(func(tab *table) { tab.down = errDown })
		if _, p := get(t, f, Request{}); time.Since(p.ReadAt) < 2*time.Second {
			t.Errorf("served rows read at %v while the database is down", p.ReadAt)
		}
		<-time.After(time.Minute)
		if _, err := f.Page(t.Context(), time.Now(), Request{}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a minute later: %v", err)
		}
	})
}

func TestSlowDatabaseGetsPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(500)
		tab.latency = 300 * time.Millisecond
		f := Open(testConfig(), tab)
		defer f.Close()
		ask(t, f, 10*time.Millisecond, 12*time.Second)
		if n := f.Stats().Refreshes; n < 18 || n > 21 {
			t.Errorf("%d refreshes of 300 ms in 12 s; at most half the time is theirs", n)
		}
	})
}

func TestWaitersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(500)
		tab.latency = time.Second
		f := Open(testConfig(), tab)
		defer f.Close()
		var all sync.WaitGroup
		var mu sync.Mutex
		var served, busy int
		for range 1500 {
			all.Go(func() {
				_, err := f.Page(t.Context(), time.Now(), Request{})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					served++
				case errors.Is(err, ErrBusy):
					busy++
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		if served != 1000 || busy != 500 || tab.reads != 1 {
			t.Errorf("%d served, %d busy, %d statements; want 1000, 500, 1", served, busy, tab.reads)
		}
	})
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(500)
		tab.latency = 3 * time.Second
		f := Open(testConfig(), tab)
		defer f.Close()
		start := time.Now()
		if _, err := f.Page(t.Context(), start, Request{}); !errors.Is(err, ErrUnavailable) || time.Since(start) != 2*time.Second {
			t.Errorf("err = %v after %v, want ErrUnavailable after the timeout of 2 s", err, time.Since(start))
		}
	})
}

func TestClosedFeed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testClosedFeed)
}

func testClosedFeed(t *testing.T) {
	tab := newTable(500)
	f := Open(testConfig(), tab)
	get(t, f, Request{})
	f.Close()
	if _, err := f.Page(context.Background(), time.Now(), Request{Limit: 7, Offset: 300}); err == nil {
		t.Error("a closed feed answered from the database")
	}
}

func TestDuplicateKeysAreRefused(t *testing.T) {
	t.Parallel()
	var rows Rows
	for range 2 {
		rows.Begin()
		rows.Data = append(rows.Data, "{}"...)
		rows.End(key(7))
	}
	if _, err := newSnapshot(rows, 10, 10, 1, CursorMax, EnvelopeData, time.Unix(0, 0), nil); err == nil {
		t.Error("two rows of one key made a window")
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		interval, took time.Duration
		failures       int
		want           time.Duration
	}{
		{100 * ms, 3 * ms, 0, 97 * ms},
		{100 * ms, 60 * ms, 0, 60 * ms},
		{100 * ms, 400 * ms, 0, 400 * ms},
		{100 * ms, 0, 1, 200 * ms},
		{100 * ms, 0, 3, 800 * ms},
		{100 * ms, 0, 4, 1000 * ms},
		{100 * ms, 0, 1000, 1000 * ms},
		{5000 * ms, 0, 3, 5000 * ms},
		{100 * ms, 5000 * ms, 1, 1000 * ms},
		{100 * ms, 500 * ms, 4, 500 * ms},
	} {
		if got := pace(c.interval, c.took, 1000*ms, c.failures); got != c.want {
			t.Errorf("pace(%v, %v, 1s, %d) = %v, want %v", c.interval, c.took, c.failures, got, c.want)
		}
	}
}

// dated is a table whose rows are as old as a replica's.
type dated struct {
	*table
	readAt atomic.Pointer[time.Time]
}

func (d *dated) Read(ctx context.Context, r Range, rows *Rows) error {
	rows.ReadAt = *d.readAt.Load()
	return d.table.Read(ctx, r, rows)
}

func (d *dated) Keys(ctx context.Context, r Range, every int) (Walk, error) {
	w, err := d.table.Keys(ctx, r, every)
	w.ReadAt = *d.readAt.Load()
	return w, err
}

// TestRowsOfReplica: pages and counts are as old as the source says, and a window does not go
// back to older rows.
func TestRowsOfReplica(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &dated{table: newTable(500)}
		at := time.Now().Add(-5 * time.Second)
		source.readAt.Store(&at)
		cfg := testConfig()
		f := Open(cfg, source)
		defer f.Close()
		for _, r := range []Request{{}, {Offset: cfg.Window}, {Offset: cfg.Window + 50}} {
			_, p := get(t, f, r)
			if !p.ReadAt.Equal(at) || !p.CountedAt.IsZero() && !p.CountedAt.Equal(at) {
				t.Errorf("offset %d: read at %v, counted at %v, want %v", r.Offset, p.ReadAt, p.CountedAt, at)
			}
		}
		source.insert(99_999)
		older, newer := at.Add(-time.Second), at.Add(time.Second)
		for _, c := range []struct {
			said, want time.Time
			newest     int
		}{{older, at, 5000}, {newer, newer, 99_999}} {
			source.readAt.Store(&c.said)
			ask(t, f, 10*time.Millisecond, 3*cfg.Refresh)
			if rows, p := get(t, f, Request{}); rows[0] != c.newest || !p.ReadAt.Equal(c.want) {
				t.Errorf("rows as of %v: the window begins with %d, read at %v", c.said, rows[0], p.ReadAt)
			}
		}
	})
}
