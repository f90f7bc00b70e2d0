package report

import (
	"fmt"
	"math"
	"strings"

	"spillway/internal/lab/result"
)

// cells divide the time axis for what was watched, so that layers can be put upon each other.
type cells struct {
	run   *run
	width float64
	end   float64
	x     []float64 // the middle of each cell
}

// cells are those of a timeline of one run in which something was watched; nil otherwise.
func (t *timeline) cells() *cells {
	if len(t.runs) != 1 || len(t.runs[0].tracks) == 0 {
		return nil
	}
	c := &cells{run: &t.runs[0], width: t.width, end: t.end}
	for from := 0.0; from < t.end; from += t.width {
		c.x = append(c.x, (from+min(from+t.width, t.end))/2)
	}
	return c
}

// of computes a value for each cell.
func (c *cells) of(value func(from, to float64) float64) []float64 {
	values := make([]float64, len(c.x))
	for i := range c.x {
		from := float64(i) * c.width
		values[i] = value(from, min(from+c.width, c.end))
	}
	return values
}

// rate is a counter's growth a second.
func (c *cells) rate(t *result.Track, name string) []float64 {
	return c.of(func(from, to float64) float64 { return t.Grown(name, from, to) / (to - from) })
}

// longestGap is the longest time between two samples over which a gauge is drawn as a line.
const longestGap = 3.5

// highest is a gauge at its highest; where a cell has no sample, it is on the line between its neighbours.
func (c *cells) highest(t *result.Track, name string) []float64 { return c.gauge(t, name, t.Highest) }

// mean is a gauge's mean in each cell.
func (c *cells) mean(t *result.Track, name string) []float64 { return c.gauge(t, name, t.Mean) }

func (c *cells) gauge(t *result.Track, name string, of func(string, float64, float64) float64) []float64 {
	return c.of(func(from, to float64) float64 {
		if v := of(name, from, to); !math.IsNaN(v) {
			return v
		}
		return t.Between(name, (from+to)/2, longestGap)
	})
}

// line makes a series of values, one a cell.
func (c *cells) line(name, class string, values []float64) series {
	s := series{name: name, class: class}
	for i, v := range values {
		s.points = append(s.points, point{x: c.x[i], y: v})
	}
	return s
}

// tips say for each cell what was used.
func (c *cells) tips() []string {
	texts := make([]string, len(c.x))
	add := func(i int, format string, write func(float64) string, v float64) {
		if !math.IsNaN(v) {
			texts[i] += " · " + fmt.Sprintf(format, write(v))
		}
	}
	for _, t := range c.run.tracks {
		name := strings.ReplaceAll(c.run.on(t.Host, t.Subject), "%", "%%")
		for _, figure := range tipFigures(t) {
			values := c.highest(t, figure.value)
			if result.Counter(figure.value) {
				values = c.rate(t, figure.value)
			}
			for i, v := range values {
				add(i, strings.TrimSpace(name+" "+figure.name), figure.write, v)
			}
		}
	}
	for i := range texts {
		texts[i] = strings.TrimPrefix(texts[i], " · ")
	}
	return texts
}

// A tipFigure is what a hit tells of a track.
type tipFigure struct {
	name, value string // name with %s in the figure's place
	write       func(float64) string
}

func tipFigures(t *result.Track) []tipFigure {
	switch {
	case t.Sampler == result.SamplerProcess:
		return []tipFigure{{"user %s", "cpu_user_seconds_total", cores}, {"system %s", "cpu_system_seconds_total", cores}}
	case t.Sampler == result.SamplerTCP:
		return []tipFigure{
			{"TIME_WAIT %s", "time_wait", whole},
			{"%s ports", "ports_in_use", whole},
			{"%s/s opened", "active_opens_total", number},
		}
	case result.Database(t.Sampler):
		return []tipFigure{
			{"%s connections", "connections", whole},
			{"%s active", "connections_active", whole},
			{"%s commits/s", "commits_total", number},
			{"%s commands/s", "commands_total", number},
		}
	}
	return nil
}
