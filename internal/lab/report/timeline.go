package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// A bin is one or several seconds of a step, one column of the timeline.
type bin struct {
	start, length float64 // seconds since the start of the run
	step          *step
	result.Counters
	inFlight, connections int64 // at most
	cpu                   float64
	response              *histogram.Histogram
}

// A timeline is the bins of each run, all of the same width.
type timeline struct {
	runs  []run
	bins  [][]bin // by run
	width float64 // seconds in a bin
	end   float64 // of the last bin
}

// newTimeline groups the seconds of the runs so that there are at most so many columns. Histograms of a bin are added,
// so a bin's p99 is that of its requests, and its max is that of its slowest.
func newTimeline(runs []run, columns int) (*timeline, error) {
	t := &timeline{runs: runs}
	for i := range runs {
		for k := range runs[i].steps {
			s := &runs[i].steps[k]
			if n := len(s.Slices); n > 0 {
				t.end = max(t.end, s.Start+float64(s.Slices[n-1].Second)+s.Slices[n-1].Length)
			}
		}
	}
	for i := range runs {
		if runs[i].usage != nil {
			t.end = max(t.end, runs[i].usage.To)
		}
	}
	t.width = binWidth(t.end, columns)
	for i := range runs {
		var bins []bin
		for k := range runs[i].steps {
			more, err := binsOf(&runs[i].steps[k], t.width)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", runs[i].label, err)
			}
			bins = append(bins, more...)
		}
		t.bins = append(t.bins, bins)
	}
	return t, nil
}

// binWidth is the least round number of seconds that needs no more than so many bins.
func binWidth(end float64, columns int) float64 {
	for _, width := range []float64{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600} {
		if end/width <= float64(columns) {
			return width
		}
	}
	return math.Ceil(end / float64(columns))
}

func binsOf(s *step, width float64) ([]bin, error) {
	var bins []bin
	group := -1
	for sec, err := range s.seconds() {
		if err != nil {
			return nil, err
		}
		if g := sec.Second / int(width); g != group {
			group = g
			bins = append(bins, bin{start: sec.start, step: s, response: histogram.NewSlice()})
		}
		b := &bins[len(bins)-1]
		b.length += sec.Length
		b.Add(&sec.Counters)
		b.inFlight, b.connections = max(b.inFlight, sec.InFlight), max(b.connections, sec.Connections)
		b.cpu += sec.CPUUser + sec.CPUSystem
		b.response.Merge(sec.response)
	}
	return bins, nil
}

// perSecond is n spread over the bin.
func (b *bin) perSecond(n int64) float64 {
	if b.length == 0 {
		return 0
	}
	return float64(n) / b.length
}

// latency is a percentile in seconds, NaN where the bin does not carry it.
func (b *bin) latency(q float64) float64 {
	if !b.response.Carries(q) {
		return math.NaN()
	}
	return b.response.Quantile(q).Seconds()
}

// slowest is the longest response in seconds, NaN where there is none.
func (b *bin) slowest() float64 {
	if b.response.Count() == 0 {
		return math.NaN()
	}
	return b.response.Max().Seconds()
}

// line makes a series of one value per bin, broken between steps.
func (t *timeline) line(i int, name, class string, value func(*bin) float64) series {
	s := series{name: name, class: class}
	for k := range t.bins[i] {
		b := &t.bins[i][k]
		if k > 0 && t.bins[i][k-1].step != b.step {
			s.points = append(s.points, point{x: b.start, y: math.NaN()})
		}
		s.points = append(s.points, point{x: b.start + b.length/2, y: value(b)})
	}
	return s
}

// loaded says whether there is a second of load.
func (t *timeline) loaded() bool {
	return slices.ContainsFunc(t.bins, func(bins []bin) bool { return len(bins) > 0 })
}

// starts are the marks where the steps of the first run begin; none for a run of one step.
func (t *timeline) starts() []mark {
	steps := t.runs[0].steps
	if len(steps) < 2 {
		return nil
	}
	var marks []mark
	for i := range steps {
		marks = append(marks, mark{steps[i].Start, steps[i].tag()})
	}
	return marks
}

// errors says whether any second had one.
func (t *timeline) errors() bool {
	return slices.ContainsFunc(t.bins, func(bins []bin) bool {
		return slices.ContainsFunc(bins, func(b bin) bool { return b.Errors.Total() > 0 })
	})
}

// hits tell about each bin, of all runs where there are several.
func (t *timeline) hits() []hit {
	texts := make(map[float64][]string)
	var at []float64
	for i := range t.bins {
		for k := range t.bins[i] {
			b := &t.bins[i][k]
			start := math.Floor(b.start/t.width) * t.width
			if _, seen := texts[start]; !seen {
				at = append(at, start)
			}
			texts[start] = append(texts[start], t.runs[i].prefix(len(t.runs))+b.tip())
		}
	}
	if c := t.cells(); c != nil {
		for i, text := range c.tips() {
			start := float64(i) * t.width
			if _, seen := texts[start]; !seen {
				at = append(at, start)
			}
			if text != "" {
				texts[start] = append(texts[start], text)
			}
		}
	}
	slices.Sort(at)
	var hits []hit
	for _, start := range at {
		hits = append(hits, hit{start, min(start+t.width, t.end), secondsLabel(start) + " · " + strings.Join(texts[start], "\n")})
	}
	return hits
}

func (b *bin) tip() string {
	tail := ""
	if v := b.latency(0.99); !math.IsNaN(v) {
		tail = "p99 " + seconds(v) + ", "
	}
	median := "-"
	if v := b.latency(0.5); !math.IsNaN(v) {
		median = seconds(v)
	}
	longest := "-"
	if v := b.slowest(); !math.IsNaN(v) {
		longest = seconds(v)
	}
	text := fmt.Sprintf("%s: due %s, answered %s · p50 %s, %smax %s · %d in flight on %s · own CPU %s cores",
		b.step.load(), rate(b.perSecond(b.Due)), rate(b.perSecond(b.Done)), median, tail, longest, b.inFlight, plural(b.connections, "connection"),
		significant(b.cpu/max(b.length, 1e-9)))
	if b.Errors.Total() > 0 {
		text += " · errors: " + b.Errors.String()
	}
	return text
}
