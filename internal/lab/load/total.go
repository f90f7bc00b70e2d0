package load

import (
	"math"
	"runtime"
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
		sums.counters.Connects += r.counters.Connects
		sums.counters.Reconnects += r.counters.Reconnects
		sums.counters.Open += r.counters.Open
		sums.counters.OpenMax += r.counters.OpenMax
		sums.counters.Unread += r.counters.Unread
		sums.counters.Reads += r.counters.Reads
		sums.paused += r.paused
		sums.late += r.late
		sums.wall = max(sums.wall, r.wall)
	}
	t.Elapsed = time.Duration(s.phase.elapsed()).Seconds()
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
	t.Little = s.little()
	t.Cost = s.cost()
	t.Hosts = s.hosts.shares
	if t.Labels, err = s.labelTotals(t); err != nil {
		return nil, err
	}
	if t.SLO, err = s.config.SLO.Judge(t); err != nil {
		return nil, err
	}
	trends := make([]*trend, len(s.observers))
	for i, r := range s.observers {
		trends[i] = &r.trend
	}
	s.trend = sumOf(trends)
	s.judge(t, &sums)
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
	var requests moments
	for _, r := range s.observers {
		for _, served := range r.served {
			if served > 0 || !s.step.Open() {
				requests.add(float64(served))
			}
		}
	}
	if requests.n == 0 {
		return stats
	}
	stats.Slots = int64(requests.n)
	stats.RequestsMin, stats.RequestsMax = int64(requests.min), int64(requests.max)
	stats.RequestsMean = requests.mean()
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

// little compares the mean number of requests in flight, as counted, with the rate at
// which they ended times the mean time in flight, as measured per request (Little's
// law). Times in flight are cut off at the borders of the window, and those of requests
// that ended later count, so the two are equal in every run, however short or
// overloaded (operational law; Denning and Buzen, "The operational analysis of queueing
// network models", 1978).
func (s *stepRun) little() result.Little {
	var l result.Little
	inFlight := 0.0 // X R
	for i, r := range s.observers {
		wall := float64(s.reports[i].wall)
		if wall == 0 {
			continue
		}
		l.InFlightMean += float64(s.reports[i].counters.InFlight) / wall
		l.Rate += float64(r.window.ended) / wall * float64(second)
		inFlight += float64(r.window.inFlight) / wall
	}
	if l.Rate > 0 && inFlight > 0 {
		l.ServiceMean = inFlight / l.Rate
		l.Ratio = l.InFlightMean / inFlight
	}
	return l
}

// cost returns the resources that the generator used: those of its threads if it
// runs event loops, otherwise those of the process.
func (s *stepRun) cost() result.Cost {
	cost := result.Cost{Threads: len(s.reports)}
	for i := range s.reports {
		r := &s.reports[i]
		cost.CPUUser += r.usage.user.Seconds()
		cost.CPUSystem += r.usage.system.Seconds()
		cost.RunQueueWait += r.usage.wait.Seconds()
		cost.MemoryMax = max(cost.MemoryMax, r.usage.memoryMax)
		cost.ThreadBusyMax = max(cost.ThreadBusyMax, s.busy(r))
	}
	if !s.config.Target.EventLoop() {
		cost.Threads = runtime.GOMAXPROCS(0)
	}
	return cost
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
