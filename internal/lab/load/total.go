package load

import (
	"math"
	"runtime"
	"slices"
	"time"

	"spillway/internal/lab/result"
)

// total sums the step up and judges it.
func (s *stepRun) total() (*result.Total, error) {
	c := s.collector
	t := &result.Total{Step: s.number, Counters: c.total, Clamped: c.latency.clamped()}
	var books threadReport
	for i := range s.reports {
		r := &s.reports[i]
		books.elapsed = max(books.elapsed, r.elapsed)
		books.counters.Connects += r.counters.Connects
		books.counters.Reconnects += r.counters.Reconnects
		books.counters.InFlight += r.counters.InFlight
		books.counters.Open += r.counters.Open
		books.counters.OpenMax += r.counters.OpenMax
		books.counters.Unread += r.counters.Unread
		books.counters.Reads += r.counters.Reads
		books.late += r.late
		books.abandon += r.abandon
		books.wall = max(books.wall, r.wall)
	}
	t.Elapsed = time.Duration(books.elapsed).Seconds()
	t.Connects, t.Reconnects = books.counters.Connects, books.counters.Reconnects
	latency, err := c.latency.encode()
	if err != nil {
		return nil, err
	}
	t.Latency = latency
	t.Connections = s.connectionStats(&books)
	t.Little = s.little(t, &books)
	t.Cost = s.cost()
	t.SLO = s.config.SLO.judge(t, &c.latency)
	t.Validity, t.Reasons = s.judge(t, &books)
	t.Reasons = append(t.Reasons, c.failureNotes()...)
	return t, nil
}

// connectionStats says how many connections were open and how evenly they were
// served. In an open loop those that were never needed are left out.
func (s *stepRun) connectionStats(books *threadReport) result.ConnectionStats {
	stats := result.ConnectionStats{ParallelMax: int64(books.counters.OpenMax)}
	if books.wall > 0 {
		stats.ParallelMean = float64(books.counters.Open) / float64(books.wall)
	}
	var requests, busy moments
	for _, r := range s.recorders {
		for _, place := range r.served {
			if place.requests == 0 && s.step.Open() {
				continue
			}
			requests.add(float64(place.requests))
			busy.add(time.Duration(place.busy).Seconds())
		}
	}
	if requests.n == 0 {
		return stats
	}
	stats.Slots = int64(requests.n)
	stats.RequestsMin, stats.RequestsMax = int64(requests.min), int64(requests.max)
	stats.RequestsMean, stats.RequestsStdDev = requests.mean(), requests.stdDev()
	stats.BusyMean, stats.BusyStdDev = busy.mean(), busy.stdDev()
	return stats
}

// moments sums numbers up for their mean and spread.
type moments struct {
	n, sum, squares, min, max float64
}

func (m *moments) add(x float64) {
	if m.n == 0 || x < m.min {
		m.min = x
	}
	m.max = max(m.max, x)
	m.n++
	m.sum += x
	m.squares += x * x
}

func (m *moments) mean() float64 { return m.sum / m.n }

func (m *moments) stdDev() float64 {
	return math.Sqrt(max(m.squares/m.n-m.mean()*m.mean(), 0))
}

// little compares the requests in flight, integrated over time, with rate times
// time in the target. Both sides span the warm-up's end to the last answer, so
// a step with a warm-up compares means, not sums.
func (s *stepRun) little(t *result.Total, books *threadReport) result.Little {
	l := result.Little{ServiceMean: s.collector.latency.service.Mean().Seconds()}
	if books.wall == 0 || t.Done == 0 || t.Elapsed == 0 {
		return l
	}
	l.InFlightMean = float64(books.counters.InFlight) / float64(books.wall)
	l.Rate = float64(t.Done) / t.Elapsed
	connecting := float64(s.collector.latency.connect.Count()) * s.collector.latency.connect.Mean().Seconds()
	if s.config.Target.SQL() && s.config.PerConnection == 0 {
		connecting = 0 // connections were opened before the step
	}
	spent := l.ServiceMean + connecting/float64(t.Done)
	if spent > 0 {
		l.Ratio = l.InFlightMean / (l.Rate * spent)
	}
	return l
}

// cost sums what the generator used. For a lean target its threads are counted
// one by one; the process is counted whole by the slices.
func (s *stepRun) cost() result.Cost {
	cost := result.Cost{Threads: len(s.reports), GCPause: s.gcPause.Seconds()}
	var unread []int
	for i := range s.reports {
		r := &s.reports[i]
		unread = append(unread, r.unread...)
		cost.CPUUser += r.usage.user.Seconds()
		cost.CPUSystem += r.usage.system.Seconds()
		cost.RunQueueWait += r.usage.wait.Seconds()
		cost.VoluntarySwitches += r.usage.voluntary
		cost.InvoluntarySwitches += r.usage.involuntary
		cost.MemoryMax = max(cost.MemoryMax, r.usage.memoryMax)
		cost.ThreadBusyMax = max(cost.ThreadBusyMax, s.busy(r))
	}
	if !s.config.Target.Lean() {
		cost.Threads = runtime.GOMAXPROCS(0)
	}
	cost.ReceiveQueue = medianOf(unread)
	return cost
}

func medianOf(sizes []int) float64 {
	if len(sizes) == 0 {
		return 0
	}
	slices.Sort(sizes)
	return float64(sizes[len(sizes)/2])
}

// busy is the share of the wall time that a thread spent on a CPU; for sessions,
// the share of all the CPUs that this process may use.
func (s *stepRun) busy(r *threadReport) float64 {
	if r.wall == 0 {
		return 0
	}
	busy := float64(r.usage.cpu()) / float64(r.wall)
	if !s.config.Target.Lean() {
		busy /= float64(runtime.GOMAXPROCS(0))
	}
	return busy
}

func gcPause() time.Duration {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return time.Duration(m.PauseTotalNs)
}
