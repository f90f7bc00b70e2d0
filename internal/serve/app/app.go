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

	"golang.org/x/sync/errgroup"

	"spillway/internal/database"
	"spillway/internal/exit"
	"spillway/internal/progress"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/freight"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/redis"
	"spillway/internal/serve/server"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/token"
)

// app is the serving process, with its parts in the order in which they are opened and
// started. Opening a part sends nothing to a database. Starting it requires that the
// databases answer.
type app struct {
	ctx            context.Context // of the process; ends when the process must stop
	log            *slog.Logger
	stdout, stderr io.Writer

	cfg     config.Config
	demo    bool // the freight app on its own SQLite
	builtIn bool // without a configuration file

	stores  stores
	replica *replica // nil: none
	tokens  *token.Verifier
	keySet  *token.Set // nil: none
	redis   *redis.DB  // nil: none

	feeds      []*feed.Feed
	feedRoutes []server.FeedRoute

	queries     []queryPart
	queryRoutes []server.QueryRoute

	streams      []*streamPart
	streamRoutes []server.StreamRoute
	batches      *admin.StreamBatches
	spool        atomic.Pointer[spool.Spool] // nil: no stream uses it, or not yet
	closeSpool   sync.Once

	popups *popupPart // nil: none
}

// run opens the parts and serves until ctx ends.
func (a *app) run() error {
	if err := os.MkdirAll(a.cfg.Data, 0o750); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	for _, open := range []func() error{
		a.openDemo, a.openDefault, a.openReplica, a.openRedis, a.openAuth, a.openFeeds, a.openQueries, a.openStreams, a.openPopups,
	} {
		if err := open(); err != nil {
			return err
		}
	}
	public, err := a.newServer()
	if err != nil {
		return err
	}
	adm, err := a.newAdmin(public)
	if err != nil {
		return err
	}
	return a.serve(public, adm)
}

// serve runs both listeners. The admin listener answers from the start, and stops last, so
// that a draining server can be watched.
func (a *app) serve(public *server.Server, adm *admin.Server) error {
	ctx, stop := context.WithCancel(context.WithoutCancel(a.ctx))
	defer stop()
	ln, err := adm.Listen(ctx)
	if err != nil {
		return err
	}
	a.cfg.Admin.Listen = ln.Addr().String() // the port, if 0 was configured
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return adm.Serve(groupCtx, ln) })
	if a.replica != nil {
		group.Go(func() error { return a.replica.watch(groupCtx) })
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
		return a.servePublic(ctx, public)
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// servePublic starts the parts and serves until ctx ends or the lock of popups is lost.
func (a *app) servePublic(ctx context.Context, public *server.Server) error {
	for _, start := range []func(context.Context) error{a.awaitDatabases, a.startFeeds, a.startQueries, a.startStreams} {
		if err := start(ctx); err != nil {
			return err
		}
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
	a.log.Info("serving", "listen", ln.Addr().String(), "admin", a.cfg.Admin.Listen, "database", a.defaultStore().url.String())
	if a.demo {
		fmt.Fprint(a.stdout, freight.Tour(ln.Addr().String(), a.cfg.Admin.Listen))
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

// close closes the parts. It does nothing for parts that are closed already.
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
	_ = a.closeStreams() // servePublic has closed them, unless it failed before
	a.stores.close()
}

// openDemo creates the data of the freight app if there is none.
func (a *app) openDemo() error {
	if !a.demo {
		return nil
	}
	url, err := database.Parse(a.cfg.Database.Reveal())
	if err != nil {
		return exit.UsageError(err)
	}
	_, err = freight.Ensure(a.ctx, url, progress.New(a.stderr))
	return err
}

// openDefault opens the default database.
func (a *app) openDefault() error {
	_, err := a.stores.get(a.ctx, a.cfg.Database.Reveal())
	return err
}

// defaultStore returns the default database, which openDefault has opened.
func (a *app) defaultStore() *store {
	st, err := a.stores.get(a.ctx, a.cfg.Database.Reveal())
	if err != nil {
		panic("bug: the default database is not open")
	}
	return st
}

// awaitDatabases waits until every required database answers.
func (a *app) awaitDatabases(ctx context.Context) error {
	for _, st := range a.stores.open {
		if st.optional || st.spooled && !st.needed {
			continue
		}
		if err := database.Wait(ctx, a.log, "database "+st.url.String(), st.Ping); err != nil {
			return err
		}
	}
	return nil
}
