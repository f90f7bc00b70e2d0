package feed

import (
	"time"

	"spillway/internal/serve/front"
)

// Age has the reads of a loop wait for longer than they do.
func (l *Lanes[T]) Age(loop *front.Loop, by time.Duration) {
	for _, r := range l.lane(loop).running {
		r.began, r.latest = r.began.Add(-by), r.latest.Add(-by)
	}
}

// With reports whether two requests share a read.
func (w *LoopWait[T]) With(other *LoopWait[T]) bool { return w.run == other.run }
