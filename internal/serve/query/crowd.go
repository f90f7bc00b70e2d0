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
	batchLanes   = 2                      // batches at once, if an execution in them takes less than
	batchQuick   = 100 * time.Microsecond // this,
	batchSlow    = time.Millisecond       // and none if it takes more than this: they gain nothing
	apartFor     = time.Minute            // for so long executions then run alone,
	failedFor    = time.Second            // or for so long after a failure; in this time one slow batch is repeated
	firstBatches = 32                     // after which these times are known
	slowTimes    = 4                      // a batch that takes so many times the mean,
	slowLeast    = 100 * time.Millisecond // and this, is slow; what takes so long alone runs alone
	slowKept     = 1024                   // names of such executions
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
	apart    time.Time           // until then executions run alone
	repeated time.Time           // when a batch was slow and its executions ran again
	slow     map[string]struct{} // names of executions that were slow or failed: they run alone
	ran      int                 // batches that have ended
	mean     time.Duration       // time of one
	each     time.Duration       // about the shortest time of an execution in them lately
}

// member is an execution that waits in a crowd, or runs in a batch.
type member struct {
	name  string
	args  []string
	turn  chan outcome // has room for all that is sent
	batch *batch       // nil: it waits
	over  bool         // it has its result, or nobody waits for that
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

// arrive has an execution wait, if others do. Otherwise m is nil; together says whether it may if there is no connection.
func (c *crowd) arrive(name string, args []string) (m *member, together bool) {
	if c.source == nil || !c.source.Batches() {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, slow := c.slow[name]; slow || !c.apart.IsZero() && time.Now().Before(c.apart) {
		return nil, false
	}
	if len(c.queue) > 0 || c.fullLocked() {
		m = c.addLocked(name, args)
	}
	return m, true
}

// add has an execution wait.
func (c *crowd) add(name string, args []string) *member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addLocked(name, args)
}

func (c *crowd) addLocked(name string, args []string) *member {
	m := &member{name: name, args: args, turn: make(chan outcome, 2)}
	c.queue = append(c.queue, m)
	c.appointLocked()
	return m
}

// fullLocked reports whether what waits has to wait for the end of a batch.
func (c *crowd) fullLocked() bool { return c.lanes >= batchLanes && c.quickLocked() }

// quickLocked reports whether executions are so quick that one connection suffices for many, as far as is known.
func (c *crowd) quickLocked() bool { return c.ran <= firstBatches || c.each < batchQuick }

// appointLocked has the first execution lead, if none does and it need not wait for the end of a batch.
func (c *crowd) appointLocked() {
	if c.leader == nil && len(c.queue) > 0 && !c.fullLocked() {
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

// leave gives up an execution. If it was the last one of its batch, that is cancelled.
func (c *crowd) leave(m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(m)
	if i := slices.Index(c.queue, m); i >= 0 {
		c.queue = slices.Delete(c.queue, i, i+1)
	}
	if c.leader == m {
		c.leader = nil
		c.appointLocked()
	}
}

// endLocked gives up a member of a batch, and reports whether it was not over. Nobody else then needs the batch, if it was the last.
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

// settleLocked gives an execution its outcome, unless it is over.
func (c *crowd) settleLocked(m *member, o outcome) {
	if c.endLocked(m) {
		m.turn <- o
	}
}

// lead waits at the gate, and runs what waits by then.
func (q *Query) lead(ctx context.Context, m *member) error {
	leave, err := q.cfg.Gate.Enter(ctx, q.cfg.Timeout)
	if err != nil {
		return fmt.Errorf("query %s: %w", q.cfg.Name, err)
	}
	c := &q.crowd
	running, cancel := context.WithCancel(q.base)
	c.mu.Lock()
	n := min(len(c.queue), batchMost)
	b := &batch{members: slices.Clone(c.queue[:n]), open: n, cancel: cancel}
	for _, m := range b.members {
		m.batch = b
	}
	c.queue = slices.Delete(c.queue, 0, n)
	c.leader = nil
	if n > 1 {
		c.lanes++
		c.running.Go(func() { q.run(running, b, leave) })
	}
	c.appointLocked()
	c.mu.Unlock()
	if n > 1 {
		return nil
	}
	defer cancel()
	defer leave()
	a, err := q.read(ctx, m.name, m.args)
	m.turn <- outcome{answer: a, err: err}
	return nil
}

// run runs a batch and frees its place at the gate. If it fails, its executions run alone.
func (q *Query) run(ctx context.Context, b *batch, leave func()) {
	defer b.cancel()
	c := &q.crowd
	args, rows := make([][]string, len(b.members)), make([]feed.Rows, len(b.members))
	for i, m := range b.members {
		args[i], rows[i].Limit = m.args, q.cfg.Limit
	}
	c.mu.Lock()
	watch := time.AfterFunc(c.limitLocked(), func() { q.repeat(b) })
	c.mu.Unlock()
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
	if err != nil {
		if b.open > 0 { // otherwise it was cancelled
			c.apart = end.Add(failedFor)
			q.againLocked(b)
		}
		return
	}
	c.learnLocked(end.Sub(begin), len(b.members), end)
	q.counters.batched.Add(uint64(len(b.members)))
	for i, m := range b.members {
		c.settleLocked(m, outcome{answer: answerOf(&rows[i], begin, end)})
	}
}

// againLocked has the executions of a batch run alone that are not over.
func (q *Query) againLocked(b *batch) {
	q.counters.repeated.Add(1)
	for _, m := range b.members {
		q.crowd.settleLocked(m, outcome{alone: true})
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
	if now := time.Now(); now.Sub(c.repeated) > failedFor {
		c.repeated = now
		q.againLocked(b)
	}
}

// limitLocked returns how long a batch takes at most that is not slow.
func (c *crowd) limitLocked() time.Duration { return max(slowTimes*c.mean, slowLeast) }

// learnLocked learns from a batch of n that has ended. In the first ones, connections prepare the statement.
func (c *crowd) learnLocked(took time.Duration, n int, now time.Time) {
	each := took / time.Duration(n)
	if c.ran++; c.ran == 1 {
		c.each = each
	}
	c.mean += (min(took, c.limitLocked()) - c.mean) / 16
	c.each = min(each, c.each+(each-c.each)/64)
	if c.ran > firstBatches && c.each > batchSlow {
		c.apart = now.Add(apartFor)
	}
}

// learnAlone learns from an execution that has run alone.
func (c *crowd) learnAlone(name string, took time.Duration, err error) {
	if c.source == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if took <= c.limitLocked() && err == nil {
		delete(c.slow, name)
		return
	}
	if len(c.slow) >= slowKept || c.slow == nil {
		c.slow = make(map[string]struct{})
	}
	c.slow[name] = struct{}{}
}
