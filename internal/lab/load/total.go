package load

import (
	"math"
	"runtime"
	"slices"
	"time"

	"spillway/internal/lab/result"
)

// total returns the totals and the validity of the step.
func (s *stepRun) total() (*result.Total, error) {
	c := s.collector
	t := &result.Total{Step: s.number, Counters: c.total, Clamped: c.latency.clamped()}
	var sums threadReport
	for i := range s.reports {
		r := &s.reports[i]
		sums.elapsed = max(sums.elapsed, r.elapsed)
		sums.counters.Connects += r.counters.Connects
		sums.counters.Reconnects += r.counters.Reconnects
		sums.counters.InFlight += r.counters.InFlight
		sums.counters.Open += r.counters.Open
		sums.counters.OpenMax += r.counters.OpenMax
		sums.counters.Unread += r.counters.Unread
		sums.counters.Reads += r.counters.Reads
		sums.late += r.late
		sums.abandoned += r.abandoned
		sums.wall = max(sums.wall, r.wall)
	}
	t.Elapsed = time.Duration(sums.elapsed).Seconds()
	t.Connects, t.Reconnects = sums.counters.Connects, sums.counters.Reconnects
	latency, err := c.latency.encode()
	if err != nil {
		return nil, err
	}
	t.Latency = latency
	if s.config.Flow != nil {
		if t.Iterations, err = s.iterations.total(); err != nil {
			return nil, err
		}
	}
	t.Connections = s.connectionStats(&sums)
	t.Little = s.little(t, &sums)
	t.Cost = s.cost()
	if t.SLO, err = s.config.SLO.Judge(t); err != nil {
		return nil, err
	}
	t.Validity, t.Reasons = s.judge(t, &sums)
	t.Reasons = append(t.Reasons, c.failureNotes()...)
	return t, nil
}

// connectionStats returns how many connections were open and how evenly they were
// used. In an open loop it ignores connections that were never needed.
func (s *stepRun) connectionStats(sums *threadReport) result.ConnectionStats {
	stats := result.ConnectionStats{ParallelMax: int64(sums.counters.OpenMax)}
	if sums.wall > 0 {
		stats.ParallelMean = float64(sums.counters.Open) / float64(sums.wall)
	}
	var requests, busy moments
	for _, r := range s.observers {
		for _, slot := range r.served {
			if slot.requests == 0 && s.step.Open() {
				continue
			}
			requests.add(float64(slot.requests))
			busy.add(time.Duration(slot.busy).Seconds())
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

// moments accumulates the mean and standard deviation of numbers.
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

// little compares the mean number of requests in flight with the rate times the
// time in the target (Little's law).
func (s *stepRun) little(t *result.Total, sums *threadReport) result.Little {
	l := result.Little{ServiceMean: s.collector.latency.service.Mean().Seconds()}
	if sums.wall == 0 || t.Done == 0 || t.Elapsed == 0 {
		return l
	}
	l.InFlightMean = float64(sums.counters.InFlight) / float64(sums.wall)
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

// cost returns the resources that the generator used: those of its threads if it
// runs event loops, otherwise those of the process.
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
	if !s.config.Target.EventLoop() {
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

// busy is the share of the wall time that a thread spent on a CPU. For sessions it
// is the share of all CPUs that this process may use.
func (s *stepRun) busy(r *threadReport) float64 {
	if r.wall == 0 {
		return 0
	}
	busy := float64(r.usage.cpu()) / float64(r.wall)
	if !s.config.Target.EventLoop() {
		busy /= float64(runtime.GOMAXPROCS(0))
	}
	return busy
}
