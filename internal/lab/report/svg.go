package report

import (
	"html"
	"html/template"
	"math"
	"strconv"
	"strings"
)

// An svg builds one picture. Every attribute and text is escaped here, so callers may pass anything.
type svg struct{ out strings.Builder }

func newSVG(width, height float64, description string) *svg {
	s := &svg{}
	s.open("svg", "viewBox", "0 0 "+px(width)+" "+px(height), "width", px(width), "height", px(height), "role", "img", "aria-label", description)
	return s
}

func (s *svg) done() template.HTML {
	s.close("svg")
	return template.HTML(s.out.String()) // every value went through escape
}

// open writes a start tag; attributes come as name, value, name, value.
func (s *svg) open(tag string, attributes ...string) { s.tag(tag, ">", attributes) }

// leaf writes an element without content.
func (s *svg) leaf(tag string, attributes ...string) { s.tag(tag, "/>", attributes) }

func (s *svg) close(tag string) { s.out.WriteString("</" + tag + ">") }

func (s *svg) tag(tag, end string, attributes []string) {
	s.out.WriteString("<" + tag)
	for i := 0; i+1 < len(attributes); i += 2 {
		s.out.WriteString(" " + attributes[i] + `="` + html.EscapeString(attributes[i+1]) + `"`)
	}
	s.out.WriteString(end)
}

func (s *svg) text(x, y float64, class, anchor, text string) {
	s.open("text", "x", px(x), "y", px(y), "class", class, "text-anchor", anchor)
	s.out.WriteString(html.EscapeString(text))
	s.close("text")
}

func (s *svg) line(x1, y1, x2, y2 float64, class string) {
	s.leaf("line", "x1", px(x1), "y1", px(y1), "x2", px(x2), "y2", px(y2), "class", class)
}

// hit is an invisible area that tells what is below it; the script shows the text at once and marks all areas of the
// same index in the figure, without it the browser shows the text after a moment.
func (s *svg) hit(x, y, width, height float64, index int, text string) {
	s.open("rect", "x", px(x), "y", px(y), "width", px(width), "height", px(height), "class", "hit", "data-i", strconv.Itoa(index))
	s.open("title")
	s.out.WriteString(html.EscapeString(text))
	s.close("title")
	s.close("rect")
}

// px writes a coordinate with one decimal.
func px(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "0"
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
}

// A xy is a point in pixels; a NaN y is a gap.
type xy struct{ x, y float64 }

func gap() xy { return xy{y: math.NaN()} }

// pathOf joins the points with straight lines, lifting the pen at gaps. A point alone between gaps becomes a short dash.
func pathOf(points []xy) string {
	var d strings.Builder
	down := false
	for i, p := range points {
		if math.IsNaN(p.y) {
			down = false
			continue
		}
		command := "L"
		if !down {
			command = "M"
		}
		d.WriteString(command + px(p.x) + " " + px(p.y))
		alone := !down && (i+1 == len(points) || math.IsNaN(points[i+1].y))
		if alone {
			d.WriteString("h1")
		}
		down = true
	}
	return d.String()
}
