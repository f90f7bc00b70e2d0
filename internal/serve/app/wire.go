package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/netip"

	"spillway/internal/database"
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/query"
	"spillway/internal/serve/redis"
	"spillway/internal/serve/server"
	"spillway/internal/serve/standby"
)

// openFeeds opens the databases and makes the feeds. It asks no database anything.
func (a *app) openFeeds() error {
	if _, err := a.stores.get(a.ctx, a.cfg.Database.Reveal()); err != nil {
		return err
	}
	if url := a.cfg.Replica.Reveal(); url != "" {
		st, err := a.stores.get(a.ctx, url)
		if err != nil {
			return err
		}
		st.optional = true
		a.replica = &replica{store: st, reads: standby.New(st.url.String(), database.JudgeReplica, a.log)}
	}
	for i := range a.cfg.Feeds {
		c := &a.cfg.Feeds[i]
		url := c.Database.Reveal()
		if url == "" {
			url = a.cfg.Database.Reveal()
		}
		st, err := a.stores.get(a.ctx, url)
		if err != nil {
			return err
		}
		st.needed = true
		settings := feedConfig(c, st.gate, a.log)
		source, err := st.feed(settings.Definition)
		if err != nil {
			return UsageError{fmt.Errorf("feed %s: %w", c.Path, err)}
		}
		if r := a.replica; r != nil && c.Database == "" {
			replica, err := r.store.feed(settings.Definition)
			if err != nil {
				return UsageError{fmt.Errorf("feed %s on the replica: %w", c.Path, err)}
			}
			source = &feed.Replicated{Replica: replica, Primary: source, Switch: r.reads, Timeout: settings.Timeout}
		}
		f := feed.Open(settings, source)
		a.feeds = append(a.feeds, f)
		a.routes = append(a.routes, server.FeedRoute{Paths: append([]string{c.Path}, c.Aliases...), Feed: f})
	}
	return nil
}

// openQueries makes the queries. It asks no database anything.
func (a *app) openQueries() error {
	if url := a.cfg.Redis.Reveal(); url != "" {
		r, err := redis.Open(url, a.log)
		if err != nil {
			return UsageError{err}
		}
		a.redis = r
	}
	for i := range a.cfg.Queries {
		c := &a.cfg.Queries[i]
		st, err := a.stores.get(a.ctx, cmp.Or(c.Database.Reveal(), a.cfg.Database.Reveal()))
		if err != nil {
			return err
		}
		if c.Cache == "redis" && a.redis == nil {
			return UsageError{fmt.Errorf("query %s: cache: redis needs redis: in the configuration, or --redis", c.Path)}
		}
		st.needed = true
		settings := a.queryConfig(c)
		settings.Database = st.url.Identity()
		source, check, err := st.query(settings.Definition)
		if err != nil {
			return UsageError{err}
		}
		if r := a.replica; r != nil && c.Database == "" {
			replica, _, err := r.store.query(settings.Definition)
			if err != nil {
				return UsageError{fmt.Errorf("on the replica: %w", err)}
			}
			source = &query.Replicated{Replica: replica, Primary: source, Switch: r.reads, Timeout: settings.Timeout}
		}
		q := query.Open(settings, source)
		a.queries = append(a.queries, queryPart{q, check})
		a.queryRoutes = append(a.queryRoutes, server.QueryRoute{Paths: append([]string{c.Path}, c.Aliases...), Query: q})
	}
	return nil
}

// queryPart is an open query and how its statement is checked at start.
type queryPart struct {
	query *query.Query
	check func(context.Context) error
}

// queryConfig turns the configuration's query into the engine's.
func (a *app) queryConfig(c *config.Query) query.Config {
	cfg := query.Config{
		Definition: query.Definition{Name: c.Path, SQL: c.SQL},
		Limit:      query.Limit{Rows: c.RowsMax, Bytes: c.BytesMax},
		Timeout:    c.Timeout,
		TTL:        c.TTL,
		Stale:      c.Stale,
		CacheBytes: c.CacheBytes,
		WaitersMax: c.WaitersMax,
		Log:        a.log,
	}
	for _, p := range c.Params {
		cfg.Params = append(cfg.Params, param.Param{Name: p.Name, Type: param.Type(p.Type)})
	}
	if c.Cache == "redis" {
		cfg.Shared = &query.Shared{Get: a.redis.Get, Put: a.redis.Put, Claim: a.redis.Claim, Hold: a.redis.Hold, Release: a.redis.Release}
	}
	return cfg
}

// feedConfig turns the configuration's feed into the engine's.
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

func (a *app) newServer() (*server.Server, error) {
	h := a.cfg.HTTP
	cfg := server.Config{
		Feeds:         a.routes,
		Queries:       a.queryRoutes,
		Streams:       a.streamRoutes,
		ProbeDatabase: a.stores.open[a.defaultStore()].probe,
		Connections:   h.Connections,
		HeaderBytes:   h.HeaderBytes,
		BodyBytes:     h.BodyBytes,
		BodiesBytes:   int64(h.BodiesBytes),
		ReadTimeout:   h.ReadTimeout,
		WriteTimeout:  h.WriteTimeout,
		IdleTimeout:   h.IdleTimeout,
		DrainTimeout:  h.DrainTimeout,
		CORSOrigins:   h.CORSOrigins,
		AccessLog:     a.cfg.Log.Access,
		Log:           a.log,
	}
	for _, key := range a.cfg.Keys {
		cfg.Keys = append(cfg.Keys, key.Reveal())
	}
	if a.redis != nil {
		cfg.ProbeRedis = a.redis.Get
	}
	if a.popups != nil {
		route, err := a.popups.route()
		if err != nil {
			return nil, err
		}
		cfg.Popup = route
	}
	if h.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(h.TLSCert, h.TLSKey)
		if err != nil {
			return nil, UsageError{fmt.Errorf("load TLS certificate: %w", err)}
		}
		cfg.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	for _, text := range h.TrustedProxies {
		p, err := parsePrefix(text)
		if err != nil {
			return nil, UsageError{fmt.Errorf("trusted proxy: %w", err)}
		}
		cfg.Proxies = append(cfg.Proxies, p)
	}
	return server.New(cfg)
}

// parsePrefix reads an address or a CIDR.
func parsePrefix(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	return netip.ParsePrefix(text) // its text names the value
}
