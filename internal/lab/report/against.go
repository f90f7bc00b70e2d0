package report

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
	"spillway/internal/stats"
)

// A limit bounds the change of a figure against a base.
type limit struct {
	text   string
	label  string  // named request, "": all
	figure string  // "p99", "mean", "rate", "errors"
	q      float64 // of a percentile
	grows  bool    // the change must not be above max; otherwise not below -max
	max    float64 // a share of the base; of errors, a share of the requests
}

// parseLimits parses limits on changes, separated by commas or blanks:
//
//	p99>+10%   p99.9>+0.2%   mean>+5%   of the base
//	rate<-5%                            of the base
//	errors>+1%pt                        percentage points of all requests
//	p99{login}>+10%                     of the requests with that name
func parseLimits(text string) ([]limit, error) {
	var limits []limit
	inName := false
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool {
		inName = r == '{' || inName && r != '}'
		return !inName && (r == ',' || r == ' ' || r == '\t' || r == '\n')
	}) {
		l, err := parseLimit(word)
		if err != nil {
			return nil, fmt.Errorf("--fail-if %q: %w", word, err)
		}
		limits = append(limits, l)
	}
	return limits, nil
}

// withErrors adds a limit on the errors of all requests to others: a target that fails at once is fast.
func withErrors(limits []limit) []limit {
	if len(limits) == 0 || slices.ContainsFunc(limits, func(l limit) bool { return l.figure == "errors" && l.label == "" }) {
		return limits
	}
	return append(limits, limit{text: "errors>+1%pt, the default", figure: "errors", grows: true, max: result.ErrorShareMax})
}

func parseLimit(word string) (limit, error) {
	l := limit{text: word}
	at := strings.LastIndexAny(word, "<>")
	if at < 0 {
		return l, errors.New("write a figure and its change, as in p99>+10%, rate<-5% or errors>+1%pt")
	}
	l.figure, l.grows = word[:at], word[at] == '>'
	if inner, ok := strings.CutSuffix(l.figure, "}"); ok {
		l.figure, l.label, ok = strings.Cut(inner, "{")
		if !ok || l.label == "" {
			return l, errors.New("write the name of a request in braces, as in p99{login}>+10%")
		}
	}
	if err := l.parseFigure(); err != nil {
		return l, err
	}
	sign, unit := "-", "%"
	if l.grows {
		sign = "+"
	}
	if l.figure == "errors" {
		unit = "%pt"
	}
	number, signed := strings.CutPrefix(word[at+1:], sign)
	number, percent := strings.CutSuffix(number, unit)
	v, err := strconv.ParseFloat(number, 64)
	if !signed || !percent || err != nil || !(v >= 0) || math.IsInf(v, 0) {
		return l, fmt.Errorf("write the change as %s10%s", sign, unit)
	}
	l.max = v / 100
	return l, nil
}

// parseFigure checks the figure and the direction in which it gets worse.
func (l *limit) parseFigure() error {
	worseIfLower := l.figure == "rate"
	switch l.figure {
	case "rate", "mean":
		if l.label != "" {
			return errors.New("a named request has no figures by second, which the interval needs; use p50 to p99.99 or errors")
		}
	case "errors":
	default:
		digits, isPercentile := strings.CutPrefix(l.figure, "p")
		percent, err := strconv.ParseFloat(digits, 64)
		if !isPercentile || err != nil || !(percent >= 10 && percent < 100) {
			return errors.New("unknown figure; use p50 to p99.99, mean, rate or errors")
		}
		l.q = percent / 100
	}
	if l.grows == worseIfLower {
		return errors.New("wrong direction; use < for rate and > for all others")
	}
	return nil
}

// A reading is a figure of a step with its 95 % interval.
type reading struct {
	value, low, high float64
	atLeast          bool   // value is a lower bound
	missing          string // why there is no figure
}

const level95 = 0.95

// read reads the figure that the limit bounds.
func (l *limit) read(s *step) (reading, error) {
	if l.label != "" {
		i := slices.IndexFunc(s.labels, func(part *step) bool { return part.request == l.label })
		if i < 0 {
			return reading{missing: fmt.Sprintf("no request has the name %q", l.label)}, nil
		}
		s = s.labels[i]
	}
	switch l.figure {
	case "errors":
		e := stats.NewShare(uint64(s.Total.Errors.Total()), uint64(s.Total.Requests()), level95)
		return reading{value: e.Rate, low: e.Low, high: e.High}, nil
	case "rate":
		return readSeconds(s, s.Total.Rate(), func(sec *second) float64 { return float64(sec.Completed) / sec.Length })
	case "mean":
		mean, atLeast := s.response.Mean()
		r, err := readSeconds(s, mean.Seconds(), func(sec *second) float64 {
			mean, _ := sec.response.Mean()
			return mean.Seconds()
		})
		r.atLeast = atLeast
		return r, err
	}
	low, high, highAtLeast, ok := s.response.Interval(l.q)
	if !ok || !s.response.Carries(l.q) {
		return reading{missing: fmt.Sprintf("%s requests are too few for %s", sheet.Integer(s.response.Count()), l.figure)}, nil
	}
	value, atLeast := s.response.Quantile(l.q)
	r := reading{value: value.Seconds(), low: low.Seconds(), high: high.Seconds(), atLeast: atLeast}
	if highAtLeast {
		r.high = math.Inf(1)
	}
	return r, nil
}

