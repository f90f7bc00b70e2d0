package peak

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"spillway/internal/lab/load"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
	"spillway/internal/progress"
)

// display shows a search: on a terminal one line with the interval that closes in, elsewhere one line per probe.
type display struct {
	*load.Progress
	terminal bool
	maxTime  time.Duration
	now      func() time.Time
	flow     bool // rates count iterations

	began    time.Time
	number   int // of the current probe, from 1
	probe    Probe
	answer   Answer
	low, top float64 // of all rates so far
}

func newDisplay(out io.Writer, maxTime time.Duration, flow bool) *display {
	return &display{
		Progress: load.NewSearchProgress(out), terminal: progress.Terminal(out) != nil, maxTime: maxTime, now: time.Now, flow: flow,
	}
}

// begins is called before a probe begins.
func (d *display) begins(p Probe) {
	if d.began.IsZero() {
		d.began = d.now()
	}
	d.number++
	d.probe = p
	if p.Rate > 0 {
		d.top = max(d.top, p.Rate)
		if d.low == 0 || p.Rate < d.low {
			d.low = p.Rate
		}
	}
	parts := []string{sheet.Duration(d.now().Sub(d.began).Round(time.Second).Seconds())}
	if d.maxTime > 0 {
		parts[0] += " of " + sheet.Duration(d.maxTime.Seconds())
	}
	if bar := bar(d.answer, d.low, d.top, barCells); bar != "" {
		parts = append(parts, bar)
	}
	d.Lead(strings.Join(append(parts, fmt.Sprintf("%d %s:", d.number, d.what())), "  "))
}

// observed is called when the search has taken the result of a probe.
func (d *display) observed(t *result.Total, o *Observation, answer Answer) {
	d.answer = answer
	if d.terminal && o.Validity == result.Valid {
		return
	}
	text := fmt.Sprintf("probe %d, %s: %s", d.number, d.what(), outcomeText(t, o, d.probe.Rate == 0))
	if bounds := boundsText(answer); !d.terminal && d.probe.Rate > 0 && bounds != "" {
		text += "\n  " + bounds
	}
	d.Message(text)
}

// what describes the current probe.
func (d *display) what() string {
	length := sheet.Duration(d.probe.Duration.Seconds())
	if d.probe.Rate == 0 {
		return fmt.Sprintf("%s with %s for %s", d.probe.Purpose, sheet.Plural(d.probe.Connections, "connection"), length)
	}
	return fmt.Sprintf("%s at %s for %s", d.probe.Purpose, loadText(d.probe.Rate, d.flow), length)
}

// barCells is the width of the bar.
const barCells = 24

// bar draws the rates from low to top on a logarithmic scale with the bounds so far: what met the SLO, what is unknown, and what
// missed it. It is empty without a bound.
func bar(a Answer, low, top float64, cells int) string {
	if a.Feasible == 0 && a.Infeasible == 0 {
		return ""
	}
	cell := func(rate float64) int {
		if rate <= low || top <= low {
			return 0
		}
		return int(math.Round(float64(cells) * math.Log(rate/low) / math.Log(top/low)))
	}
	good, bad := 0, cells
	if a.Feasible > 0 {
		good = max(cell(a.Feasible), 1)
	}
	if a.Infeasible > 0 {
		bad = max(cell(a.Infeasible), good)
	}
	text := strings.Repeat("█", good) + strings.Repeat("▒", bad-good) + strings.Repeat("░", cells-bad)
	left, right := "none met", "none missed"
	if a.Feasible > 0 {
		left = sheet.Rate(a.Feasible)
	}
	if a.Infeasible > 0 {
		right = sheet.Rate(a.Infeasible)
	}
	return fmt.Sprintf("%s %s %s", left, text, right)
}
