package report

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestScaleMapsEndsAndOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low := rapid.Float64Range(1e-6, 1e3).Draw(t, "low")
		high := low * rapid.Float64Range(1.1, 1e5).Draw(t, "span")
		s := scale{min: low, max: high, from: 300, to: 20, logarithms: rapid.Bool().Draw(t, "log")}
		if math.Abs(s.at(low)-300) > 1e-6 || math.Abs(s.at(high)-20) > 1e-6 {
			t.Fatalf("ends map to %v and %v", s.at(low), s.at(high))
		}
		a, b := rapid.Float64Range(low, high).Draw(t, "a"), rapid.Float64Range(low, high).Draw(t, "b")
		if a < b && s.at(a) < s.at(b) {
			t.Fatalf("%v lies below %v", a, b)
		}
		if got := s.at(high * 10); got != s.at(high) {
			t.Fatalf("a value outside maps to %v", got)
		}
	})
}

func TestTicks(t *testing.T) {
	f := func(got, want []float64) {
		t.Helper()
		if !slices.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }) {
			t.Errorf("ticks %v, want %v", got, want)
		}
	}
	linear := func(highest float64, n int) []float64 { _, at := linearScale(highest, 0, 1, n); return at }
	f(linear(3000, 6), []float64{0, 500, 1000, 1500, 2000, 2500, 3000})
	f(linear(9.7, 4), []float64{0, 5, 10})
	f(linear(0, 2), []float64{0, 0.5, 1})
	f(linear(math.NaN(), 2), []float64{0, 0.5, 1})
	logs := func(low, high float64, n int) []float64 { _, at := logScale(low, high, 0, 1, n); return at }
	f(logs(1.2e-3, 8e-3, 9), []float64{1e-3, 2e-3, 5e-3, 1e-2})
	f(logs(1e-3, 1e-3, 9), []float64{1e-3, 2e-3})
	f(logs(2e-4, 3, 9), []float64{1e-4, 1e-3, 1e-2, 1e-1, 1, 10})
	f(logs(1e-9, 1e9, 5), []float64{1e-9, 1e-5, 1e-1, 1e3, 1e7})
	f(logs(0, -1, 9), []float64{1, 2, 5, 10})
	f(timeTicks(82, 10), []float64{0, 10, 20, 30, 40, 50, 60, 70, 80})
	f(timeTicks(2.5, 4), []float64{0, 1, 2})
}

func TestTicksHoldTheData(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low := rapid.Float64Range(1e-7, 1e6).Draw(t, "low")
		high := low * rapid.Float64Range(1, 1e6).Draw(t, "span")
		s, at := logScale(low, high, 0, 100, 9)
		if s.min > low*(1+1e-6) || s.max < high*(1-1e-6) || len(at) < 2 || len(at) > 9 {
			t.Fatalf("[%v, %v] on [%v, %v], %d ticks", low, high, s.min, s.max, len(at))
		}
		line, at := linearScale(high, 0, 100, 6)
		if line.max < high*(1-1e-6) || len(at) > 8 {
			t.Fatalf("%v on [0, %v], %d ticks", high, line.max, len(at))
		}
	})
}

func TestRestOfAPercentile(t *testing.T) {
	for q, want := range map[float64]string{0: "0 %", 0.5: "50 %", 0.9: "90 %", 0.99: "99 %", 0.999: "99.9 %", 0.9999: "99.99 %"} {
		if got := writePercentile(rest(q)); got != want {
			t.Errorf("%v is written %q", q, got)
		}
	}
}

func TestSpreadKeepsDistance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.SliceOfN(rapid.Float64Range(0, 300), 0, 8).Draw(t, "at")
		slices.Sort(at)
		got := spread(at, 0, 300, 13)
		for i := 1; i < len(got); i++ {
			if got[i]-got[i-1] < 13-1e-9 {
				t.Fatalf("%v is too dense", got)
			}
		}
		if len(got) > 0 && (got[0] < -1e-9 || got[len(got)-1] > 300+1e-9) {
			t.Fatalf("%v is outside", got)
		}
	})
}

func TestPathLiftsThePenAtGaps(t *testing.T) {
	got := pathOf([]xy{{0, 1}, {1, 2}, gap(), {3, 4}, gap(), gap(), {5, 6}, {7, 8.25}})
	if want := "M0 1L1 2M3 4h1M5 6L7 8.2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := pathOf(nil); got != "" {
		t.Errorf("path of nothing: %q", got)
	}
}
