package watch

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestSchedule compares with a plain set of times.
func TestSchedule(t *testing.T) {
	zero := time.Unix(0, 0)
	rapid.Check(t, func(t *rapid.T) {
		var s schedule
		model := map[time.Duration]bool{}
		now := time.Duration(0)
		for range rapid.IntRange(1, 50).Draw(t, "actions") {
			if rapid.Bool().Draw(t, "add") {
				at := now + time.Duration(rapid.IntRange(-5, 20).Draw(t, "at"))
				s.add(zero.Add(at))
				model[at] = true
				continue
			}
			now += time.Duration(rapid.IntRange(0, 10).Draw(t, "passed"))
			next, due := farOff, false
			for at := range model {
				next = min(next, max(0, at-now))
				if at <= now {
					due = true
					delete(model, at)
				}
			}
			if got := s.wait(zero.Add(now)); got != next {
				t.Fatalf("waits %v, want %v", got, next)
			}
			if got := s.take(zero.Add(now)); got != due {
				t.Fatalf("due: %v, want %v", got, due)
			}
		}
	})
	var s schedule
	for i := range 2 * marksMax {
		s.add(zero.Add(time.Duration(-i)))
	}
	if len(s.times) != marksMax {
		t.Errorf("%d marks are pending", len(s.times))
	}
}
