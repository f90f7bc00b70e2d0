package load

import (
	"runtime"
	"testing"
	"time"

	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// idleDriver has no resources.
type idleDriver struct{}

func (idleDriver) mark(int64)     {}
func (idleDriver) gauges() gauges { return gauges{} }

// record counts that many requests in one step, 100,000 per second of the run's
// clock, with latencies across the whole range of the histograms. It returns the
// heap in use at the end.
func record(t testing.TB, requests int64) uint64 {
	t.Helper()
	clock := target.NewClock()
	s := &stepRun{
		config: &Config{Clock: clock, Target: new(target.Target)}, step: &Step{Connections: 1, Requests: requests},
		listener: Listener{Step: func(*result.Step) error { return nil }, Second: func(*Second) error { return nil }},
	}
	finish, err := s.start(t.Context(), []driver{idleDriver{}}, []int{1})
	if err != nil {
		t.Fatal(err)
	}
	r := s.observers[0]
	for i := range requests {
		intended := r.from + i*10_000
		r.roll(intended)
		r.due(intended, intended)
		latency := (i%1009 + 1) * (i%101 + 1) * 1000
		r.observe(&target.Outcome{
			Intended: intended, Begin: intended, Sent: intended + 1000, First: intended + latency, Done: intended + latency, BytesSent: 40, BytesReceived: 1600, Status: 200,
		})
	}
	r.finish()
	finish()
	if got := s.collector.total.Done; got != requests {
		t.Fatalf("%d of %d requests were counted", got, requests)
	}
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	runtime.KeepAlive(s)
	return m.HeapAlloc
}

// TestMemoryIsBounded checks that memory does not grow with the requests: five
// times as many need the same memory, except for one or two spare tallies.
func TestMemoryIsBounded(t *testing.T) {
	few := record(t, 400_000)
	many := record(t, 2_000_000)
	if limit := few + 2<<20; many > limit {
		t.Errorf("%d bytes for 2,000,000 requests, %d for a fifth of them", many, few)
	}
}

// BenchmarkRecord measures the cost of counting a request. With
// -benchtime 100000000x it reports the heap after 100 million requests.
func BenchmarkRecord(b *testing.B) {
	start := time.Now()
	heap := record(b, int64(b.N))
	b.ReportMetric(float64(heap), "heap-bytes")
	b.ReportMetric(float64(time.Since(start).Nanoseconds())/float64(b.N), "ns/request")
}
