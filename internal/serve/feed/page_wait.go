package feed

import (
	"context"
	"fmt"
	"time"

	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
)

// Wait is a request for a page that waits in an event loop. Its methods are for the thread of the loop.
type Wait struct {
	LoopWait[*pageRead]
	feed  *Feed
	limit int
}

func (f *Feed) openLanes() {
	f.lanes = Lanes[*pageRead]{
		Group: f.pages, Base: f.base, Reads: &f.done, Timeout: f.cfg.Timeout, Gate: f.cfg.Gate,
		Elsewhere: func(ctx context.Context, class, name string, q Range) (*pageRead, error) {
			got, _, err := f.pages.Join(ctx, class, name, f.reading(ctx, q))
			return got, err
		},
		Ended: func(r *LoopRead, began, _ time.Time, err error) (*pageRead, error) {
			if err != nil {
				return nil, fmt.Errorf("read page: %w", err)
			}
			return &pageRead{rows: r.Rows, readAt: began}, nil
		},
	}
	f.lanes.Reader, _ = f.source.(LoopReader)
}

// InLoops reports whether Begin may have requests wait.
func (f *Feed) InLoops() bool { return f.lanes.Reader != nil }

// Begin has a request wait in its event loop for a page that is read from the database. Then later is answered, and Answer follows. It
// returns false if Page must be called instead; then nothing has happened.
func (f *Feed) Begin(loop *front.Loop, w *Wait, later *front.Later, now time.Time, r Request) bool {
	if !f.InLoops() || loop == nil || f.complete(&r) != nil {
		return false
	}
	win, s := f.current(now, r.Args)
	if s == nil {
		created, err := f.window(r.Args, now)
		if created != nil || err != nil || r.Before == "" {
			return false
		}
	} else if _, here := s.page(&r); here {
		return false
	}
	after, known, err := f.follows(s, &r)
	class := string(param.AppendArgs(nil, r.Args))
	if !known || err != nil || f.pauses.Has(class) {
		return false
	}
	if win != nil {
		win.ask(now)
		win.older.Add(1)
	}
	q := Range{After: after, Limit: r.Limit + 1}
	var room [256]byte // most names fit
	*w = Wait{feed: f, limit: r.Limit}
	f.lanes.Begin(loop, &w.LoopWait, later, class, pageName(room[:0], r.Args, q), r.Args, q)
	return true
}

// Answer returns what Page would. With over, the request has waited for the timeout.
func (w *Wait) Answer(over bool) (Page, error) {
	got, err := w.LoopWait.Answer(over)
	if err != nil {
		return w.feed.answered(Page{}, err)
	}
	return w.feed.answered(w.feed.cut(got, 0, w.limit))
}
