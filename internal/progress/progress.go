// Package progress shows how far long work is: a bar on a terminal, a plain
// line every few seconds elsewhere, with the rate and the time left. It keeps
// no record and decides nothing; a writer that fails is ignored.
package progress

import (
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"
)

const (
	barInterval  = 100 * time.Millisecond // between two paintings on a terminal
	lineInterval = 5 * time.Second        // between two lines elsewhere
)

// Meter shows the tasks of one piece of work, one after the other.
type Meter struct {
	w     io.Writer
	width func() int // columns of the terminal; nil: w is none
}

// New returns a Meter that writes to w. It draws bars when w is a terminal that
// can redraw a line.
func New(w io.Writer) *Meter {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || os.Getenv("TERM") == "dumb" {
		return &Meter{w: w}
	}
	return &Meter{w: w, width: func() int {
		columns, _, err := term.GetSize(int(file.Fd()))
		if err != nil || columns < 1 {
			return 80
		}
		return columns
	}}
}

// Start begins a task of total units ("rows"). An empty unit stands for steps
// of unequal length: they are counted, and neither a rate nor the time left is
// shown. End must be called; tasks of one Meter do not overlap.
func (m *Meter) Start(label, unit string, total int64) *Task {
	t := &Task{meter: m, label: label, unit: unit, total: total, start: time.Now(), stop: make(chan struct{})}
	t.painter.Go(t.paint)
	return t
}

// Task is one part of the work under way.
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

// Add counts n more units as done. It may be called concurrently and costs one
// atomic addition.
func (t *Task) Add(n int64) { t.done.Add(n) }

// End ends the task: it writes the task's last line, which tells how long it
// took, or takes the bar away when err is not nil. Nothing is written after it
// returns. It is called once.
func (t *Task) End(err error) {
	close(t.stop)
	t.painter.Wait()
	prefix := ""
	if t.meter.width != nil {
		prefix = "\r\x1b[K"
	}
	switch {
	case err == nil:
		io.WriteString(t.meter.w, prefix+t.status(time.Now()).last()+"\n")
	case prefix != "":
		io.WriteString(t.meter.w, prefix)
	}
}

// paint draws until End.
func (t *Task) paint() {
	interval := lineInterval
	if t.meter.width != nil {
		interval = barInterval
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-t.stop:
			return
		case now := <-ticker.C:
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
