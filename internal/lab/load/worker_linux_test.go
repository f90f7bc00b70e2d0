package load

import (
	"slices"
	"testing"
	"time"

	"spillway/internal/lab/target"
)

// TestWorkers runs 10 connections on 1 to 64 workers: every connection is used, and every arrival starts once.
func TestWorkers(t *testing.T) {
	for workers := 1; workers <= 64; workers++ {
		if testing.Short() && !slices.Contains([]int{1, 2, 3, 10, 11, 64}, workers) {
			continue
		}
		_, tg, clock := nullTarget(t, target.Config{})
		const rate, length = 2000, 50 * time.Millisecond
		r := runLoad(t, t.Context(), Config{Target: tg, Clock: clock, Workers: workers, Backlog: 3, Steps: []Step{
			{Connections: 10, Requests: 200},
			{Rate: rate, Connections: 10, Duration: length},
		}})
		if closed := &r.totals[0]; closed.Done != 200 || closed.Connections.Slots != 10 || closed.Cost.Threads != min(workers, 10) {
			t.Errorf("%d workers: %d answers, %+v, %d threads", workers, closed.Done, closed.Connections, closed.Cost.Threads)
		}
		if open := &r.totals[1]; open.Due != int64(rate*length.Seconds()) || open.Connections.Slots > 10 {
			t.Errorf("%d workers: %d arrivals", workers, open.Due)
		}
	}
}

// TestArrivalsAreDealtToConnections checks that each thread gets arrivals by its share of the connections, and every arrival
// goes to one thread.
func TestArrivalsAreDealtToConnections(t *testing.T) {
	for _, connections := range []int{1, 7, 10, 64, 100} {
		for workers := 1; workers <= min(64, connections); workers++ {
			taken := make(map[int64]int)
			for i, share := range sharesOf(connections, workers) {
				thread := &thread{number: i, threads: workers, connections: connections, phase: new(phase), arrivals: Even(1)}
				for range 3 * share {
					thread.advance()
					taken[thread.next]++
				}
			}
			for k := range 3 * connections {
				if taken[int64(k)*second] != 1 {
					t.Fatalf("%d connections on %d workers: arrival %d started %d times", connections, workers, k, taken[int64(k)*second])
				}
			}
		}
	}
}
