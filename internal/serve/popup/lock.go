package popup

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/queue"
)

// LockedError: another process has the states of this database in its memory.
type LockedError struct {
	Holder string // the name it gave; "" if not known
}

// Error names the holder and what to do.
func (e *LockedError) Error() string {
	who := "another process"
	if e.Holder != "" {
		who = e.Holder
	}
	return fmt.Sprintf("%s keeps the popup states of this database in its memory, and only one process may: stop it, or store them in "+
		"Redis (popups.store: redis)", who)
}

// errOldSession means that an earlier session of this process still has the lock.
var errOldSession = errors.New("the server has not yet ended the earlier session that has the lock")

// Refusal returns why a session may not keep the lock, of which the process with token lastToken
// and the name holder wrote last that it has it; nil if it may. got reports whether the database
// gave the lock. Without lastToken the server has lost the commit that wrote it, and no other
// process had the lock.
func Refusal(token [16]byte, again, got bool, lastToken, holder string) error {
	switch {
	case again && lastToken != "" && lastToken != string(token[:]) || !again && !got:
		return &LockedError{Holder: holder}
	case !got:
		return errOldSession
	}
	return nil
}

// Take opens a session and locks, for the process with a random token. It returns a *LockedError
// if another process has the lock, or, with again, had it since this process lost its session.
type Take func(ctx context.Context, token [16]byte, again bool) (Holding, error)

// Holding is a lock of a database session.
type Holding interface {
	// Check asks the database whether the session still has the lock. After an error the
	// caller calls Release.
	Check(ctx context.Context) error
	// Release ends the session.
	Release()
}

// The times of a Lock.
const (
	lockEvery   = time.Second     // between two checks
	lockTimeout = 3 * time.Second // for a check, and for taking the lock again
)

// Lock gives this process the right to keep the states of a database in its memory. The
// owner must call Close.
type Lock struct {
	lost     chan struct{}
	stop     context.CancelFunc
	done     sync.WaitGroup
	verified atomic.Int64 // Unix time in nanoseconds
}

// Hold takes a lock and keeps it.
//
// If the session breaks, Hold takes the lock again and retries after any other error: a
// server may keep the lock of the broken session for a while. The process continues
// meanwhile, because another holder would be noticed.
func Hold(ctx context.Context, take Take, log *slog.Logger) (*Lock, error) {
	var token [16]byte
	_, _ = rand.Read(token[:]) // never fails
	held, err := take(ctx, token, false)
	if err != nil {
		return nil, fmt.Errorf("lock popup states: %w", err)
	}
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &Lock{lost: make(chan struct{}), stop: stop}
	l.verified.Store(time.Now().UnixNano())
	l.done.Go(func() { l.keep(keeping, token, held, take, log) })
	return l, nil
}

// Lost is closed when another process has taken the lock. This one must stop answering.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Verified returns when the database last confirmed the lock.
func (l *Lock) Verified() time.Time { return time.Unix(0, l.verified.Load()) }

// Close releases the lock.
func (l *Lock) Close() {
	l.stop()
	l.done.Wait()
}

func (l *Lock) keep(ctx context.Context, token [16]byte, held Holding, take Take, log *slog.Logger) {
	for range queue.Ticks(ctx, lockEvery) {
		limited, cancel := context.WithTimeout(ctx, lockTimeout)
		if held != nil {
			if err := held.Check(limited); err != nil && ctx.Err() == nil {
				log.Warn("lock on the popup states cannot be confirmed; taking it again", "error", err)
				held.Release()
				held = nil
			}
		}
		var err error
		if held == nil {
			held, err = take(limited, token, true)
		}
		cancel()
		if _, ok := errors.AsType[*LockedError](err); ok {
			log.Error("lock on the popup states lost to another process", "error", err)
			close(l.lost)
			return
		}
		if held != nil && ctx.Err() == nil {
			l.verified.Store(time.Now().UnixNano())
		}
	}
	if held != nil {
		held.Release()
	}
}
