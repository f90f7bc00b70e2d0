package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"spillway/internal/exit"
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

// openFeed returns the part of a feed.
func (a *app) openFeed(c config.Feed) (*feedPart, error) {
	st, err := a.stores.get(a.ctx, cmp.Or(c.Database.Reveal(), a.cfg.Database.Reveal()))
	if err != nil {
		return nil, err
	}
	d, err := feedDefinition(&c)
	if err != nil {
		return nil, exit.UsageError(fmt.Errorf("feed %s: %w", c.Path, err))
	}
	p := &feedPart{cfg: c, settings: feedConfig(&c, d, st.gate.Entrance(), a.log)}
	p.settings.CursorMax = min(feed.CursorMax, a.cfg.HTTP.HeaderBytes/2) // the rest is for the other headers
	p.settings.Refreshes, p.settings.ValueCalls, p.settings.Down = st.refreshes, max(1, (a.cfg.Pool.Max-1)/2), st.down
	p.part = newPart(c.Path, st, server.DownRoute{Reads: append([]string{c.Path}, c.Aliases...)}, p.start)
	p.reads = []*store{st}
	if p.source, err = st.feed(p.settings.Definition); err != nil {
		return nil, exit.UsageError(fmt.Errorf("feed %s: %w", c.Path, err))
	}
	if r := a.replica; r != nil && c.Database == "" {
		replica, err := r.store.feed(p.settings.Definition)
		if err != nil {
			return nil, exit.UsageError(fmt.Errorf("feed %s on the replica: %w", c.Path, err))
		}
		p.settings.Down = func(ctx context.Context) bool { return st.down(ctx) && r.store.down(ctx) }
		p.reads = append(p.reads, r.store)
		p.source = &feed.Replicated{Replica: replica, Primary: p.source, Switch: r.reads, Timeout: p.settings.Timeout, StaleMax: p.settings.StaleMax}
	}
	return p, nil
}

// start checks the feed's plans and reads its window.
func (p *feedPart) start(ctx context.Context) error {
	f := feed.Open(p.settings, p.source)
	err := f.Check(ctx)
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

// feedDefinition turns the configuration's feed into the engine's.
func feedDefinition(c *config.Feed) (feed.Definition, error) {
	params, err := c.Params.All()
	d := feed.Definition{Name: c.Path, SQL: c.SQL, Params: params, RFC3339: c.Timestamps == "rfc3339", NumbersAsText: c.Numbers == "text"}
	for _, k := range c.Key {
		d.Key = append(d.Key, feed.KeyColumn(k))
	}
	for _, f := range c.Filters {
		d.Params = append(d.Params, param.Filter(f.Name, param.Type(f.Type)))
	}
	return d, err
}

// feedConfig converts a feed's configuration.
func feedConfig(c *config.Feed, d feed.Definition, gate *queue.Entrance, log *slog.Logger) feed.Config {
	return feed.Config{
		Definition: d,
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
