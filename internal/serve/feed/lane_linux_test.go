//go:build linux && !portable

package feed_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"spillway/internal/serve/coalesce"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/storetest"
)

// elsewhere is a reader that cannot read in loops, or not at once.
type elsewhere struct {
	feed.Reader
	late bool
	read *feed.LoopRead
}

func (e *elsewhere) Begin(_ *front.Loop, r *feed.LoopRead) error {
	if e.read = r; e.late {
		return nil
	}
	return feed.ErrElsewhere
}

func (*elsewhere) Drop(*front.Loop, *feed.LoopRead) bool { return false }

// TestLaneShares: a request does not share a read elsewhere that ends long before its own time is over.
func TestLaneShares(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		loop, release := storetest.StartLoop(t), make(chan struct{})
		var reads sync.WaitGroup
		reader := &elsewhere{late: late}
		l := feed.Lanes[int]{
			Reader: reader, Group: coalesce.New[int](coalesce.Limits{Callers: 10}), Base: t.Context(), Reads: &reads, Timeout: time.Hour,
			Size: func(int) int { return 0 },
			Call: func(ctx context.Context, _ string, _ feed.Range) func(context.Context) (int, error) {
				if end, _ := ctx.Deadline(); time.Until(end) < 30*time.Minute {
					t.Errorf("it has %v", time.Until(end))
				}
				return func(context.Context) (int, error) {
					<-release
					return 5, nil
				}
			},
		}
		answers := make(chan int, 3)
		begin := func() (w *feed.LoopWait[int]) {
			w = new(feed.LoopWait[int])
			later := &front.Later{Left: func() {}}
			later.Respond = func(dst []byte, over bool) ([]byte, bool) {
				n, err := w.Answer(over)
				if err != nil {
					t.Error(err)
				}
				answers <- n
				return dst, true
			}
			l.Begin(loop, w, later, "", []byte("key"), nil, feed.Range{})
			return w
		}
		storetest.OnLoop(t, loop, func() {
			first := begin()
			if !begin().With(first) {
				t.Error("the second one has a read of its own")
			}
			l.Age(loop, 50*time.Minute)
			if third := begin(); third.With(first) != late {
				t.Errorf("late %v: the third one shares a read: %v", late, third.With(first))
			}
			if late {
				reader.read.Done(feed.ErrElsewhere)
			}
		})
		close(release)
		for range 3 {
			if n := <-answers; n != 5 {
				t.Error(n)
			}
		}
		reads.Wait()
		l.Group.Close()
	}
}
