package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestContext: a Context behaves as those of package context, also as their parent, before and after its end.
func TestContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		until := time.Now().Add(time.Hour)
		c := &Context{Until: until}
		child, cancel := context.WithCancel(c)
		defer cancel()
		calls := 0
		stopped := context.AfterFunc(c, func() { t.Error("a function was called that had been stopped") })
		context.AfterFunc(c, func() { calls++ })
		if deadline, ok := child.Deadline(); !ok || !deadline.Equal(until) || c.Err() != nil || child.Err() != nil || !stopped() || stopped() {
			t.Errorf("before the end: deadline %v, %v, %v", deadline, c.Err(), child.Err())
		}
		select {
		case <-c.Done():
			t.Error("done before the end")
		default:
		}
		c.Cancel(context.DeadlineExceeded)
		c.Cancel(context.Canceled)
		synctest.Wait()
		<-c.Done()
		<-child.Done()
		late := context.AfterFunc(c, func() { calls++ })
		synctest.Wait()
		if calls != 2 || late() || !errors.Is(c.Err(), context.DeadlineExceeded) || !errors.Is(child.Err(), context.DeadlineExceeded) {
			t.Errorf("after the end: %d calls, %v, child %v", calls, c.Err(), child.Err())
		}
	})
}
