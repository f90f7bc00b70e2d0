package progress

import (
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRender(t *testing.T) {
	f := func(s status, bar, line, last string) {
		t.Helper()
		if got := s.bar(100); got != bar {
			t.Errorf("bar\n got %q\nwant %q", got, bar)
		}
		if got := s.line(); got != line {
			t.Errorf("line\n got %q\nwant %q", got, line)
		}
		if got := s.last(); got != last {
			t.Errorf("last\n got %q\nwant %q", got, last)
		}
	}
	f(status{label: "orders", unit: "rows", total: 10_801_319},
		"orders       0 %  0 of 10,801,319 rows, 0/s [------------------------]",
		"orders: 0 %, 0 of 10,801,319 rows, 0/s",
		"orders: 0 rows in 0.0 s (0/s)")
	f(status{label: "orders", unit: "rows", done: 2_500_000, total: 10_000_000, elapsed: 4 * time.Second},
		"orders      25 %  2,500,000 of 10,000,000 rows, 625,000/s, 12s left [######------------------]",
		"orders: 25 %, 2,500,000 of 10,000,000 rows, 625,000/s, 12s left",
		"orders: 2,500,000 rows in 4.0 s (625,000/s)")
	f(status{label: "indexes", done: 3, total: 6, elapsed: 2500 * time.Millisecond},
		"indexes     50 %  3 of 6, 2.5 s [############------------]",
		"indexes: 50 %, 3 of 6, 2.5 s",
		"indexes: done in 2.5 s")
	f(status{label: "none", unit: "rows", elapsed: time.Second},
		"none       100 %  0 of 0 rows, 0/s [########################]",
		"none: 100 %, 0 of 0 rows, 0/s",
		"none: 0 rows in 1.0 s (0/s)")
}

func TestBarFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := status{
			label: "label", unit: "rows",
			done: rapid.Int64().Draw(t, "done"), total: rapid.Int64().Draw(t, "total"),
			elapsed: time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "elapsed")),
		}
		width := rapid.IntRange(0, 200).Draw(t, "width")
		if got := s.bar(width); len(got) > width {
			t.Fatalf("%d columns in a width of %d: %q", len(got), width, got)
		}
	})
}

func TestGroup(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -999: "-999", -1000: "-1,000", 1234567: "1,234,567"} {
		if got := Group(n); got != want {
			t.Errorf("Group(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		task := New(&out).Start("orders", "rows", 100)
		task.Add(10)
		<-time.After(5*time.Second + time.Millisecond) // virtual
		task.Add(90)
		<-time.After(time.Second)
		task.End(nil)
		want := "orders: 10 %, 10 of 100 rows, 2/s, 45s left\norders: 100 rows in 6.0 s (16/s)\n"
		if out.String() != want {
			t.Errorf("got %q\nwant %q", out.String(), want)
		}
	})
}

func TestTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		meter := &Meter{w: &out, width: func() int { return 60 }}
		task := meter.Start("orders", "rows", 4)
		task.Add(1)
		<-time.After(150 * time.Millisecond) // virtual
		task.End(nil)
		task = meter.Start("indexes", "", 2)
		task.End(errors.New("stopped"))
		want := "\rorders      25 %  1 of 4 rows, 10/s, 0s left [###---------]\x1b[K" +
			"\r\x1b[Korders: 1 rows in 0.1 s (6/s)\n" +
			"\r\x1b[K"
		if out.String() != want {
			t.Errorf("got %q\nwant %q", out.String(), want)
		}
	})
}
