package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"spillway/internal/exit"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/server"
	"spillway/internal/serve/spool"
)

// part is a feed, a query, a stream or the popups. Its paths are served from its first
// successful start on. Until then they answer 503, and the start is retried.
type part struct {
	name  string // in the log and in /readyz
	store *store
	down  server.DownRoute            // its paths
	begin func(context.Context) error // starts it; called again after an error
	alone bool                        // it starts without its database
	reads []*store                    // that are probed for its readiness, its own first; of feeds and queries
	spare func() bool                 // a replica answers in the place of its own database; nil: there is none

	cancel   context.CancelFunc // ends the attempts; set by startParts
	attempts sync.WaitGroup

	mu      sync.Mutex
	problem error     // why it is not served; nil: it is
	retryAt time.Time // of the next attempt
}

// Why a part is not served before its first attempt to start, while its database does not
// answer, and after its end.
var (
	errStarting = errors.New("starting")
	errWaiting  = errors.New("waiting for the database")
	errStopped  = errors.New("stopped")
)

// newPart returns a part that has not started.
func newPart(name string, st *store, down server.DownRoute, begin func(context.Context) error) *part {
	p := &part{name: name, store: st, down: down, begin: begin, problem: errStarting, retryAt: time.Now().Add(startPatience)}
	p.down.Retry = p.retryIn
	return p
}

// failure returns why the part is not served; nil if it is.
func (p *part) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problem
}

// retryIn returns the time until the next attempt to start.
func (p *part) retryIn() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Until(p.retryAt)
}

func (p *part) note(problem error, retryAt time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problem, p.retryAt = problem, retryAt
}

// run starts the part, and retries until it has started or ctx ends. It calls tried with the
// outcome of the first attempt, and before that started if it succeeded.
func (p *part) run(ctx context.Context, log *slog.Logger, tried func(error), started func()) {
	var quiet failureLog
	for attempt := 1; ; attempt++ {
		rejected, err := p.attempt(ctx)
		pause := queue.Backoff(attempt, 100*time.Millisecond, 2*time.Second)
		if rejected { // somebody has to change something first
			pause = queue.Backoff(attempt, time.Second, 15*time.Second)
		}
		p.note(err, time.Now().Add(pause))
		if err == nil {
			if attempt > 1 {
				log.Info("part is served now", "part", p.name, "attempts", attempt)
			}
			started()
		}
		if attempt == 1 {
			first := err
			if err != nil {
				first = fmt.Errorf("%w (database %s)", err, p.store.url)
			}
			if rejected {
				first = exit.UsageError(first)
			}
			tried(first)
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		if quiet.due(err, time.Now()) {
			log.Warn("part cannot be served yet; its start is retried", "part", p.name, "database", p.store.url.String(), "attempts", attempt,
				"error", err)
		}
		if queue.Sleep(ctx, pause); ctx.Err() != nil {
			return
		}
	}
}

// attempt tries to start the part. rejected means that its database answers, and that
// another attempt fails too unless somebody changes something.
func (p *part) attempt(ctx context.Context) (rejected bool, err error) {
	if err := p.store.starts.Acquire(ctx, 1); err != nil {
		return false, fmt.Errorf("wait for other parts to start: %w", err)
	}
	defer p.store.starts.Release(1)
	if !p.alone {
		if err := p.store.Ping(ctx); err != nil {
			return false, &queue.Unready{Why: errWaiting, Cause: err}
		}
	}
	if err := p.begin(ctx); err != nil {
		return isRejection(err) && p.store.Ping(ctx) == nil, err
	}
	return false, nil
}

// isRejection reports whether an error of a start can mean that the database rejects a part,
// and not only that it is slow or that another process is in the way.
func isRejection(err error) bool {
	if _, ok := errors.AsType[*popup.LockedError](err); ok {
		return false
	}
	for _, passing := range []error{
		errWaiting, context.DeadlineExceeded, context.Canceled, feed.ErrUnavailable, feed.ErrBusy, spool.ErrInUse, spool.ErrDamaged,
	} {
		if errors.Is(err, passing) {
			return false
		}
	}
	return true
}

// repeatLog is the time after which a failure is logged again.
const repeatLog = time.Minute

// failureLog says which of the failures of one part to log.
type failureLog struct {
	text string
	at   time.Time
}

// due reports whether to log a failure: it is another one than before, or a minute has passed.
func (l *failureLog) due(err error, now time.Time) bool {
	if text := err.Error(); text != l.text || now.Sub(l.at) >= repeatLog {
		l.text, l.at = text, now
		return true
	}
	return false
}

// startPatience is how long the start of the process waits for parts that neither start nor
// fail.
const startPatience = 2 * time.Second

// startParts starts parts, all at the same time, and calls changed for each that starts. It
// returns when each was tried once, or after startPatience; their starts are retried until
// ctx ends or the part is stopped. If required, it waits for all of them and returns the
// first error.
func (a *app) startParts(ctx context.Context, parts []*part, required bool, changed func()) error {
	tried := make(chan error, len(parts))
	for _, p := range parts {
		for _, st := range p.reads {
			a.stores.watch(a.ctx, st)
		}
		working, cancel := context.WithCancel(ctx)
		p.cancel = cancel
		p.attempts.Go(func() { p.run(working, a.log, func(err error) { tried <- err }, changed) })
	}
	var patience <-chan time.Time
	if !required {
		patience = time.After(startPatience)
	}
	for range parts {
		select {
		case err := <-tried:
			if err != nil && required {
				return err
			}
		case <-patience:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// stop ends the attempts to start the part and waits for them.
func (p *part) stop() {
	if p.cancel != nil {
		p.cancel()
		p.attempts.Wait()
	}
}
