package redis

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/serve/queue"
)

// sendEvery bounds how long a group of commands waits for more of them.
const sendEvery = time.Millisecond

// pipeline sends the commands of concurrent requests in groups over one connection. A group
// holds the commands that arrived while the last one was answered. It saves wake-ups of both
// sides and writes of Redis's log, which cost more than the commands.
type pipeline struct {
	client rueidis.Client
	done   chan struct{}

	mu       sync.Mutex
	wake     sync.Cond
	waiting  []*call
	together queue.Gather
	closed   bool
}

// call is a command and its result, which is set before done is closed.
type call struct {
	command rueidis.Completed
	result  rueidis.RedisResult
	done    chan struct{}
}

func newPipeline(client rueidis.Client) *pipeline {
	p := &pipeline{client: client, done: make(chan struct{}), together: queue.Gather{Every: sendEvery}}
	p.wake.L = &p.mu
	return p
}

// do sends a command and returns its result. If ctx ends first, the command may still be
// executed. The client abandons a server that does not answer within two seconds.
func (p *pipeline) do(ctx context.Context, command rueidis.Completed) (rueidis.RedisResult, error) {
	c := &call{command: command, done: make(chan struct{})}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return rueidis.RedisResult{}, errNotReady
	}
	p.waiting = append(p.waiting, c)
	if p.together.Enough(len(p.waiting)) {
		p.wake.Signal()
	}
	p.mu.Unlock()
	select {
	case <-c.done:
		return c.result, nil
	case <-ctx.Done():
		return rueidis.RedisResult{}, context.Cause(ctx)
	}
}

// run sends groups until close.
func (p *pipeline) run() {
	defer close(p.done)
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if len(p.waiting) == 0 {
			if p.closed {
				return
			}
			p.wake.Wait()
			continue
		}
		p.together.Wait(&p.wake, func() bool { return p.together.Enough(len(p.waiting)) || p.closed })
		group := p.waiting
		p.waiting = nil
		p.together.Begin()
		p.mu.Unlock()
		p.send(group)
		p.mu.Lock()
		p.together.End(len(group) + len(p.waiting))
	}
}

// send sends a group and waits for the results.
func (p *pipeline) send(group []*call) {
	commands := make(rueidis.Commands, len(group))
	for i, c := range group {
		commands[i] = c.command
	}
	for i, result := range p.client.DoMulti(context.Background(), commands...) {
		group[i].result = result
		close(group[i].done)
	}
}

// close refuses new commands, sends those that wait and returns after the last result.
func (p *pipeline) close() {
	p.mu.Lock()
	p.closed = true
	p.wake.Signal()
	p.mu.Unlock()
	<-p.done
}
