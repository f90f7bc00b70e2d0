package peak

import (
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/load"
	"spillway/internal/lab/result"
	"spillway/internal/progress"
)

// display shows a search: on a terminal one line with the interval that closes in, elsewhere one line per probe. It is a
// load.Display, is safe for concurrent use and ignores errors of the writer.
type display struct {
	out      io.Writer
	columns  func() int // of the terminal; nil: no terminal
	maxTime  time.Duration
	quantile float64 // shown while a probe runs; 0: the median
	now      func() time.Time
	flow     bool // rates count iterations

	mu       sync.Mutex
	began    time.Time
	number   int // of the current probe, from 1
	probe    Probe
	answer   Answer
	low, top float64            // of all rates so far
	response histogram.Censored // of the current probe
	errors   int64
}

func newDisplay(out io.Writer, maxTime time.Duration, quantile float64, flow bool) *display {
	d := &display{
		out: out, columns: progress.Terminal(out), maxTime: maxTime, quantile: quantile, now: time.Now, flow: flow,
		response: histogram.Censored{Known: histogram.NewSlice(), Beyond: histogram.NewSlice()},
	}
	if d.quantile == 0 {
		d.quantile = 0.5
	}
	return d
}

// begins is called before a probe begins.
func (d *display) begins(p Probe) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.began.IsZero() {
		d.began = d.now()
	}
	d.number++
	d.probe, d.errors = p, 0
	d.response.Known.Reset()
	d.response.Beyond.Reset()
	if p.Rate > 0 {
		d.top = max(d.top, p.Rate)
		if d.low == 0 || p.Rate < d.low {
			d.low = p.Rate
		}
	}
	d.draw("warm-up")
}

// observed is called when the search has taken the result of a probe.
func (d *display) observed(t *result.Total, o *Observation, answer Answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = answer
	if d.columns != nil && o.Validity == result.Valid {
		return
	}
	d.clear()
	fmt.Fprintf(d.out, "probe %d, %s: %s\n", d.number, d.what(), outcomeText(t, o, d.probe.Rate == 0))
	if bounds := boundsText(answer); d.columns == nil && d.probe.Rate > 0 && bounds != "" {
		fmt.Fprintf(d.out, "  %s\n", bounds)
	}
}

// Step implements load.Display.
func (d *display) Step(*result.Step) {}

// Second implements load.Display.
func (d *display) Second(s *load.Second) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.response.Known.Merge(s.Response)
	d.response.Beyond.Merge(s.Unanswered)
	d.errors += s.Slice.Errors.Total()
	if d.columns == nil {
		return
	}
	status := fmt.Sprintf("%s/s", count(float64(s.Slice.Completed)/max(s.Slice.Length, 1e-3)))
	if d.response.Carries(d.quantile) {
		q, atLeast := d.response.Quantile(d.quantile)
		sign := " "
		if atLeast {
			sign = " >="
		}
		status += fmt.Sprintf(", p%g%s%s", 100*d.quantile, sign, duration(q.Seconds()))
	}
	if d.errors > 0 {
		status += fmt.Sprintf(", %d errors", d.errors)
	}
	d.draw(fmt.Sprintf("%s, %s left", status, max(d.probe.Duration-s.Elapsed, 0).Round(time.Second)))
}

// Total implements load.Display.
func (d *display) Total(*result.Total) {}

// Message implements load.Display.
func (d *display) Message(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clear()
	fmt.Fprintln(d.out, text)
}

// End implements load.Display.
func (d *display) End() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clear()
}

// draw redraws the line of a terminal.
func (d *display) draw(status string) {
	if d.columns == nil {
		return
	}
	parts := []string{clock(d.now().Sub(d.began))}
	if d.maxTime > 0 {
		parts[0] += " of " + clock(d.maxTime)
	}
	if bar := bar(d.answer, d.low, d.top, barCells); bar != "" {
		parts = append(parts, bar)
	}
	parts = append(parts, fmt.Sprintf("%d %s: %s", d.number, d.what(), status))
	line := []rune(strings.Join(parts, "  "))
	if width := d.columns() - 1; len(line) > width {
		line = line[:max(width, 0)]
	}
	fmt.Fprintf(d.out, "\r%s\x1b[K", string(line))
}

func (d *display) clear() {
	if d.columns != nil {
		io.WriteString(d.out, progress.ClearLine)
	}
}

// what describes the current probe.
func (d *display) what() string {
	length := d.probe.Duration.Round(100 * time.Millisecond)
	if d.probe.Rate == 0 {
		return fmt.Sprintf("%s with %d connections for %s", d.probe.Purpose, d.probe.Connections, length)
	}
	return fmt.Sprintf("%s at %s for %s", d.probe.Purpose, loadText(d.probe.Rate, d.flow), length)
}

// clock writes a duration as 1:07.
func clock(d time.Duration) string {
	seconds := int(d.Seconds())
	return fmt.Sprintf("%d:%02d", seconds/60, seconds%60)
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
		left = rateText(a.Feasible)
	}
	if a.Infeasible > 0 {
		right = rateText(a.Infeasible)
	}
	return fmt.Sprintf("%s %s %s", left, text, right)
}
