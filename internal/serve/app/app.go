package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"spillway/internal/database"
	"spillway/internal/progress"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/freight"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/query"
	"spillway/internal/serve/redis"
	"spillway/internal/serve/server"
	"spillway/internal/serve/spool"
)

// app is the serving process: its parts in the order in which they start.
type app struct {
	ctx            context.Context // of the process: ends when it is told to stop
	log            *slog.Logger
	stdout, stderr io.Writer

	cfg     config.Config
	demo    bool // the freight app on its own SQLite
	builtIn bool // there is no file
	stores  stores
	redis   *redis.DB
	replica *replica // nil: none
	feeds   []*feed.Feed
	routes  []server.FeedRoute

	queries     []queryPart
	queryRoutes []server.QueryRoute

	streams      []*streamPart
	streamRoutes []server.StreamRoute
	batches      *admin.StreamBatches
	spool        atomic.Pointer[spool.Spool] // nil: no stream uses it, or not yet
	closeSpool   sync.Once

	popups *popupPart // nil: none
}

// close ends the parts in the reverse order.
func (a *app) close() {
	for _, f := range a.feeds {
		f.Close()
	}
	for _, q := range a.queries {
		q.query.Close()
	}
	if a.replica != nil {
		a.replica.reads.Close()
	}
	if a.redis != nil {
		a.redis.Close()
	}
	if a.popups != nil {
		a.popups.close()
	}
	_ = a.closeStreams() // those that never served; servePublic has closed the others
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
	if err := a.openStreams(); err != nil {
		return err
	}
	if err := a.openPopups(); err != nil {
		return err
	}
	public, err := a.newServer()
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	adminConfig := admin.Config{
		Listen: a.cfg.Admin.Listen, Token: a.cfg.Admin.Token.Reveal(), Log: a.log, Registry: registry,
		Ready: func() []admin.Problem { return a.problems(public) }, Acks: a.streamAcks,
	}
	if a.popups != nil {
		adminConfig.Popups = a.popups.admin()
	}
	adm, err := admin.New(adminConfig)
	if err != nil {
		return UsageError{err}
	}
	if err := a.register(registry, public); err != nil {
		return err
	}
	return a.serve(public, adm)
}

// serve runs both listeners. The admin listener answers from the start; it stops
// last, so that a draining server can be watched.
func (a *app) serve(public *server.Server, adm *admin.Server) error {
	ctx, stop := context.WithCancel(context.WithoutCancel(a.ctx))
	defer stop()
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return adm.Run(groupCtx) })
	if a.replica != nil {
		group.Go(func() error { return a.replica.watch(groupCtx) })
	}
	group.Go(func() error {
		defer stop()
		// Told to stop, or the admin listener failed.
		ctx, cancel := context.WithCancel(a.ctx)
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
		if st.optional || st.spooled && !st.needed {
			continue
		}
		if err := database.Wait(ctx, a.log, "database "+st.url.String(), st.ping); err != nil {
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
	if err := a.startStreams(ctx); err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	if a.popups != nil {
		if err := a.popups.start(ctx, fail); err != nil {
			return err
		}
	}
	ln, err := server.Listen(ctx, a.cfg.Listen)
	if err != nil {
		return err
	}
	a.log.Info("serving", "listen", ln.Addr().String(), "admin", a.cfg.Admin.Listen, "database", a.defaultURL())
	if a.demo {
		a.printTour(ln.Addr().String())
	}
	err = errors.Join(public.Run(ctx, ln), a.closeStreams())
	if a.popups != nil {
		a.popups.close()
	}
	if cause := context.Cause(ctx); errors.Is(cause, popup.ErrLockLost) {
		return errors.Join(cause, err)
	}
	if err == nil {
		a.logStopped()
	}
	return err
}

// ensureFreight creates the freight app's data where there is none.
func (a *app) ensureFreight() error {
	url, err := database.Parse(a.cfg.Database.Reveal())
	if err != nil {
		return UsageError{err}
	}
	_, err = freight.Ensure(a.ctx, url, progress.New(a.stderr))
	return err
}

// printTour tells a newcomer what to try.
func (a *app) printTour(listen string) {
	fmt.Fprintf(a.stdout, `
The freight app is served. Try:

  curl 'http://%[1]s/goodslist'                       the 10 newest orders
  curl 'http://%[1]s/goodslist?offset=20&limit=5'     any offset, any page size to 100
  curl 'http://%[1]s/goodslist?before=CURSOR'         CURSOR is "next" of the page before
  curl -i 'http://%[1]s/goodslist?offset=150000'      deep offsets too: see Spillway-Offset
  curl --json '{"users_id": 7, "goods_name": "steel pipes, 12 t"}' 'http://%[1]s/orders'
                                                     an order, on page 1 within 0.1 s
  curl --json '{"device_id": 7, "latitude": 31.23, "longitude": 121.47, "speed": 62.5}' 'http://%[1]s/positions'
                                                     where a truck is; arrays and NDJSON too
  curl -i 'http://%[1]s/popup?user=7&app_version=29'  the popup for driver 7; again: none, and until when
  curl -i --json '{"show": "SHOW"}' 'http://%[1]s/popup/click'
                                                     SHOW is "show" of the answer before
  curl -i 'http://%[1]s/popup?user=7&app_version=29&clock_offset=25h'
                                                     a day later: the next popup (the demo's clock can be shifted)
  curl 'http://%[2]s/popups/explain?user=7'           why; /popups/campaigns changes them, /openapi.json says how
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
	}), admin.StreamStats(a.streamStats), admin.StreamAcks(a.streamAcks), a.batches, admin.SpoolStats(a.spoolStats), admin.SpoolNameStats(a.spoolStats)}
	if a.popups != nil {
		collectors = append(collectors, admin.PopupStats(a.popups.figures))
	}
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
	for _, p := range a.streams {
		if err := p.ready(); err != nil {
			problems = append(problems, admin.Problem{Name: "POST " + p.name(), Reason: err.Error()})
		}
	}
	if a.popups != nil {
		if err := a.popups.ready(); err != nil {
			problems = append(problems, admin.Problem{Name: a.cfg.Popups.Path, Reason: err.Error()})
		}
	}
	return problems
}
