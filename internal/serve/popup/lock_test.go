package popup

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lockServer is a database with one lock.
type lockServer struct {
	mu     sync.Mutex
	down   bool
	holder string
	held   *session
	keeps  bool // the lock stays with a released session: the server has not noticed
}

type session struct {
	server *lockServer
	broken bool
}

func (s *session) Check(context.Context) error {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	if s.broken || s.server.down {
		return errors.New("connection lost")
	}
	return nil
}

func (s *session) Release() {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	if s.server.held == s && !s.server.keeps {
		s.server.held = nil
	}
}

// restart breaks all sessions; the server may stay down.
func (l *lockServer) restart(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
	if l.held != nil {
		l.held.broken = true
		l.held = nil
	}
}

func (l *lockServer) take(name string) Take {
	return func(_ context.Context, token [16]byte, again bool) (Holding, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case l.down:
			return nil, errors.New("connection refused")
		case again && l.holder != name || !again && l.held != nil:
			return nil, &LockedError{Holder: l.holder}
		case l.held != nil:
			return nil, errors.New("locked by a session that has ended")
		}
		l.holder, l.held = name, &session{server: l}
		return l.held, nil
	}
}

func isLost(l *Lock) bool {
	select {
	case <-l.Lost():
		return true
	default:
		return false
	}
}

func TestHold(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	synctest.Test(t, func(t *testing.T) {
		server := &lockServer{}
		a, err := Hold(t.Context(), server.take("a"), log)
		if err != nil {
			t.Fatal(err)
		}
		var locked *LockedError
		if _, err := Hold(t.Context(), server.take("b"), log); !errors.As(err, &locked) || !strings.Contains(err.Error(), "a keeps the popup states") {
			t.Fatalf("second: %v", err)
		}
		// The server is away for an hour and comes back: the lock is taken again.
		server.restart(true)
		<-time.After(time.Hour)
		synctest.Wait()
		server.restart(false)
		<-time.After(2 * lockEvery)
		synctest.Wait()
		if isLost(a) || server.held == nil {
			t.Fatal("the lock was not taken again")
		}
		// A check fails, and the server keeps the broken session for some minutes.
		server.mu.Lock()
		server.keeps, server.held.broken = true, true
		server.mu.Unlock()
		<-time.After(5 * time.Minute)
		synctest.Wait()
		if isLost(a) {
			t.Fatal("the lock was lost to this process's own session")
		}
		if ago := time.Since(a.Verified()); ago < 5*time.Minute-lockEvery {
			t.Errorf("verified %s ago", ago)
		}
		server.mu.Lock()
		server.keeps, server.held = false, nil
		server.mu.Unlock()
		<-time.After(2 * lockEvery)
		synctest.Wait()
		if isLost(a) || server.held == nil {
			t.Fatal("the lock was not taken again from the broken session")
		}
		if ago := time.Since(a.Verified()); ago > lockEvery {
			t.Errorf("taken again, and verified %s ago", ago)
		}
		// Another process took the lock and has ended since.
		server.restart(false)
		b, err := Hold(t.Context(), server.take("b"), log)
		if err != nil {
			t.Fatal(err)
		}
		b.Close()
		<-time.After(2 * lockEvery)
		synctest.Wait()
		if !isLost(a) {
			t.Error("nobody noticed the other process")
		}
		a.Close()
		if server.held != nil {
			t.Error("the lock was not given back")
		}
	})
}
