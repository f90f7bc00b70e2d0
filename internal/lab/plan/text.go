package plan

import (
	"fmt"
	"io"
	"math"
	"strings"

	"spillway/internal/lab/sheet"
)

// WriteJSON writes the plan as one JSON document.
func (p *Plan) WriteJSON(w io.Writer) error { return sheet.WriteJSON(w, p) }

// WriteText writes the plan for people.
func (p *Plan) WriteText(w io.Writer) error { return p.Sheet().WriteText(w) }

// Sheet is the plan for people.
func (p *Plan) Sheet() *sheet.Sheet {
	needs := sheet.Section{Title: "What it needs"}
	for i := range p.Lines {
		needs.Facts = append(needs.Facts, p.Lines[i].fact())
	}
	s := &sheet.Sheet{
		Title: fmt.Sprintf("Plan for %s with %s, %s headroom, %s connections", sheet.Rate(p.RateHz), p.SLO, sheet.Share(p.Headroom),
			p.Connections),
		Findings: p.grounds(),
		Sections: []sheet.Section{needs, p.breaksSection(), {Title: "Not measured", Lines: p.NotMeasured}},
	}
	if len(p.Notes) > 0 {
		s.Sections = append(s.Sections, sheet.Section{Lines: p.Notes})
	}
	return s
}

// grounds are the capacity of Settings.Hosts and the files that the plan rests on, as sentences.
func (p *Plan) grounds() []string {
	var lines []string
	if c := p.Capacity; c != nil {
		lines = append(lines, fmt.Sprintf("%s: up to %s%s; %s with %s headroom. Limit: %s.",
			sheet.Plural(c.Hosts, "host"), sheet.Rate(c.RateHz.Value), c.RateHz.bracketed(sheet.Rate),
			sheet.Rate(c.WithHeadroomHz), sheet.Share(p.Headroom), c.Binding))
	}
	for _, s := range p.Sources {
		lines = append(lines, fmt.Sprintf("From %s: %s of %s VALID, %s met the SLO", s.File, sheet.Integer(s.Valid),
			sheet.Plural(s.Steps, "step"), sheet.Integer(s.Met)))
	}
	return lines
}

// fact is the need with its interval, and what it rests on.
func (l *Line) fact() sheet.Fact {
	name := strings.ToUpper(l.Name[:1]) + l.Name[1:]
	if l.Subject != "" && !strings.HasSuffix(l.Name, " "+l.Subject) {
		name += " (" + l.Subject + ")"
	}
	f := sheet.Fact{
		Name: name, More: []string{l.Formula},
		Value: sheet.Text(rounded(l.Need.Value, l.Unit), l.Unit) +
			l.Need.bracketed(func(v float64) string { return sheet.Bare(rounded(v, l.Unit), l.Unit) }),
	}
	for _, figure := range l.Figures {
		f.More = append(f.More, figure.text())
	}
	if l.Note != "" {
		f.More = append(f.More, l.Note)
	}
	return f
}

// breaksShown is how far beyond the rate a break is shown, as a factor.
const breaksShown = 10

func (p *Plan) breaksSection() sheet.Section {
	section := sheet.Section{Title: "Breaks first as the load grows"}
	for i, b := range p.Breaks {
		if i > 0 && b.RateHz > breaksShown*p.RateHz {
			section.Note = "The others are beyond " + sheet.Rate(breaksShown*p.RateHz) + "."
			break
		}
		text := b.What + map[string]string{GroundSeen: " (more may be possible)", GroundAssumed: " (assumed)"}[b.Ground]
		if b.RateHz < p.RateHz*(1+p.Headroom)*(1-1e-9) {
			text += ": below the planned rate with its headroom"
		}
		section.Facts = append(section.Facts, sheet.Fact{Name: sheet.Rate(b.RateHz), Value: text, More: []string{"then: " + b.Next}})
	}
	return section
}

// bracketed writes the interval in brackets, "" if it is a point.
func (e Estimate) bracketed(write func(float64) string) string {
	if text := within(e.Low, e.High, write); text != "" {
		return " (" + text + ")"
	}
	return ""
}

// within writes an interval: "1.47 ms to 1.58 ms"; "" if both ends read alike.
func within(low, high float64, write func(float64) string) string {
	if write(low) == write(high) {
		return ""
	}
	return write(low) + " to " + write(high)
}

// text is a figure with its place: "CPU per request of app: 1.52 ms (1.47 ms to 1.58 ms in 3 steps; run.ndjson, 1000/s)".
func (f *Figure) text() string {
	write := func(v float64) string { return sheet.Bare(v, f.Unit) }
	value := write(f.Value)
	if f.AtMost {
		value = sheet.AtMost(f.Value, f.Unit)
	}
	place := f.File + ", " + f.Step
	if spread := within(f.Low, f.High, write); spread != "" {
		if f.Steps > 1 {
			spread += " in " + sheet.Plural(f.Steps, "step")
		}
		place = spread + "; " + place
	} else if f.Steps > 1 {
		place = sheet.Plural(f.Steps, "step") + "; " + place
	}
	return fmt.Sprintf("%s: %s (%s)", f.Name, value, place)
}

// rounded rounds a need up as far as its unit allows: nobody runs half of a host.
func rounded(v float64, unit string) float64 {
	switch unit {
	case sheet.UnitBytes, sheet.UnitBytesRate, sheet.UnitRate:
		return v
	case sheet.UnitCores, "threads":
		return roundUp(v)
	}
	return roundUp(math.Ceil(v - 1e-9))
}

// whole writes a need, rounded up to a whole number and to three digits.
func whole(v float64) string { return sheet.Number(roundUp(math.Ceil(v - 1e-9))) }

// roundUp rounds to three digits, for a need.
func roundUp(v float64) float64 {
	if !(v > 0) {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(v))-2)
	return math.Ceil(v/unit-1e-9) * unit
}
