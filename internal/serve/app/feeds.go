package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"spillway/internal/exit"
	"spillway/internal/plans"
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/server"
)

// feedPart is a configured feed.
type feedPart struct {
	*part
	cfg      config.Feed
	settings feed.Config
	source   feed.Source
	feed     atomic.Pointer[feed.Feed] // nil before it is started
}

// openFeed returns the part of a feed, whose windows have so many bytes unless it says otherwise.
func (a *app) openFeed(c config.Feed, windows int64) (*feedPart, error) {
	st, err := a.stores.get(a.ctx, cmp.Or(c.Database, a.cfg.Database))
	if err != nil {
		return nil, err
	}
	p := &feedPart{cfg: c, settings: feedConfig(&c, st.gate.Entrance(), a.log)}
	p.settings.WindowsBytes = cmp.Or(int64(c.WindowsMem), windows)
	p.settings.Plans = &feed.PlanLog{}
	p.settings.CursorMax = min(feed.CursorMax, a.cfg.HTTP.HeaderBytes/2) // the rest is for the other headers
	if p.settings.Envelope == feed.EnvelopeNone {
		p.settings.CursorMax = min(linkCursorMax, p.settings.CursorMax)
	}
	p.settings.Refreshes, p.settings.ValueCalls = st.refreshes.Entrance(), max(1, (a.cfg.Pool.Max-1)/2)
	p.settings.Down = func() bool { return p.noAnswer() != nil }
	p.part = newPart(c.Path, st, server.DownRoute{Reads: append([]string{c.Path}, c.Aliases...)}, p.start)
	if p.source, err = a.openSource(p.part, c.Database, p.settings.Definition, p.settings.Timeout, c.StaleMax); err != nil {
		return nil, err
	}
	return p, nil
}

// openSource returns the source of a feed or a query in the store of its part, and beside it in
// the replica if there is one and the definition names no database of its own.
func (a *app) openSource(p *part, own config.Address, d feed.Definition, timeout, staleMax time.Duration) (feed.Source, error) {
	p.reads = []*store{p.store}
	primary, err := p.store.source(d)
	if err != nil {
		return nil, exit.UsageError(err)
	}
	r := a.replica
	if r == nil || own != "" {
		return primary, nil
	}
	replica, err := r.store.source(d)
	if err != nil {
		return nil, exit.UsageError(fmt.Errorf("on the replica: %w", err))
	}
	p.reads = append(p.reads, r.store)
	p.spare = func() bool { return r.usable(staleMax) }
	return &feed.Replicated{Replica: replica, Primary: primary, Switch: r.reads, Timeout: timeout, StaleMax: staleMax}, nil
}

// start checks the feed's plans and reads its window.
func (p *feedPart) start(ctx context.Context) error {
	f := feed.Open(p.settings, p.source)
	err := f.Check(ctx)
	var refused *plans.Refusal
	if p.cfg.Plan == "accept" && errors.As(err, &refused) {
		p.settings.Log.Warn("the plan of a feed is accepted as the configuration says", "feed", p.cfg.Path, "reason", err)
		err = nil
	}
	if err == nil {
		err = f.Warm(ctx)
	}
	if err != nil {
		f.Close()
		return err
	}
	p.feed.Store(f)
	return nil
}

// close stops the part.
func (p *feedPart) close() {
	p.stop()
	if f := p.feed.Load(); f != nil {
		f.Close()
	}
}

// linkCursorMax is the length of the longest cursor in a header, in characters. Proxies limit
// the headers of a response: nginx to 4 KiB by default.
const linkCursorMax = 2048

// envelopeOf converts the envelope of a valid configuration.
func envelopeOf(name string) feed.Envelope {
	switch name {
	case "none":
		return feed.EnvelopeNone
	case "return_code":
		return feed.EnvelopeCode
	}
	return feed.EnvelopeData
}

// feedDefinition turns the configuration's feed into the engine's.
func feedDefinition(c *config.Feed) feed.Definition {
	d := feed.Definition{
		Name: c.Path, SQL: c.SQL, Params: c.Params.All(), RFC3339: c.Timestamps == "rfc3339", NumbersAsText: c.Numbers == "text",
	}
	for _, k := range c.Key {
		d.Key = append(d.Key, feed.KeyColumn(k))
	}
	for _, f := range c.Filters {
		d.Params = append(d.Params, param.Filter(f.Name, param.Type(f.Type)))
	}
	return d
}

// feedConfig converts a feed's configuration.
func feedConfig(c *config.Feed, gate *queue.Entrance, log *slog.Logger) feed.Config {
	return feed.Config{
		Definition: feedDefinition(c),
		Window:     c.Window,
		Refresh:    c.Refresh,
		IdleAfter:  c.IdleAfter,
		StaleMax:   c.StaleMax,
		Timeout:    c.Timeout,
		Limit:      c.Limit,
		LimitMax:   c.LimitMax,
		OffsetMax:  c.OffsetMax,
		WaitersMax: c.WaitersMax,
		WindowsMax: c.WindowsMax,
		Envelope:   envelopeOf(c.Envelope),
		LiveMax:    c.LiveMax,
		SweepShare: c.SweepShare,
		SweepBytes: c.SweepBytes,
		Gate:       gate,
		Log:        log,
	}
}

func (a *app) feedStats() []feed.Stats {
	var stats []feed.Stats
	for _, p := range a.current().feeds {
		if f := p.feed.Load(); f != nil {
			stats = append(stats, f.Stats())
		}
	}
	return stats
}
