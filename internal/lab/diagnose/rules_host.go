package diagnose

import (
	"fmt"
	"math"
	"strings"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// generator: the step says itself that the load generator could not offer the load.
func (c *comparison) generator() Verdict {
	s := c.failing.load
	if s == nil || c.measured() || c.neighbour().Score >= supported {
		return Verdict{}
	}
	t := &s.Total
	v := Verdict{
		Name: Generator, Score: 1,
		Evidence: []Figure{
			c.figure("generator: CPU", sheet.UnitCores, func(s *step) float64 { return s.generator }),
			c.figure("generator: busiest thread", sheet.UnitShare, func(s *step) float64 { return s.load.Total.Cost.ThreadBusyMax }),
			c.figure("generator: waited for a CPU", sheet.UnitShare, func(s *step) float64 {
				return s.load.Total.Cost.RunQueueWait / max(s.load.Total.Elapsed, 1e-9)
			}),
		},
		Advice: "Give the load generator more CPU (--workers, --pin, another host, or a higher quota), then search again: the service was " +
			"not measured.",
	}
	v.Sentence = fmt.Sprintf("The load generator could not offer the load %s: %s.", c.at(), reason(t))
	if c.failing.targetFull() {
		v.Score = undecided
	}
	if t.OnlyStolen() {
		v.Advice = "Use a machine with dedicated CPUs, or --awake, then search again: the service was not measured."
	}
	if t.Validity == result.HostContended {
		v.Sentence = fmt.Sprintf("The load generator did not get the CPU that it needs %s: %s.", c.at(), reason(t))
		if p, use := c.failing.fullest(); p != nil && use >= 0.9 && c.failing.share(p) == nil && !t.OnlyStolen() {
			v.Advice = "The service and the load generator use the same CPUs. Give each its own with --pin, or load from another host, then " +
				"search again."
			v.Evidence = append(v.Evidence, c.usageFigures(p.SubjectUsage, result.CPUCores)...)
		}
	}
	return v
}

// reason is why a step is not VALID, without its advice.
func reason(t *result.Total) string {
	if len(t.Reasons) == 0 {
		return "it is " + string(t.Validity)
	}
	text, _, _ := strings.Cut(t.Reasons[0].String(), "; ")
	return text
}

// neighbour: other programs use the cores of the service, which have nothing left. Only CPU that they used with a light load already
// is surely not a part of the service that is not watched.
func (c *comparison) neighbour() Verdict {
	if v := c.disturbed(); v.Score > 0 {
		return v
	}
	p, _ := c.failing.fullest()
	if p == nil || c.failing.ownQuota(p) {
		return Verdict{}
	}
	used, cores := c.failing.foreign(p)
	u := c.failing.host(p.Host)
	v := Verdict{Name: Neighbour, Score: ramp(used/cores, 0.1, 0.25) * ramp(highest(c.failing.use(p), c.failing.filled(p)), 0.75, 0.9)}
	victim := p.Name + " has no CPU left"
	if c.measured() {
		v.Score *= p.hunger()
	} else if p.hunger() < supported {
		victim = "the load generator does not get the CPU that it needs"
	}
	if v.Score == 0 {
		return Verdict{}
	}
	steal := highest(u.Value(result.StealShare)*u.Value(result.Cores), 0)
	independent := c.independent(p)
	switch taken := sheet.Plural(used, "core"); {
	case steal > used/2:
		v.Sentence = fmt.Sprintf("The hypervisor takes %s from this host %s (steal), and %s.", sheet.Plural(steal, "core"), c.at(), victim)
		v.Advice = "Use a machine with dedicated CPUs, then measure again."
	case independent >= supported:
		v.Score *= independent
		v.Sentence = fmt.Sprintf("Programs that do not belong to the service use %s of its %s %s, and did so with a light load; %s.",
			sheet.Number(used), sheet.Plural(cores, "core"), c.at(), victim)
		v.Advice = "Stop the other programs, or give the service cores of its own (cpuset, taskset, another host), then measure again."
	default:
		v.Score *= undecided
		v.Sentence = fmt.Sprintf("Programs that were not watched use %s %s, perhaps as a part of the service (a proxy, a helper): "+
			"nothing shows that they did so with a light load.", taken, c.at())
		v.Advice = "Watch them too (--watch NAME=PID), or add a step with a light load."
	}
	others := c.figure("other programs: CPU", sheet.UnitCores, func(s *step) float64 {
		used, _ := s.foreign(s.process(p))
		return used
	})
	v.Evidence = append([]Figure{others}, c.usageFigures(p.SubjectUsage, result.CPUCores, result.RunQueueWait)...)
	return v
}

// disturbed: on divided cores, the step is not a measurement because programs that belong to no host used some of them.
func (c *comparison) disturbed() Verdict {
	if c.failing.load == nil || c.failing.load.Total.Validity != result.HostContended {
		return Verdict{}
	}
	var worst *result.HostShare
	hosts := c.failing.load.Total.Hosts
	for i := range hosts {
		if hosts[i].ForeignShare() > foreignMax && (worst == nil || hosts[i].ForeignShare() > worst.ForeignShare()) {
			worst = &hosts[i]
		}
	}
	if worst == nil {
		return Verdict{}
	}
	v := Verdict{
		Name: Neighbour, Score: 1,
		Sentence: fmt.Sprintf("Programs that belong to neither the service nor the load generator use %s of the cores of the %s %s.",
			sheet.Share(worst.ForeignShare()), worst.Name, c.at()),
		Advice: "Stop the other programs, or name those of the service with --watch, then measure again.",
	}
	if c.failing.targetFull() {
		v.Score = undecided
	}
	for _, host := range hosts {
		of := func(figure func(*result.HostShare) float64) func(*step) float64 {
			return func(s *step) float64 {
				for i := range s.load.Total.Hosts {
					if one := &s.load.Total.Hosts[i]; one.Name == host.Name {
						return figure(one)
					}
				}
				return math.NaN()
			}
		}
		v.Evidence = append(v.Evidence,
			c.figure(host.Name+": cores used by other programs", sheet.UnitShare, of((*result.HostShare).ForeignShare)),
			c.figure(host.Name+": CPU used by itself", sheet.UnitShare, of((*result.HostShare).UsedShare)))
	}
	return v
}

// independent is how surely the CPU of programs that are not watched does not follow the load, 0 to 1: with a light load they used at
// least half as much, while arrivals and answers grew several times as much.
func (c *comparison) independent(p *process) float64 {
	if c.lightest == nil || c.failing.load == nil || c.lightest.load == c.failing.load {
		return 0
	}
	before, _ := c.lightest.foreign(c.lightest.process(p))
	now, _ := c.failing.foreign(p)
	if !(before >= now/2) {
		return 0
	}
	load := c.failing.answers / c.lightest.answers
	if c.failing.offered > 0 && c.lightest.offered > 0 {
		load = min(load, c.failing.offered/c.lightest.offered)
	}
	return ramp(load/max(now/before, 1), 1.25, 1.75)
}

// ports: no local port is left for connections, of the load generator or of the service.
func (c *comparison) ports() Verdict {
	if s := c.failing.load; s != nil && s.Total.Errors[result.NoLocalPort]*1000 > s.Total.Requests() {
		return Verdict{
			Name: Ports, Score: 1,
			Sentence: fmt.Sprintf("The load generator's host ran out of local ports %s: %s connections could not be opened.",
				c.at(), sheet.Number(float64(s.Total.Errors[result.NoLocalPort]))),
			Evidence: append([]Figure{c.figure("requests without a local port", "", func(s *step) float64 {
				return float64(s.load.Total.Errors[result.NoLocalPort])
			})}, c.portFigures("")...),
			Advice: "Keep connections open, or add source addresses (--source 127.0.0.2,127.0.0.3), or widen net.ipv4.ip_local_port_range.",
		}
	}
	return worst(c.failing.usage.Of(result.SamplerTCP), func(t *result.SubjectUsage) Verdict {
		used, all, waiting := t.Value(result.PortsMax), t.Value(result.PortsRange), ""
		if sockets := t.Value(result.TimeWaitMax); sockets >= 0 {
			waiting = fmt.Sprintf(", and %s sockets wait in TIME_WAIT", sheet.Number(sockets))
		}
		return Verdict{
			Name: Ports, Score: ramp(used/all, 0.9, 0.97),
			Sentence: fmt.Sprintf("%s of %s local ports are in use %s, so that new outgoing connections fail: %s are left%s.",
				sheet.Number(used), sheet.Number(all), c.at(), sheet.Number(all-used), waiting),
			Evidence: c.portFigures(t.Host),
			Advice: "Keep the connections to the next service open (keep-alive, a pool). Otherwise widen net.ipv4.ip_local_port_range, set " +
				"net.ipv4.tcp_tw_reuse=1, or add addresses.",
		}
	})
}

func (c *comparison) portFigures(host string) []Figure {
	return c.usageFigures(c.failing.sockets(host), result.PortsMax, result.PortsRange, result.TimeWaitMax)
}

// descriptors: a process has as many open files as it may have.
func (c *comparison) descriptors() Verdict {
	if s := c.failing.load; s != nil && s.Total.Errors[result.NoFile]*1000 > s.Total.Requests() {
		return Verdict{
			Name: Descriptors, Score: 1,
			Sentence: fmt.Sprintf("The load generator ran out of open files %s: %s requests failed for it.", c.at(),
				sheet.Number(float64(s.Total.Errors[result.NoFile]))),
			Evidence: []Figure{c.figure("requests without a file", "",
				func(s *step) float64 { return float64(s.load.Total.Errors[result.NoFile]) })},
			Advice: "Raise the limit before the load: ulimit -n 65536.",
		}
	}
	return worst(c.failing.processes, func(p *process) Verdict {
		files, limit := p.Value(result.FDsMax), p.Value(result.FDsLimit)
		score, consequence := undecided*ramp(files/limit, 0.9, 0.97), "it can soon accept no more connections"
		if reached := ramp(limit-files, 4, 1) * (1 - (1-undecided)*c.queued()); reached >= score {
			score, consequence = reached, "it can accept no more connections"
		}
		return Verdict{
			Name: Descriptors, Score: score,
			Sentence: fmt.Sprintf("%s has %s open files of at most %s %s, so that %s.",
				p.Name, sheet.Number(files), sheet.Number(limit), c.at(), consequence),
			Evidence: c.usageFigures(p.SubjectUsage, result.FDsMax, result.FDsLimit),
			Advice: "Raise the limit of open files of " + p.Name +
				" (ulimit -n, LimitNOFILE= of its systemd unit), and close idle connections earlier.",
		}
	})
}

// queued is how surely the service has no CPU left, and had hardly any before it failed, 0 to 1: then connections and files pile up
// because requests wait for CPU. A service that only runs in circles for want of a file had CPU to spare before.
func (c *comparison) queued() float64 {
	_, use := c.failing.fullest()
	queued := c.failing.full().of(use)
	lower := c.passing
	if lower == nil && c.lightest != nil && c.lightest.load != c.failing.load {
		lower = c.lightest
	}
	if lower != nil {
		_, before := lower.fullest()
		queued = min(queued, ramp(before, 0.3, 0.6))
	}
	return queued
}

// rateLimit: the service turns requests away while it has CPU to spare. Status 429 is a limit of its own; 503 is also what a service
// answers that waits for something else, so that it comes after all causes.
func (c *comparison) rateLimit() Verdict {
	s := c.failing
	v := Verdict{Name: RateLimit, Score: s.roomOr(0.8) * ramp(s.refused, 0.002, 0.01), named: true}
	status, share, limit := 429, s.refused, "a limit is reached, not a resource"
	if p, _ := s.fullest(); p == nil {
		limit = "a limit is reached, or it sheds load that it cannot carry (its CPU was not watched)"
	}
	v.Advice = "Raise the limit (of the service, its proxy or its gateway), or exempt the load's address from it."
	if other := 0.8 * s.room() * ramp(s.busy, 0.002, 0.01); other > v.Score {
		v.Score, v.symptom = other, true
		status, share, limit = 503, s.busy, "a limit is reached"
		v.Advice = "Find what answers 503 (a rate or connection limit of the service, its proxy or its gateway), and raise its limit."
	}
	v.Sentence = fmt.Sprintf("The service turns %s of the requests away with status %d %s, and answers %s: %s.",
		sheet.Share(share), status, c.at(), sheet.Rate(s.rate), limit)
	v.Evidence = append([]Figure{
		c.figure("answers with status 429", sheet.UnitShare, func(s *step) float64 { return s.refused }),
		c.figure("answers with status 503", sheet.UnitShare, func(s *step) float64 { return s.busy }),
	}, c.processesUsed()...)
	return v
}
