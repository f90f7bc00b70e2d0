package app

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"spillway/internal/database"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/redis"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/sqlite"
	"spillway/internal/serve/standby"
	"spillway/internal/serve/stream"
	owntables "spillway/internal/serve/tables"
)

// readyCheck is a part of the process and how it finds out what look adds. One that could not be
// started returns its error.
type readyCheck struct {
	admin.Part
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
		var err error
		if p.Serves, err = p.state(now); err != nil {
			began, known := r.since[p.Name]
			if !known {
				began = now
			}
			since[p.Name] = began
			p.Reason, p.Since, p.Detail = publicReason(err), began, err.Error()
		}
		states = append(states, p.Part)
	}
	r.since = since
	return states
}

// ready returns the state of all parts, and has that of a replica measured for a while.
func (a *app) ready() []admin.Part {
	if a.replica != nil {
		a.replica.reads.Lag()
	}
	return a.state()
}

// state returns the state of all parts.
func (a *app) state() []admin.Part {
	parts := []readyCheck{{Part: admin.Part{Name: "server"}, state: func(time.Time) (bool, error) {
		switch {
		case a.public.Draining():
			return false, &queue.Unready{Why: errors.New("stopping")}
		case !a.public.Serving():
			return false, &queue.Unready{Why: errors.New("starting: waiting for the databases")}
		}
		return true, nil
	}}}
	for _, p := range a.current().parts {
		parts = append(parts, started(p.part, admin.Reads, p.state))
	}
	if a.replica != nil {
		parts = append(parts, readyCheck{admin.Part{Name: "replica", Group: admin.Reads, Spare: true}, a.replica.state})
	}
	for _, p := range a.streams {
		parts = append(parts, started(p.part, admin.Writes, func(time.Time) (bool, error) { return tolerable(p.ready()) }))
	}
	parts = append(parts, a.leftoverChecks()...)
	if p := a.popups; p != nil {
		parts = append(parts, started(p.part, admin.Shows, func(time.Time) (bool, error) { return tolerable(p.ready()) }))
	}
	return a.readiness.look(time.Now(), parts)
}

// errNotStarted begins the reason of a part whose database rejects it.
var errNotStarted = errors.New("cannot start")

// started is the check of a part, which asks state once the part has started.
func started(p *part, group admin.Group, state func(now time.Time) (bool, error)) readyCheck {
	paths := slices.Concat(p.down.Reads, p.down.Writes)
	return readyCheck{admin.Part{Name: p.name, Group: group, Paths: paths}, func(now time.Time) (bool, error) {
		err := p.failure()
		switch {
		case err == nil:
			return state(now)
		case errors.Is(err, errStarting), errors.Is(err, errStopped), errors.Is(err, errWaiting):
			return false, err
		}
		return false, &queue.Unready{Why: errNotStarted, Cause: err}
	}}
}

// tolerable returns whether a part serves although its Ready returned err.
func tolerable(err error) (bool, error) {
	return err == nil || errors.Is(err, queue.ErrNearlyFull), err
}

// errNotShared: a query serves all the same.
var errNotShared = errors.New("answers are not shared with other replicas")

// state is that of a started feed or query. It serves while a database answers; a feed also while
// its rows are within stale_max.
func (p *readPart) state(now time.Time) (serves bool, err error) {
	down := p.noAnswer()
	if f := p.feed.Load(); f != nil {
		return down == nil || f.Fresh(now), cmp.Or(f.Ready(now), down)
	}
	if down == nil && p.refused != nil {
		if refused := p.refused(); refused != nil {
			return true, &queue.Unready{Why: errNotShared, Cause: refused}
		}
	}
	return down == nil, down
}

// noAnswer returns why no database answers a feed or a query with rows that may be served; nil
// if one does.
func (p *part) noAnswer() error {
	err := p.reads[0].noAnswer()
	if err != nil && p.spare != nil && p.spare() {
		return nil
	}
	return err
}

// state names what keeps reads from using the replica while the primary answers.
func (r *replica) state(time.Time) (serves bool, err error) {
	if err := r.store.noAnswer(); err != nil {
		return false, &queue.Unready{Why: errors.New("away"), Cause: err}
	}
	err = r.reads.State()
	return err == nil, err
}

// Probes of databases that feeds and queries read.
const (
	probeEvery   = time.Second
	probeTimeout = 2 * time.Second
)

// watch probes the database of a store that feeds or queries read, until the store is closed.
func (s *stores) watch(ctx context.Context, st *store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.unwatch != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var watching sync.WaitGroup
	watching.Go(func() { st.watch(ctx, s.log) })
	st.unwatch = func() {
		cancel()
		watching.Wait()
	}
}

var errNotProbed = errors.New("the database was not asked yet")

// noAnswer returns why the last probe failed; nil if it did not.
func (st *store) noAnswer() error {
	if last := st.answer.Load(); last != nil {
		return *last
	}
	return errNotProbed
}

// watch probes the database once per second until ctx ends, and logs changes.
func (st *store) watch(ctx context.Context, log *slog.Logger) {
	log = log.With("database", st.url.String())
	for down := false; ; {
		err := st.ask(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil && !down:
			log.Warn("database does not answer", "error", err)
			st.identity.asked = time.Time{} // another one may answer next
		case err == nil && down:
			log.Info("database answers again")
		}
		down = err != nil
		if !down {
			st.identify(ctx, log) // so that a process that is ready shares answers
		}
		st.answer.Store(&err)
		queue.Sleep(ctx, probeEvery)
	}
}

func (st *store) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if err := st.Ping(ctx); err != nil && !errors.Is(err, database.ErrBusy) { // statements of others end after their timeout
		return &queue.Unready{Why: errors.New("the database does not answer"), Cause: err}
	}
	return nil
}

// publicReason returns what anybody may read of why a part is not ready.
func publicReason(err error) string {
	var unready *queue.Unready
	switch {
	case !errors.As(err, &unready):
		return kindOf(err)
	case unready.Cause == nil:
		return unready.Why.Error()
	}
	return unready.Why.Error() + ": " + kindOf(unready.Cause)
}

// kindOf names the kind of an error without its text, because databases quote statements and
// values in theirs.
func kindOf(err error) string {
	if refused, ok := errors.AsType[*redis.DeniedError](err); ok { // first, because it names what to do
		return refused.Error()
	}
	for _, known := range []error{
		errStarting, errStopped, errNotProbed, standby.ErrLate, standby.ErrUnknown, standby.ErrAway,
		queue.ErrClosed, queue.ErrHeld, queue.ErrUnknown, queue.ErrOverloaded, spool.ErrDamaged,
		redis.ErrPopupServer, redis.ErrPopupDatabase, owntables.ErrUnusable, sqlite.ErrReplaced,
		fs.ErrPermission, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EHOSTUNREACH, syscall.ENOSPC,
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
