package spool

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"spillway/internal/serve/queue"
)

// Work is what an Order does.
type Work string

// The work of an order.
const (
	WorkRetry   Work = "retry"   // puts dead letters behind what waits, without their idempotency keys
	WorkDiscard Work = "discard" // deletes dead letters
	WorkMove    Work = "move"    // gives dead letters, and what waits, to another name
)

// Order is work on the dead letters of a filter. Damaged groups are not retried. Those in doubt
// are retried only if Filter.InDoubt is true.
type Order struct {
	Work Work `json:"-"`
	Filter
	To      string `json:"to,omitempty"`      // the other name of WorkMove
	Waiting bool   `json:"waiting,omitempty"` // WorkMove also moves what waits under Filter.Stream
	DryRun  bool   `json:"dry_run,omitempty"` // only count
}

// Done is what an order has done.
type Done struct {
	Letters int   `json:"dead_letters"`
	Records int64 `json:"records"`        // that wait, and were moved
	Damaged int   `json:"left_damaged"`   // dead letters that WorkRetry left, because they are damaged groups
	InDoubt int   `json:"left_in_doubt"`  // the same, because the database may have them
	Upto    int64 `json:"upto,omitempty"` // of a dry run: the last id that there was
}

// ErrOrder is the error of an order that cannot be executed; the text says why.
var ErrOrder = errors.New("nothing has changed")

func (o *Order) check() error {
	switch {
	case o.Work != WorkMove && (o.To != "" || o.Waiting):
		return fmt.Errorf("%w: to and waiting are of move", ErrOrder)
	case o.Work == WorkMove && (o.To == "" || o.To == o.Stream):
		return fmt.Errorf("%w: to must name another stream", ErrOrder)
	case o.Waiting && (o.Stream == "" || !reflect.DeepEqual(o.Filter, Filter{Stream: o.Stream})):
		return fmt.Errorf("%w: what waits can only be moved for all of one stream", ErrOrder)
	}
	return nil
}

// Do executes an order on the dead letters that are there now, and returns when it is done. If
// ctx ends first, it is done later. Orders are executed one after the other, so that each letter
// is taken once. Errors wrap ErrOrder if nothing was done.
func (s *Spool) Do(ctx context.Context, o Order) (done Done, err error) {
	if err := o.check(); err != nil {
		return done, err
	}
	if o.Work == WorkRetry && o.InDoubt == nil {
		o.InDoubt = new(bool)
	}
	what, err := s.file.selects(ctx, o.Filter)
	if err != nil {
		return done, err
	}
	what.raw = o.Work != WorkRetry
	if o.DryRun {
		done.Upto = what.upto
		done.Letters, _, _, err = s.file.count(ctx, what)
		return done, err
	}
	t := &task{order: o, what: what, done: make(chan struct{})}
	if err := s.execute(ctx, t); err != nil {
		return done, err
	}
	if done.Letters, done.Records = t.letters, t.records; o.Work == WorkRetry {
		what.raw, what.InDoubt = true, nil
		_, done.Damaged, done.InDoubt, err = s.file.count(ctx, what)
	}
	return done, err
}

// task is an order that run executes in small transactions, between those of the clients.
type task struct {
	order Order
	what  selection
	after int64 // the last letter that was done
	done  chan struct{}

	letters int
	records int64
	err     error // set before done is closed, like letters and records
}

// execute gives run a task, and returns when it is done. If ctx ends first, run continues.
func (s *Spool) execute(ctx context.Context, t *task) error {
	s.mu.Lock()
	err := s.accept(t)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return fmt.Errorf("wait for the spool: %w", context.Cause(ctx))
	}
}

// accept queues a task. The caller holds mu.
func (s *Spool) accept(t *task) error {
	if s.closed {
		return queue.ErrClosed
	}
	if n := s.names[t.order.Stream]; t.order.Waiting {
		switch {
		case n == nil || n.id == [16]byte{}:
			return fmt.Errorf("%w: there is nothing under %s", ErrOrder, t.order.Stream)
		case n.drain != DrainNone:
			return fmt.Errorf("%w: a stream drains the records of %s", ErrOrder, t.order.Stream)
		}
	}
	s.tasks = append(s.tasks, t)
	s.wake.Signal()
	return nil
}

// endTasks ends the tasks that are left. The caller holds mu.
func (s *Spool) endTasks() {
	for _, t := range s.tasks {
		t.err = queue.ErrClosed
		close(t.done)
	}
	s.tasks = nil
}

// step makes one transaction of the first task. To retry dead letters makes a group of those of
// each name.
func (s *Spool) step(t *task) {
	letters, err := s.file.selected(context.Background(), t.what, t.after, s.cfg.GroupBytes)
	if err == nil && len(letters) > 0 {
		if err = s.write(&batch{letters: letters, order: t.order}); err == nil {
			t.after, t.letters = letters[len(letters)-1].ID, t.letters+len(letters)
			return // the next step continues
		}
	} else if err == nil && t.order.Waiting {
		t.records = s.head(t.order.Stream).rows
		err = s.write(&batch{order: t.order})
	}
	if err != nil {
		t.err = fmt.Errorf("%s dead letters: %w", t.order.Work, err)
	}
	s.mu.Lock()
	s.tasks = s.tasks[1:]
	s.mu.Unlock()
	close(t.done)
}
