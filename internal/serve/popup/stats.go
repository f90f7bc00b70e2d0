package popup

import (
	"errors"
	"sync/atomic"
	"time"
)

// Stats is a snapshot of a Popup's counters, for metrics.
type Stats struct {
	Waits       uint64 `metric:"decisions_total,outcome=wait" help:"Requests for a popup, by outcome."`
	Nones       uint64 `metric:"decisions_total,outcome=none"`
	Shows       uint64 `metric:"decisions_total,outcome=show;events_total,kind=show" help:"Events recorded."`
	Clicks      uint64 `metric:"events_total,kind=click"`
	Dismissals  uint64 `metric:"events_total,kind=dismiss"`
	Withheld    uint64 `metric:"decisions_total,outcome=withhold;events_total,kind=withhold"`
	Conversions uint64 `metric:"events_total,kind=convert"`
	Repeated    uint64 `metric:"refused_total,reason=repeated" help:"Clicks, dismissals and conversions refused."`
	Late        uint64 `metric:"refused_total,reason=late"`
	Unknown     uint64 `metric:"refused_total,reason=unknown"`
	Refused     uint64 `metric:"refused_total,reason=not_ours"`
	Conflicts   uint64 `metric:"conflicts_total" help:"Lost races between requests of one user, decided again."`
	Unavailable uint64 `metric:"unavailable_total" help:"Requests that met a failure of the states, the event log or attributes_sql."`
	RowRefused  uint64 `metric:"attributes_refused_total" help:"Values of attributes_sql that are of another type: missing."`
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
