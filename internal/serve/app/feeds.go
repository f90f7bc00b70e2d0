package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"spillway/internal/exit"
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/server"
)

// openFeeds creates the feeds.
func (a *app) openFeeds() error {
	for i := range a.cfg.Feeds {
		c := &a.cfg.Feeds[i]
		st, err := a.stores.get(a.ctx, cmp.Or(c.Database.Reveal(), a.cfg.Database.Reveal()))
		if err != nil {
			return err
		}
		st.needed = true
		settings := feedConfig(c, st.gate, a.log)
		source, err := st.feed(settings.Definition)
		if err != nil {
			return exit.UsageError(fmt.Errorf("feed %s: %w", c.Path, err))
		}
		if r := a.replica; r != nil && c.Database == "" {
			replica, err := r.store.feed(settings.Definition)
			if err != nil {
				return exit.UsageError(fmt.Errorf("feed %s on the replica: %w", c.Path, err))
			}
			source = &feed.Replicated{Replica: replica, Primary: source, Switch: r.reads, Timeout: settings.Timeout}
		}
		f := feed.Open(settings, source)
		a.feeds = append(a.feeds, f)
		a.feedRoutes = append(a.feedRoutes, server.FeedRoute{Paths: append([]string{c.Path}, c.Aliases...), Access: accessOf(a.cfg.ReadAccess(c.Auth)), Feed: f})
	}
	return nil
}

// feedConfig converts a feed's configuration.
func feedConfig(c *config.Feed, gate feed.Gate, log *slog.Logger) feed.Config {
	d := feed.Definition{Name: c.Path, SQL: c.SQL}
	for _, k := range c.Key {
		d.Key = append(d.Key, feed.KeyColumn(k))
	}
	for _, p := range c.Params {
		d.Params = append(d.Params, feed.Param{Name: p.Name, Type: feed.ParamType(p.Type)})
	}
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
		Gate:       gate,
		Log:        log,
	}
}

// startFeeds checks the feeds' plans and reads their windows.
func (a *app) startFeeds(ctx context.Context) error {
	for _, f := range a.feeds {
		if err := f.Check(ctx); err != nil {
			return err
		}
		if err := f.Warm(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) feedStats() []feed.Stats {
	stats := make([]feed.Stats, 0, len(a.feeds))
	for _, f := range a.feeds {
		stats = append(stats, f.Stats())
	}
	return stats
}
