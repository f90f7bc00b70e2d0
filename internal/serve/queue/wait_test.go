package queue

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// sender answers requests in groups, each of which takes the same time.
type sender struct {
	mu      sync.Mutex
	wake    sync.Cond
	gather  Gather
	waiting []chan struct{}
	closed  bool
	groups  []int
}

func (s *sender) add() {
	done := make(chan struct{})
	s.mu.Lock()
	s.waiting = append(s.waiting, done)
	if s.gather.Enough(len(s.waiting)) {
		s.wake.Signal()
	}
	s.mu.Unlock()
	<-done
}

func (s *sender) run(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for len(s.waiting) == 0 {
			if s.closed {
				return
			}
			s.wake.Wait()
		}
		s.gather.Wait(&s.wake, func() bool { return s.gather.Enough(len(s.waiting)) })
		group := s.waiting
		s.waiting = nil
		s.gather.Begin()
		s.mu.Unlock()
		<-time.After(took)
		s.mu.Lock()
		s.groups = append(s.groups, len(group))
		s.gather.End(len(group) + len(s.waiting))
		for _, done := range group {
			close(done)
		}
	}
}

// A single request takes the time of one group. Concurrent requests share a group without a
// wait. If clients do not return, a group waits up to Every, and soon not at all.
func TestGather(t *testing.T) {
	t.Parallel()
	const took, every, rounds = 200 * time.Microsecond, time.Millisecond, 20
	run := func(use func(s *sender)) (s *sender, elapsed time.Duration) {
		synctest.Test(t, func(*testing.T) {
			s = &sender{gather: Gather{Every: every}}
			s.wake.L = &s.mu
			var running sync.WaitGroup
			running.Go(func() { s.run(took) })
			start := time.Now()
			use(s)
			elapsed = time.Since(start)
			s.mu.Lock()
			s.closed = true
			s.wake.Signal()
			s.mu.Unlock()
			running.Wait()
		})
		return s, elapsed
	}
	many := func(s *sender, n int) {
		var users sync.WaitGroup
		for range n {
			users.Go(func() {
				for range rounds {
					s.add()
				}
			})
		}
		users.Wait()
	}
	if s, elapsed := run(func(s *sender) { many(s, 1) }); len(s.groups) != rounds || elapsed != rounds*took {
		t.Errorf("alone: %d groups in %s", len(s.groups), elapsed)
	}
	if s, elapsed := run(func(s *sender) { many(s, 50) }); len(s.groups) > rounds+2 || elapsed > 2*rounds*took {
		t.Errorf("fifty: %v in %s", s.groups, elapsed)
	}
	s, elapsed := run(func(s *sender) {
		many(s, 50)
		start := time.Now()
		s.add()
		if waited := time.Since(start); waited > every+took {
			t.Errorf("the first one alone waited %s", waited)
		}
		for range 40 {
			s.add()
		}
		start = time.Now()
		s.add()
		if waited := time.Since(start); waited != took {
			t.Errorf("after a while alone: %s", waited)
		}
	})
	if s.gather.active != 1 {
		t.Errorf("%d are thought to be active after %s", s.gather.active, elapsed)
	}
}
