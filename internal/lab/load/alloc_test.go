//go:build !race

package load

import (
	"runtime"
	"testing"

	"spillway/internal/lab/target"
)

// TestNoAllocation compares a short run with a long one: what is allocated does
// not grow with the requests.
func TestNoAllocation(t *testing.T) {
	_, tg, clock := nullTarget(t, target.Config{})
	mallocs := func(requests int64) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		runLoad(t, t.Context(), Config{Target: tg, Clock: clock, Steps: []Step{{Connections: 4, Requests: requests}}})
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs
	}
	const more = 100_000
	few := mallocs(1000)
	if many := mallocs(1000 + more); many > few+more*3/4 { // encoding histograms allocates by their width
		t.Errorf("%d allocations for 1000 requests, %d for %d more", few, many, more)
	}
}
