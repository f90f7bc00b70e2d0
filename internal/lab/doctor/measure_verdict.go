package doctor

import (
	"fmt"
	"slices"

	"github.com/aclements/go-moremath/stats"

	"spillway/internal/lab/sheet"
)

// judge selects the indexes to build among those that are worth it. The plan must use all of them, and they must be faster in
// nearly all rounds.
func (a *analysis) judge(variants []*Measurement) {
	before := variants[0] // the variant with existing indexes, if there is one
	var tried []*Measurement
	unused := 0
	for _, m := range variants {
		switch {
		case len(m.candidates) == 0:
			before = m
		case m.TooLong:
		case !m.IndexesUsed:
			unused++
		default:
			tried = append(tried, m)
		}
	}
	switch {
	case len(tried) == 0 && unused > 0:
		a.report.Verdict = "no candidate is worth its cost: the plan uses none of them"
		return
	case len(tried) == 0:
		a.report.Verdict = "no candidate ended in the time allowed"
		return
	}
	worth := slices.DeleteFunc(slices.Clone(tried), func(m *Measurement) bool { return before.MedianSeconds < worthwhile*m.MedianSeconds })
	apart := slices.DeleteFunc(slices.Clone(worth), func(m *Measurement) bool { return !m.apart(before) })
	switch {
	case len(worth) == 0:
		best := winner(tried, variants[0].RowsExamined)
		a.report.Verdict = fmt.Sprintf("no candidate is worth its cost: the best, %s, takes %s, without it %s", best.Variant,
			sheet.Duration(best.MedianSeconds), sheet.Duration(before.MedianSeconds))
		return
	case len(apart) == 0:
		best := winner(worth, variants[0].RowsExamined)
		a.report.Verdict = fmt.Sprintf("no candidate is worth its cost: the best, %s, is not faster in enough of its runs, as on a busy "+
			"host; measure again", best.Variant)
		return
	}
	best := winner(apart, variants[0].RowsExamined)
	a.report.Winners, a.report.Winner = best.candidates, &best.candidates[0]
	a.report.Verdict = fmt.Sprintf("%s: %s in place of %s, %s times as fast", best.Variant, sheet.Duration(best.MedianSeconds),
		sheet.Duration(before.MedianSeconds), sheet.Number(before.MedianSeconds/best.MedianSeconds))
	for _, m := range apart {
		if m.columns() < best.columns() && !m.shortens(best) {
			a.report.Verdict += fmt.Sprintf("; the smaller %s takes %s, %s times as fast", m.Variant, sheet.Duration(m.MedianSeconds),
				sheet.Number(before.MedianSeconds/m.MedianSeconds))
		}
	}
}

// apart reports whether this variant was faster than another in so many rounds that it is not by chance (sign test). One that took
// too long is slower.
func (m *Measurement) apart(slower *Measurement) bool {
	if slower.TooLong {
		return true
	}
	rounds, won := min(len(m.times), len(slower.times)), 0
	for i := range rounds {
		if m.times[i] < slower.times[i] {
			won++
		}
	}
	coin := stats.BinomialDist{N: rounds, P: 0.5}
	return rounds > 0 && coin.CDF(float64(rounds-won)) <= chance
}

// columns is the number of columns in all indexes of a variant.
func (m *Measurement) columns() int {
	n := 0
	for _, c := range m.candidates {
		n += len(c.Columns)
	}
	return n
}

// shortens reports whether an index of a variant is the beginning of a longer one of another variant, which serves in its place.
func (m *Measurement) shortens(other *Measurement) bool {
	return slices.ContainsFunc(m.candidates, func(c Candidate) bool {
		return slices.ContainsFunc(other.candidates, func(longer Candidate) bool {
			return c.from == longer.from && len(c.Columns) < len(longer.Columns) && slices.Equal(c.Columns, longer.Columns[:len(c.Columns)])
		})
	})
}
