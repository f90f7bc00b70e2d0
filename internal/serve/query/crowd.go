package query

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"spillway/internal/serve/feed"
)

// How executions that wait run together.
const (
	batchMost    = 100                    // executions of a batch
	batchLanes   = 2                      // batches at once
	batchQuick   = 100 * time.Microsecond // none, if an execution in them takes longer: they gain little, and one connection is few
	firstBatches = 32                     // after which that is known
	slowTime     = 250 * time.Millisecond // what takes longer runs alone
	slowKept     = 1024                   // names of such executions
	repeatEach   = time.Second            // shortest time between two slow batches whose executions run again
)

// crowd is the executions that wait, in the order of their arrival: for a connection, or because batches run. One of them leads: it
// waits at the gate and then takes the others with it, in one statement.
type crowd struct {
	source  feed.BatchReader // nil: there are no batches
	running sync.WaitGroup   // batches

	mu       sync.Mutex // guards what follows, members and batches
	queue    []*member
	leader   *member             // the first of queue; nil: nothing waits, or all wait for the end of a batch
	lanes    int                 // batches that run and are not slow
	ran      int                 // batches that have ended
	each     time.Duration       // about the shortest time of an execution in them lately
	slow     map[string]struct{} // names of executions that were slow or failed: they run alone
	repeated time.Time           // when executions of a slow batch ran again
}

// member is an execution that waits in a crowd, or runs in a batch.
type member struct {
	name  string
	args  []string
	turn  chan outcome // has room for all that is sent
	batch *batch       // nil: it waits
	over  bool         // it has its outcome, or nobody waits for that
}

// outcome is the result of an execution, or says that it leads the crowd or is to run alone.
type outcome struct {
	answer       *Answer
	err          error
	leads, alone bool
}

// batch is executions that run in one statement.
type batch struct {
	members []*member
	open    int // members that are not over
	cancel  context.CancelFunc
	slow    bool
}

// arrive has an execution wait, if others do or there is no connection. Otherwise leave frees its place at the gate. Both are nil
// if it must run alone.
func (q *Query) arrive(ctx context.Context, name string, args []string) (m *member, leave func()) {
	c := &q.crowd
	if !q.Batches() {
		return nil, q.cfg.Gate.TryEnter(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, alone := c.slow[name]
	if c.ran > firstBatches && c.each >= batchQuick {
		c.each -= c.each >> 12 // so that batches are tried again
		alone = true
	}
	if alone || len(c.queue) == 0 && c.lanes < batchLanes {
		if leave = q.cfg.Gate.TryEnter(ctx); leave != nil || alone {
			return nil, leave
		}
	}
	m = &member{name: name, args: args, turn: make(chan outcome, 2)}
	c.queue = append(c.queue, m)
	c.appointLocked()
	return m, nil
}

// appointLocked has the first execution lead, if none does and it need not wait for the end of a batch.
func (c *crowd) appointLocked() {
	if c.leader == nil && len(c.queue) > 0 && c.lanes < batchLanes {
		c.leader = c.queue[0]
		c.leader.turn <- outcome{leads: true}
	}
}

// join waits for the result of an execution in the crowd.
func (q *Query) join(ctx context.Context, m *member) (*Answer, error) {
	for {
		var err error
		select {
		case o := <-m.turn:
			switch {
			case o.alone:
				return q.alone(ctx, m.name, m.args)
			case !o.leads:
				return o.answer, o.err
			}
			err = q.lead(ctx, m)
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			q.crowd.leave(m)
			return nil, err
		}
	}
}

// leave gives up an execution.
func (c *crowd) leave(m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(m)
	c.queue = slices.DeleteFunc(c.queue, func(other *member) bool { return other == m })
	if c.leader == m {
		c.leader = nil
		c.appointLocked()
	}
}

// endLocked ends the wait of a member, and reports whether it was not over. A batch is cancelled when nobody waits for it.
func (c *crowd) endLocked(m *member) bool {
	if m.over {
		return false
	}
	m.over = true
	if b := m.batch; b != nil {
		if b.open--; b.open == 0 {
			b.cancel()
		}
	}
	return true
}

// lead waits at the gate, and runs what waits by then.
func (q *Query) lead(ctx context.Context, m *member) error {
	leave, err := q.cfg.Gate.Enter(ctx, q.cfg.Timeout)
	if err != nil {
		return fmt.Errorf("query %s: %w", q.cfg.Name, err)
	}
	c := &q.crowd
	c.mu.Lock()
	n := min(len(c.queue), batchMost)
	members := slices.Clone(c.queue[:n])
	c.queue, c.leader = slices.Delete(c.queue, 0, n), nil
	if n > 1 {
		running, cancel := context.WithCancel(q.base)
		b := &batch{members: members, open: n, cancel: cancel}
		for _, m := range members {
			m.batch = b
		}
		c.lanes++
		c.running.Go(func() { q.run(running, b, leave) })
	}
	c.appointLocked()
	c.mu.Unlock()
	if n == 1 {
		defer leave()
		a, err := q.read(ctx, m.name, m.args)
		m.turn <- outcome{answer: a, err: err}
	}
	return nil
}

// run runs a batch and frees its place at the gate. If it fails, its executions run alone.
func (q *Query) run(ctx context.Context, b *batch, leave func()) {
	defer b.cancel()
	c, n := &q.crowd, len(b.members)
	args, rows := make([][]string, n), make([]feed.Rows, n)
	for i, m := range b.members {
		args[i], rows[i].Limit = m.args, q.cfg.Limit
	}
	watch := time.AfterFunc(slowTime, func() { q.repeat(b) })
	begin := time.Now()
	err := c.source.ReadBatch(ctx, args, rows)
	end := time.Now()
	watch.Stop()
	leave()
	q.counters.executed(end.Sub(begin), err)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !b.slow {
		c.lanes--
	}
	defer c.appointLocked()
	each := end.Sub(begin) / time.Duration(n)
	switch c.ran++; {
	case err == nil && c.ran == 1:
		c.each = each
	case err == nil:
		c.each = min(each, c.each+(each-c.each)/64)
	case b.open > 0: // otherwise it was cancelled
		c.ran, c.each = max(c.ran, firstBatches+1), 2*batchQuick
	}
	if err != nil {
		q.againLocked(b)
		return
	}
	q.counters.batched.Add(uint64(n))
	for i, m := range b.members {
		if c.endLocked(m) {
			m.turn <- outcome{answer: answerOf(&rows[i], begin, end)}
		}
	}
}

// repeat has the executions of a slow batch run again, unless another batch was slow just before: then all are.
func (q *Query) repeat(b *batch) {
	c := &q.crowd
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.open == 0 {
		return
	}
	b.slow = true
	c.lanes--
	c.appointLocked()
	if now := time.Now(); now.Sub(c.repeated) > repeatEach {
		c.repeated = now
		q.againLocked(b)
	}
}

// againLocked has the executions of a batch run alone that are not over.
func (q *Query) againLocked(b *batch) {
	if b.open > 0 {
		q.counters.repeated.Add(1)
	}
	for _, m := range b.members {
		if q.crowd.endLocked(m) {
			m.turn <- outcome{alone: true}
		}
	}
}

// learnAlone learns from an execution that has run alone.
func (c *crowd) learnAlone(name string, took time.Duration, err error) {
	if c.source == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if took <= slowTime && err == nil {
		delete(c.slow, name)
		return
	}
	if len(c.slow) >= slowKept || c.slow == nil {
		c.slow = make(map[string]struct{})
	}
	c.slow[name] = struct{}{}
}
