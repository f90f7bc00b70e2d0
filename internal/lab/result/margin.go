package result

import (
	"fmt"
	"math"
	"time"

	"spillway/internal/histogram"
)

// A Margin is how far the figure of a criterion is from its limit, as the logarithm of their ratio.
type Margin struct {
	Criterion string  `json:"criterion"` // as typed, such as p99<70ms
	Log       float64 `json:"log"`       // ln(observed/limit), of a minimum such as rate>100 ln(limit/observed): negative: met
	Sigma     float64 `json:"sigma"`     // standard error of Log; 0: not known
	Met       bool    `json:"met"`
}

const (
	logMax     = 7 // bounds a Log, and is that of an error share of 0 and of every figure with a limit of 0
	logAtLeast = 1 // least Log of a figure that is only known to be longer than a bound
	// z95 is the normal quantile of a two-sided 95 % interval.
	z95 = 1.96
)

// Margins returns the margin of every criterion, in their order. The standard error of a percentile comes from the interval of
// its order statistics, which assumes that requests are independent; that of an error share is binomial. Without a failure, an
// error share is as far from its limit as can be.
func (s SLO) Margins(t *Total) ([]Margin, error) {
	var margins []Margin
	for i := range s.criteria {
		c := &s.criteria[i]
		m, err := c.margin(t)
		if err != nil {
			return nil, fmt.Errorf("judge %s: %w", c.text, err)
		}
		margins = append(margins, m)
	}
	return margins, nil
}

func (c *criterion) margin(t *Total) (Margin, error) {
	judged, err := c.judge(t)
	if err != nil {
		return Margin{}, err
	}
	m := Margin{Criterion: c.text, Met: judged.Met}
	part, err := t.label(c.label)
	if err != nil {
		return m, err
	}
	observed := judged.Observed
	switch c.figure {
	case figureErrors:
		m.Sigma = math.Sqrt((1 - observed) / (observed * float64(max(part.Requests(), 1))))
	case figureRate:
		m.Sigma = 1 / math.Sqrt(float64(max(part.Completed, 1)))
	default:
		times, err := part.Latency.Responses()
		if c.service {
			times, err = part.Latency.Services()
		}
		if err != nil {
			return m, err
		}
		m.Sigma = c.sigma(times)
	}
	m.Log = math.Log(observed / c.limit)
	if c.atLeast {
		m.Log = -m.Log
	}
	m.bound(c.limit == 0 || observed == 0, judged.AtLeast)
	return m, nil
}

// bound makes the sign of Log agree with Met. absolute: the figure or its limit is 0, and their ratio means nothing. atLeast: the
// figure is a lower bound.
func (m *Margin) bound(absolute, atLeast bool) {
	switch {
	case absolute || math.IsNaN(m.Log):
		m.Log, m.Sigma = logMax, 0
		if m.Met {
			m.Log = -logMax
		}
	case atLeast:
		m.Log, m.Sigma = min(max(m.Log, logAtLeast), logMax), 0
	case m.Met:
		m.Log = min(max(m.Log, -logMax), 0)
	default:
		m.Log = max(min(m.Log, logMax), math.SmallestNonzeroFloat64)
	}
}

// sigma is the standard error of the logarithm of a latency, 0 if it is not known.
func (c *criterion) sigma(times histogram.Censored) float64 {
	switch c.figure {
	case figureMean:
		n, mean := float64(times.Known.Count()), float64(times.Known.Mean())
		if n == 0 || mean == 0 {
			return 0
		}
		return float64(times.Known.StdDev()) / (mean * math.Sqrt(n))
	case figureMax:
		return 0
	}
	low, high, atLeast, ok := times.Interval(c.quantile)
	middle, _ := times.Quantile(c.quantile)
	log := func(d time.Duration) float64 { return math.Log(float64(max(d, histogram.Lowest))) }
	switch {
	case !ok:
		return 0
	case atLeast: // the upper end is not known
		return (log(middle) - log(low)) / z95
	}
	return (log(high) - log(low)) / (2 * z95)
}
