package load

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
	"spillway/internal/progress"
)

// Progress shows a run: one line that changes on a terminal, plain lines
// elsewhere. It is safe for concurrent use and ignores errors of the writer.
type Progress struct {
	out      io.Writer
	columns  func() int // of the terminal; nil: no terminal
	interval int        // seconds between two lines
	steps    int
	unit     string // of the number that limits a step
	search   bool   // the caller announces and reports the steps

	mu       sync.Mutex
	lead     string        // begins the line of a terminal
	duration time.Duration // of the current step
	seconds  int           // since the last line
	counters result.Counters
	length   float64
	response histogram.Censored // since the last line
	all      histogram.Censored // of the current step
}

func newProgress(out io.Writer, interval time.Duration, steps int, flow bool) *Progress {
	p := &Progress{
		out: out, unit: "requests", columns: progress.Terminal(out), interval: int(interval / time.Second), steps: steps,
		response: newTimes(), all: newTimes(),
	}
	if flow {
		p.unit = "iterations"
	}
	if p.columns != nil {
		p.interval = 1
	}
	return p
}

// NewSearchProgress returns the Progress of a search, which announces each step with Lead
// and reports it with Message. Without a terminal, only messages are written.
func NewSearchProgress(out io.Writer) *Progress {
	p := newProgress(out, 0, 0, false)
	p.search = true
	return p
}

// Lead sets the beginning of the line of a terminal, and shows it.
func (p *Progress) Lead(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lead = text + "  "
	p.draw("")
}

// Step is called when a step begins.
func (p *Progress) Step(s *result.Step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.duration = time.Duration(s.Duration * float64(time.Second))
	p.reset()
	resetTimes(p.all)
	p.clear()
	length := sheet.Duration(s.Duration)
	if p.duration == 0 {
		length = sheet.Integer(s.Requests) + " " + p.unit
	}
	if !p.search && (p.steps > 1 || p.columns == nil) {
		fmt.Fprintf(p.out, "step %d of %d: %s, %s\n", s.Index+1, p.steps, s.Name, length)
	}
}

// Second is called when a second of a step has ended.
func (p *Progress) Second(s *Second) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counters.Add(&s.Slice.Counters)
	p.length += s.Slice.Length
	for _, times := range []histogram.Censored{p.response, p.all} {
		times.Known.Merge(s.Response)
		times.Beyond.Merge(s.Unanswered)
	}
	if p.seconds++; p.seconds < p.interval {
		return
	}
	line := p.line(s)
	p.draw(line)
	if p.columns == nil && !p.search {
		fmt.Fprintln(p.out, line)
	}
	p.reset()
}

// line describes the seconds since the last line.
func (p *Progress) line(s *Second) string {
	line := fmt.Sprintf("[%6s] %9s  p50 %9s  p99 %9s", sheet.At(s.Elapsed.Round(time.Second).Seconds()),
		sheet.Rate(float64(p.counters.Completed)/p.length), p.quantile(0.5), p.quantile(0.99))
	add := func(name string, n int64) { line += "  " + name + " " + sheet.Integer(n) }
	if p.counters.Reads+p.counters.Writes > 0 {
		line += "  r/w/o " + sheet.Integer(p.counters.Reads) + "/" + sheet.Integer(p.counters.Writes) + "/" + sheet.Integer(p.counters.Others)
	}
	add("errors", p.counters.Errors.Total())
	if p.counters.Errors.Total() > 0 {
		line += " (" + p.counters.Errors.String() + ")"
	}
	if p.counters.Reconnects > 0 {
		add("reconnects", p.counters.Reconnects)
	}
	if s.Slice.Backlog > 0 {
		add("waiting", s.Slice.Backlog)
	}
	if p.duration > 0 {
		line += "  left " + sheet.Duration(max(p.duration-s.Elapsed, 0).Round(time.Second).Seconds())
	}
	return line
}

// quantile formats a percentile of the time since the last line, or of the step so
// far if that has too few answers. ">=" marks a lower bound.
func (p *Progress) quantile(q float64) string {
	times := p.response
	if !times.Carries(q) {
		times = p.all
	}
	if !times.Carries(q) {
		return "-"
	}
	d, atLeast := times.Quantile(q)
	if atLeast {
		return sheet.AtLeast(d.Seconds(), sheet.UnitSeconds)
	}
	return sheet.Duration(d.Seconds())
}

func newTimes() histogram.Censored {
	return histogram.Censored{Known: histogram.NewSlice(), Beyond: histogram.NewSlice()}
}

func resetTimes(times histogram.Censored) {
	times.Known.Reset()
	times.Beyond.Reset()
}

func (p *Progress) reset() {
	p.seconds, p.length, p.counters = 0, 0, result.Counters{}
	resetTimes(p.response)
}

// Total is called when a step has ended.
func (p *Progress) Total(t *result.Total) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	if t.Validity != result.Valid && !p.search {
		fmt.Fprintf(p.out, "step %d: %s: %s\n", t.Step+1, t.Validity, strings.Join(t.Sentences(), "; "))
	}
}

// Message prints a line between the lines of progress.
func (p *Progress) Message(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintln(p.out, text)
}

// End is called when the run has ended.
func (p *Progress) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

// draw changes the line of a terminal.
func (p *Progress) draw(text string) {
	if p.columns != nil {
		fmt.Fprintf(p.out, "\r%s\x1b[K", truncate(p.lead+text, p.columns()-1))
	}
}

// clear removes the line that changes.
func (p *Progress) clear() {
	if p.columns != nil {
		io.WriteString(p.out, progress.ClearLine)
	}
}

// truncate shortens a line to that many columns.
func truncate(line string, columns int) string {
	runes := []rune(line)
	if len(runes) > columns {
		runes = runes[:max(columns, 0)]
	}
	return string(runes)
}
