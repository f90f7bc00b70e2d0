package report

import (
	"html/template"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// A plot is one pair of axes with what is drawn on them. Points are in values; the plot maps them to pixels.
type plot struct {
	description   string // read aloud
	width, height float64
	yTitle        string // above the axis
	xTitle        string // below the axis, "" for none
	x, y          axis
	areas         []area // below everything else, each upon the one before
	series        []series
	bars          []bar
	levels        []mark // horizontal lines across, an SLO
	starts        []mark // vertical lines, the begin of a step
	hits          []hit
	labelEnds     bool // name each series beside its last point
}

// An axis is a scale with its ticks and their writing.
type axis struct {
	scale
	ticks []float64
	write func(float64) string
}

// A series is a line. A point with a NaN y is a gap.
type series struct {
	name, class string
	points      []point
	dots        bool
}

// A point is a value; hollow marks one that is not a valid measurement.
type point struct {
	x, y   float64
	hollow bool
}

// A bar stands on the x axis from x to x+width.
type bar struct {
	x, width, y float64
	class       string
}

// A mark is a labelled line at a value.
type mark struct {
	at    float64
	label string
}

// A hit tells about the values from x0 to x1.
type hit struct {
	x0, x1 float64
	text   string
}

// Margins of a plot in pixels.
const (
	marginLeft   = 58
	marginTop    = 32
	marginBottom = 22
	marginTitle  = 18 // more at the bottom when the x axis has a title
	marginRight  = 14
	marginLabels = 84 // at the right when series are named at their ends
)

// inner gives the pixel bounds of the drawing area of a plot of this size.
func inner(width, height float64, labelEnds, xTitled bool) (left, right, top, bottom float64) {
	left, right, top, bottom = marginLeft, width-marginRight, marginTop, height-marginBottom
	if labelEnds {
		right = width - marginLabels
	}
	if xTitled {
		bottom -= marginTitle
	}
	return left, right, top, bottom
}

func (p *plot) draw() template.HTML {
	s := newSVG(p.width, p.height, p.description)
	p.drawAxes(s)
	for i := range p.areas {
		p.drawArea(s, &p.areas[i])
	}
	for _, b := range p.bars {
		x, y := p.x.at(b.x), p.y.at(b.y)
		s.leaf("rect", "x", px(x), "y", px(y), "width", px(max(1, p.x.at(b.x+b.width)-x-0.5)), "height", px(p.y.from-y), "class", "bar "+b.class)
	}
	for i := range p.series {
		p.drawSeries(s, &p.series[i])
	}
	for _, m := range p.levels {
		y := p.y.at(m.at)
		s.line(p.x.from, y, p.x.to, y, "slo")
		s.text(p.x.from+4, y-4, "slo-label", "start", m.label)
	}
	if p.labelEnds {
		p.drawEndLabels(s)
	}
	for i, h := range p.hits {
		x0, x1 := p.x.at(h.x0), p.x.at(h.x1)
		s.hit(x0, p.y.to, max(1, x1-x0), p.y.from-p.y.to, i, h.text)
	}
	return s.done()
}

func (p *plot) drawAxes(s *svg) {
	s.text(4, 14, "axis-title", "start", p.yTitle)
	for _, v := range p.y.ticks {
		y := p.y.at(v)
		s.line(p.x.from, y, p.x.to, y, "grid")
		s.text(p.x.from-6, y+4, "tick", "end", p.y.write(v))
	}
	s.line(p.x.from, p.y.from, p.x.to, p.y.from, "axis")
	free := math.Inf(-1) // where the last writing ended: what would overlap it is left out
	for _, v := range p.x.ticks {
		x, label := p.x.at(v), p.x.write(v)
		s.line(x, p.y.from, x, p.y.from+4, "axis")
		if half := textWidth(label) / 2; x-half > free {
			s.text(x, p.y.from+16, "tick", "middle", label)
			free = x + half + 4
		}
	}
	if p.xTitle != "" {
		s.text((p.x.from+p.x.to)/2, p.height-4, "axis-title", "middle", p.xTitle)
	}
	free = math.Inf(-1)
	for _, m := range p.starts {
		x := p.x.at(m.at)
		s.line(x, p.y.to, x, p.y.from, "start")
		if m.label != "" && x > free {
			s.text(x+1, p.y.to-4, "start-label", "start", m.label)
			free = x + textWidth(m.label) + 6
		}
	}
}

// textWidth is about how wide a label is drawn, in pixels.
func textWidth(text string) float64 { return 6.6 * float64(utf8.RuneCountInString(text)) }

func (p *plot) pixels(points []point) []xy {
	at := make([]xy, len(points))
	for i, pt := range points {
		at[i] = gap()
		if !math.IsNaN(pt.y) {
			at[i] = xy{p.x.at(pt.x), p.y.at(pt.y)}
		}
	}
	return at
}

func (p *plot) drawSeries(s *svg, line *series) {
	at := p.pixels(line.points)
	s.leaf("path", "d", pathOf(at), "class", "line "+line.class)
	if !line.dots {
		return
	}
	for i, a := range at {
		if math.IsNaN(a.y) {
			continue
		}
		class := "dot " + line.class
		if line.points[i].hollow {
			class += " hollow"
		}
		s.leaf("circle", "cx", px(a.x), "cy", px(a.y), "r", "3.5", "class", class)
	}
}

// labelHeight is the least distance between two labels at the right, in pixels.
const labelHeight = 13

// drawEndLabels names each series beside its last point, moved apart where they would overlap.
func (p *plot) drawEndLabels(s *svg) {
	type label struct {
		y           float64
		name, class string
	}
	var labels []label
	for i := range p.areas {
		if at := p.areas[i].last(); at >= 0 && p.areas[i].name != "" {
			labels = append(labels, label{p.y.at((p.areas[i].lower[at].y + p.areas[i].upper[at].y) / 2), p.areas[i].name, p.areas[i].class})
		}
	}
	for _, line := range p.series {
		at := p.pixels(line.points)
		for i := len(at) - 1; i >= 0; i-- {
			if !math.IsNaN(at[i].y) {
				labels = append(labels, label{at[i].y, line.name, line.class})
				break
			}
		}
	}
	slices.SortStableFunc(labels, func(a, b label) int { return int(math.Copysign(1, a.y-b.y)) })
	ys := make([]float64, len(labels))
	for i := range labels {
		ys[i] = labels[i].y
	}
	for i, y := range spread(ys, p.y.to, p.y.from, labelHeight) {
		s.text(p.x.to+6, y+4, "end "+labels[i].class, "start", labels[i].name)
	}
}

// spread moves ascending positions apart to at least distance, within low to high where they fit.
func spread(at []float64, low, high, distance float64) []float64 {
	out := slices.Clone(at)
	for i := range out {
		floor := low
		if i > 0 {
			floor = out[i-1] + distance
		}
		out[i] = max(out[i], floor)
	}
	for i := len(out) - 1; i >= 0; i-- {
		ceiling := high - float64(len(out)-1-i)*distance
		if i+1 < len(out) {
			ceiling = min(ceiling, out[i+1]-distance)
		}
		out[i] = min(out[i], ceiling)
	}
	return out
}

// secondsLabel writes an elapsed time on an axis: "45 s", "5 min", "2 h".
func secondsLabel(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 7200:
		return significant(v/3600) + " h"
	case v >= 180:
		return significant(v/60) + " min"
	}
	return strconv.FormatFloat(v, 'f', -1, 64) + " s"
}
