package result

import (
	"maps"
	"math"
	"slices"
	"strings"
)

// fewest is how many samples a figure needs within its span.
const fewest = 2

// waitWAL counts sessions that are also in another wait.
const waitWAL = WaitPrefix + "wal"

// Waits are the names of the gauges of sessions by what they wait for, in alphabetical order. Each session is in one of
// them: wait_wal, whose sessions are in wait_io or wait_lwlock too, is left out.
func (t *Series) Waits() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(t.Values)) {
		if strings.HasPrefix(name, WaitPrefix) && !Counter(name) && name != waitWAL {
			names = append(names, name)
		}
	}
	return names
}

// grown is how much a counter grew.
func (s span) grown(name string) *float64 { return s.carried(name, s.track.Growth) }

func (s span) highest(name string) *float64 { return s.carried(name, s.track.Max) }

func (s span) lowest(name string) *float64 { return s.carried(name, s.track.Min) }

func (s span) mean(name string) *float64 { return s.carried(name, s.track.Mean) }

func (s span) last(name string) *float64 { return s.carried(name, s.track.Last) }

// carried is the figure where the span carries one.
func (s span) carried(name string, of func(string, float64, float64) float64) *float64 {
	if s.track.Count(name, s.from, s.to) < fewest {
		return nil
	}
	return figure(of(name, s.from, s.to))
}

// rate is a counter's growth a second.
func (s span) rate(name string) *float64 { return s.perSecond(s.grown(name)) }

func (s span) perSecond(v *float64) *float64 { return over(v, s.to-s.from) }

func (s span) perRequest(v *float64) *float64 { return over(v, s.answered) }

// figure is v where it is a number.
func figure(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// over is v divided, nil where that cannot be.
func over(v *float64, by float64) *float64 {
	if v == nil || !(by > 0) {
		return nil
	}
	return figure(*v / by)
}

// plus is the sum where both are known.
func plus(a, b *float64) *float64 {
	if a == nil || b == nil {
		return nil
	}
	return figure(*a + *b)
}

// less is the difference where both are known, at least 0.
func less(a, b *float64) *float64 {
	if a == nil || b == nil {
		return nil
	}
	return figure(max(0, *a-*b))
}
