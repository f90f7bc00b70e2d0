package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// attempt bounds one call of Sink.Commit. While the batch's statements run, it ends the call if the database does not answer for the
// limit. A COMMIT is never ended: the clients are told that its outcome is unknown, and the call goes on.
//
// Attempts are used again with their timers. These are set anew only after they have fired, because
// a timer that is set for each call wakes the scheduler each time.
type attempt struct {
	mu         sync.Mutex
	limit      time.Duration
	cancel     context.CancelCauseFunc
	late       func() // called when a COMMIT is not answered within the limit; nil: nothing
	deadline   time.Time
	timer      *time.Timer
	armed      bool // the timer fires at the deadline, or before it
	committing bool
	over       bool // the call has returned, or is being ended
}

// errNoAnswer is the cause of an attempt that ended without an answer.
var errNoAnswer = errors.New("the database did not answer in time (commit_timeout)")

// attempts are unused attempts with the same limit.
type attempts struct{ unused sync.Pool }

// commit has the sink commit a batch. If the database does not answer a statement within the limit, the attempt is given up. If it does
// not answer the COMMIT, late is called, possibly more than once, and commit waits for as long as the connection lasts. late is not called
// after commit has returned.
func (all *attempts) commit(base context.Context, limit time.Duration, sink Sink, b *Batch, late func()) error {
	ctx, cancel := context.WithCancelCause(base)
	a, ok := all.unused.Get().(*attempt)
	if !ok {
		a = new(attempt)
	}
	a.begin(limit, cancel, late)
	b.attempt = a
	err := sink.Commit(ctx, b)
	b.attempt = nil
	a.end()
	all.unused.Put(a)
	if err != nil && errors.Is(context.Cause(ctx), errNoAnswer) {
		err = fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	cancel(nil)
	return err
}

func (a *attempt) begin(limit time.Duration, cancel context.CancelCauseFunc, late func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limit, a.cancel, a.late, a.committing, a.over = limit, cancel, late, false, false
	a.extend()
}

// extend begins the limit anew. The caller holds mu.
func (a *attempt) extend() {
	a.deadline = time.Now().Add(a.limit)
	if !a.armed {
		a.arm(a.limit)
	}
}

func (a *attempt) arm(after time.Duration) {
	a.armed = true
	if a.timer == nil {
		a.timer = time.AfterFunc(after, a.expire)
		return
	}
	a.timer.Reset(after)
}

// expire is called when the timer fires.
func (a *attempt) expire() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.armed = false
	left := time.Until(a.deadline)
	switch {
	case a.over:
	case left > 0:
		a.arm(left)
	case !a.committing:
		a.over = true
		a.cancel(errNoAnswer)
	case a.late != nil:
		a.late()
	}
}

// restart begins the limit anew. With committing, the attempt is no longer ended by it. Without an attempt nothing is limited.
func (a *attempt) restart(committing bool) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return
	}
	a.committing = a.committing || committing
	a.extend()
}

func (a *attempt) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over, a.cancel, a.late = true, nil, nil
}

// Committing notes that COMMIT is about to be sent: from now on ctx ends only when the
// process stops. If ctx has ended when Committing returns, COMMIT must not be sent.
func (b *Batch) Committing() { b.attempt.restart(true) }

// Committed notes that COMMIT was answered. What the sink does afterwards is bounded by itself, and the client waits for it.
func (b *Batch) Committed() {
	if a := b.attempt; a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.late = nil
	}
}

// Progress notes that the database has answered a statement of the batch, and restarts Config.CommitTimeout. The number of statements must
// be bounded by the batch's rows, so that the work always ends.
func (b *Batch) Progress() { b.attempt.restart(false) }

// Limit returns how long the database may take to answer a statement of the batch; 0: there is no limit.
func (b *Batch) Limit() time.Duration {
	if b.attempt == nil {
		return 0
	}
	return b.attempt.limit
}
