package popup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// LockedError: another process keeps the states of this database in its memory.
type LockedError struct {
	Holder string // who, as it called itself; "" where that cannot be told
}

// Error says what to do.
func (e *LockedError) Error() string {
	who := "another process"
	if e.Holder != "" {
		who = e.Holder
	}
	return fmt.Sprintf("%s keeps the popup states of this database in its memory, and only one process may: stop it, or keep them in Redis (popups.store: redis)", who)
}

// Holding is a lock that a session of a database holds.
type Holding interface {
	// Check asks the database whether the lock is still held. After an error it is
	// given up with Release.
	Check(ctx context.Context) error
	// Release ends the session.
	Release()
}

// The times of a Lock.
const (
	lockEvery   = time.Second     // between two looks at the lock
	lockTimeout = 3 * time.Second // for a look, and for taking it again
)

// Lock is this process's right to keep the states of a database in its memory. Close
// it at the end.
type Lock struct {
	lost     chan struct{}
	stop     context.CancelFunc
	done     sync.WaitGroup
	verified atomic.Int64 // nanoseconds of the Unix time
}

// Hold takes a lock and keeps it. take opens a session, locks and returns a
// *LockedError where another process has the lock, or has had it since this one
// (again: this one has had it). When the session breaks, as all do when a server is
// restarted, Hold takes the lock again, and tries for as long as the error is any other:
// a server may keep the lock with the broken session for a while. The process goes on
// meanwhile: nobody else can have it without being noticed.
func Hold(ctx context.Context, take func(ctx context.Context, again bool) (Holding, error), log *slog.Logger) (*Lock, error) {
	held, err := take(ctx, false)
	if err != nil {
		return nil, fmt.Errorf("lock popup states: %w", err)
	}
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &Lock{lost: make(chan struct{}), stop: stop}
	l.verified.Store(time.Now().UnixNano())
	l.done.Go(func() { l.keep(keeping, held, take, log) })
	return l, nil
}

// Lost is closed when another process has taken the lock: this one must not answer
// any more.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Verified returns when the database last said that this process has the lock.
func (l *Lock) Verified() time.Time { return time.Unix(0, l.verified.Load()) }

// Close gives the lock back.
func (l *Lock) Close() {
	l.stop()
	l.done.Wait()
}

func (l *Lock) keep(ctx context.Context, held Holding, take func(context.Context, bool) (Holding, error), log *slog.Logger) {
	ticker := time.NewTicker(lockEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			if held != nil {
				held.Release()
			}
			return
		case <-ticker.C:
		}
		limited, cancel := context.WithTimeout(ctx, lockTimeout)
		if held != nil {
			if err := held.Check(limited); err != nil && ctx.Err() == nil {
				log.Warn("the lock on the popup states is to be taken again", "err", err)
				held.Release()
				held = nil
			}
		}
		var err error
		if held == nil {
			held, err = take(limited, true)
		}
		cancel()
		var locked *LockedError
		if errors.As(err, &locked) {
			log.Error("the lock on the popup states is lost", "err", err)
			close(l.lost)
			return
		}
		if held != nil && ctx.Err() == nil {
			l.verified.Store(time.Now().UnixNano())
		}
	}
}
