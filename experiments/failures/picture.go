//go:build linux

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"slices"

	"spillway/internal/lab/sheet"
)

// Sizes of a picture.
const (
	width, height         = 720, 300
	left, right, top, low = 60, 190, 20, 40
)

// colors of lines and bars.
var colors = []string{"#c0392b", "#1f77b4", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#7f7f7f"}

// picture draws the chart of a failure.
func (f *failure) picture(s *scenario) []byte {
	var out, inner bytes.Buffer
	high := height
	if s.chart == chartPorts {
		f.portLines(&inner, s)
	} else {
		high = f.bars(&inner, s)
	}
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+
		`<rect width="100%%" height="100%%" fill="#fff"/>`+"\n<title>%s</title>\n", width, high, html.EscapeString(s.title))
	out.Write(inner.Bytes())
	out.WriteString("</svg>\n")
	return out.Bytes()
}

// portLines are the ports in use in each second, and the failing requests of the failure.
func (f *failure) portLines(out *bytes.Buffer, s *scenario) {
	base := f.variant("base").Runs[0]
	most, failed := base.Figures["range"]*1.1, float64(slices.Max(append(base.Failed, 1)))
	seconds := len(base.Failed)
	x := func(second float64) float64 { return left + second/float64(seconds)*(width-left-right) }
	y := func(part float64) float64 { return height - low - part*(height-top-low) }
	for i, n := range base.Failed {
		fmt.Fprintf(out, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#f2c6c1"/>`+"\n", x(float64(i))+2,
			y(float64(n)/failed*0.8), x(1)-x(0)-4, y(0)-y(float64(n)/failed*0.8))
	}
	fmt.Fprintf(out, `<text x="%d" y="%d" fill="#c0392b">bars: failing requests/s, up to %.0f</text>`+"\n", left+6, top+2, failed)
	for i := range seconds + 1 {
		fmt.Fprintf(out, `<text x="%.1f" y="%d" text-anchor="middle">%d</text>`, x(float64(i)), height-low+16, i)
	}
	fmt.Fprintf(out,
		`<text x="%d" y="%d">seconds</text><text x="8" y="%.1f">%.0f</text><text x="8" y="%.1f">ports</text><text x="8" y="%.1f">0</text>`+"\n",
		left, height-6, y(1/1.1)+4, base.Figures["range"], y(0.5), y(0))
	fmt.Fprintf(out, `<path d="M%d %.1fH%d" stroke="#999" stroke-dasharray="4 3"/>`+"\n", left, y(1/1.1), width-right)
	place := 0
	for _, v := range append([]variant{{name: "base", title: "the failure"}}, s.cures...) {
		t := f.variant(v.name)
		if t == nil {
			continue
		}
		color := colors[place%len(colors)]
		path := ""
		for i, n := range t.Runs[0].Ports {
			if n == 0 { // not counted in this second
				continue
			}
			path += fmt.Sprintf("%s%.1f %.1f", map[bool]string{true: "M", false: "L"}[path == ""], x(float64(i)+0.5), y(min(n/most, 1)))
		}
		if path != "" {
			fmt.Fprintf(out, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", path, color)
		}
		fmt.Fprintf(out, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", width-right+8, top+16*place+4, color, html.EscapeString(v.name))
		place++
	}
}

// A bar is a variant's figure, in parts.
type bar struct {
	label, note string
	parts       []float64
}

// barOf is what a kind of chart shows of a variant.
func (t *tried) barOf(kind, name string) bar {
	r := t.Runs[len(t.Runs)/2]
	good := t.middle(goodRate)
	switch kind {
	case chartCPU:
		user, system := r.Figures["db-user"], r.Figures["db-system"]
		return bar{
			fmt.Sprintf("%s: %s", name, sheet.Rate(good)), fmt.Sprintf("%.1f %% user, %.1f %% system", 100*user, 100*system),
			[]float64{user, system},
		}
	case chartTime:
		p99 := t.middle(slowest)
		return bar{name, sheet.Duration(p99), []float64{p99}}
	}
	note := sheet.Rate(good)
	if share := t.middle(errorShare); share > 0.01 {
		note += ", " + sheet.Share(share) + " errors"
	}
	return bar{name, note, []float64{good}}
}

// bars draws a bar for each variant and returns the height of the picture.
func (f *failure) bars(out *bytes.Buffer, s *scenario) int {
	legend := map[string]string{
		chartCPU: "CPU of the database, of one core: blue user, orange system", chartTime: "99th percentile of the response time",
		chartRate: "good answers per second",
	}
	var all []bar
	most := 1e-9
	for _, v := range append([]variant{{name: "base", title: "the failure"}}, s.cures...) {
		if t := f.variant(v.name); t != nil {
			one := t.barOf(s.chart, cmp.Or(map[string]string{"base": "the failure"}[v.name], v.name))
			all = append(all, one)
			sum := 0.0
			for _, part := range one.parts {
				sum += part
			}
			most = max(most, sum)
		}
	}
	fmt.Fprintf(out, `<text x="%d" y="%d">%s</text>`+"\n", left, top, legend[s.chart])
	for i, one := range all {
		at, x := top+30+i*44, float64(left)
		fmt.Fprintf(out, `<text x="%d" y="%d">%s</text>`+"\n", left, at-4, html.EscapeString(one.label))
		for j, part := range one.parts {
			wide := part / most * (width - left - right)
			fmt.Fprintf(out, `<rect x="%.1f" y="%d" width="%.1f" height="18" fill="%s"/>`, x, at, wide, []string{"#1f77b4", "#ff7f0e"}[j])
			x += wide
		}
		fmt.Fprintf(out, `<text x="%.1f" y="%d">%s</text>`+"\n", x+6, at+14, html.EscapeString(one.note))
	}
	return top + 30 + len(all)*44
}
