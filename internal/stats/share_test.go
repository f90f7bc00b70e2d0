package stats

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// The figures are those of Newcombe's papers of 1998: "Two-sided confidence intervals for the single proportion", table I,
// and "Interval estimation for the difference between independent proportions", table II, method 10.
func TestShare(t *testing.T) {
	near := func(got, want float64) bool { return math.Abs(got-want) < 0.00005+1e-9 }
	for _, c := range []struct {
		have, cases uint64
		low, high   float64
	}{
		{81, 263, 0.2553, 0.3662}, {15, 148, 0.0624, 0.1605}, {0, 20, 0, 0.1611}, {1, 29, 0.0061, 0.1718}, {29, 29, 0.8830, 1},
	} {
		if s := NewShare(c.have, c.cases, 0.95); !near(s.Low, c.low) || !near(s.High, c.high) {
			t.Errorf("%d of %d: %+v, want %g to %g", c.have, c.cases, s, c.low, c.high)
		}
	}
	for _, c := range []struct {
		a, m, b, n uint64
		low, high  float64
	}{
		{56, 70, 48, 80, 0.0524, 0.3339}, {9, 10, 3, 10, 0.1705, 0.8090}, {10, 10, 0, 20, 0.6791, 1}, {0, 10, 0, 20, -0.1611, 0.2775},
	} {
		if d := NewShare(c.a, c.m, 0.95).Minus(NewShare(c.b, c.n, 0.95)); !near(d.Low, c.low) || !near(d.High, c.high) {
			t.Errorf("%d/%d - %d/%d: %+v, want %g to %g", c.a, c.m, c.b, c.n, d, c.low, c.high)
		}
	}
	if s := NewShare(3, 0, 0.95); s != (Share{High: 1}) {
		t.Errorf("no cases: %+v", s)
	}
	if s := NewShare(7, 3, 0.95); s.Rate != 1 || s.High != 1 {
		t.Errorf("more than all: %+v", s)
	}
}

// An interval contains its rate and is within its bounds. The difference of equal shares contains 0, and that of two
// shares is the negative of the other way round.
func TestShareBounds(t *testing.T) {
	draw := func(t *rapid.T, name string) Share {
		cases := rapid.Uint64Range(0, 1<<40).Draw(t, name)
		return NewShare(rapid.Uint64Range(0, cases).Draw(t, name+" have"), cases, rapid.Float64Range(0.5, 0.999).Draw(t, name+" level"))
	}
	rapid.Check(t, func(t *rapid.T) {
		s, other := draw(t, "s"), draw(t, "other")
		if !(0 <= s.Low && s.Low <= s.Rate && s.Rate <= s.High && s.High <= 1) {
			t.Fatalf("%+v", s)
		}
		d, back := s.Minus(other), other.Minus(s)
		if !(d.Low <= d.Rate && d.Rate <= d.High) || d.Low != -back.High || d.Rate != -back.Rate {
			t.Fatalf("%+v %+v", d, back)
		}
		if same := s.Minus(s); same.Low > 0 || same.High < 0 {
			t.Fatalf("%+v", same)
		}
	})
}
