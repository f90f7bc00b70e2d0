package result

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/internal/histogram"
)

// SLO is a list of criteria. A step has to meet all of them. It is safe for
// concurrent use.
type SLO struct {
	criteria []criterion
}

// Metrics of a Criterion. Latencies are named by histogram, figure and unit: "response_p99_seconds",
// "service_p999_seconds", "response_mean_seconds", "response_max_seconds".
const (
	MetricErrorShare = "error_share" // failed requests over all requests, 0 to 1
	MetricRate       = "rate_hz"     // good answers per second
)

// defaultErrors is the criterion of an SLO that has none on the errors of all
// requests: without it, a target that refuses at once would meet every latency.
const defaultErrors = "errors<=1%"

// sloFigure is the quantity that a criterion limits.
type sloFigure uint8

const (
	figureQuantile sloFigure = iota
	figureMean
	figureMax
	figureErrors
	figureRate
)

type criterion struct {
	text     string
	label    string // "": all requests
	figure   sloFigure
	metric   string
	service  bool // of the service time instead of the response time
	quantile float64
	atLeast  bool // > or >= instead of < or <=
	orEqual  bool
	limit    float64
	implied  bool // defaultErrors
}

// ParseSLO parses criteria separated by blanks, commas or "and":
//
//	p99<70ms   p99.9<=1s   mean<10ms   max<2s    of the response time
//	service.p99<50ms                             of the service time
//	errors<0.5%   errors<=0                      share of all requests
//	rate>=3000                                   good answers per second
//
//	p99{login}<50ms   errors{GET /list}<1%       of the requests with that name
//
// An SLO without a criterion on the errors of all requests gets "errors<=1%".
// Every step meets an empty SLO.
func ParseSLO(text string) (SLO, error) {
	slo, err := parseCriteria(text)
	if err != nil || len(slo.criteria) == 0 || slices.ContainsFunc(slo.criteria,
		func(c criterion) bool { return c.figure == figureErrors && c.label == "" }) {
		return slo, err
	}
	implied, err := parseCriterion(defaultErrors)
	implied.implied = true
	slo.criteria = append(slo.criteria, implied)
	return slo, err
}