// readSeconds returns a figure of the step with an interval from the figures of its seconds.
func readSeconds(s *step, value float64, of func(*second) float64) (reading, error) {
	var each []float64
	for sec, err := range s.seconds() {
		if err != nil {
			return reading{}, err
		}
		if sec.Length >= 0.9 && sec.Requests() > 0 { // a short last second says little
			each = append(each, of(sec))
		}
	}
	if len(each) < 2 {
		return reading{missing: "the step is too short for an interval"}, nil
	}
	mean, low, high := stats.MeanInterval(each, level95)
	return reading{value: value, low: value + low - mean, high: value + high - mean}, nil
}

// A change is a figure of a step against the same step of the base.
type change struct {
	*limit
	step      string
	base, now reading
	verdict   changeVerdict
}

type changeVerdict string

const (
	withinLimit   changeVerdict = "within the limit"
	withinNoise   changeVerdict = "above the limit, but the intervals overlap"
	aboveLimit    changeVerdict = "FAILED"
	notComparable changeVerdict = "not comparable"
	onlyShown     changeVerdict = "-"
)

// judge compares a figure. A change fails only if it exceeds the limit and the intervals do not overlap. A figure that
// falls among requests without an answer is worse than any known one; two of them cannot be compared.
func (c *change) judge() {
	worse := c.size()
	if c.figure == "rate" {
		worse = -worse
	}
	apart := c.now.low > c.base.high
	if c.figure == "rate" {
		apart = c.now.high < c.base.low
	}
	switch {
	case c.base.missing != "" || c.now.missing != "" || c.base.atLeast && c.now.atLeast || math.IsNaN(worse):
		c.verdict = notComparable
	case c.now.atLeast:
		c.verdict = aboveLimit
	case c.base.atLeast || worse <= c.max:
		c.verdict = withinLimit
	case apart:
		c.verdict = aboveLimit
	default:
		c.verdict = withinNoise
	}
}

// size is the change as a share of the base, of errors in shares of the requests; NaN if the base is 0.
func (c *change) size() float64 {
	switch {
	case c.figure == "errors":
		return c.now.value - c.base.value
	case c.base.value == 0:
		return math.NaN()
	}
	return c.now.value/c.base.value - 1
}

// A comparison is a run against a base, step by step.
type comparison struct {
	base, now *run
	changes   []change // of each step in both runs, those with a limit first
	alone     []string // steps that only one of the runs has
	invalid   []string // compared steps that are not valid measurements
	judged    bool     // there are limits
}

// shownFigures are compared without a limit too.
func shownFigures() []limit {
	return []limit{
		{figure: "rate"},
		{figure: figureP50, q: 0.5, grows: true},
		{figure: figureP99, q: 0.99, grows: true},
		{figure: "mean", grows: true},
		{figure: "errors", grows: true},
	}
}

// compare compares the steps that have the same name in both runs.
func compare(base, now *run, limits []limit) (*comparison, error) {
	c := &comparison{base: base, now: now, judged: len(limits) > 0}
	figures := slices.Clone(limits)
	for _, shown := range shownFigures() {
		if !slices.ContainsFunc(limits, func(l limit) bool { return l.figure == shown.figure && l.label == "" }) {
			figures = append(figures, shown)
		}
	}
	keys, baseKeys := now.stepKeys(), base.stepKeys()
	for i, s := range now.steps {
		same := slices.Index(baseKeys, keys[i])
		if same < 0 {
			c.alone = append(c.alone, s.Title()+" is not in "+base.label)
			continue
		}
		b := base.steps[same]
		for of, one := range map[*run]*step{base: b, now: s} {
			if !one.valid() {
				c.invalid = append(c.invalid, fmt.Sprintf("%s of %s is %s", one.Title(), of.label, one.validity()))
			}
		}
		for k := range figures {
			one := change{limit: &figures[k], step: s.Title()}
			var err error
			if one.base, err = one.read(b); err == nil {
				one.now, err = one.read(s)
			}
			if err != nil {
				return nil, err
			}
			one.judge()
			if k >= len(limits) && one.verdict != notComparable {
				one.verdict = onlyShown
			}
			c.changes = append(c.changes, one)
		}
	}
	for _, of := range []*run{base, now} {
		if reason := of.endedEarly(); reason != "" {
			c.invalid = append(c.invalid, of.label+" "+reason)
		}
	}
	slices.Sort(c.invalid)
	for i, s := range base.steps {
		if !slices.Contains(keys, baseKeys[i]) {
			c.alone = append(c.alone, s.Title()+" is not in "+now.label)
		}
	}
	return c, nil
}

// A stepKey tells the steps of a run apart: its title, and how many steps before it have the same.
type stepKey struct {
	title  string
	before int
}

func (r *run) stepKeys() []stepKey {
	keys, seen := make([]stepKey, len(r.steps)), map[string]int{}
	for i, s := range r.steps {
		title := s.Title()
		keys[i] = stepKey{title, seen[title]}
		seen[title]++
	}
	return keys
}

// with returns the changes that have a limit and one of the verdicts.
func (c *comparison) with(verdicts ...changeVerdict) []*change {
	var found []*change
	for i := range c.changes {
		if one := &c.changes[i]; one.text != "" && slices.Contains(verdicts, one.verdict) {
			found = append(found, one)
		}
	}
	return found
}
