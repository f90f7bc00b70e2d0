package report

import (
	"math"
	"strings"
)

// An area is a layer of a stack: what lies between two lines over the same places. A NaN in the upper is a gap.
type area struct {
	name, class  string
	lower, upper []point
}

// A layer is the values of an area before it is put upon the others; NaN where it has none.
type layer struct {
	name, class string
	values      []float64
}

// stack puts layers upon each other over places x. Where a layer has no value it is as thin as nothing; where none has
// one, there is a gap.
func stack(x []float64, layers []layer) []area {
	base := make([]float64, len(x))
	for i := range x {
		base[i] = math.NaN()
		for _, l := range layers {
			if !math.IsNaN(l.values[i]) {
				base[i] = 0
			}
		}
	}
	var areas []area
	for _, l := range layers {
		a := area{name: l.name, class: l.class}
		for i := range x {
			a.lower = append(a.lower, point{x: x[i], y: base[i]})
			if v := l.values[i]; v > 0 {
				base[i] += v
			}
			a.upper = append(a.upper, point{x: x[i], y: base[i]})
		}
		areas = append(areas, a)
	}
	return areas
}

// last is the index of the last place that is no gap, -1 without one.
func (a *area) last() int {
	for i := len(a.upper) - 1; i >= 0; i-- {
		if !math.IsNaN(a.upper[i].y) {
			return i
		}
	}
	return -1
}

func (p *plot) drawArea(s *svg, a *area) {
	lower, upper := p.pixels(a.lower), p.pixels(a.upper)
	var d strings.Builder
	for i := 0; i < len(upper); {
		if math.IsNaN(upper[i].y) {
			i++
			continue
		}
		end := i
		for end < len(upper) && !math.IsNaN(upper[end].y) {
			end++
		}
		closedPath(&d, upper[i:end], lower[i:end])
		i = end
	}
	s.leaf("path", "d", d.String(), "class", "area "+a.class)
}

// closedPath goes along the upper points and back along the lower.
func closedPath(d *strings.Builder, upper, lower []xy) {
	command := "M"
	for _, p := range upper {
		d.WriteString(command + px(p.x) + " " + px(p.y))
		command = "L"
	}
	for i := len(lower) - 1; i >= 0; i-- {
		d.WriteString("L" + px(lower[i].x) + " " + px(lower[i].y))
	}
	d.WriteString("Z")
}
