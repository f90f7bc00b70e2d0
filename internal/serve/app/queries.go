package app

import (
	"cmp"
	"context"
	"fmt"

	"spillway/internal/exit"
	"spillway/internal/serve/config"
	"spillway/internal/serve/param"
	"spillway/internal/serve/query"
	"spillway/internal/serve/redis"
	"spillway/internal/serve/server"
)

// queryPart is an open query and the check of its statement.
type queryPart struct {
	query *query.Query
	check func(context.Context) error
}

// openRedis opens Redis if it is configured.
func (a *app) openRedis() error {
	url := a.cfg.Redis.Reveal()
	if url == "" {
		return nil
	}
	r, err := redis.Open(url, a.log)
	if err != nil {
		return exit.UsageError(err)
	}
	a.redis = r
	return nil
}

// openQueries creates the queries.
func (a *app) openQueries() error {
	for i := range a.cfg.Queries {
		c := &a.cfg.Queries[i]
		st, err := a.stores.get(a.ctx, cmp.Or(c.Database.Reveal(), a.cfg.Database.Reveal()))
		if err != nil {
			return err
		}
		if c.Cache == "redis" && a.redis == nil {
			return exit.UsageError(fmt.Errorf("query %s: cache: redis requires redis: in the configuration, or --redis", c.Path))
		}
		st.needed = true
		settings := a.queryConfig(c)
		settings.Database = st.url.Identity()
		primary, err := st.query(settings.Definition)
		if err != nil {
			return exit.UsageError(err)
		}
		var source query.Source = primary
		if r := a.replica; r != nil && c.Database == "" {
			replica, err := r.store.query(settings.Definition)
			if err != nil {
				return exit.UsageError(fmt.Errorf("on the replica: %w", err))
			}
			source = &query.Replicated{Replica: replica, Primary: primary, Switch: r.reads, Timeout: settings.Timeout}
		}
		q := query.Open(settings, source)
		a.queries = append(a.queries, queryPart{q, primary.Check})
		a.queryRoutes = append(a.queryRoutes, server.QueryRoute{Paths: append([]string{c.Path}, c.Aliases...), Access: accessOf(a.cfg.ReadAccess(c.Auth)), Query: q})
	}
	return nil
}

// queryConfig converts a query's configuration.
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

// startQueries has the databases check the queries' statements.
func (a *app) startQueries(ctx context.Context) error {
	for _, q := range a.queries {
		if err := q.check(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) queryStats() []query.Stats {
	stats := make([]query.Stats, 0, len(a.queries))
	for _, q := range a.queries {
		stats = append(stats, q.query.Stats())
	}
	return stats
}
