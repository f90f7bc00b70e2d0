package stats

import (
	"cmp"
	"math"
	"slices"
)

// MinPairs is the fewest pairs on which anything is claimed. Fewer give ranges only.
const MinPairs = 10

// The levels at which comparisons are judged.
const (
	Alpha = 0.05 // chance of a false difference in a family
	Level = 0.95 // of an interval
	Power = 0.8  // with which MinimumEffect would have been seen
)

// A Verdict is what a comparison ends in.
type Verdict string

// The verdicts.
const (
	Higher       Verdict = "higher"        // the variant's figure is higher than the baseline's
	Lower        Verdict = "lower"         // it is lower
	NoDifference Verdict = "no difference" // none was seen; one below MinimumEffect may be there
	NoVerdict    Verdict = "no verdict"    // too few pairs to claim anything
)

// A Comparison is a paired ratio with its verdict.
type Comparison struct {
	Ratio
	AdjustedP     float64 // P after Holm's correction; NaN when the comparison has no verdict
	MinimumEffect float64 // as a ratio above 1, at Alpha divided by the size of the family
	Family        int     // comparisons that Holm's correction counted
	Verdict       Verdict
}

// Judge gives each ratio of one family its verdict. A ratio of fewer than MinPairs pairs has no verdict and is not part
// of the family. The interval is that of the comparison alone, at its own level: in a family it may leave out 1 where
// the verdict, which is Holm's, says that no difference was seen.
func Judge(family []Ratio) []Comparison {
	p := make([]float64, len(family))
	size := 0
	for i, r := range family {
		p[i] = math.NaN()
		if r.N >= MinPairs {
			p[i] = r.P
			size++
		}
	}
	judged := make([]Comparison, len(family))
	for i, adjusted := range Holm(p) {
		judged[i] = Comparison{Ratio: family[i], AdjustedP: adjusted, Family: size, Verdict: verdict(family[i].Ratio, adjusted)}
		judged[i].MinimumEffect = MinimumEffect(family[i].N, family[i].Spread, Alpha/float64(max(1, size)), Power)
	}
	return judged
}

func verdict(ratio, adjusted float64) Verdict {
	switch {
	case math.IsNaN(adjusted):
		return NoVerdict
	case adjusted >= Alpha:
		return NoDifference
	case ratio > 1:
		return Higher
	}
	return Lower
}

// Holm adjusts the p values of a family of comparisons so that an adjusted value below alpha may be called a difference
// and the chance of even one false call in the family stays below alpha, however the comparisons depend on each other
// (Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979). The
// smallest of m values is multiplied by m, the next by m-1, and so on; an adjusted value is never below that of a
// smaller one, nor above 1. Order is kept. NaN stands for a comparison that was not made: it stays NaN and does not
// count in m.
func Holm(p []float64) []float64 {
	var order []int
	for i, v := range p {
		if !math.IsNaN(v) {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p[a], p[b]) })
	adjusted := slices.Clone(p)
	floor := 0.0
	for rank, i := range order {
		floor = max(floor, min(1, p[i]*float64(len(order)-rank)))
		adjusted[i] = floor
	}
	return adjusted
}
