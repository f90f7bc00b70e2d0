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
	mallocs := func(requests int64) (count, seconds uint64) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := runLoad(t, t.Context(), Config{Target: tg, Clock: clock, Steps: []Step{{Connections: 4, Requests: requests}}})
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs, uint64(len(r.slices[0]))
	}
	const more = 20_000
	few, _ := mallocs(1000)
	// Encoding the histograms of a second allocates by their width.
	if many, seconds := mallocs(1000 + more); many > few*seconds+more*3/4 {
		t.Errorf("%d allocations for 1000 requests, %d for %d more in %d s", few, many, more, seconds)
	}
}
