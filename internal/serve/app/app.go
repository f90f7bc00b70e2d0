package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"spillway/internal/progress"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/config"
	"spillway/internal/serve/freight"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/redis"
	"spillway/internal/serve/server"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/token"
)

// app is the serving process. Opening its parts sends nothing to a database. Each part then
// starts by itself, and is served from then on.
type app struct {
	ctx       context.Context // of the process; ends when the process must stop
	log       *slog.Logger
	accessLog *server.AccessLog

	options Options
	level   *slog.LevelVar
	hangups chan os.Signal // asks for a reload

	cfg   config.Config // as at the start of the process
	demo  bool          // the freight app on its own SQLite
	loops int           // event loops of the fast lane; -1: none

	sockets     sockets
	certificate *certificate // nil: plain HTTP
	metrics     *prometheus.Registry
	public      *server.Server
	traffic     *admin.Traffic
	started     time.Time

	stores       stores
	defaultStore *store
	replica      *replica        // nil: none
	redis        *redis.DB       // nil: none
	tokens       *token.Verifier // nil: none
	keySet       *token.Set      // nil: none

	mu    sync.Mutex // guards reads, and the order of changes of routes
	reads reads

	streams      []*streamPart
	batches      *admin.StreamBatches
	spool        atomic.Pointer[spool.Spool] // nil: no stream uses it, or not yet
	openingSpool sync.Mutex                  // guards also leftovers
	leftovers    map[string]*leftover        // by their name in the spool
	closeSpool   sync.Once

	popups *popupPart // nil: none

	reloading sync.Mutex // held by a reload; guards what follows
	leftover  []*reads   // replaced by a reload, and not closed yet
	closed    bool

	readiness readiness // since when something has been wrong with a part
}

// reads are the feeds and queries of a configuration. They and the configuration's settings of
// the public listener can be replaced while the process runs.
type reads struct {
	cfg   config.Config
	parts []*readPart // feeds first
}

// all returns the feeds and queries as parts.
func (r *reads) all() []*part {
	var parts []*part
	for _, p := range r.parts {
		parts = append(parts, p.part)
	}
	return parts
}

// current returns the feeds and queries that are served.
func (a *app) current() reads {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reads
}

// parts returns all parts.
func (a *app) parts() []*part {
	now := a.current()
	parts := now.all()
	for _, p := range a.streams {
		parts = append(parts, p.part)
	}
	if a.popups != nil {
		parts = append(parts, a.popups.part)
	}
	return parts
}

// run opens the parts and serves until ctx ends.
func (a *app) run() error {
	if err := os.MkdirAll(a.cfg.Data, 0o750); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	for _, open := range []func() error{
		a.openDefault, a.openDemo, a.openReplica, a.openRedis, a.openAuth, a.openReads, a.openStreams, a.openPopups, a.openCertificate,
	} {
		if err := open(); err != nil {
			return err
		}
	}
	a.openServer()
	return a.serve(a.newAdmin())
}

