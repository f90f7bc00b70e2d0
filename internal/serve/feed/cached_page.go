package feed

import (
	"time"
	"weak"

	"spillway/internal/serve/param"
)

// Now returns the page that r asks for if a window holds it and it has at most bytes bytes. It takes no lock, does not wait, and
// allocates nothing. Otherwise nothing is counted, and Page will tell.
func (f *Feed) Now(now time.Time, r Request, bytes int) (p Page, ok bool) {
	if f.complete(&r) != nil {
		return Page{}, false
	}
	w, s := f.current(now, r.Args)
	if s == nil {
		return Page{}, false
	}
	if p, ok = s.page(&r); !ok || p.Size() > bytes {
		return Page{}, false
	}
	p.Cached = CachedPage{w, s}
	w.hit(now)
	return p, true
}

// current returns the window of a value and its rows if they may be served at now; nil otherwise.
func (f *Feed) current(now time.Time, args []string) (*window, *snapshot) {
	var room [128]byte // most parameter values fit
	w := (*f.windows.Load())[string(param.AppendArgs(room[:0], args))]
	if w == nil {
		return nil, nil
	}
	s := w.current.Load()
	if s == nil || s.parked || w.tooOld(s, now) {
		return nil, nil
	}
	return w, s
}

// hit counts a request that the window answers.
func (w *window) hit(now time.Time) {
	w.ask(now)
	w.hits.Add(1)
}

// CachedPage is where Now has found a page. It keeps the rows in memory. The zero value is no page.
type CachedPage struct {
	window   *window
	snapshot *snapshot
}

// Repeat tells whether the same page is still what Now finds. It does not keep the rows in memory. In the zero value it is not.
type Repeat struct {
	window   weak.Pointer[window]
	snapshot weak.Pointer[snapshot]
	until    time.Time
}

// Repeat returns the Repeat of a page that was found at now.
func (c CachedPage) Repeat(now time.Time) Repeat {
	if c.window == nil {
		return Repeat{}
	}
	read := c.snapshot.readAt
	age := max(now.Sub(read), 0).Truncate(time.Second)
	until := min(age+time.Second, c.window.feed.cfg.StaleMax)
	return Repeat{weak.Make(c.window), weak.Make(c.snapshot), read.Add(until)}
}

// Now reports whether Feed.Now finds the same page at now, of the same age in whole seconds, and counts a request if so.
func (r *Repeat) Now(now time.Time) bool {
	if !now.Before(r.until) {
		return false
	}
	w, s := r.window.Value(), r.snapshot.Value()
	if w == nil || s == nil || w.current.Load() != s {
		return false
	}
	w.hit(now)
	return true
}
