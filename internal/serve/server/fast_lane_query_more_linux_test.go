//go:build linux && !portable

package server

import (
	"testing"
	"time"
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
