//go:build linux && !portable

package server

import (
	"io"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/feed"
)

// TestFastLaneQueryPause: a paused value is not executed in event loops either.
func TestFastLaneQueryPause(t *testing.T) {
	t.Parallel()
	var texts [2]string
	for i, loops := range []int{1, -1} {
		l, h, q := heldLane(t, loops, 100*time.Millisecond)
		q.Pause([]string{"1"}, true)
		texts[i] = l.converse(t, input{[]string{get("/held?a=1")}, false}).text
		if begun, dropped := h.state(); begun+dropped > 0 {
			t.Errorf("loops %d: %d reads, %d dropped", loops, begun, dropped)
		}
	}
	if texts[0] != texts[1] {
		t.Errorf("%q\nand without loops\n%q", texts[0], texts[1])
	}
}

// TestFastLaneQueryNobody: an execution that the loop could not end is not begun elsewhere for clients that have left.
func TestFastLaneQueryNobody(t *testing.T) {
	t.Parallel()
	l, h, q := heldLane(t, 1, time.Hour)
	c := l.dialLane(t, 0)
	_, _ = io.WriteString(c, get("/held?a=1"))
	apptest.Await(t, "it waits", func() bool { return q.Stats().Waiting == 1 })
	_ = c.SetLinger(0)
	_ = c.Close()
	apptest.Await(t, "nobody wants it", func() bool {
		unwanted := make(chan bool, 1)
		h.loop.Post(func() { unwanted <- h.reads[0].Unwanted })
		return <-unwanted
	})
	h.loop.Post(func() { h.reads[0].Done(feed.ErrElsewhere) })
	apptest.Receive(t, "the end of what runs for nobody", h.ended)
}

// TestFastLaneQueryWaiters: the limit of waiting requests holds for those that share an execution.
func TestFastLaneQueryWaiters(t *testing.T) {
	t.Parallel()
	l, h, q := heldLane(t, 1, time.Hour)
	for range 6 {
		_, _ = io.WriteString(l.dialLane(t, 0), get("/held?a=1"))
	}
	apptest.Await(t, "three are refused", func() bool { return q.Stats().Refused == 3 })
	if n := q.Stats().Waiting; n > 3 {
		t.Errorf("%d requests wait; waiters_max is 3", n)
	}
	h.answerAll()
}
