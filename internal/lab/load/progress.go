package load

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/progress"
)

// progressDisplay shows a run: one line that changes on a terminal, plain lines
// elsewhere. It is safe for concurrent use and ignores errors of the writer.
type progressDisplay struct {
	out      io.Writer
	columns  func() int // of the terminal; nil: no terminal
	interval int        // seconds between two lines
	steps    int

	mu       sync.Mutex
	duration time.Duration // of the current step
	seconds  int           // since the last line
	counters result.Counters
	length   float64
	response *histogram.Histogram // since the last line
	all      *histogram.Histogram // of the current step
	rates    []float64            // for the sparkline
}

func newProgressDisplay(out io.Writer, interval time.Duration, steps int) *progressDisplay {
	p := &progressDisplay{
		out: out, columns: progress.Terminal(out), interval: int(interval / time.Second), steps: steps,
		response: histogram.NewSlice(), all: histogram.NewSlice(),
	}
	if p.columns != nil {
		p.interval = 1
	}
	return p
}

func (p *progressDisplay) step(s *result.Step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.duration = time.Duration(s.Duration * float64(time.Second))
	p.reset()
	p.all.Reset()
	p.rates = p.rates[:0]
	p.clear()
	length := p.duration.String()
	if p.duration == 0 {
		length = fmt.Sprintf("%d requests", s.Requests)
	}
	if p.steps > 1 || p.columns == nil {
		fmt.Fprintf(p.out, "step %d of %d: %s, %s\n", s.Index+1, p.steps, s.Name, length)
	}
}

func (p *progressDisplay) second(s *Second) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counters.Add(&s.Slice.Counters)
	p.length += s.Slice.Length
	p.response.Merge(s.Response)
	p.all.Merge(s.Response)
	p.rates = append(p.rates, float64(s.Slice.Completed)/s.Slice.Length)
	if p.seconds++; p.seconds < p.interval {
		return
	}
	line := p.line(s)
	if p.columns != nil {
		line += "  " + sparkline(p.rates, 30)
		fmt.Fprintf(p.out, "\r%s\x1b[K", truncate(line, p.columns()-1))
	} else {
		fmt.Fprintln(p.out, line)
	}
	p.reset()
}

// line describes the seconds since the last line.
func (p *progressDisplay) line(s *Second) string {
	line := fmt.Sprintf("[%5s] %8.1f/s  p50 %s  p99 %s", s.Elapsed.Round(time.Second), float64(p.counters.Completed)/p.length, p.quantile(0.5), p.quantile(0.99))
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

// quantile formats a percentile of the time since the last line, or of the step so
// far if that has too few answers.
func (p *progressDisplay) quantile(q float64) string {
	h := p.response
	if !h.Carries(q) {
		h = p.all
	}
	if !h.Carries(q) {
		return "     -  "
	}
	return fmt.Sprintf("%6.2fms", float64(h.Quantile(q))/float64(time.Millisecond))
}

func (p *progressDisplay) reset() {
	p.seconds, p.length, p.counters = 0, 0, result.Counters{}
	p.response.Reset()
}

func (p *progressDisplay) total(t *result.Total) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	if t.Validity != result.Valid {
		fmt.Fprintf(p.out, "step %d: %s: %s\n", t.Step+1, t.Validity, strings.Join(t.Reasons, "; "))
	}
}

// message prints a line between the lines of progress.
func (p *progressDisplay) message(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintln(p.out, text)
}

func (p *progressDisplay) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

// clear removes the line that changes.
func (p *progressDisplay) clear() {
	if p.columns != nil {
		io.WriteString(p.out, progress.ClearLine)
	}
}

// sparkline draws the last values as bars between 0 and their maximum.
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

// truncate shortens a line to that many columns.
func truncate(line string, columns int) string {
	runes := []rune(line)
	if len(runes) > columns {
		runes = runes[:max(columns, 0)]
	}
	return string(runes)
}
