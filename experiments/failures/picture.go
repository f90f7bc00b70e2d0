//go:build linux

package main

import (
	"bytes"
	"fmt"
	"html"
	"slices"
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
	var out bytes.Buffer
	fmt.Fprintf(&out,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12"><rect width="100%%" height="100%%" fill="#fff"/>`, width, height)
	fmt.Fprintf(&out, "<title>%s</title>\n", html.EscapeString(s.title))
	if s.chart == chartPorts {
		f.portLines(&out, s)
	} else {
		f.cpuBars(&out, s)
	}
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
			path += fmt.Sprintf("%s%.1f %.1f", map[bool]string{true: "M", false: "L"}[path == ""], x(float64(i)+0.5), y(min(n/most, 1)))
		}
		if path != "" {
			fmt.Fprintf(out, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", path, color)
		}
		fmt.Fprintf(out, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", width-right+8, top+16*place+4, color, html.EscapeString(v.name))
		place++
	}
}

// cpuBars are the database's CPU of each variant, user and system.
func (f *failure) cpuBars(out *bytes.Buffer, s *scenario) {
	place := 0
	for _, v := range append([]variant{{name: "base", title: "the failure"}}, s.cures...) {
		t := f.variant(v.name)
		if t == nil {
			continue
		}
		r := t.Runs[len(t.Runs)/2]
		at, scale := top+30+place*44, float64(width-left-right)
		user, system := r.Figures["db-user"]*scale, r.Figures["db-system"]*scale
		fmt.Fprintf(out, `<text x="%d" y="%d">%s: %.0f/s</text>`+"\n", left, at-4, html.EscapeString(v.name), r.GoodHz)
		fmt.Fprintf(out,
			`<rect x="%d" y="%d" width="%.1f" height="18" fill="#1f77b4"/><rect x="%.1f" y="%d" width="%.1f" height="18" fill="#ff7f0e"/>`+"\n", left, at, user, float64(left)+user, at, system)
		fmt.Fprintf(out, `<text x="%.1f" y="%d">%.1f %% user, %.1f %% system</text>`+"\n", float64(left)+user+system+6, at+14,
			100*r.Figures["db-user"], 100*r.Figures["db-system"])
		place++
	}
	fmt.Fprintf(out, `<text x="%d" y="%d">CPU of the database, of one core: blue user, orange system</text>`+"\n", left, top)
}
