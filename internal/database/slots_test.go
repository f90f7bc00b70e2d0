package database

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// fakePool is a server that grants some connections.
type fakePool struct {
	grants, open, idle int
	opened             int64
	refused            int
}

var errFull = errors.New("full")

func (f *fakePool) get(context.Context) (int, error) {
	switch {
	case f.idle > 0:
		f.idle--
	case f.open == f.grants:
		f.refused++
		return 0, errFull
	default:
		f.open++
		f.opened++
	}
	return 1, nil
}

// slots returns 16 slots of the pool.
func (f *fakePool) slots() *Slots {
	s := &Slots{
		Refuses: func(err error) bool { return errors.Is(err, errFull) }, Counts: func() (int, int, int64) { return f.open, 0, f.opened },
		Log: slog.New(slog.DiscardHandler),
	}
	s.Fill(16)
	return s
}

func TestSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakePool{grants: 3}
		s := f.slots()
		left := errors.New("left")
		ended, end := context.WithCancelCause(t.Context())
		end(left)
		// burst uses as many connections as there are, and returns them.
		burst := func(want, limit, refused int) {
			t.Helper()
			f.refused = 0
			n, err := 0, error(nil)
			for ; err == nil && n < 20; n++ {
				_, err = Acquire(ended, s, f.get)
			}
			if n--; n != want || !errors.Is(err, left) || f.refused != refused {
				t.Errorf("%d connections, %d refused, %v; want %d and %d", n, f.refused, err, want, refused)
			}
			for range n {
				f.idle++
				s.Release()
			}
			if s.Limit() != limit {
				t.Errorf("%d slots, want %d", s.Limit(), limit)
			}
		}
		burst(3, 3, 1)
		for _, pause := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second} {
			<-time.After(pause - 1)
			burst(3, 3, 0)
			<-time.After(1)
			burst(3, 3, 1)
		}
		f.open, f.idle = 1, 1 // the server closes some, and grants fewer
		f.grants = 1
		burst(1, 1, 1)
		f.grants = 20
		<-time.After(10 * time.Second)
		burst(16, 16, 0)
		f.open, f.idle, f.grants = 0, 0, 0
		if _, err := Acquire(t.Context(), s, f.get); !errors.Is(err, errFull) || s.Limit() != 16 {
			t.Errorf("no connection at all: %v, %d slots", err, s.Limit())
		}
	})
}

// TestSlotsOfTheServerComeBack: while all connections are held, somebody who waits gets one more as soon as the server grants it.
func TestSlotsOfTheServerComeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakePool{grants: 1}
		s := f.slots()
		if _, err := Acquire(t.Context(), s, f.get); err != nil { // it is never released
			t.Fatal(err)
		}
		began := time.Now()
		get := func(ctx context.Context) (int, error) {
			if time.Since(began) >= 20*time.Second {
				f.grants = 2
			}
			return f.get(ctx)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := Acquire(ctx, s, get); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited < 20*time.Second || waited > 31*time.Second {
			t.Errorf("after %s", waited)
		}
		if f.refused < 2 || f.refused > 8 {
			t.Errorf("the server has refused %d times", f.refused)
		}
	})
}
