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
	columns  []feed.Described          // that know the columns
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
	if p.settings.Envelope == feed.EnvelopeNone {
		p.settings.CursorMax = min(linkCursorMax, p.settings.CursorMax)
	}
	p.settings.Refreshes, p.settings.ValueCalls = st.refreshes, max(1, (a.cfg.Pool.Max-1)/2)
	p.settings.Down = func() bool { return p.noAnswer() != nil }
	p.part = newPart(c.Path, st, server.DownRoute{Reads: append([]string{c.Path}, c.Aliases...)}, p.start)
	p.reads = []*store{st}
	primary, err := st.feed(p.settings.Definition)
	if err != nil {
		return nil, exit.UsageError(fmt.Errorf("feed %s: %w", c.Path, err))
	}
	p.source, p.columns = primary, []feed.Described{primary}
	if r := a.replica; r != nil && c.Database == "" {
		replica, err := r.store.feed(p.settings.Definition)
		if err != nil {
			return nil, exit.UsageError(fmt.Errorf("feed %s on the replica: %w", c.Path, err))
		}
		p.reads = append(p.reads, r.store)
		p.spare = func() bool { return r.usable(c.StaleMax) }
		p.columns = append(p.columns, replica)
		p.source = &feed.Replicated{Replica: replica, Primary: primary, Switch: r.reads, Timeout: p.settings.Timeout, StaleMax: p.settings.StaleMax}
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
