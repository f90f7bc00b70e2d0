package report

import (
	"fmt"
	"math"
	"slices"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// Figures are the values read from the durations of requests or connections. A percentile is nil (null in JSON) if fewer
// than histogram.TailSamples durations lie beyond it.
type Figures struct {
	Count       int64       `json:"count"` // with requests that were not answered
	Mean        *float64    `json:"mean_seconds"`
	Min         *float64    `json:"min_seconds"`
	P50         *float64    `json:"p50_seconds"`
	P90         *float64    `json:"p90_seconds"`
	P95         *float64    `json:"p95_seconds"`
	P99         *float64    `json:"p99_seconds"`
	P999        *float64    `json:"p999_seconds"`
	P9999       *float64    `json:"p9999_seconds"`
	Max         *float64    `json:"max_seconds"`
	P50Interval *[2]float64 `json:"p50_interval_seconds"` // 95 % confidence interval by order statistics
	P99Interval *[2]float64 `json:"p99_interval_seconds"`
	// LowerBounds names the figures that are lower bounds, because they fall among requests without an answer: "p99",
	// "max"; "p99_interval" if the upper end of the interval is one.
	LowerBounds []string `json:"lower_bounds,omitempty"`
}

// Names of figures, in LowerBounds and in tables.
const (
	figureMean = "mean"
	figureP50  = "p50"
	figureP90  = "p90"
	figureP99  = "p99"
	figureP999 = "p999"
	figureMax  = "max"
)

// A percentile is a field of Figures.
type percentile struct {
	name string
	q    float64
	at   **float64
}

func (f *Figures) percentiles() []percentile {
	return []percentile{
		{figureP50, 0.5, &f.P50},
		{figureP90, 0.9, &f.P90},
		{"p95", 0.95, &f.P95},
		{figureP99, 0.99, &f.P99},
		{figureP999, 0.999, &f.P999},
		{"p9999", 0.9999, &f.P9999},
	}
}

func figuresOf(c histogram.Censored) Figures {
	f := Figures{Count: c.Count()}
	if f.Count == 0 {
		return f
	}
	mean, atLeast := c.Mean()
	f.Mean = f.note(figureMean, mean, atLeast)
	f.Min = new(shortest(c).Seconds())
	for _, p := range f.percentiles() {
		if c.Carries(p.q) {
			d, atLeast := c.Quantile(p.q)
			*p.at = f.note(p.name, d, atLeast)
		}
	}
	longest, atLeast := c.Max()
	f.Max = f.note(figureMax, longest, atLeast)
	f.P50Interval, f.P99Interval = f.interval(c, figureP50, 0.5), f.interval(c, figureP99, 0.99)
	return f
}

// shortest is the shortest answer, or without answers the shortest wait.
func shortest(c histogram.Censored) time.Duration {
	if c.Known.Count() == 0 {
		return c.Beyond.Min()
	}
	return c.Known.Min()
}

// note returns a duration in seconds, and remembers it if it is a lower bound.
func (f *Figures) note(name string, d time.Duration, atLeast bool) *float64 {
	if atLeast {
		f.LowerBounds = append(f.LowerBounds, name)
	}
	return new(d.Seconds())
}

func (f *Figures) interval(c histogram.Censored, name string, q float64) *[2]float64 {
	low, high, atLeast, ok := c.Interval(q)
	if !ok {
		return nil
	}
	if atLeast {
		f.LowerBounds = append(f.LowerBounds, name+"_interval")
	}
	return &[2]float64{low.Seconds(), high.Seconds()}
}

// value returns the figure of a name, nil if the sample is too small for it.
func (f *Figures) value(name string) *float64 {
	switch name {
	case figureMean:
		return f.Mean
	case figureMax:
		return f.Max
	}
	for _, p := range f.percentiles() {
		if p.name == name {
			return *p.at
		}
	}
	return nil
}

// point is the figure of a name in a chart, a gap if the sample is too small for it.
func (f *Figures) point(name string) point {
	v := f.value(name)
	if v == nil {
		return point{value: math.NaN()}
	}
	return point{*v, f.bounded(name)}
}

// bounded reports whether the figure of a name is only a lower bound.
func (f *Figures) bounded(name string) bool { return slices.Contains(f.LowerBounds, name) }

// text writes the figure of a name: "4.2 ms", ">= 2.00 s", or "-" if the sample is too small for it.
func (f *Figures) text(name string) string {
	v := f.value(name)
	if v != nil && f.bounded(name) {
		return sheet.AtLeast(*v, sheet.UnitSeconds)
	}
	return known(sheet.Duration, v)
}

// exact are durations that are all known.
func exact(h *histogram.Histogram) histogram.Censored {
	return histogram.Censored{Known: h, Beyond: histogram.NewSlice()}
}

// meanOf writes the mean of durations, "-" without any.
func meanOf(h *histogram.Histogram) string {
	if h.Count() == 0 {
		return "-"
	}
	return sheet.Duration(h.Mean().Seconds())
}

// Iterations are the iterations of a flow that ended in a step.
type Iterations struct {
	Completed  int64   `json:"completed"`
	Failed     int64   `json:"failed"`
	Unfinished int64   `json:"unfinished"` // in progress when the step ended
	Rate       float64 `json:"rate_hz"`    // completed per second
	Duration   Figures `json:"duration"`   // of completed ones, with think times
}

// iterationsOf returns the iterations of a step, nil without a flow.
func iterationsOf(t *result.Total) (*Iterations, error) {
	if t.Iterations == nil {
		return nil, nil
	}
	duration, err := histogram.Decode(string(t.Iterations.Duration))
	if err != nil {
		return nil, fmt.Errorf("duration of iterations: %w", err)
	}
	i := &Iterations{
		Completed: t.Iterations.Completed, Failed: t.Iterations.Failed, Unfinished: t.Iterations.Unfinished, Duration: figuresOf(exact(duration)),
	}
	if t.Elapsed > 0 {
		i.Rate = float64(i.Completed) / t.Elapsed
	}
	return i, nil
}

// text describes the iterations in one line.
func (i *Iterations) text() string {
	line := fmt.Sprintf("iterations of the flow: %s completed (%s), %s failed, %s in progress at the end",
		sheet.Integer(i.Completed), sheet.Rate(i.Rate), sheet.Integer(i.Failed), sheet.Integer(i.Unfinished))
	if i.Duration.Mean != nil {
		line += fmt.Sprintf("; mean duration %s, p50 %s, p99 %s", i.Duration.text(figureMean), i.Duration.text(figureP50),
			i.Duration.text(figureP99))
	}
	return line
}
