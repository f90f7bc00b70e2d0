package load

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// SLO is a list of criteria. A step has to meet all of them.
type SLO struct {
	criteria []criterion
}

// figure is the quantity that a criterion limits.
type figure uint8

const (
	figureQuantile figure = iota
	figureMean
	figureMax
	figureErrors
	figureRate
)

type criterion struct {
	text     string
	figure   figure
	metric   string
	service  bool // of the service time instead of the response time
	quantile float64
	atLeast  bool // > or >= instead of < or <=
	orEqual  bool
	limit    float64
}

// ParseSLO parses criteria separated by blanks, commas or "and":
//
//	p99<70ms   p99.9<=1s   mean<10ms   max<2s    of the response time
//	service.p99<50ms                             of the service time
//	errors<0.5%   errors<=0                      share of all requests
//	rate>=3000                                   good answers per second
//
// Every step meets an empty SLO.
func ParseSLO(text string) (SLO, error) {
	var slo SLO
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' || r == '\n' }) {
		if word == "and" {
			continue
		}
		c, err := parseCriterion(word)
		if err != nil {
			return SLO{}, fmt.Errorf("SLO %q: %w", word, err)
		}
		slo.criteria = append(slo.criteria, c)
	}
	return slo, nil
}

func parseCriterion(word string) (criterion, error) {
	c := criterion{text: word}
	at := strings.IndexAny(word, "<>")
	if at < 0 {
		return c, errors.New("write it without blanks, as in 'p99<70ms errors<0.5%'")
	}
	name, value := word[:at], word[at+1:]
	c.atLeast = word[at] == '>'
	value, c.orEqual = strings.CutPrefix(value, "=")
	var err error
	if err = c.parseFigure(name); err != nil {
		return c, err
	}
	switch c.figure {
	case figureErrors:
		c.limit, err = parseShare(value)
	case figureRate:
		c.limit, err = strconv.ParseFloat(strings.TrimSuffix(value, "/s"), 64)
	default:
		var d time.Duration
		d, err = time.ParseDuration(value)
		c.limit = d.Seconds()
	}
	if err != nil || !(c.limit >= 0) {
		return c, fmt.Errorf("%q is not a valid limit for %s; write 70ms, 0.5%% or 3000", value, name)
	}
	if c.atLeast != (c.figure == figureRate) {
		return c, fmt.Errorf("the limit on %s has the wrong direction; use > for rate and < for all others", name)
	}
	return c, nil
}

func (c *criterion) parseFigure(name string) error {
	histogram := "response"
	name, c.service = strings.CutPrefix(name, "service.")
	if c.service {
		histogram = "service"
	}
	switch name {
	case "errors":
		c.figure, c.metric = figureErrors, result.MetricErrorShare
	case "rate":
		c.figure, c.metric = figureRate, result.MetricRate
	case "mean":
		c.figure, c.metric = figureMean, histogram+"_mean_seconds"
	case "max":
		c.figure, c.metric = figureMax, histogram+"_max_seconds"
	default:
		digits, isPercentile := strings.CutPrefix(name, "p")
		percent, err := strconv.ParseFloat(digits, 64)
		if !isPercentile || err != nil || !(percent >= 10 && percent < 100) {
			return errors.New("unknown figure; use p50 to p99.999, mean, max, errors or rate")
		}
		c.figure, c.quantile = figureQuantile, percent/100
		c.metric = histogram + "_p" + strings.ReplaceAll(digits, ".", "") + "_seconds"
	}
	if c.service && (c.figure == figureErrors || c.figure == figureRate) {
		return errors.New("service. requires p50 to p99.999, mean or max")
	}
	return nil
}

// parseShare parses 0.5% or 0.005.
func parseShare(value string) (float64, error) {
	digits, percent := strings.CutSuffix(value, "%")
	share, err := strconv.ParseFloat(digits, 64)
	if percent {
		share /= 100
	}
	if share > 1 {
		return 0, errors.New("a share must be at most 100%")
	}
	return share, err
}

// carried returns the highest percentile of the SLO for which there are too few
// answers. ok is true if there is none.
func (s SLO) carried(answers int64) (worst float64, ok bool) {
	for _, c := range s.criteria {
		if c.figure == figureQuantile && !histogram.Carries(answers, c.quantile) {
			worst = max(worst, c.quantile)
		}
	}
	return worst, worst == 0
}

// judge compares the figures of a step with the criteria.
func (s SLO) judge(t *result.Total, l *latencies) []result.Criterion {
	var judged []result.Criterion
	for _, c := range s.criteria {
		observed := c.observe(t, l)
		judged = append(judged, result.Criterion{Text: c.text, Metric: c.metric, Limit: c.limit, Observed: observed, Met: c.meets(observed, l)})
	}
	return judged
}

func (c *criterion) observe(t *result.Total, l *latencies) float64 {
	h := l.response
	if c.service {
		h = l.service
	}
	switch c.figure {
	case figureQuantile:
		return h.Quantile(c.quantile).Seconds()
	case figureMean:
		return h.Mean().Seconds()
	case figureMax:
		return h.Max().Seconds()
	case figureErrors:
		return t.ErrorShare()
	}
	if t.Elapsed == 0 {
		return 0
	}
	return float64(t.Good()) / t.Elapsed
}

// meets compares. Without answers, no limit on latency is met.
func (c *criterion) meets(observed float64, l *latencies) bool {
	if l.response.Count() == 0 && c.figure != figureErrors && c.figure != figureRate {
		return false
	}
	switch {
	case c.orEqual && observed == c.limit:
		return true
	case c.atLeast:
		return observed > c.limit
	}
	return observed < c.limit
}