func parseCriteria(text string) (SLO, error) {
	var slo SLO
	label := false // inside braces
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool {
		label = r == '{' || label && r != '}'
		return !label && (r == ' ' || r == ',' || r == '\t' || r == '\n')
	}) {
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
	at := strings.LastIndexAny(word, "<>")
	if at < 0 {
		return c, errors.New("write it without blanks, as in 'p99<70ms errors<0.5%'")
	}
	name, value := word[:at], word[at+1:]
	c.atLeast = word[at] == '>'
	value, c.orEqual = strings.CutPrefix(value, "=")
	if inner, ok := strings.CutSuffix(name, "}"); ok {
		name, c.label, ok = strings.Cut(inner, "{")
		if !ok || c.label == "" {
			return c, errors.New("write the name of a request in braces, as in p99{login}<50ms")
		}
	}
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
	if err != nil || !(c.limit >= 0) || math.IsInf(c.limit, 0) {
		return c, fmt.Errorf("%q is not a valid limit for %s; write 70ms, 0.5%% or 3000", value, name)
	}
	if c.limit == 0 && !c.atLeast && (c.figure != figureErrors || !c.orEqual) {
		return c, fmt.Errorf("no value of %s meets it; use a limit above 0, or errors<=0", name)
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
		c.figure, c.metric = figureErrors, MetricErrorShare
	case "rate":
		c.figure, c.metric = figureRate, MetricRate
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

// parseShare parses 0.5% or 0.005. It refuses 1, which may be meant as 1%.
func parseShare(value string) (float64, error) {
	digits, percent := strings.CutSuffix(value, "%")
	share, err := strconv.ParseFloat(digits, 64)
	if percent {
		share /= 100
	}
	if share > 1 || share == 1 && !percent {
		return 0, errors.New("a share must be at most 100%, or a fraction below 1")
	}
	return share, err
}

// A Percentile is one that an SLO limits.
type Percentile struct {
	Label string  // "": of all requests
	Q     float64 // 0 to 1
}

// Percentiles returns the percentiles that the SLO limits.
func (s SLO) Percentiles() []Percentile {
	var found []Percentile
	for _, c := range s.criteria {
		if p := (Percentile{c.label, c.quantile}); c.figure == figureQuantile && !slices.Contains(found, p) {
			found = append(found, p)
		}
	}
	return found
}

// An ErrorLimit is the largest share of errors that an SLO accepts.
type ErrorLimit struct {
	Criterion string  // as typed
	Label     string  // "": of all requests
	Share     float64 // 0 to 1
	Default   bool    // the SLO does not say it
}

// errorSamples is how many times the reciprocal of a limit on errors has to be requested to show at 95 % that it is met: with fewer
// requests, a share of errors as large as the limit often shows no error.
const errorSamples = 3

// Samples is the least number of requests that show that the limit is met. No number shows a limit of 0, which has none.
func (l ErrorLimit) Samples() int64 {
	if l.Share <= 0 {
		return 0
	}
	return int64(math.Ceil(errorSamples / l.Share))
}

// ErrorLimits returns the limits on errors, in the order of the SLO.
func (s SLO) ErrorLimits() []ErrorLimit {
	var found []ErrorLimit
	for _, c := range s.criteria {
		if c.figure == figureErrors {
			found = append(found, ErrorLimit{c.text, c.label, c.limit, c.implied})
		}
	}
	return found
}

// RequestsOf is the number of requests with that name, of all for "".
func (t *Total) RequestsOf(label string) int64 {
	part, err := t.label(label)
	if err != nil {
		return 0
	}
	return part.Requests()
}

// Labels returns the names of requests that the SLO mentions.
func (s SLO) Labels() []string {
	var found []string
	for _, c := range s.criteria {
		if c.label != "" && !slices.Contains(found, c.label) {
			found = append(found, c.label)
		}
	}
	return found
}

// Judge compares the figures of a step with the criteria. A lower bound never
// meets an upper limit. Without answers no limit on a latency is met, and without requests none on errors.
func (s SLO) Judge(t *Total) ([]Criterion, error) {
	var judged []Criterion
	for i := range s.criteria {
		c := &s.criteria[i]
		observed, err := c.judge(t)
		if err != nil {
			return nil, fmt.Errorf("judge %s: %w", c.text, err)
		}
		judged = append(judged, observed)
	}
	return judged, nil
}

func (c *criterion) judge(t *Total) (Criterion, error) {
	out := Criterion{Text: c.text, Metric: c.metric, Label: c.label, Limit: c.limit, Default: c.implied}
	part, err := t.label(c.label)
	if err != nil {
		return out, err
	}
	switch c.figure {
	case figureErrors:
		out.Observed = part.ErrorShare()
		out.Met = part.Requests() > 0 && c.meets(out.Observed)
		return out, nil
	case figureRate:
		if t.Elapsed > 0 {
			out.Observed = float64(part.Completed) / t.Elapsed
		}
		out.Met = c.meets(out.Observed)
		return out, nil
	}
	times, err := part.Latency.Responses()
	if c.service {
		times, err = part.Latency.Services()
	}
	if err != nil {
		return out, err
	}
	var d time.Duration
	d, out.AtLeast = c.observe(times)
	out.Observed = d.Seconds()
	out.Met = times.Known.Count() > 0 && !out.AtLeast && c.meets(out.Observed)
	return out, nil
}

// label returns the figures of the requests with that name, of all for "".
func (t *Total) label(name string) (*LabelTotal, error) {
	if name == "" {
		return &LabelTotal{Counters: t.Counters, Latency: t.Latency}, nil
	}
	for i := range t.Labels {
		if t.Labels[i].Name == name {
			return &t.Labels[i], nil
		}
	}
	return nil, fmt.Errorf("no request has the name %q", name)
}

func (c *criterion) observe(times histogram.Censored) (d time.Duration, atLeast bool) {
	switch c.figure {
	case figureMean:
		return times.Mean()
	case figureMax:
		return times.Max()
	}
	return times.Quantile(c.quantile)
}

func (c *criterion) meets(observed float64) bool {
	switch {
	case c.orEqual && observed == c.limit:
		return true
	case c.atLeast:
		return observed > c.limit
	}
	return observed < c.limit
}

// LimitsRate reports whether a criterion is a minimum of the rate.
func (s SLO) LimitsRate() bool {
	return slices.ContainsFunc(s.criteria, func(c criterion) bool { return c.figure == figureRate })
}
