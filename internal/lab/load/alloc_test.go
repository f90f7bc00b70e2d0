//go:build !race

package load

import (
	"runtime"
	"strings"
	"testing"

	"spillway/internal/lab/target"
)

// A request allocates nothing in any part of a run, so that garbage collection does not disturb latencies.
func TestNoAllocation(t *testing.T) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1
	const requests = 20_000
	_, tg, clock := nullTarget(t, target.Config{})
	before := allocations(t)
	runLoad(t, t.Context(), Config{Target: tg, Clock: clock, Steps: []Step{{Connections: 4, Requests: requests}}})
	if n := allocations(t) - before; n > requests/2 {
		t.Errorf("%d allocations for %d requests", n, requests)
	}
}

// allocations counts the allocations so far, without those that encode histograms once a second: a wide one has many.
func allocations(t *testing.T) (n int64) {
	t.Helper()
	runtime.GC() // a profile is as of the last but one
	runtime.GC()
	records := make([]runtime.MemProfileRecord, 1<<16)
	count, ok := runtime.MemProfile(records, true)
	if !ok {
		t.Fatalf("more than %d records", len(records))
	}
	for _, r := range records[:count] {
		frames := runtime.CallersFrames(r.Stack())
		for more, encodes := true, false; more && !encodes; {
			var f runtime.Frame
			f, more = frames.Next()
			encodes = strings.Contains(f.Function, "hdrhistogram")
			if !more && !encodes {
				n += r.AllocObjects
			}
		}
	}
	return n
}
