package popup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"spillway/internal/serve/queue"
)

// ErrLockLost: another process has taken the lock. This one must stop, or users are shown
// popups twice.
var ErrLockLost = errors.New("popups: another process keeps their states now; this one stops, so that nobody is shown a popup twice")

var (
	errNotRestored = errors.New("the popup states are not restored yet")
	errClosed      = errors.New("the popups are closed")
)

// StateTables is where a database stores events and states.
type StateTables interface {
	EventTables
	StateReader
	// Restore yields all states.
	Restore(ctx context.Context, yield func(Key, State) error) error
}

// LocalTables is the database behind a Local.
type LocalTables interface {
	StateTables
	// Now returns the time of the database.
	Now(ctx context.Context) (time.Time, error)
}

// Local is a Store for one process: its states are in memory, its events in a spool until
// the database has them. A Lock in the database excludes other processes. If there are more
// states than it may hold, it leaves the longest idle ones to the database and reads them
// when they are needed.
type Local struct {
	*Memory
	tables  LocalTables
	lookups *Lookups
	clock   *Clock
	timeout time.Duration
	log     *slog.Logger

	events *EventLog // set by Start
	lock   *Lock     // set by Start
}

// NewLocal returns a Local for at most users states. Its calls fail until Start. timeout
// bounds how long an event waits for its fsync, and a request for a state of the database.
// clock is set to the time of the database.
func NewLocal(users int, timeout time.Duration, tables LocalTables, clock *Clock, log *slog.Logger) *Local {
	l := &Local{Memory: NewMemory(users, nil), tables: tables, lookups: NewLookups(tables, timeout), clock: clock, timeout: timeout, log: log}
	l.unavailable.Store(new(errNotRestored))
	return l
}

// Start restores the states of the database and of the events that wait in the spool, and
// answers calls from then on. Lock and spool stay the caller's.
func (l *Local) Start(ctx context.Context, lock *Lock, spool Spool) error {
	if err := l.sample(ctx); err != nil {
		return err
	}
	l.lock, l.events = lock, NewEventLog(spool, l.tables, l.timeout)
	l.events.memory = l.Memory
	l.recorder = l.events
	// The spool first: of two states of one version, the one in the spool is newer.
	waiting, err := l.events.Replay(ctx, l.replay)
	if err == nil {
		err = l.tables.Restore(ctx, l.Restore)
	}
	if errors.Is(err, ErrFull) {
		err = fmt.Errorf("%w: raise popups.memory_users", err)
	}
	if err != nil {
		return err
	}
	l.log.Info("popup states restored", "states", l.Len(), "left_to_database", l.Evicted(), "events_waiting", waiting)
	if reason := l.unavailable.Load(); errors.Is(*reason, errNotRestored) {
		l.unavailable.CompareAndSwap(reason, nil)
	}
	return nil
}

// Get implements Store.
func (l *Local) Get(ctx context.Context, key Key) (State, error) {
	state, err := l.Memory.Get(ctx, key)
	if err != nil || state.Version != 0 || !l.partial() {
		return state, err
	}
	if state, err = l.lookups.Read(ctx, key); err != nil || state.Version == 0 {
		return state, err
	}
	if err := l.Restore(key, state); err != nil {
		return State{}, err
	}
	return l.Memory.Get(ctx, key)
}

// Known returns a state that is in memory.
func (l *Local) Known(key Key) (State, bool) {
	state, known := l.Memory.Known(key)
	return state, known && (state.Version != 0 || !l.partial())
}

const (
	sampleEvery   = time.Second // between two reads of the database's clock
	sampleTimeout = 2 * time.Second
)

// sample reads the clock of the database.
func (l *Local) sample(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	sent := time.Now()
	now, err := l.tables.Now(ctx)
	if err != nil {
		return fmt.Errorf("read the clock of the database: %w", err)
	}
	l.clock.Sample(sent, time.Now(), now)
	l.clock.Report(l.log)
	return nil
}

// follow keeps the clock at the database's until ctx ends.
func (l *Local) follow(ctx context.Context) {
	for range queue.Ticks(ctx, sampleEvery) {
		if err := l.sample(ctx); err != nil {
			l.log.Debug("popups go by the last time of the database", "error", err)
		}
	}
}

// Run moves events to the database until ctx ends. If another process takes the lock,
// calls fail from then on, and failed is called with ErrLockLost.
func (l *Local) Run(ctx context.Context, failed func(error)) {
	var running sync.WaitGroup
	running.Go(func() { l.lookups.Run(ctx) })
	running.Go(func() { l.follow(ctx) })
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
