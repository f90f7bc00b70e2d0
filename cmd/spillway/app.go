package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"spillway/internal/admin"
	"spillway/internal/config"
	"spillway/internal/database"
	"spillway/internal/feed"
	"spillway/internal/freight"
	"spillway/internal/progress"
	"spillway/internal/query"
	"spillway/internal/redis"
	"spillway/internal/server"
)

// app is the serving process: its parts in the order in which they start.
type app struct {
	env     *environment
	cfg     config.Config
	demo    bool
	stores  stores
	redis   *redis.DB
	replica *replica // nil: none
	feeds   []*feed.Feed
	routes  []server.FeedRoute

	queries     []queryPart
	queryRoutes []server.QueryRoute
}

// close ends the parts in the reverse order.
func (a *app) close() {
	for _, f := range a.feeds {
		f.Close()
	}
	for _, q := range a.queries {
		q.query.Close()
	}
	if a.redis != nil {
		a.redis.Close()
	}
	a.stores.close()
}

// run starts the admin listener, waits for the databases, checks and warms the
// feeds, and then serves until the process is told to stop.
func (a *app) run() error {
	if err := os.MkdirAll(a.cfg.Data, 0o750); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	if a.demo {
		if err := a.ensureFreight(); err != nil {
			return err
		}
	}
	if err := a.openFeeds(); err != nil {
		return err
	}
	if err := a.openQueries(); err != nil {
		return err
	}
	public, err := a.newServer()
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	adm, err := admin.New(admin.Config{
		Listen: a.cfg.Admin.Listen, Token: a.cfg.Admin.Token.Reveal(), Log: a.env.log, Registry: registry,
		Ready: func() []admin.Problem { return a.problems(public) },
	})
	if err != nil {
		return usageError{err}
	}
	if err := a.register(registry, public); err != nil {
		return err
	}
	return a.serve(public, adm)
}

// serve runs both listeners. The admin listener answers from the start; it stops
// last, so that a draining server can be watched.
func (a *app) serve(public *server.Server, adm *admin.Server) error {
	ctx, stop := context.WithCancel(context.WithoutCancel(a.env.ctx))
	defer stop()
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return adm.Run(groupCtx) })
	group.Go(func() error {
		defer stop()
		// Told to stop, or the admin listener failed.
		ctx, cancel := context.WithCancel(a.env.ctx)
		defer cancel()
		defer context.AfterFunc(groupCtx, cancel)()
		return a.servePublic(ctx, public)
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// servePublic waits until the feeds can be served, and serves them.
func (a *app) servePublic(ctx context.Context, public *server.Server) error {
	for _, st := range a.stores.open {
		if st.optional {
			continue
		}
		if err := database.Wait(ctx, a.env.log, "database "+st.url.String(), st.ping); err != nil {
			return err
		}
	}
	for _, f := range a.feeds {
		if err := f.Check(ctx); err != nil {
			return err
		}
		if err := f.Warm(ctx); err != nil {
			return err
		}
	}
	for _, q := range a.queries {
		if err := q.check(ctx); err != nil {
			return err
		}
	}
	ln, err := server.Listen(ctx, a.cfg.Listen)
	if err != nil {
		return err
	}
	a.env.log.Info("serving", "listen", ln.Addr().String(), "admin", a.cfg.Admin.Listen, "database", a.defaultURL())
	if a.demo {
		a.printTour(ln.Addr().String())
	}
	err = public.Run(ctx, ln)
	if err == nil {
		a.env.log.Info("stopped: every accepted request was answered")
	}
	return err
}

// ensureFreight creates the freight app's data where there is none.
func (a *app) ensureFreight() error {
	url, err := database.Parse(a.cfg.Database.Reveal())
	if err != nil {
		return usageError{err}
	}
	_, err = freight.Ensure(a.env.ctx, url, progress.New(a.env.stderr))
	return err
}

// printTour tells a newcomer what to try.
func (a *app) printTour(listen string) {
	fmt.Fprintf(a.env.stdout, `
The freight app is served. Try:

  curl 'http://%[1]s/goodslist'                       the 10 newest orders
  curl 'http://%[1]s/goodslist?offset=20&limit=5'     any offset, any page size to 100
  curl 'http://%[1]s/goodslist?before=CURSOR'         CURSOR is "next" of the page before
  curl -i 'http://%[1]s/goodslist?offset=150000'      deep offsets too: see Spillway-Offset
  curl 'http://%[1]s/hello'                           an empty endpoint, for comparison
  curl 'http://%[2]s/readyz'                          readiness; /metrics, /debug/pprof/

Ctrl-C stops it.
`, listen, a.cfg.Admin.Listen)
}

// defaultStore returns the key of the default database among the open ones.
func (a *app) defaultStore() string {
	url, err := database.Parse(a.cfg.Database.Reveal())
	if err != nil {
		panic("bug: the default database was opened but does not parse")
	}
	return url.Raw()
}

func (a *app) defaultURL() string { return a.stores.open[a.defaultStore()].url.String() }

// register adds the metrics of all parts.
func (a *app) register(registry *prometheus.Registry, public *server.Server) error {
	collectors := []prometheus.Collector{public, admin.FeedStats(func() []feed.Stats {
		stats := make([]feed.Stats, 0, len(a.feeds))
		for _, f := range a.feeds {
			stats = append(stats, f.Stats())
		}
		return stats
	}), admin.QueryStats(func() []query.Stats {
		stats := make([]query.Stats, 0, len(a.queries))
		for _, q := range a.queries {
			stats = append(stats, q.query.Stats())
		}
		return stats
	})}
	if a.replica != nil {
		collectors = append(collectors, admin.ReplicaStats(a.replica.store.url.String(), a.replica.reads))
	}
	for _, st := range a.stores.open {
		collectors = append(collectors, admin.PoolStats(st.url.String(), st.stats))
	}
	for _, c := range collectors {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// problems lists what keeps the process from being ready.
func (a *app) problems(public *server.Server) []admin.Problem {
	var problems []admin.Problem
	if public.Draining() {
		problems = append(problems, admin.Problem{Name: "server", Reason: "stopping"})
	} else if !public.Serving() {
		problems = append(problems, admin.Problem{Name: "server", Reason: "starting: waiting for the databases"})
	}
	now := time.Now()
	for _, f := range a.feeds {
		if err := f.Ready(now); err != nil {
			problems = append(problems, admin.Problem{Name: f.Name(), Reason: err.Error()})
		}
	}
	return problems
}
