package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
)

// WriteJSON writes the plan as one JSON document.
func (p *Plan) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(p); err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	return nil
}

// WriteText writes the plan for people.
func (p *Plan) WriteText(w io.Writer) error {
	var out bytes.Buffer
	line := func(indent int, format string, args ...any) {
		fmt.Fprintf(&out, "%s%s\n", strings.Repeat(" ", indent), printable(fmt.Sprintf(format, args...)))
	}
	line(0, "%s", p.title())
	for _, text := range p.grounds() {
		line(0, "%s", text)
	}
	out.WriteString("\n")
	for i := range p.Lines {
		l := &p.Lines[i]
		line(0, "%s: %s", l.title(), l.need())
		line(4, "%s", l.Formula)
		for _, f := range l.Figures {
			line(4, "%s", f.text())
		}
		if l.Note != "" {
			line(4, "%s", l.Note)
		}
	}
	p.writeBreaks(line)
	out.WriteString("\nNot measured\n")
	for _, text := range p.NotMeasured {
		line(2, "- %s", text)
	}
	for _, text := range p.Notes {
		line(0, "%s", text)
	}
	if _, err := out.WriteTo(w); err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	return nil
}

// title says what the plan is for.
func (p *Plan) title() string {
	return fmt.Sprintf("Plan for %s with %s, %s headroom, %s connections", rate(p.RateHz), p.SLO, share(p.Headroom), p.Connections)
}

// grounds are the capacity of Settings.Hosts and the files that the plan rests on, as sentences.
func (p *Plan) grounds() []string {
	var lines []string
	if c := p.Capacity; c != nil {
		lines = append(lines, fmt.Sprintf("%s: up to %s%s; %s with %s headroom. Limit: %s.",
			capitalized(plural(float64(c.Hosts), "host")), rate(c.RateHz.Value), c.RateHz.bracketed(rate),
			rate(c.WithHeadroomHz), share(p.Headroom), c.Binding))
	}
	for _, s := range p.Sources {
		lines = append(lines, fmt.Sprintf("From %s: %d of %s VALID, %d met the SLO", s.File, s.Valid, plural(float64(s.Steps), "step"), s.Met))
	}
	return lines
}

// title is the name of a need with what it is of.
func (l *Line) title() string {
	name := capitalized(l.Name)
	if l.Subject != "" && !strings.HasSuffix(l.Name, " "+l.Subject) {
		name += " (" + l.Subject + ")"
	}
	return name
}

// need is the need with its interval.
func (l *Line) need() string {
	return inUnit(rounded(l.Need.Value, l.Unit), l.Unit) + l.Need.bracketed(func(v float64) string { return bare(rounded(v, l.Unit), l.Unit) })
}

// breaksShown is how far beyond the rate a break is shown, as a factor.
const breaksShown = 10

func (p *Plan) writeBreaks(line func(indent int, format string, args ...any)) {
	line(0, "")
	line(0, "Breaks first as the load grows")
	for i, b := range p.Breaks {
		if i > 0 && b.RateHz > breaksShown*p.RateHz {
			line(2, "The others are beyond %s.", rate(breaksShown*p.RateHz))
			break
		}
		line(2, "%d. %s  %s", i+1, rate(b.RateHz), p.breakText(&b))
		line(5, "then: %s", b.Next)
	}
}

// breakText says what is used up, and whether the plan needs more.
func (p *Plan) breakText(b *Break) string {
	text := b.What + groundText(b.Ground)
	if b.RateHz < p.RateHz*(1+p.Headroom)*(1-1e-9) {
		text += ": below the planned rate with its headroom"
	}
	return text
}

// bracketed writes the interval in brackets, "" if it is a point.
func (e Estimate) bracketed(write func(float64) string) string {
	if text := within(e.Low, e.High, write); text != "" {
		return " (" + text + ")"
	}
	return ""
}

// text is a figure with its place: "CPU per request of app: 1.52 ms (1.47 ms to 1.58 ms in 3 steps; run.ndjson, 1000/s)".
func (f *Figure) text() string {
	write := func(v float64) string { return bare(v, f.Unit) }
	bound := ""
	if f.AtMost {
		bound = "< "
	}
	place := f.File + ", " + f.Step
	if spread := within(f.Low, f.High, write); spread != "" {
		place = spread + "; " + place
		if f.Steps > 1 {
			place = fmt.Sprintf("%s in %d steps; %s, %s", spread, f.Steps, f.File, f.Step)
		}
	} else if f.Steps > 1 {
		place = fmt.Sprintf("%d steps; %s", f.Steps, place)
	}
	return fmt.Sprintf("%s: %s%s (%s)", f.Name, bound, write(f.Value), place)
}

// rounded rounds a need up as far as its unit allows: nobody runs half of a host.
func rounded(v float64, unit string) float64 {
	switch unit {
	case "bytes", "bytes per second", "per second":
		return v
	case "cores", "threads":
		return roundUp(v)
	}
	return roundUp(math.Ceil(v - 1e-9))
}

// bare writes a figure without the name of its unit, if the reader knows it.
func bare(v float64, unit string) string {
	switch unit {
	case "seconds":
		return seconds(v)
	case "share":
		return share(v)
	case "bytes":
		return size(v)
	case "bytes per second":
		return size(v) + "/s"
	case "per second":
		return rate(v)
	}
	return significant(v)
}

// inUnit writes a need with its unit.
func inUnit(v float64, unit string) string {
	switch unit {
	case "seconds", "share", "bytes", "bytes per second", "per second":
		return bare(v, unit)
	}
	return plural(v, strings.TrimSuffix(unit, "s"))
}

func groundText(ground string) string {
	switch ground {
	case GroundSeen:
		return " (more may be possible)"
	case GroundAssumed:
		return " (assumed)"
	}
	return ""
}

func capitalized(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// printable replaces control characters by spaces, because a result file may contain terminal escapes.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, text)
}
