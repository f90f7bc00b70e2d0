package feed

import (
	"sync/atomic"
	"time"
)

// Stats is a snapshot of a feed's counters, for metrics.
type Stats struct {
	Name              string  `json:"feed" label:"feed"`
	Windows           int     `json:"windows" metric:"windows" help:"Windows kept, one per value of the parameters."`
	Rows              int     `json:"rows" metric:"rows" help:"Rows in the windows."`
	WindowBytes       int64   `json:"bytes" metric:"window_bytes" help:"Memory of the windows."`
	AgeSeconds        float64 `json:"age_seconds" metric:"age_seconds" help:"Age of the oldest window in use."`
	Refreshes         uint64  `json:"refreshes" metric:"refreshes_total" help:"Statements that read a window."`
	RefreshErrors     uint64  `json:"refresh_errors" metric:"refresh_errors_total" help:"Refreshes that failed."`
	RefreshSeconds    float64 `json:"refresh_seconds" metric:"refresh_seconds_total" help:"Time spent in refreshes."`
	WindowPages       uint64  `json:"window_pages" metric:"pages_total,source=window" help:"Pages answered."`
	DatabasePages     uint64  `json:"database_pages" metric:"pages_total,source=database"`
	NotModified       uint64  `json:"-" metric:"not_modified_total" help:"Pages answered with 304."`
	Refused           uint64  `json:"refused" metric:"refused_total" help:"Pages not answered: database unavailable or too many waiting."`
	Coalesced         uint64  `json:"-" metric:"coalesced_total" help:"Pages that shared another request's statement."`
	Waiting           int     `json:"waiting" metric:"waiting" help:"Requests waiting for the database."`
	SegmentRows       int64   `json:"-" metric:"segment_rows" help:"Rows counted for deep offsets."`
	SegmentBytes      int64   `json:"-" metric:"segment_bytes" help:"Memory of the counts for deep offsets."`
	SegmentAgeSeconds float64 `json:"-" metric:"segment_age_seconds" help:"Age of the oldest count for deep offsets."`
	Evictions         uint64  `json:"-" metric:"evictions_total" help:"Windows dropped for others."`
	Listeners         int     `json:"listeners" metric:"listeners" help:"Listeners of events now."`
	Events            uint64  `json:"-" metric:"events_total" help:"Events that listeners got."`
	ListenersDropped  uint64  `json:"-" metric:"listeners_dropped_total" help:"Listeners dropped because their clients did not read."`
}

// counters are written by requests and refreshes.
type counters struct {
	databasePages atomic.Uint64
	notModified   atomic.Uint64
	refused       atomic.Uint64
	evictions     atomic.Uint64
	events        atomic.Uint64

	listenersDropped atomic.Uint64

	refreshes     atomic.Uint64
	refreshErrors atomic.Uint64
	refreshNanos  atomic.Int64
}

func (c *counters) refreshed(took time.Duration, err error) {
	c.refreshes.Add(1)
	c.refreshNanos.Add(int64(took))
	if err != nil {
		c.refreshErrors.Add(1)
	}
}

// CountNotModified counts a page answered with 304.
func (f *Feed) CountNotModified() { f.counters.notModified.Add(1) }

// Stats returns the feed's counters.
func (f *Feed) Stats() Stats {
	now := time.Now()
	waiting, shared := f.lanes.Waiting()
	f.mu.Lock()
	windows, pages := *f.windows.Load(), f.retired
	f.mu.Unlock()
	c := &f.counters
	s := Stats{
		Name:           f.cfg.Name,
		Refreshes:      c.refreshes.Load(),
		RefreshErrors:  c.refreshErrors.Load(),
		RefreshSeconds: time.Duration(c.refreshNanos.Load()).Seconds(),
		WindowPages:    pages,
		DatabasePages:  c.databasePages.Load(),
		NotModified:    c.notModified.Load(),
		Refused:        c.refused.Load(),
		Coalesced:      shared,
		WindowBytes:    f.held.Load(),
		Waiting:        waiting,
		SegmentBytes:   f.counted.Load(),
		Evictions:      c.evictions.Load(),
		Events:         c.events.Load(),

		ListenersDropped: c.listenersDropped.Load(),
	}
	for _, w := range windows {
		s.Windows++
		s.WindowPages += w.hits.Load()
		if cur := w.current.Load(); cur != nil {
			s.Rows += cur.rows.Len()
			if !cur.parked {
				s.AgeSeconds = max(s.AgeSeconds, now.Sub(cur.readAt).Seconds())
			}
		}
		rows, waiting, listeners, age := w.counted(now)
		s.Listeners += listeners
		s.Waiting += waiting
		s.SegmentRows += int64(rows)
		s.SegmentAgeSeconds = max(s.SegmentAgeSeconds, age.Seconds())
	}
	return s
}

// counted returns the rows in the window's offset index, its waiting requests and listeners,
// and the age of its oldest count.
func (w *window) counted(now time.Time) (rows, waiting, listeners int, age time.Duration) {
	w.mu.Lock()
	sw, waiting, listeners := w.sweeper, w.waiting, w.listeners
	w.mu.Unlock()
	if sw == nil {
		return 0, waiting, listeners, 0
	}
	sw.mu.Lock()
	defer sw.mu.Unlock()
	if oldest := sw.index.oldest(); !oldest.IsZero() {
		age = now.Sub(oldest)
	}
	return sw.index.rows(), waiting, listeners, age
}

// Fresh reports whether the feed has rows that may be served while its database is down:
// those of any window, at most StaleMax old.
func (f *Feed) Fresh(now time.Time) bool {
	for _, w := range *f.windows.Load() {
		if s := w.current.Load(); s != nil && now.Sub(s.readAt) <= f.cfg.StaleMax {
			return true
		}
	}
	return false
}
