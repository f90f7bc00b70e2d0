package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// TestSharedDeadline holds every call's context to the promise: it ends not before the
// timeout and at most a sixteenth of it later.
func TestSharedDeadline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		timeout := time.Duration(rapid.Int64Range(16, int64(time.Hour)).Draw(t, "timeout"))
		s := newSharedDeadline(context.Background(), timeout)
		start := time.Now()
		now := start
		made := make(map[context.Context]bool)
		steps := rapid.SliceOfN(rapid.Int64Range(0, int64(timeout)/20), 1, 50).Draw(t, "steps")
		for _, step := range steps {
			now = now.Add(time.Duration(step))
			ctx := s.Context(now)
			end, ok := ctx.Deadline()
			if left := end.Sub(now); !ok || left < timeout || left > timeout+timeout/16 {
				t.Fatalf("a call of %v has %v", timeout, left)
			}
			made[ctx] = true
		}
		if now.Sub(start) < timeout/16 && len(made) > 1 {
			t.Fatalf("%d contexts within a sixteenth of the timeout", len(made))
		}
	})
}

func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, cancel := context.WithCancel(t.Context())
		s := newSharedDeadline(base, 16*time.Second)
		first := s.Context(time.Now())
		<-first.Done()
		if first.Err() != context.DeadlineExceeded || s.Context(time.Now()) == first {
			t.Errorf("after its time: %v", first.Err())
		}
		second := s.Context(time.Now())
		cancel()
		if second.Err() != context.Canceled {
			t.Errorf("after its base: %v", second.Err())
		}
	})
}

func BenchmarkContext(b *testing.B) {
	s := newSharedDeadline(b.Context(), time.Second)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s.Context(time.Now())
		}
	})
}
