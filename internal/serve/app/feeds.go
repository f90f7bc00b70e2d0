package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"spillway/internal/controlgroup"
	"spillway/internal/exit"
	"spillway/internal/plans"
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/query"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/server"
)

// readPart is a configured feed or query.
type readPart struct {
	*part
	cfg     any    // config.Feed or config.Query
	auth    string // as configured, like unknown
	unknown string
	caching server.SharedCaching
	def     feed.Definition
	source  feed.Source

	feed     atomic.Pointer[feed.Feed] // nil before it is started
	accepted bool                      // the plan of the feed, whatever it is

	query    *query.Query  // nil: it is a feed
	envelope feed.Envelope // of the query's responses
	refused  func() error  // why answers are not shared with other replicas; nil: they need not be
}

// openFeed returns the part of a feed, whose windows have so many bytes unless it says otherwise.
func (a *app) openFeed(c config.Feed, windows int64) (*readPart, error) {
	st, err := a.stores.get(a.ctx, cmp.Or(c.Database, a.cfg.Database))
	if err != nil {
		return nil, err
	}
	settings := feedConfig(&c, st.gate.Entrance(), a.log)
	settings.WindowsBytes = cmp.Or(int64(c.WindowsMem), windows)
	settings.Plans = &feed.PlanLog{}
	settings.CursorMax = min(feed.CursorMax, a.cfg.HTTP.HeaderBytes/2) // the rest is for the other headers
	if settings.Envelope == feed.EnvelopeNone {
		settings.CursorMax = min(linkCursorMax, settings.CursorMax)
	}
	settings.Refreshes, settings.ValueCalls = st.refreshes.Entrance(), max(1, (a.cfg.Pool.Max-1)/2)
	p := &readPart{
		cfg: c, auth: c.Auth, unknown: c.Unknown, accepted: c.Plan == "accept", def: settings.Definition,
		caching: server.SharedCaching{MaxAge: c.SMaxAge, StaleWhileRevalidate: c.Revalidate},
	}
	settings.Down = func() bool { return p.noAnswer() != nil }
	start := func(ctx context.Context) error { return p.startFeed(ctx, settings) }
	p.part = newPart(c.Path, st, server.DownRoute{Reads: append([]string{c.Path}, c.Aliases...)}, start)
	p.source, err = a.openSource(p.part, c.Database, p.def, c.Timeout, c.StaleMax)
	return p, err
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
	p.spare = func() bool { return r.store.noAnswer() == nil && r.reads.Usable(time.Now(), staleMax) } // while the primary is away
	return &feed.Replicated{Replica: replica, Primary: primary, Switch: r.reads, Timeout: timeout, StaleMax: staleMax}, nil
}

// startFeed checks the feed's plans and reads its window.
func (p *readPart) startFeed(ctx context.Context, settings feed.Config) error {
	f := feed.Open(settings, p.source)
	err := f.Check(ctx)
	var refused *plans.Refusal
	if p.accepted && errors.As(err, &refused) {
		settings.Log.Warn("the plan of a feed is accepted as the configuration says", "feed", p.name, "reason", err)
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
func (p *readPart) close() {
	p.stop()
	if f := p.feed.Load(); f != nil {
		f.Close()
	}
	if p.query != nil {
		p.query.Close()
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
		Name: c.Path, SQL: c.SQL, Params: c.AllParams(), RFC3339: c.Timestamps == "rfc3339", NumbersAsText: c.Numbers == "text",
	}
	for _, k := range c.Key {
		d.Key = append(d.Key, feed.KeyColumn(k))
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
	for _, p := range a.current().parts {
		if f := p.feed.Load(); f != nil {
			stats = append(stats, f.Stats())
		}
	}
	return stats
}

// windowsBytesMost is the memory of all windows for which the configuration says nothing, on a machine with enough of it.
const windowsBytesMost = 128 << 20

// windowsShare returns the default of windows_bytes: an equal share for each feed that may have more than one window.
func windowsShare(feeds []config.Feed) int64 {
	var sharers int64
	for _, f := range feeds {
		if f.WindowsMem == 0 && len(f.Params)+len(f.Filters) > 0 {
			sharers++
		}
	}
	return min(windowsBytesMost, memoryLimit("/")/8) / max(1, sharers)
}

// memoryLimit returns the lowest memory limit of this process's control group and of those above
// it, below a root; a very large number if there is none, or no control group.
func memoryLimit(root string) int64 {
	limit := float64(1 << 62)
	for _, dir := range controlgroup.Of(filepath.Join(root, "proc"), filepath.Join(root, controlgroup.Mount), os.Getpid(), "memory") {
		limit = min(limit, controlgroup.Memory(dir))
	}
	return int64(limit)
}
