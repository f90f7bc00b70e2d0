package doctor

import (
	"testing"
	"testing/quick"

	"spillway/internal/plans"
)

func tried(columns int, seconds float64, rows int64, sorts bool) *Measurement {
	return &Measurement{
		candidate: &plans.Candidate{Columns: make([]plans.IndexColumn, columns)}, MedianSeconds: seconds, MinSeconds: seconds, RowsExamined: rows, Sorts: sorts,
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
