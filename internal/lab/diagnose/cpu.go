package diagnose

import (
	"fmt"
	"math"
	"slices"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// highest is the highest figure that is known, NaN if none is.
func highest(figures ...float64) float64 {
	best := math.NaN()
	for _, v := range figures {
		if !(v <= best) && !math.IsNaN(v) {
			best = v
		}
	}
	return best
}

// ramp rises from 0 at low to 1 at high; 0 if one of them is NaN.
func ramp(v, low, high float64) float64 {
	part := (v - low) / (high - low)
	if math.IsNaN(part) {
		return 0
	}
	return min(max(part, 0), 1)
}

// A span is where a score rises from 0 to 1.
type span struct{ low, high float64 }

func (s span) of(v float64) float64 { return ramp(v, s.low, s.high) }

// full is how much of a service's CPUs is used if they stop it. If the service answers fewer requests than arrive, or how many it
// could answer is not known, CPUs that stop it are full. If it answers all and only takes too long, requests wait for each other from
// a lower use on.
func (s *step) full() span {
	if s.load != nil && !s.saturated() {
		return span{0.5, 0.72}
	}
	return span{0.58, 0.82}
}

// keptUp is the share of the arrivals that a service which keeps up answers.
const keptUp = 0.97

// saturated reports whether the service answers fewer requests than arrive. In a closed loop it always does as many as it can.
func (s *step) saturated() bool {
	return s.load != nil && (s.load.Total.Overloaded || !(s.offered > 0) || s.achieved() < keptUp*s.offered)
}

// achieved is the part of the arrivals that was answered well, per second: requests, or iterations of a flow. It is NaN if iterations
// take longer than the warm-up, because some of those that end began before the step.
func (s *step) achieved() float64 {
	t := &s.load.Total
	if t.Iterations == nil {
		return s.rate
	}
	took := decoded(t.Iterations.Duration)
	if s.load.ThinkTimes || took == nil || took.Mean().Seconds() > s.load.Warmup || !(t.Elapsed > 0) {
		return math.NaN()
	}
	return float64(t.Iterations.Completed) / t.Elapsed
}

// sharedWait is the number of waiting threads from which processes with the same limit are taken to share the same cores.
const sharedWait = 0.3

// use is how much of the CPUs that a process may use is used, as far as that concerns it: what it uses itself, and what others use of
// the same cores as far as it wants more.
func (s *step) use(p *process) float64 {
	own := p.cores / p.limit
	if p.Value(result.Throttled) > 0.1 {
		own = highest(own, 0.95)
	}
	if share := s.share(p); share != nil {
		own = highest(own, share.UsedShare())
	}
	all := s.filled(p)
	if !(all > own) {
		return min(own, 1)
	}
	return min(own+(all-own)*p.hunger(), 1)
}

// hunger is how surely a process wants more CPU than it gets, 0 to 1: by how many of its threads run or wait for a CPU. Without waits
// nobody knows.
func (p *process) hunger() float64 {
	waiting := p.Value(result.RunQueueWait)
	if math.IsNaN(waiting) {
		return 1
	}
	one := min(p.limit, 1)
	return ramp(highest(p.cores, 0)+waiting, 0.35*one, 0.7*one)
}

// filled is how much of the cores that a process runs on is used, by whomever; NaN if that is not known.
func (s *step) filled(p *process) float64 {
	if share := s.share(p); share != nil {
		return (share.Used + share.Foreign + share.Kernel) / (share.Elapsed * float64(share.CoreCount))
	}
	u := s.host(p.Host)
	if cores := u.Value(result.Cores); p.limit > cores-0.01 {
		return 1 - u.Value(result.IdleShare) - u.Value(result.IOWaitShare)
	}
	allowed, busy := p.Value(result.CPUAllowed), p.Value(result.CPUAllowedBusy)
	if busy >= 0 && p.limit >= allowed {
		return busy / p.limit
	}
	used := math.NaN()
	if together, waiting := s.sharing(p); waiting >= sharedWait {
		used = together / p.limit
	}
	if p.limit < allowed { // others may fill the cores below the quota
		used = highest(used, busy/allowed)
	}
	return used
}

// sharing is how many cores the processes on a host use that have the same limit, below the host's cores, and how many of their
// threads wait for a CPU. If threads wait, the processes are taken to share the cores.
func (s *step) sharing(p *process) (cores, waiting float64) {
	for _, o := range s.processes {
		if o.Host == p.Host && o.limit == p.limit && o.cores > 0 {
			cores, waiting = cores+o.cores, waiting+highest(o.Value(result.RunQueueWait), 0)
		}
	}
	return cores, waiting
}

// fullest returns the process that uses the most of those cores which have the least room, and how much of them is used. It is nil
// if no process was watched.
func (s *step) fullest() (p *process, use float64) {
	use = math.NaN()
	for _, one := range s.processes {
		use = highest(use, s.use(one))
	}
	for _, one := range s.processes {
		if s.use(one) >= use-0.05 && one.cores > 0 && (p == nil || one.cores > p.cores) {
			p = one
		}
	}
	return p, use
}

// spare ends a clause: it says that the service has CPU to spare, how much it uses, or that nobody knows.
func (s *step) spare() string {
	switch p, use := s.fullest(); {
	case p == nil:
		return " (its CPU was not watched)"
	case s.room() < 0.5:
		return fmt.Sprintf(", while %s of the CPU that %s may use is used", sheet.Share(use), p.Name)
	}
	return ", while the service has CPU to spare"
}

// room is how surely the service has CPU to spare, 0 to 1, so that something else holds it up. Without a watched process nobody
// knows, and no verdict that rests on it is supported.
func (s *step) room() float64 { return s.roomOr(0.8 * supported) }

// roomOr is room, or the given figure without a watched process: for rules whose evidence hardly occurs without CPU to spare.
func (s *step) roomOr(unknown float64) float64 {
	p, use := s.fullest()
	if p == nil {
		return unknown
	}
	return 1 - s.full().of(use)
}

// foreign is how many cores were used by programs that are neither watched nor the load generator, on the cores of a process or
// else of its host, and how many cores these are. NaN if that is not known. The load generator
// is taken to use all cores of its host alike.
func (s *step) foreign(p *process) (used, cores float64) {
	if share := s.share(p); share != nil {
		return share.Foreign / share.Elapsed, float64(share.CoreCount)
	}
	u := s.host(p.Host)
	cores = u.Value(result.Cores)
	steal := highest(u.Value(result.StealShare), 0)
	used = cores * (u.Value(result.UserShare) + u.Value(result.SystemShare) + steal) // softirq is the service's own traffic
	for _, o := range s.processes {
		if o.Host == p.Host {
			used -= highest(o.cores, 0)
		}
	}
	if p.Host == "" && s.generator > 0 {
		used -= s.generator
	}
	used = max(used, 0)
	allowed, busy := p.Value(result.CPUAllowed), p.Value(result.CPUAllowedBusy)
	if p.limit < allowed {
		if !(busy >= 0) {
			return 0, p.limit
		}
		used = busy
		for _, o := range s.processes {
			if o.Host == p.Host && (o.Value(result.CPUAllowed) == allowed || allowed > cores-0.01) {
				used -= highest(o.cores, 0)
			}
		}
		if p.Host == "" {
			used -= highest(s.generator, 0) * allowed / cores
		}
		return max(used, 0), allowed
	}
	if p.limit < cores-0.01 {
		together, _ := s.sharing(p)
		return max(busy-together-highest(s.generator, 0)*p.limit/cores, 0), p.limit
	}
	return used, cores
}

// ownQuota reports whether a process is stopped by its quota at most: its cores have room, whoever uses them.
func (s *step) ownQuota(p *process) bool {
	allowed := p.Value(result.CPUAllowed)
	return s.share(p) == nil && p.limit < allowed && !(p.Value(result.CPUAllowedBusy)/allowed >= targetFull)
}

// targetFull reports whether the service used all of its divided cores itself, or a process all of those of its host that it may use.
// That shows what stops it even if other programs disturbed the load generator on its own.
func (s *step) targetFull() bool {
	return s.load != nil && s.load.Total.Validity == result.HostContended && (slices.ContainsFunc(s.load.Total.Hosts,
		func(h result.HostShare) bool {
			return h.Name == "target" && h.UsedShare() >= targetFull && h.ForeignShare() <= foreignMax
		}) || slices.ContainsFunc(s.processes, func(p *process) bool {
		return s.share(p) == nil && p.limit < s.host(p.Host).Value(result.Cores)-0.01 && p.cores >= targetFull*p.limit
	}))
}

// Shares of divided cores: that a service uses if it has none left, and that other programs may use without disturbing a step.
const (
	targetFull = 0.9
	foreignMax = 0.04
)

// addTarget adds what is known of the service if only its cores were measured, not its processes.
func (s *step) addTarget() {
	for _, share := range s.load.Total.Hosts {
		if share.Name != "target" || share.Elapsed <= 0 {
			continue
		}
		u := &result.SubjectUsage{Sampler: result.SamplerProcess, Name: share.Name, Figures: map[result.Figure]float64{
			result.CPUCores: share.Used / share.Elapsed, result.CPULimit: share.CPUs,
		}}
		s.usage.Subjects = append(s.usage.Subjects, u)
		s.processes = append(s.processes, newProcess(u, ""))
		return
	}
}
