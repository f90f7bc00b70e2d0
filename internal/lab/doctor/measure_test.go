package doctor

import (
	"slices"
	"strings"
	"testing"
	"testing/quick"

	"spillway/internal/plans"
)

func tried(columns int, seconds float64, rows int64, sorts bool) *Measurement {
	return &Measurement{
		candidates: []Candidate{{Columns: make([]plans.IndexColumn, columns)}}, MedianSeconds: seconds, MinSeconds: seconds, RowsExamined: rows, Sorts: sorts,
	}
}

func TestWinner(t *testing.T) {
	for name, c := range map[string]struct {
		tried []*Measurement
		want  int
	}{
		"the fastest":                {[]*Measurement{tried(4, 0.001, 50, false), tried(2, 0.1, 50, false)}, 0},
		"alike: fewer columns":       {[]*Measurement{tried(4, 0.001, 50, false), tried(2, 0.00110, 100, false)}, 1},
		"alike: no sort":             {[]*Measurement{tried(4, 0.001, 500, false), tried(2, 0.001, 500, true)}, 0},
		"alike: clearly fewer rows":  {[]*Measurement{tried(4, 0.001, 50, false), tried(2, 0.001, 5000, false)}, 0},
		"all sort":                   {[]*Measurement{tried(3, 0.001, 50, true), tried(2, 0.001, 50, true)}, 1},
		"not told apart by a client": {[]*Measurement{tried(3, 0.00001, 50, false), tried(2, 0.00005, 50, false)}, 1},
	} {
		if got := winner(c.tried, 50_000); got != c.tried[c.want] {
			t.Errorf("%s: %+v wins", name, got)
		}
	}
}

func TestMedian(t *testing.T) {
	inside := func(a, b, c uint16) bool {
		low, high := min(a, b, c), max(a, b, c)
		middle := float64(int(a) + int(b) + int(c) - int(low) - int(high))
		return median([]float64{float64(low), middle, float64(high)}) == middle
	}
	if err := quick.Check(inside, nil); err != nil {
		t.Error(err)
	}
	if got := median([]float64{1, 3}); got != 2 {
		t.Errorf("median of 1 and 3: %v", got)
	}
}

// TestVerdict: an index is recommended if the plan uses it, and it is faster in nearly all rounds.
func TestVerdict(t *testing.T) {
	index := func(columns ...string) Candidate {
		c := Candidate{Create: "CREATE INDEX"}
		for _, name := range columns {
			c.Columns = append(c.Columns, plans.IndexColumn{Name: name})
		}
		return c
	}
	variant := func(name string, seconds float64, used bool, candidates ...Candidate) *Measurement {
		m := &Measurement{Variant: name, IndexesUsed: used, candidates: candidates, times: slices.Repeat([]float64{seconds}, 15)}
		m.summarize(m)
		return m
	}
	// disturbed makes so many of its 15 rounds slow.
	disturbed := func(rounds int) *Measurement {
		m := variant("(a)", 0.05, true, index("a"))
		for i := range rounds {
			m.times[i] = 0.2
		}
		m.summarize(m)
		return m
	}
	wide := disturbed(4)
	lucky := variant("(b)", 0.09, true, index("b")) // fast in one of its rounds
	lucky.times[0] = 0.001
	lucky.summarize(lucky)
	slow := variant("no index", 1, false)
	slow.TooLong = true
	for name, c := range map[string]struct {
		variants []*Measurement
		winners  int
		verdict  string
	}{
		"used":                     {[]*Measurement{variant("no index", 0.1, false), variant("(a)", 0.01, true, index("a"))}, 1, "(a): 10 ms in place of 100 ms, 10 times as fast"},
		"not in the plan":          {[]*Measurement{variant("no index", 0.1, false), variant("(a)", 0.01, false, index("a"))}, 0, "no candidate is worth its cost: the plan uses none of them"},
		"overlapping":              {[]*Measurement{variant("no index", 0.1, false), wide}, 0, "(a), is not faster in enough of its runs, as on a busy host; measure again"},
		"3 of 15 rounds disturbed": {[]*Measurement{variant("no index", 0.1, false), disturbed(3)}, 1, "(a): 50 ms in place of 100 ms, 2 times as fast"},
		"endless without":          {[]*Measurement{slow, wide}, 1, "20 times as fast"},
		"not worthwhile":           {[]*Measurement{variant("no index", 0.1, false), variant("(a)", 0.09, true, index("a"))}, 0, "is worth its cost: the best, (a), takes 90 ms, without it 100 ms"},
		"not one that is as fast in one round": {
			[]*Measurement{variant("no index", 0.1, false), variant("(a, c)", 0.01, true, index("a", "c")), lucky}, 1, "(a, c): 10 ms in place of 100 ms, 10 times as fast",
		},
		"two together": {
			[]*Measurement{variant("no index", 0.1, false), variant("(a)", 0.05, true, index("a")), variant("(a) + (b)", 0.01, true, index("a"), index("b"))},
			2,
			"(a) + (b): 10 ms in place of 100 ms, 10 times as fast; the smaller (a) takes 50 ms, 2 times as fast",
		},
		"the beginning of the winner is not recommended": {
			[]*Measurement{variant("no index", 0.1, false), variant("(a)", 0.05, true, index("a")), variant("(a, b)", 0.01, true, index("a", "b"))},
			1,
			"(a, b): 10 ms in place of 100 ms, 10 times as fast",
		},
	} {
		a := &analysis{report: &Query{}}
		a.judge(c.variants)
		if len(a.report.Winners) != c.winners || (a.report.Winner == nil) != (c.winners == 0) {
			t.Errorf("%s: %d win, want %d", name, len(a.report.Winners), c.winners)
		}
		if got := a.report.Verdict; !strings.HasSuffix(got, c.verdict) {
			t.Errorf("%s: %q, want %q", name, got, c.verdict)
		}
	}
}
