// Package progress shows the progress of long work: a bar on a terminal, a plain
// line every few seconds elsewhere, with the rate and the remaining time. Errors
// of the writer are ignored.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"
)

const (
	barInterval  = 100 * time.Millisecond // between two updates on a terminal
	lineInterval = 5 * time.Second        // between two lines elsewhere
)

// ClearLine is the escape sequence that erases the current line of a terminal.
const ClearLine = "\r\x1b[K"

// Terminal returns a function for the current number of columns of w. It returns
// nil if w is not a terminal that can redraw a line.
func Terminal(w io.Writer) (columns func() int) {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return func() int {
		columns, _, err := term.GetSize(int(file.Fd()))
		if err != nil || columns < 1 {
			return 80
		}
		return columns
	}
}

// Meter shows the tasks of one piece of work, one after the other.
type Meter struct {
	w     io.Writer
	width func() int // columns of the terminal; nil: w is not a terminal
}

// New returns a Meter that writes to w. It draws bars if w is a terminal that can
// redraw a line.
func New(w io.Writer) *Meter { return &Meter{w: w, width: Terminal(w)} }

// Start begins a task of total units, such as "rows". With an empty unit the task
// has steps of different length, and neither the rate nor the remaining time is
// shown. The caller must call End before it starts another task of the Meter.
func (m *Meter) Start(label, unit string, total int64) *Task {
	t := &Task{meter: m, label: label, unit: unit, total: total, start: time.Now(), stop: make(chan struct{})}
	t.painter.Go(t.paint)
	return t
}

// Task is one part of the work.
type Task struct {
	meter   *Meter
	label   string
	unit    string
	total   int64
	start   time.Time
	done    atomic.Int64
	stop    chan struct{}
	painter sync.WaitGroup
}

// Add counts n more units as done. It is safe for concurrent use and costs one
// atomic addition.
func (t *Task) Add(n int64) { t.done.Add(n) }

// End ends the task. It writes a last line with the duration, or removes the bar if
// err is not nil. Nothing is written after it returns. It must be called once.
func (t *Task) End(err error) {
	close(t.stop)
	t.painter.Wait()
	prefix := ""
	if t.meter.width != nil {
		prefix = ClearLine
	}
	switch {
	case err == nil:
		io.WriteString(t.meter.w, prefix+t.status(time.Now()).last()+"\n")
	case prefix != "":
		io.WriteString(t.meter.w, prefix)
	}
}

// paint draws the progress until End.
func (t *Task) paint() {
	interval := lineInterval
	if t.meter.width != nil {
		interval = barInterval
	}
	ticker := time.Tick(interval)
	for {
		select {
		case <-t.stop:
			return
		case now := <-ticker:
			if t.meter.width != nil {
				io.WriteString(t.meter.w, "\r"+t.status(now).bar(t.meter.width()-1)+"\x1b[K")
			} else {
				io.WriteString(t.meter.w, t.status(now).line()+"\n")
			}
		}
	}
}

func (t *Task) status(now time.Time) status {
	return status{label: t.label, unit: t.unit, done: t.done.Load(), total: t.total, elapsed: now.Sub(t.start)}
}

// status is the state of a task at one moment. It determines what is shown.
type status struct {
	label   string
	unit    string
	done    int64
	total   int64
	elapsed time.Duration
}

// bar returns the line for a terminal, at most width columns long. The bar uses
// the space after the words.
func (s status) bar(width int) string {
	words := fmt.Sprintf("%-10s %3.0f %%  %s", s.label, 100*s.share(), s.numbers())
	if len(words) > width {
		return words[:max(width, 0)]
	}
	cells := min(width-len(words)-len(" []"), 24)
	if cells < 4 {
		return words
	}
	full := int(s.share() * float64(cells))
	return fmt.Sprintf("%s [%s%s]", words, strings.Repeat("#", full), strings.Repeat("-", cells-full))
}

// line returns the line for output that is not a terminal.
func (s status) line() string {
	return fmt.Sprintf("%s: %.0f %%, %s", s.label, 100*s.share(), s.numbers())
}

// last returns the final line of a task.
func (s status) last() string {
	if s.unit == "" {
		return fmt.Sprintf("%s: done in %s", s.label, seconds(s.elapsed))
	}
	return fmt.Sprintf("%s: %s %s in %s (%s/s)", s.label, Group(s.done), s.unit, seconds(s.elapsed), Group(s.rate()))
}

// numbers returns the counts, the rate and the remaining time. The last two need a unit.
func (s status) numbers() string {
	if s.unit == "" {
		return fmt.Sprintf("%s of %s, %s", Group(s.done), Group(s.total), seconds(s.elapsed))
	}
	text := fmt.Sprintf("%s of %s %s, %s/s", Group(s.done), Group(s.total), s.unit, Group(s.rate()))
	if s.done > 0 && s.done < s.total {
		left := time.Duration(float64(s.elapsed) * float64(s.total-s.done) / float64(s.done))
		text += ", " + left.Round(time.Second).String() + " left"
	}
	return text
}

// share returns the completed share of the task, from 0 to 1.
func (s status) share() float64 {
	if s.total <= 0 {
		return 1
	}
	return min(max(float64(s.done)/float64(s.total), 0), 1)
}

// rate returns the units per second since the task began.
func (s status) rate() int64 {
	if s.elapsed <= 0 {
		return 0
	}
	return int64(float64(s.done) / s.elapsed.Seconds())
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// Group formats a whole number with a comma every three digits.
func Group(n any) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
