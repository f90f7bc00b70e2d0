package postgres

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestSlots(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	left := errors.New("left")
	ended, end := context.WithCancelCause(t.Context())
	end(left)
	s := newSlots(3)
	take := func(at time.Time, want error) {
		t.Helper()
		if err := s.take(ended, at); !errors.Is(err, want) {
			t.Fatalf("take: %v, want %v", err, want)
		}
	}
	away := func(wantAway, wantFirst bool) {
		t.Helper()
		if a, first := s.takeAway(now); a != wantAway || first != wantFirst {
			t.Fatalf("take away: %v, %v", a, first)
		}
	}
	for range 3 {
		take(now, nil)
	}
	take(now, left)
	away(true, true)
	away(true, false)
	away(false, false) // the last one stays
	if s.limit() != 1 {
		t.Errorf("%d slots", s.limit())
	}
	take(now.Add(slotsReturn-1), left)
	take(now.Add(slotsReturn), nil) // one is back, the other a minute later
	take(now.Add(slotsReturn), left)
	take(now.Add(2*slotsReturn), nil)
	for range 3 {
		s.release()
	}
	if s.limit() != 3 || len(s.free) != 3 {
		t.Errorf("%d slots, %d free", s.limit(), len(s.free))
	}
}