// serve runs both listeners. The admin listener answers from the start, and stops last, so
// that a draining server can be watched.
func (a *app) serve(adm *admin.Server) error {
	ctx, stop := context.WithCancel(context.WithoutCancel(a.ctx))
	defer stop()
	ln, err := a.sockets.listenAdmin(ctx, adm, a.cfg.Admin.Listen)
	if err != nil {
		return err
	}
	a.cfg.Admin.Listen = addressOf(ln) // the port, if 0 was configured
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return adm.Serve(groupCtx, ln) })
	group.Go(func() error {
		for range queue.Ticks(groupCtx, probeEvery) {
			a.state() // so that it is known since when something has been wrong
		}
		return nil
	})
	group.Go(func() error { a.traffic.Run(groupCtx, a.streamStats); return nil })
	if a.replica != nil {
		group.Go(func() error { a.replica.reads.Watch(groupCtx, a.replica.primary, a.replica.replayed); return nil })
	}
	if a.certificate != nil {
		group.Go(func() error { return a.certificate.watch(groupCtx) })
	}
	if a.keySet != nil {
		group.Go(func() error { a.keySet.Run(groupCtx); return nil })
	}
	group.Go(func() error {
		defer stop()
		// ctx has ended, or the admin listener failed.
		ctx, cancel := context.WithCancel(a.ctx)
		defer cancel()
		defer context.AfterFunc(groupCtx, cancel)()
		return a.servePublic(ctx)
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// servePublic starts the parts and serves until ctx ends or the lock of popups is lost.
func (a *app) servePublic(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	if a.popups != nil {
		a.popups.failed = fail
	}
	if err := a.startParts(ctx, a.parts(), a.options.Strict, a.publish); err != nil {
		return err
	}
	ln, err := a.sockets.listenPublic(ctx, a.cfg.Listen)
	if err != nil {
		return err
	}
	var beside sync.WaitGroup
	defer beside.Wait()
	serving, end := context.WithCancel(ctx)
	defer end()
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	beside.Go(func() {
		<-serving.Done()
		a.delayStop(running, context.Cause(ctx))
		stop()
	})
	err = a.public.Run(running, ln, func() {
		a.log.Info("serving", "listen", addressOf(ln), "admin", a.cfg.Admin.Listen, "database", a.defaultStore.url.String())
		if a.demo {
			fmt.Fprint(a.options.Stdout, freight.Tour(addressOf(ln), a.cfg.Admin.Listen))
		}
		notify(a.log, ready) // a signal to reload may follow at once
		beside.Go(func() { a.drainLeftovers(serving) })
		beside.Go(func() {
			a.reloadOnSignal(serving, a.hangups)
			notify(a.log, stopping)
		})
	})
	err = errors.Join(err, a.closeStreams())
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

// publish has the public listener serve the parts that have started. The others answer 503.
func (a *app) publish() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.public.Switch(a.public.Next(a.serverConfig(&a.reads)))
}

// close closes the parts. It does nothing for parts that are closed already.
func (a *app) close() {
	a.reloading.Lock()
	a.closed = true
	a.reloading.Unlock()
	now := a.current()
	for _, r := range append(a.leftover, &now) {
		r.close()
	}
	if a.replica != nil {
		a.replica.reads.Close()
	}
	if a.popups != nil {
		a.popups.close()
	}
	_ = a.closeStreams() // servePublic has closed them, unless it failed before
	if a.redis != nil {
		a.redis.Close()
	}
	a.stores.retain(nil)
	a.sockets.close()
}

// close stops the feeds and queries.
func (r *reads) close() {
	for _, p := range r.parts {
		p.close()
	}
}

// openDemo creates the data of the freight app if there is none.
func (a *app) openDemo() error {
	if !a.demo {
		return nil
	}
	_, err := freight.Ensure(a.ctx, a.defaultStore.url, progress.New(a.options.Stderr))
	return err
}

// openDefault opens the default database.
func (a *app) openDefault() (err error) {
	a.defaultStore, err = a.stores.get(a.ctx, a.cfg.Database)
	return err
}

// openReads opens the feeds and queries of the configuration.
func (a *app) openReads() error {
	r, err := a.newReads(a.cfg)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reads = *r
	return nil
}

// newReads opens the feeds and queries of cfg, and takes over those of the current
// configuration that are configured in the same way.
func (a *app) newReads(cfg config.Config) (*reads, error) {
	now := a.current()
	r := &reads{cfg: cfg}
	add := func(c any, open func() (*readPart, error)) error {
		i := slices.IndexFunc(now.parts, func(p *readPart) bool { return reflect.DeepEqual(p.cfg, c) })
		if i >= 0 {
			r.parts = append(r.parts, now.parts[i])
			return nil
		}
		p, err := open()
		if err == nil {
			r.parts = append(r.parts, p)
		}
		return err
	}
	for _, c := range cfg.Feeds {
		if err := add(c, func() (*readPart, error) { return a.openFeed(c, windowsShare(cfg.Feeds)) }); err != nil {
			return r, err
		}
	}
	for _, c := range cfg.Queries {
		if err := add(c, func() (*readPart, error) { return a.openQuery(c) }); err != nil {
			return r, err
		}
	}
	return r, nil
}
