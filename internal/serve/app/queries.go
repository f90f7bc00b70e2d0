package app

import (
	"cmp"
	"context"
	"fmt"

	"spillway/internal/exit"
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/query"
	"spillway/internal/serve/redis"
	"spillway/internal/serve/server"
)

// openRedis opens Redis if it is configured.
func (a *app) openRedis() error {
	if a.cfg.Redis == "" {
		return nil
	}
	r, err := redis.Open(a.cfg.Redis.Read, a.log)
	if err != nil {
		return exit.UsageError(err)
	}
	a.redis = r
	return nil
}

// openQuery returns the part of a query.
func (a *app) openQuery(c config.Query) (*readPart, error) {
	st, err := a.stores.get(a.ctx, cmp.Or(c.Database, a.cfg.Database))
	if err != nil {
		return nil, err
	}
	if c.Cache == "redis" && a.redis == nil {
		return nil, exit.UsageError(fmt.Errorf("query %s: cache: redis requires redis: in the configuration, or --redis", c.Path))
	}
	settings := a.queryConfig(&c)
	settings.Gate, settings.Logins = st.gate.Entrance(), a.logins(st)
	if settings.Prefix = a.cfg.RedisPrefix; settings.Prefix != "" {
		settings.Database = func() string { return "redis_prefix" } // which replaces all that is known of it
	} else {
		settings.Prefix, settings.Database = "spillway", st.shared
		st.identity.wanted.CompareAndSwap(false, c.Cache == "redis")
	}
	settings.Plans = &feed.PlanLog{}
	p := &readPart{
		cfg: c, auth: c.Auth, unknown: c.Unknown, envelope: envelopeOf(c.Envelope), def: settings.Definition,
		caching: server.SharedCaching{MaxAge: c.SMaxAge, StaleWhileRevalidate: c.Revalidate},
	}
	if c.One {
		p.envelope = feed.EnvelopeOne
	}
	if c.Cache == "redis" {
		p.refused = func() error { return a.redis.Denied(settings.Prefix) }
	}
	check := func(ctx context.Context) error { return p.source.Check(ctx, 0) }
	p.part = newPart(c.Path, st, server.DownRoute{Reads: append([]string{c.Path}, c.Aliases...)}, check)
	if p.source, err = a.openSource(p.part, c.Database, p.def, c.Timeout, c.StaleMax); err != nil {
		return nil, err
	}
	p.query = query.Open(settings, p.source)
	return p, nil
}

// logins counts the changes of the users of a store and of the replica, which may be read in its place.
func (a *app) logins(st *store) func() uint64 {
	if a.replica == nil {
		return st.Logins
	}
	return func() uint64 { return st.Logins() + a.replica.store.Logins() }
}

// queryConfig converts a query's configuration.
func (a *app) queryConfig(c *config.Query) query.Config {
	cfg := query.Config{
		Definition: queryDefinition(c),
		Limit:      feed.Limit{Rows: c.RowsMax, Bytes: c.BytesMax},
		Timeout:    c.Timeout,
		TTL:        c.TTL,
		Stale:      c.Stale,
		CacheBytes: c.CacheBytes,
		WaitersMax: c.WaitersMax,
		Log:        a.log,
	}
	if c.One {
		cfg.Limit.Rows = 1
	}
	if c.Cache == "redis" {
		cfg.Shared = &query.Shared{Get: a.redis.Get, Put: a.redis.Put, Claim: a.redis.Claim, Hold: a.redis.Hold, Release: a.redis.Release}
	}
	return cfg
}

// queryDefinition turns the configuration's query into the engine's.
func queryDefinition(c *config.Query) feed.Definition {
	return feed.Definition{
		Name: c.Path, SQL: c.SQL, Params: c.Params.All(), RFC3339: c.Timestamps == "rfc3339", NumbersAsText: c.Numbers == "text",
	}
}

func (a *app) queryStats() []query.Stats {
	var stats []query.Stats
	for _, p := range a.current().parts {
		if p.query != nil {
			stats = append(stats, p.query.Stats())
		}
	}
	if a.popups != nil && a.popups.userRow != nil {
		stats = append(stats, a.popups.userRow.Stats())
	}
	return stats
}
