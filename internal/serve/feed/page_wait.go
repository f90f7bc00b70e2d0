package feed

import (
	"cmp"
	"fmt"
	"time"

	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
)

// Wait is a request that waits in an event loop for the rows of a page.
type Wait = LoopWait[*Rows]

func (f *Feed) openLanes() {
	f.lanes = Lanes[*Rows]{Group: f.pages, Base: f.base, Reads: &f.done, Timeout: f.cfg.Timeout, Gate: f.cfg.Gate, Call: f.reading}
	f.lanes.Ended = func(r *LoopRead, began, _ time.Time, err error) (*Rows, error) {
		if err != nil {
			return nil, fmt.Errorf("read page: %w", err)
		}
		r.Rows.ReadAt = began
		return &r.Rows, nil
	}
	f.lanes.Size = func(rows *Rows) int { return len(rows.Data) }
	f.lanes.Reader, _ = f.source.(LoopReader)
}

// InLoops reports whether Begin may have requests wait.
func (f *Feed) InLoops() bool { return f.lanes.Reader != nil }

// Begin has a request wait in its event loop for a page that is read from the database. Then later is answered, and the Answer of w
// follows. It returns false if Page must be called instead, of which the value may then have a window already.
func (f *Feed) Begin(loop *front.Loop, w *Wait, later *front.Later, now time.Time, r Request) bool {
	if !f.InLoops() || loop == nil || f.complete(&r) != nil {
		return false
	}
	win, s := f.current(now, r.Args)
	if s == nil {
		if r.Before == "" {
			return false
		}
		if created, err := f.window(r.Args, now); created != nil || err != nil {
			return false
		}
	} else if _, here := s.page(&r); here {
		return false
	}
	after, known, err := f.follows(s, &r)
	class := string(param.AppendArgs(nil, r.Args))
	if !known || err != nil || f.pauses.Has(class) || !f.lanes.Fits() {
		return false
	}
	if win != nil {
		win.ask(now)
		win.older.Add(1)
	}
	q := Range{After: after, Limit: r.Limit + 1}
	var room [256]byte // most names fit
	f.lanes.Begin(loop, w, later, class, pageName(room[:0], r.Args, q), r.Args, q)
	return true
}

// Answered returns what Page would for a request with that Limit whose Wait has got rows or an error.
func (f *Feed) Answered(limit int, got *Rows, err error) (Page, error) {
	if err != nil {
		return f.answered(Page{}, err)
	}
	return f.answered(f.cut(got, 0, cmp.Or(limit, f.cfg.Limit)))
}
