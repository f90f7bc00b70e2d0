package stats

import (
	"cmp"
	"math"
	"slices"
)

// MinPairs is how many pairs a claim needs. Fewer pairs only give ranges.
const MinPairs = 10

// Levels of the comparisons.
const (
	Alpha = 0.05 // probability of a false difference in a family
	Level = 0.95 // confidence level of an interval
	Power = 0.8  // probability of detecting MinimumEffect
)

// A Verdict is the outcome of a comparison.
type Verdict string

// Verdicts.
const (
	Higher       Verdict = "higher"        // the variant has the higher figure
	Lower        Verdict = "lower"         // the variant has the lower figure
	NoDifference Verdict = "no difference" // none was detected; one below MinimumEffect is possible
	NoVerdict    Verdict = "no verdict"    // too few pairs for a claim
)

// A Comparison is a paired ratio with its verdict.
type Comparison struct {
	Ratio
	AdjustedP     float64 // P after Holm's correction; NaN without a verdict
	MinimumEffect float64 // at Alpha divided by the size of the family
	Family        int     // number of comparisons in Holm's correction
	Verdict       Verdict
}

// Judge returns the verdict for each ratio of one family. A ratio with fewer than MinPairs pairs gets no verdict and does
// not belong to the family. The verdict is adjusted by Holm, the interval is not: it may exclude 1 although the verdict is
// NoDifference.
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

// Holm adjusts the p values of a family of comparisons. If adjusted values below alpha count as differences, the
// probability of any false difference in the family is below alpha, however the comparisons depend on each other. See Holm,
// "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979. The smallest of
// m values is multiplied by m, the next by m-1, and so on. An adjusted value is at most 1 and at least that of any smaller
// value. The order is kept. NaN stands for a comparison that was not made; it stays NaN and does not count in m.
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
