package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"spillway/internal/histogram"
	"spillway/internal/lab/load"
	"spillway/internal/lab/result"
)

// loadProgress shows a run while it goes on: one line that changes on a
// terminal, plain lines elsewhere. A writer that fails is ignored.
type loadProgress struct {
	out      io.Writer
	terminal func() int // columns; nil: no terminal
	interval int        // seconds between plain lines
	steps    int

	current  result.Step
	duration time.Duration
	seen     int // seconds since the last plain line
	counters result.Counters
	length   float64
	response *histogram.Histogram // since the last line
	all      *histogram.Histogram // of the step so far
	rates    []float64            // for the sparkline
}

func newLoadProgress(out io.Writer, interval time.Duration, config *load.Config) *loadProgress {
	p := &loadProgress{out: out, interval: int(interval / time.Second), steps: len(config.Steps), response: histogram.NewSlice(), all: histogram.NewSlice()}
	file, isFile := out.(*os.File)
	if isFile && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb" {
		p.terminal = func() int {
			columns, _, err := term.GetSize(int(file.Fd()))
			if err != nil || columns < 1 {
				return 80
			}
			return columns
		}
		p.interval = 1
	}
	return p
}

func (p *loadProgress) step(s *result.Step) {
	p.current = *s
	p.duration = time.Duration(s.Duration * float64(time.Second))
	p.forget()
	p.all.Reset()
	p.rates = p.rates[:0]
	p.clear()
	length := p.duration.String()
	if p.duration == 0 {
		length = fmt.Sprintf("%d requests", s.Requests)
	}
	if p.steps > 1 || p.terminal == nil {
		fmt.Fprintf(p.out, "step %d of %d: %s, %s\n", s.Index+1, p.steps, s.Name, length)
	}
}

func (p *loadProgress) second(s *load.Second) {
	p.counters.Add(&s.Slice.Counters)
	p.length += s.Slice.Length
	p.response.Merge(s.Response)
	p.all.Merge(s.Response)
	p.rates = append(p.rates, float64(s.Slice.Done)/s.Slice.Length)
	if p.seen++; p.seen < p.interval {
		return
	}
	line := p.line(s)
	if p.terminal != nil {
		line += "  " + sparkline(p.rates, 30)
		fmt.Fprintf(p.out, "\r%s\x1b[K", cut(line, p.terminal()-1))
	} else {
		fmt.Fprintln(p.out, line)
	}
	p.forget()
}

// line describes the seconds since the last line.
func (p *loadProgress) line(s *load.Second) string {
	line := fmt.Sprintf("[%5s] %8.1f/s  p50 %s  p99 %s", s.Elapsed.Round(time.Second), float64(p.counters.Done)/p.length, p.quantile(0.5), p.quantile(0.99))
	if p.counters.Reads+p.counters.Writes > 0 {
		line += fmt.Sprintf("  r/w/o %d/%d/%d", p.counters.Reads, p.counters.Writes, p.counters.Others)
	}
	line += fmt.Sprintf("  errors %d", p.counters.Errors.Total())
	if p.counters.Reconnects > 0 {
		line += fmt.Sprintf("  reconnects %d", p.counters.Reconnects)
	}
	if s.Slice.Backlog > 0 {
		line += fmt.Sprintf("  waiting %d", s.Slice.Backlog)
	}
	if p.duration > 0 {
		line += fmt.Sprintf("  left %s", max(p.duration-s.Elapsed, 0).Round(time.Second))
	}
	return line
}

// quantile shows a percentile of the time since the last line, or of the step so
// far where that is too short to carry it.
func (p *loadProgress) quantile(q float64) string {
	h := p.response
	if !h.Carries(q) {
		h = p.all
	}
	if !h.Carries(q) {
		return "     -  "
	}
	return fmt.Sprintf("%6.2fms", float64(h.Quantile(q))/float64(time.Millisecond))
}

func (p *loadProgress) forget() {
	p.seen, p.length, p.counters = 0, 0, result.Counters{}
	p.response.Reset()
}

func (p *loadProgress) total(t *result.Total) {
	p.clear()
	if t.Validity != result.Valid {
		fmt.Fprintf(p.out, "step %d: %s: %s\n", t.Step+1, t.Validity, strings.Join(t.Reasons, "; "))
	}
}

// clear takes the changing line away.
func (p *loadProgress) clear() {
	if p.terminal != nil {
		io.WriteString(p.out, "\r\x1b[K")
	}
}

// sparkline draws the last values, from 0 to their highest.
func sparkline(values []float64, width int) string {
	bars := []rune("▁▂▃▄▅▆▇█")
	values = values[max(len(values)-width, 0):]
	highest := 0.0
	for _, v := range values {
		highest = max(highest, v)
	}
	var b strings.Builder
	for _, v := range values {
		i := 0
		if highest > 0 {
			i = int(v / highest * float64(len(bars)-1))
		}
		b.WriteRune(bars[i])
	}
	return b.String()
}

// cut shortens a line to so many columns.
func cut(line string, columns int) string {
	runes := []rune(line)
	if len(runes) > columns {
		runes = runes[:max(columns, 0)]
	}
	return string(runes)
}
