package stats

import (
	"math"

	"github.com/aclements/go-moremath/stats"
)

// A Share is how many of independent cases have a property, with its interval.
type Share struct {
	Have  uint64  // cases with the property
	Cases uint64  // all cases
	Rate  float64 // Have / Cases; 0 without cases
	Low   float64 // lower end of the interval; 0 without cases
	High  float64 // upper end of the interval; 1 without cases
}

// NewShare returns a share with the score interval, which is within 0 and 1 and also holds for few cases. See Wilson,
// "Probable inference, the law of succession, and statistical inference", Journal of the American Statistical Association
// 22, 1927. have counts as at most cases. It panics if level is not between 0 and 1.
func NewShare(have, cases uint64, level float64) Share {
	checkLevel(level)
	have = min(have, cases)
	s := Share{Have: have, Cases: cases, High: 1}
	if cases == 0 {
		return s
	}
	n, z := float64(cases), stats.InvCDF(stats.StdNormal)((1+level)/2)
	s.Rate = float64(have) / n
	center := s.Rate + z*z/(2*n)
	reach := z * math.Sqrt(s.Rate*(1-s.Rate)/n+z*z/(4*n*n))
	scale := 1 + z*z/n
	if have > 0 {
		s.Low = max(0, (center-reach)/scale)
	}
	if have < cases {
		s.High = min(1, (center+reach)/scale)
	}
	return s
}

// A Difference is that of the rates of two shares of different cases, with its interval.
type Difference struct {
	Rate float64 // s.Rate - of.Rate
	Low  float64
	High float64
}

// Minus returns the difference of s and another share whose interval has the same level. The interval is the hybrid score
// interval (Newcombe, "Interval estimation for the difference between independent proportions: comparison of eleven
// methods", Statistics in Medicine 17, 1998, method 10). A share without cases makes it wide: it counts as a rate of 0
// that could be anything.
func (s Share) Minus(of Share) Difference {
	d := s.Rate - of.Rate
	return Difference{
		Rate: d,
		Low:  d - math.Hypot(s.Rate-s.Low, of.High-of.Rate),
		High: d + math.Hypot(s.High-s.Rate, of.Rate-of.Low),
	}
}
