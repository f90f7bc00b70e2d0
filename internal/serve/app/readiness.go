package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"spillway/internal/serve/admin"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/redis"
	"spillway/internal/serve/server"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/stream"
)

// readyCheck is a part of the process as its readiness sees it. One that could not be started
// returns its error.
type readyCheck struct {
	name  string
	group admin.Group // "": it concerns all
	// state returns whether requests are answered, and what is wrong or soon will be. It
	// asks no database and does not depend on requests.
	state func(now time.Time) (serves bool, err error)
}

// readiness knows since when something has been wrong with a part.
type readiness struct {
	mu    sync.Mutex
	since map[string]time.Time // by a part's name
}

// look returns the state of the parts.
func (r *readiness) look(now time.Time, parts []readyCheck) []admin.Part {
	r.mu.Lock()
	defer r.mu.Unlock()
	since, states := make(map[string]time.Time), make([]admin.Part, 0, len(parts))
	for _, p := range parts {
		serves, err := p.state(now)
		state := admin.Part{Name: p.name, Group: p.group, Serves: serves}
		if err != nil {
			began, known := r.since[p.name]
			if !known {
				began = now
			}
			since[p.name] = began
			state.Reason, state.Since = publicReason(err), began
		}
		states = append(states, state)
	}
	r.since = since
	return states
}

// state returns the state of all parts.
func (a *app) state(public *server.Server) []admin.Part {
	parts := []readyCheck{{name: "server", state: func(time.Time) (bool, error) {
		switch {
		case public.Draining():
			return false, errors.New("stopping")
		case !public.Serving():
			return false, errors.New("starting: waiting for the databases")
		}
		return true, nil
	}}}
	parts = append(parts, a.reads...)
	for _, p := range a.streams {
		parts = append(parts, readyCheck{"POST " + p.name(), admin.Writes, func(time.Time) (bool, error) { return tolerable(p.ready()) }})
	}
	if p := a.popups; p != nil {
		parts = append(parts, readyCheck{p.cfg.Path, admin.Shows, func(time.Time) (bool, error) { return tolerable(p.ready()) }})
	}
	return a.readiness.look(time.Now(), parts)
}

// tolerable returns whether a part serves although its Ready returned err.
func tolerable(err error) (bool, error) {
	return err == nil || errors.Is(err, queue.ErrNearlyFull), err
}

// feedCheck is the check of a feed. It serves while a database answers, or rows are within
// stale_max.
func feedCheck(f *feed.Feed, noAnswer func() error) readyCheck {
	return readyCheck{f.Name(), admin.Reads, func(now time.Time) (bool, error) {
		down := noAnswer()
		return down == nil || f.Fresh(now), cmp.Or(f.Ready(now), down)
	}}
}

// queryCheck is the check of a query. It serves while a database answers.
func queryCheck(path string, noAnswer func() error) readyCheck {
	return readyCheck{path, admin.Reads, func(time.Time) (bool, error) {
		down := noAnswer()
		return down == nil, down
	}}
}

// reader returns a function that returns why neither a store nor, if reads go there too, its
// replica answers; nil if one does.
func (a *app) reader(st *store, replicated bool) func() error {
	st.read = true
	if !replicated {
		return st.noAnswer
	}
	a.replica.store.read = true
	return func() error {
		if a.replica.store.noAnswer() == nil {
			return nil
		}
		return st.noAnswer()
	}
}

// Probes of databases that feeds and queries read.
const (
	probeEvery   = time.Second
	probeTimeout = 2 * time.Second
)

// watchReadiness probes the databases and looks at all parts once per second, until ctx ends.
func (a *app) watchReadiness(ctx context.Context, public *server.Server) error {
	var probes sync.WaitGroup
	for _, st := range a.stores.open {
		if st.read {
			probes.Go(func() { st.watch(ctx, a.log) })
		}
	}
	defer probes.Wait()
	ticker := time.NewTicker(probeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			a.state(public)
		}
	}
}

// answer is what a probe of a database found.
type answer struct{ err error }

var errNotProbed = errors.New("the database was not asked yet")

// noAnswer returns why the last probe failed; nil if it did not.
func (st *store) noAnswer() error {
	if last := st.answer.Load(); last != nil {
		return last.err
	}
	return errNotProbed
}

// watch probes the database once per second until ctx ends, and logs changes.
func (st *store) watch(ctx context.Context, log *slog.Logger) {
	log = log.With("database", st.url.String())
	ticker := time.NewTicker(probeEvery)
	defer ticker.Stop()
	for down := false; ; {
		err := st.ask(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil && !down:
			log.Warn("database does not answer", "error", err)
		case err == nil && down:
			log.Info("database answers again")
		}
		down = err != nil
		st.answer.Store(&answer{err})
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (st *store) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if err := st.Ping(ctx); err != nil {
		return fmt.Errorf("the database does not answer: %w", err)
	}
	return nil
}

// publicReason returns what anybody may read of the error of a part: the text that Spillway
// wrote, and the kind of its cause. The cause's own text is for the log, because databases
// quote statements and values.
func publicReason(err error) string {
	text := err.Error()
	for i, cause := range causes(err) {
		if i == 0 && len(causes(cause)) == 0 && fmt.Sprintf("%T", cause) == "*errors.errorString" && strings.HasPrefix(text, cause.Error()) {
			continue // an error value of Spillway comes first
		}
		text = strings.Replace(text, cause.Error(), kindOf(cause), 1)
	}
	return text
}

// causes returns the errors that err wraps directly.
func causes(err error) []error {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		return e.Unwrap()
	case interface{ Unwrap() error }:
		return []error{e.Unwrap()}
	}
	return nil
}

// kindOf names the kind of an error without its text.
func kindOf(err error) string {
	for _, known := range []error{
		queue.ErrHeld, queue.ErrUnknown, queue.ErrOverloaded, spool.ErrDamaged, redis.ErrPopupServer, fs.ErrPermission,
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EHOSTUNREACH, syscall.ENOSPC,
	} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	var network net.Error
	var sql interface{ SQLState() string }
	switch {
	case errors.As(err, &sql):
		return "SQLSTATE " + sql.SQLState()
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "timeout"
	case errors.Is(err, stream.ErrUnavailable):
		return stream.ErrUnavailable.Error()
	}
	return "the log says why"
}
