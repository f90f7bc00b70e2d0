package redis

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/serve/queue"
)

// sendEvery is the most time between two groups of commands when the second waits for
// more of them.
const sendEvery = time.Millisecond

// sender sends the commands of requests that come at about the same time together, one
// group after the other: a wake-up of Redis, of its reply's reader and a write of its log
// cost more than the commands. All go over one connection, in the order of their groups.
type sender struct {
	client rueidis.Client
	done   chan struct{}

	mu       sync.Mutex
	wake     sync.Cond
	waiting  []*sending
	together queue.Gather
	closed   bool
}

// sending is a command under way. result is set before done is closed.
type sending struct {
	command rueidis.Completed
	result  rueidis.RedisResult
	done    chan struct{}
}

func newSender(client rueidis.Client) *sender {
	s := &sender{client: client, done: make(chan struct{}), together: queue.Gather{Every: sendEvery}}
	s.wake.L = &s.mu
	return s
}

// do has a command sent and returns what came back. When ctx ends first, or with it, the
// command may be carried out all the same. The client gives a server that does not answer
// up after a second or two.
func (s *sender) do(ctx context.Context, command rueidis.Completed) (rueidis.RedisResult, error) {
	c := &sending{command: command, done: make(chan struct{})}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return rueidis.RedisResult{}, errNotReady
	}
	s.waiting = append(s.waiting, c)
	if s.together.Enough(len(s.waiting)) {
		s.wake.Signal()
	}
	s.mu.Unlock()
	select {
	case <-c.done:
		return c.result, nil
	case <-ctx.Done():
		return rueidis.RedisResult{}, context.Cause(ctx)
	}
}

// run sends until close.
func (s *sender) run() {
	defer close(s.done)
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if len(s.waiting) == 0 {
			if s.closed {
				return
			}
			s.wake.Wait()
			continue
		}
		s.together.Wait(&s.wake, func() bool { return s.together.Enough(len(s.waiting)) || s.closed })
		group := s.waiting
		s.waiting = nil
		s.together.Begin()
		s.mu.Unlock()
		s.send(group)
		s.mu.Lock()
		s.together.End(len(group) + len(s.waiting))
	}
}

// send sends a group and answers it.
func (s *sender) send(group []*sending) {
	commands := make(rueidis.Commands, len(group))
	for i, c := range group {
		commands[i] = c.command
	}
	for i, result := range s.client.DoMulti(context.Background(), commands...) {
		group[i].result = result
		close(group[i].done)
	}
}

// close sends what waits, refuses what comes, and returns when the last is answered.
func (s *sender) close() {
	s.mu.Lock()
	s.closed = true
	s.wake.Signal()
	s.mu.Unlock()
	<-s.done
}
