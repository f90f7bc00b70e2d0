package diagnose

import (
	"fmt"
	"math"
	"slices"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// grown is how much a figure exceeds what it is in the passing and in the lightest step, the lower of them. If neither is known, known
// is false, and the figure itself is returned.
func (c *comparison) grown(of func(*step) float64) (excess float64, known bool) {
	before := math.NaN()
	for _, s := range []*step{c.passing, c.lightest} {
		if s != nil && (s.load == nil || s.load != c.failing.load) {
			before = -highest(-before, -of(s)) // the lower one
		}
	}
	if math.IsNaN(before) {
		return of(c.failing), false
	}
	return of(c.failing) - before, true
}

// pressure scores a share of time in which programs waited: by its growth, or else, without a comparison, only as far as the service
// has CPU to spare.
func (c *comparison) pressure(of func(*step) float64, rise span) float64 {
	excess, known := c.grown(of)
	if !known {
		return rise.of(excess) * c.failing.room()
	}
	return rise.of(excess)
}

// ofService reports whether a host runs something of the service that is watched; every host may, if nothing is.
func (s *step) ofService(host string) bool {
	return len(s.processes) == 0 || slices.ContainsFunc(s.processes, func(p *process) bool { return p.Host == host })
}

// hostsHighest is the highest figure of the hosts of the service.
func (s *step) hostsHighest(f result.Figure) float64 {
	best := math.NaN()
	for _, u := range s.usage.Of(result.SamplerHost) {
		if s.ofService(u.Host) {
			best = highest(best, u.Value(f))
		}
	}
	return best
}

// memoryPressure is the share of the time in which some program of the service's hosts waited for memory.
func (s *step) memoryPressure() float64 {
	return s.hostsHighest(result.PSIMemory)
}

// cost is the CPU time of a process per request, whatever came of the request. An answer that comes too late costs as much as another.
func (s *step) cost(p *process) float64 {
	s = s.orUnknown()
	return s.find(p.SubjectUsage).Value(result.CPUCores) / s.requests
}

// memory: processes wait for memory, or a garbage collector runs all the time because the heap has grown to its limit.
func (c *comparison) memory() Verdict {
	s := c.failing
	waited := s.memoryPressure()
	pressure := c.pressure((*step).memoryPressure, span{0.05, 0.2})
	var v Verdict
	if pressure > 0 {
		v = Verdict{
			Name: Memory, Score: pressure,
			Sentence: fmt.Sprintf("Programs wait for memory %s of the time %s: the kernel reclaims or swaps.", sheet.Share(waited), c.at()),
			Advice:   "Give the service more memory, or make its caches and its number of workers smaller.",
		}
	}
	for _, p := range s.processes {
		if one := c.memoryOf(p, pressure); one.Score > v.Score {
			v = one
		}
	}
	v.Evidence = []Figure{c.figure("time in which a program waited for memory", sheet.UnitShare, (*step).memoryPressure)}
	for _, p := range s.processes {
		v.Evidence = append(v.Evidence, c.usageFigures(p.SubjectUsage, result.RSSMax, result.MemoryLimit, result.MajorFaults)...)
		v.Evidence = append(v.Evidence, c.figure(p.Name+": CPU per request", sheet.UnitSeconds, func(s *step) float64 { return s.cost(p) }))
	}
	return v
}

// memoryOf is the verdict on one process: it reads pages again that did not fit, or a request costs it more since its memory has grown
// to its limit. A heap that is as large with a light load costs nothing. pressure is the score of the host's waits for memory.
func (c *comparison) memoryOf(p *process, pressure float64) Verdict {
	s := c.failing
	used, limit, read := p.Value(result.RSSMax), p.Value(result.MemoryLimit), p.Value(result.MajorFaults)
	before := -highest(-c.passing.cost(p), -c.lightest.cost(p)) // the lower one
	earlier := -highest(-c.passing.find(p.SubjectUsage).Value(result.RSSMax), -c.lightest.find(p.SubjectUsage).Value(result.RSSMax))
	heap := ramp(used/limit, 0.8, 0.92) * ramp(used/earlier, 1.1, 1.3) * ramp(s.cost(p)/before, 1.6, 2.4)
	faults := c.pressure(func(s *step) float64 { return s.find(p.SubjectUsage).Value(result.MajorFaults) }, span{50, 500})
	faults *= max(s.room(), pressure) // a full service may read its files
	v := Verdict{
		Name: Memory, Score: highest(heap, faults),
		Sentence: fmt.Sprintf("%s uses %s of at most %s %s, and a request costs it %s of CPU instead of %s: the time goes into making room.",
			p.Name, sheet.Size(used), sheet.Size(limit), c.at(), sheet.Duration(s.cost(p)), sheet.Duration(before)),
		Advice: "Raise the memory limit of " + p.Name + " (heap limit, container), or allocate less per request.",
	}
	if read >= 50 && faults >= heap {
		v.Sentence = fmt.Sprintf("%s reads %s pages from the disk again %s, because they do not fit into memory.",
			p.Name, sheet.Rate(read), c.at())
	}
	return v
}
