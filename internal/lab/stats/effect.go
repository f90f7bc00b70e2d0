package stats

import "math"

// MinimumEffect is the smallest effect that a comparison of n pairs with that spread of logarithms would have seen with
// the power given, at a two-sided significance of alpha: a ratio above 1, so that 1.05 stands for 5 % more or 1/1.05 of
// it. It is exp((t(1-alpha/2) + t(power)) s / sqrt(n)) with n-1 degrees of freedom (Bloom, "Minimum detectable effects",
// Evaluation Review 19, 1995; Snedecor and Cochran, "Statistical Methods", 6.14). In a family of m comparisons alpha/m
// is the level at which an effect is seen whatever the others show.
//
// It is +Inf with fewer than two pairs or an unknown spread, and 1 without any spread.
func MinimumEffect(n int, spread, alpha, power float64) float64 {
	checkLevel(alpha)
	checkLevel(power)
	switch {
	case n < 2 || math.IsNaN(spread) || spread < 0:
		return math.Inf(1)
	case spread < rounding:
		return 1
	}
	degrees := float64(n - 1)
	return math.Exp((quantile(1-alpha/2, degrees) + quantile(power, degrees)) * spread / math.Sqrt(float64(n)))
}
