package popup

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// oldEvents are events of a database, one per minute before an instant.
type oldEvents struct {
	mu     sync.Mutex
	left   int
	took   time.Duration // by each batch
	busy   time.Duration // by all batches
	before time.Time
	calls  int
	err    error
}

func (o *oldEvents) DeleteEvents(ctx context.Context, before time.Time, limit int) (int, error) {
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(o.took):
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(limit, o.left)
	o.left, o.before = o.left-n, before
	o.busy += o.took
	o.calls++
	return n, o.err
}

// Old events are deleted in batches, within a tenth of the time. A failure is retried.
func TestRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRetention)
}

func testRetention(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	tables := &oldEvents{left: 10_500, took: 200 * time.Millisecond}
	r := &Retention{Tables: tables, Keep: 30 * 24 * time.Hour, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	done := make(chan struct{})
	began := time.Now()
	go func() { defer close(done); r.Run(ctx) }()
	<-time.After(time.Minute)
	synctest.Wait()
	if r.Deleted() != 10_500 || tables.calls != 11 || tables.busy*10 > time.Since(began) {
		t.Errorf("%d deleted in %d batches, busy for %s", r.Deleted(), tables.calls, tables.busy)
	}
	if age := time.Since(tables.before); age < r.Keep || age > r.Keep+time.Minute {
		t.Errorf("deleted before %s", tables.before)
	}
	tables.mu.Lock()
	tables.left, tables.err = 7, errors.New("away")
	tables.mu.Unlock()
	<-time.After(2 * retentionEvery)
	synctest.Wait()
	if r.Deleted() != 10_507 || tables.calls > 14 {
		t.Errorf("after a failure: %d deleted, %d calls", r.Deleted(), tables.calls)
	}
	stop()
	<-done
}
