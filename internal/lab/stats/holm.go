package stats

import (
	"cmp"
	"math"
	"slices"
)

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
