package feed

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The windows keep to WindowsBytes while values arrive, and when their rows grow. Those that are
// asked for most stay.
func TestWindowsFitInBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		items := newTable(200)
		cfg := byCity(100)
		one := Open(cfg, items)
		get(t, one, Request{Args: []string{"a"}})
		size := one.Stats().WindowBytes
		one.Close()
		if held := one.Stats().WindowBytes; size < 200*100 || held != 0 {
			t.Fatalf("a window of 200 rows has %d bytes, and after the end %d", size, held)
		}
		cfg.WindowsBytes = 5*size + size/2
		f := Open(cfg, items)
		defer f.Close()
		ask := func(city string, times int) {
			for range times {
				get(t, f, Request{Args: []string{city}})
				<-time.After(time.Millisecond)
			}
		}
		ask("hot", 30)
		for i := range 20 {
			ask(strconv.Itoa(i), 1)
		}
		if s := f.Stats(); s.Windows != 5 || s.WindowBytes > cfg.WindowsBytes || s.DatabasePages != 16 || windowOf(f, "hot") == nil {
			t.Errorf("%+v; want 5 windows", s)
		}
		items.set(func(items *table) {
			for _, id := range items.ids {
				items.note[id] = strings.Repeat("x", int(size)/200)
			}
		})
		for range 5 {
			ask("hot", 30)
			<-time.After(cfg.Refresh)
		}
		if s := f.Stats(); s.Windows < 1 || s.Windows > 3 || s.WindowBytes > cfg.WindowsBytes || windowOf(f, "hot") == nil {
			t.Errorf("%+v; want at most 3 larger windows, of %d bytes", s, cfg.WindowsBytes)
		}
		items.set(func(items *table) { items.note[items.ids[9]] = strings.Repeat("x", 9*int(size)) })
		<-time.After(3 * cfg.Refresh)
		ask("hot", 30)
		if _, p := get(t, f, Request{Args: []string{"hot"}}); f.Stats().Windows != 1 || p.Source != FromWindow {
			t.Errorf("%+v from %v; want one window that is larger than all may be", f.Stats(), p.Source)
		}
	})
}

// withLarge has rows of their own for the value "large".
type withLarge struct {
	*table
	large *table
}

func (t withLarge) Read(ctx context.Context, r Range, rows *Rows) error {
	if r.Args[0] == "large" {
		return t.large.Read(ctx, r, rows)
	}
	return t.table.Read(ctx, r, rows)
}

// A value whose window is larger than all may be takes no window from others, however often it is asked for.
func TestLargeWindowTakesNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		items := newTable(200)
		cfg := byCity(100)
		one := Open(cfg, items)
		get(t, one, Request{Args: []string{"1"}})
		size := one.Stats().WindowBytes
		one.Close()
		cfg.WindowsBytes = 20 * size
		large := newTable(200)
		large.note[large.ids[9]] = strings.Repeat("x", 30*int(size))
		f := Open(cfg, withLarge{items, large})
		defer f.Close()
		small := func() (outside int) {
			for i := range 10 {
				if _, p := get(t, f, Request{Args: []string{strconv.Itoa(i)}}); p.Source != FromWindow {
					outside++
				}
			}
			return outside
		}
		small()
		for range 200 {
			get(t, f, Request{Args: []string{"large"}})
			<-time.After(time.Millisecond)
		}
		if n, s := small(), f.Stats(); n > 0 || s.WindowBytes > cfg.WindowsBytes {
			t.Errorf("%d of 10 values have lost their windows: %+v", n, s)
		}
	})
}

// Windows that nobody asks for are freed when their rows may not be served any more; not the only
// window of a feed.
func TestUnusedWindowsAreFreed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, single := Open(byCity(10), newTable(200)), Open(testConfig(), newTable(200))
		defer f.Close()
		defer single.Close()
		for city := range 10 {
			get(t, f, Request{Args: []string{strconv.Itoa(city)}})
		}
		get(t, single, Request{})
		for range 60 {
			get(t, f, Request{Args: []string{"3"}})
			<-time.After(time.Second)
		}
		if s := f.Stats(); s.Windows != 1 || windowOf(f, "3") == nil || s.WindowBytes != windowOf(f, "3").charged.Load() {
			t.Errorf("%+v; want the window of 3 only", s)
		}
		<-time.After(time.Minute)
		if s := f.Stats(); s.Windows != 0 || s.WindowBytes != 0 {
			t.Errorf("%+v; want no window", s)
		}
		if s := single.Stats(); s.Windows != 1 || s.WindowBytes == 0 {
			t.Errorf("without parameters: %+v; want its window", s)
		}
		if got, p := get(t, f, Request{Args: []string{"5"}}); len(got) != 10 || p.Source != FromWindow {
			t.Errorf("%v from %v", got, p.Source)
		}
	})
}
