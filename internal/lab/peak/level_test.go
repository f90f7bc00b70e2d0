package peak

import (
	"testing"
	"time"

	"spillway/internal/lab/result"
)

// TestVerdict lists visits to a rate, P for passed, M for missed and x for not VALID, and what they prove.
func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		visits string
		want   verdict
		firm   bool
	}{
		{"", open, false},
		{"x", open, false},
		{"xxxx", open, false},
		{"P", passed, false},
		{"M", missed, false},
		{"PP", passed, true},
		{"MM", missed, true},
		{"PM", missed, false},
		{"MP", missed, false},
		{"MPP", passed, true},
		{"PxP", passed, true},
		{"PMM", missed, true},
		{"PPM", missed, false},
		{"PMPMP", missed, false},
		{"PMPMPM", missed, true},
		{"PMPMPP", passed, true},
		{"Pxxxx", passed, true},
		{"PMxxxx", missed, true},
	} {
		s := NewSearch(Settings{Start: 100})
		for _, kind := range c.visits {
			v := visitOf(100, map[rune]float64{'P': -1, 'M': 1, 'x': -1}[kind])
			if kind == 'x' {
				v.Observation.Validity = result.HostContended
			}
			s.Observe(v.Probe, v.Observation)
		}
		var got verdict
		var firm bool
		if l := s.proof().at(100); l != nil {
			got, firm = l.verdict()
		}
		if got != c.want || firm != c.firm {
			t.Errorf("%q: verdict %d, firm %t, want %d, %t", c.visits, got, firm, c.want, c.firm)
		}
	}
}

// TestPassesNeedsEverything checks what a probe must show to pass.
func TestPassesNeedsEverything(t *testing.T) {
	met, not := Margin{Criterion: "p99<limit", Log: -1, Sigma: 0.1, Met: true}, Margin{Criterion: "errors<1%", Log: 1, Sigma: 0.1, Met: false}
	for _, c := range []struct {
		o    Observation
		want bool
	}{
		{Observation{Margins: []Margin{met}}, true},
		{Observation{Margins: []Margin{met, not}}, false},
		{Observation{Margins: []Margin{met}, Overloaded: true}, false},
		{Observation{}, false},
	} {
		if got := c.o.passes(); got != c.want {
			t.Errorf("%+v passes: %t", c.o, got)
		}
	}
}

// TestLonePassIsNotProof checks that a rate above one that was missed must pass twice.
func TestLonePassIsNotProof(t *testing.T) {
	s := NewSearch(Settings{Start: 100})
	observe := func(rate, margin float64) {
		v := visitOf(rate, margin)
		s.Observe(v.Probe, v.Observation)
	}
	observe(100, -1)
	observe(200, 0.1)
	observe(210, -0.1)
	if a := s.Answer(); a.Feasible != 100 || a.Infeasible != 200 {
		t.Errorf("%g to %g/s after one pass at 210/s", a.Feasible, a.Infeasible)
	}
	if p, ok := s.Next(0); !ok || p.Rate != 210 || p.Purpose != Repeat {
		t.Errorf("next is %+v", p)
	}
	observe(210, -0.1)
	if a := s.Answer(); a.Feasible != 210 || a.Infeasible != 0 || !warned(&a, "not monotonic") {
		t.Errorf("%g to %g/s after two passes at 210/s, warnings %q", a.Feasible, a.Infeasible, a.Warnings)
	}
}

// TestDurations checks that a probe has enough answers for the percentile, and more time after too few.
func TestDurations(t *testing.T) {
	for _, c := range []struct {
		quantile, rate float64
		purpose        Purpose
		want           time.Duration
	}{
		{0.99, 100, Refine, 12 * time.Second},
		{0.99, 50000, Refine, edgeDuration},
		{0.99, 50000, Bracket, bracketDuration},
		{0.99, 50000, ConfirmBelow, confirmDuration},
		{0.99, 100, ConfirmAbove, 18 * time.Second},
		{0.9, 5, Bracket, 24 * time.Second},
		{0, 10, Repeat, 12 * time.Second},
		{0.9999, 1, Refine, DurationMax},
	} {
		s := NewSearch(Settings{Quantile: c.quantile})
		if p := s.probe(c.purpose, c.rate, s.proof()); p.Duration != c.want || p.Warmup < openWarmup || p.Warmup > warmupMax {
			t.Errorf("p%g at %g/s: %+v, want %s", 100*c.quantile, c.rate, p, c.want)
		}
	}
}

// TestInvalidProbesGetMoreTime checks the second attempt at a rate, by the reason why the first was not VALID.
func TestInvalidProbesGetMoreTime(t *testing.T) {
	for _, c := range []struct {
		validity      result.Validity
		times, warmup time.Duration
	}{
		{result.TooFewSamples, 2, 1}, {result.NotStationary, 2, 2}, {result.HostContended, 1, 1}, {result.GeneratorLimited, 1, 1},
	} {
		s := NewSearch(Settings{Start: 1000, Quantile: 0.99})
		first, _ := s.Next(0)
		s.Observe(first, Observation{Validity: c.validity})
		again, ok := s.Next(time.Minute)
		if !ok || again.Rate != first.Rate || again.Purpose != first.Purpose || again.Duration != c.times*first.Duration || again.Warmup != c.warmup*first.Warmup {
			t.Errorf("%s: %+v and then %+v", c.validity, first, again)
		}
	}
}

// TestSparseAnswers checks percentiles of a part of the requests: what one rate needs, the others are given at once.
func TestSparseAnswers(t *testing.T) {
	s := NewSearch(Settings{Start: 1000, Quantile: 0.99})
	var last Probe
	for range 3 {
		last, _ = s.Next(0)
		s.Observe(last, Observation{Validity: result.TooFewSamples})
	}
	last, _ = s.Next(0)
	s.Observe(last, visitOf(1000, -2).Observation)
	if next, _ := s.Next(0); next.Rate <= 1000 || next.Duration.Seconds()*next.Rate < 4*1200 {
		t.Errorf("next is %+v", next)
	}
}

func TestRoundRate(t *testing.T) {
	for _, c := range []struct {
		rate   float64
		digits int
		want   float64
	}{{123456, 3, 123000}, {1234.56, 4, 1235}, {0.0123456, 3, 0.0123}, {99.996, 4, 100}, {5, 3, 5}, {1e9, 4, 1e9}, {0.1, 3, 0.1}} {
		if got := roundRate(c.rate, c.digits); got != c.want {
			t.Errorf("roundRate(%g, %d) = %g, want %g", c.rate, c.digits, got, c.want)
		}
	}
}
