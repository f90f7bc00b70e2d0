package popup

import (
	"errors"
	"sync/atomic"
	"time"
)

// Stats is a snapshot of a Popup's counters, for metrics.
type Stats struct {
	Waits       uint64 // requests of users who wait
	Nones       uint64 // requests of users who were due and got nothing
	Shows       uint64 // recorded
	Clicks      uint64 // recorded
	Dismissals  uint64 // recorded
	Withheld    uint64 // recorded
	Conversions uint64 // recorded
	Repeated    uint64 // clicks and dismissals refused: answered before
	Late        uint64 // refused: another popup was shown since, or the token has expired
	Unknown     uint64 // refused: the state does not have the show
	Refused     uint64 // refused: malformed, forged, or another user's
	Conflicts   uint64 // lost races, decided again
	Unavailable uint64 // requests that met a failure of the store or of UserRow
	RowRefused  uint64 // values of users' rows that are not of their attribute's type
	Cache       CacheStats
}

type counters struct {
	waits, nones, shows, clicks, dismissals atomic.Uint64
	withheld, conversions                   atomic.Uint64
	repeated, late, unknown, refused        atomic.Uint64
	conflicts, unavailable                  atomic.Uint64
	logged                                  atomic.Int64 // when a failure was logged last, in nanoseconds
}

// nothingShown counts a request that got nothing: the user waits, or no campaign matches.
func (c *counters) nothingShown(waits bool) {
	if waits {
		c.waits.Add(1)
		return
	}
	c.nones.Add(1)
}

// given counts a popup that was shown or withheld.
func (c *counters) given(reason Reason) {
	if reason == HeldOut {
		c.withheld.Add(1)
		return
	}
	c.shows.Add(1)
}

// answered counts the outcome of a click or dismissal. done counts those recorded.
func (c *counters) answered(done *atomic.Uint64, err error) {
	switch {
	case err == nil:
		done.Add(1)
	case errors.Is(err, ErrRepeated):
		c.repeated.Add(1)
	case errors.Is(err, ErrLate), errors.Is(err, ErrExpired):
		c.late.Add(1)
	case errors.Is(err, ErrUnknownShow):
		c.unknown.Add(1)
	case errors.Is(err, ErrMalformed), errors.Is(err, ErrForged), errors.Is(err, ErrOtherUser):
		c.refused.Add(1)
	}
}

// logEvery is the minimum time between two log lines about failures.
const logEvery = 10 * time.Second

// failed counts a failure and logs it, at most once per logEvery.
func (p *Popup) failed(err error) {
	p.counters.unavailable.Add(1)
	now, last := time.Now().UnixNano(), p.counters.logged.Load()
	if now-last >= int64(logEvery) && p.counters.logged.CompareAndSwap(last, now) {
		p.cfg.Log.Warn("popup state is not available", "error", err, "show_anyway", p.cfg.ShowAnyway)
	}
}

// Stats returns the counters.
func (p *Popup) Stats() Stats {
	c := &p.counters
	s := Stats{
		Waits: c.waits.Load(), Nones: c.nones.Load(), Shows: c.shows.Load(), Clicks: c.clicks.Load(), Dismissals: c.dismissals.Load(),
		Withheld: c.withheld.Load(), Conversions: c.conversions.Load(),
		Repeated: c.repeated.Load(), Late: c.late.Load(), Unknown: c.unknown.Load(), Refused: c.refused.Load(),
		Conflicts: c.conflicts.Load(), Unavailable: c.unavailable.Load(), RowRefused: p.rows.refused.Load(),
	}
	if p.cfg.Cache != nil {
		s.Cache = p.cfg.Cache.Stats()
	}
	return s
}
