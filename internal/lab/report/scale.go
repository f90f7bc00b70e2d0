package report

import (
	"math"
)

// A scale maps values to pixels, linearly or by their logarithm. Values outside the domain map to its ends.
type scale struct {
	min, max   float64 // domain, min < max; above 0 when logarithmic
	from, to   float64 // pixels of min and max
	logarithms bool
}

func (s scale) at(v float64) float64 {
	v = math.Min(math.Max(v, s.min), s.max)
	share := (v - s.min) / (s.max - s.min)
	if s.logarithms {
		share = math.Log(v/s.min) / math.Log(s.max/s.min)
	}
	return s.from + share*(s.to-s.from)
}

// linearScale covers 0 to the highest value, rounded up to a tick.
func linearScale(highest, from, to float64, ticks int) (scale, []float64) {
	if !(highest > 0) {
		highest = 1
	}
	unit := niceStep(highest / float64(ticks))
	top := math.Ceil(highest/unit-1e-9) * unit
	var at []float64
	for i := 0; float64(i)*unit <= top*(1+1e-9); i++ {
		at = append(at, float64(i)*unit)
	}
	return scale{min: 0, max: top, from: from, to: to}, at
}

// niceStep is the smallest of 1, 2, 5 times a power of ten that is at least v.
func niceStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= v*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// logScale covers lowest to highest, both above 0, widened to ticks.
func logScale(lowest, highest, from, to float64, ticks int) (scale, []float64) {
	if !(lowest > 0) || !(highest > 0) {
		lowest, highest = 1, 10
	}
	for _, mantissas := range [][]float64{{1, 2, 5}, {1, 3}, {1}} {
		at := logTicks(lowest, highest, mantissas)
		if len(at) <= ticks || len(mantissas) == 1 {
			return scale{min: at[0], max: at[len(at)-1], from: from, to: to, logarithms: true}, thin(at, ticks)
		}
	}
	panic("bug: no mantissas")
}

// logTicks are the multiples of powers of ten from the last at or below lowest to the first at or above highest.
func logTicks(lowest, highest float64, mantissas []float64) []float64 {
	var at []float64
	for e := int(math.Floor(math.Log10(lowest))) - 1; ; e++ {
		for _, m := range mantissas {
			v := m * math.Pow(10, float64(e))
			if v <= lowest*(1+1e-9) {
				at = at[:0] // a later tick is still at or below the lowest value
			}
			at = append(at, v)
			if v >= highest*(1-1e-9) && len(at) > 1 {
				return at
			}
		}
	}
}

// thin keeps every n-th tick, the first among them, so that no more than limit stay.
func thin(at []float64, limit int) []float64 {
	n := (len(at) + limit - 1) / limit
	var kept []float64
	for i := 0; i < len(at); i += n {
		kept = append(kept, at[i])
	}
	return kept
}

// rest is the place of the quantile q on the axis of a percentile curve: 0 at the shortest, 1 at p90, 2 at p99, …
func rest(q float64) float64 { return math.Log10(1 / (1 - q)) }
