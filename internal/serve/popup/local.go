package popup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// ErrLockLost: another process has taken the lock. This one must stop, or users are shown
// popups twice.
var ErrLockLost = errors.New("popups: another process keeps their states now; this one stops, so that nobody is shown a popup twice")

var (
	errNotRestored = errors.New("the popup states are not restored yet")
	errClosed      = errors.New("the popups are closed")
)

// LocalTables is the database behind a Local.
type LocalTables interface {
	EventTables
	// Restore yields all states.
	Restore(ctx context.Context, yield func(Key, State) error) error
}

// Local is a Store for one process: its states are in memory, its events in a spool until
// the database has them. A Lock in the database excludes other processes.
type Local struct {
	*Memory
	tables  LocalTables
	timeout time.Duration
	log     *slog.Logger

	events *EventLog // set by Start
	lock   *Lock     // set by Start
}

// NewLocal returns a Local for at most users states. Its calls fail until Start. timeout
// bounds how long an event waits for its fsync.
func NewLocal(users int, timeout time.Duration, tables LocalTables, log *slog.Logger) *Local {
	l := &Local{Memory: NewMemory(users, nil), tables: tables, timeout: timeout, log: log}
	reason := errNotRestored
	l.unavailable.Store(&reason)
	return l
}

// Start restores the states of the database and of the events that wait in the spool, and
// answers calls from then on. Lock and spool stay the caller's.
func (l *Local) Start(ctx context.Context, lock *Lock, spool Spool) error {
	l.lock, l.events = lock, NewEventLog(spool, l.tables, l.timeout)
	l.recorder = l.events
	// The spool first: of two states of one version, the one in the spool is newer.
	waiting, err := l.events.Replay(ctx, func(key Key, state State) error { return l.restore(key, state, true) })
	if err == nil {
		err = l.tables.Restore(ctx, l.Restore)
	}
	if errors.Is(err, ErrFull) {
		err = fmt.Errorf("%w: raise popups.memory_users", err)
	}
	if err != nil {
		return err
	}
	l.log.Info("popup states restored", "states", l.Len(), "events_waiting", waiting)
	if reason := l.unavailable.Load(); errors.Is(*reason, errNotRestored) {
		l.unavailable.CompareAndSwap(reason, nil)
	}
	return nil
}

// Run moves events to the database until ctx ends. If another process takes the lock,
// calls fail from then on, and failed is called with ErrLockLost.
func (l *Local) Run(ctx context.Context, failed func(error)) {
	var running sync.WaitGroup
	running.Go(func() {
		if err := l.events.Drain(ctx); err != nil {
			l.log.Error("popup events no longer reach the database: stop the server and repair the event log", "error", err,
				"repair", "spillway spool repair --popups")
		}
	})
	running.Go(func() {
		select {
		case <-l.lock.Lost():
			l.shut(ErrLockLost)
			failed(ErrLockLost)
		case <-ctx.Done():
		}
	})
	running.Wait()
}

// Shut makes all later calls fail.
func (l *Local) Shut() { l.shut(errClosed) }

// shut makes calls fail, unless they do for good already.
func (l *Local) shut(reason error) {
	for {
		now := l.unavailable.Load()
		if now != nil && !errors.Is(*now, errNotRestored) || l.unavailable.CompareAndSwap(now, &reason) {
			return
		}
	}
}

// LockAge returns how long ago the database confirmed the lock; 0 before Start has ended
// and after Shut.
func (l *Local) LockAge() time.Duration {
	if err := l.Ready(); err != nil && !errors.Is(err, ErrLockLost) {
		return 0
	}
	return time.Since(l.lock.Verified())
}
