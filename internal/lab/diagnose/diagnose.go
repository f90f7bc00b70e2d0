// Package diagnose names what stops a service. It compares what was used in the last step that met the SLO with what was used in
// the first that did not, and returns verdicts with their numbers, the likeliest first.
//
// The rules are a checklist of resources, each with its use, its queue and its errors, from the outside in: the load generator,
// the host's other programs, limits of the operating system (ports, descriptors, memory), locks and disks of databases, CPUs,
// pools of connections and workers, links, and the queue in front of the service. Two principles order the verdicts:
//
//   - A service without CPU to spare is stopped by its CPU. Whatever then fills up (accept queue, pools, lock waits) is a
//     consequence, so that the rules of queues and waits count only as far as the service has CPU to spare.
//   - A queue is the consequence of what its consumers wait for. Among verdicts that the evidence supports, the one deepest in
//     the chain of causes comes first: the database's lock before the full pool of connections to it, both before the busy
//     workers that hold these connections, and all of these before the full accept queue in front of the workers.
//
// A step that the load generator did not measure correctly supports no verdict about the service. Its reason is the verdict.
package diagnose

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// Names of verdicts.
const (
	Generator    = "generator"     // the load generator could not offer the load, or its connections were too few
	UserCPU      = "user-cpu"      // the service computes on every CPU that it may use
	SystemCPU    = "system-cpu"    // the same, and most of it in the kernel, as for a connection per request
	Lock         = "lock"          // one request at a time passes a serial section
	WorkerPool   = "worker-pool"   // all workers are busy, and wait
	DatabasePool = "database-pool" // all connections to the database are busy, and the database has room
	DatabaseCPU  = "database-cpu"  // the database computes on every CPU that it may use
	DatabaseLock = "database-lock" // sessions of the database wait for each other's locks
	Commit       = "commit"        // commits wait for the disk
	RedisThread  = "redis-thread"  // the one thread of Redis that runs commands is busy
	AcceptQueue  = "accept-queue"  // connections are dropped before the service accepts them
	Descriptors  = "descriptors"   // no open files left
	Ports        = "ports"         // no local ports left
	Memory       = "memory"        // the time goes into finding memory: garbage collection, reclaim or swap
	NetworkDelay = "network-delay" // requests take a constant time in which nothing works
	Bandwidth    = "bandwidth"     // a link carries as many bytes as it can
	Ended        = "ended"         // a process of the service ended, or was killed
	RateLimit    = "rate-limit"    // the service turns requests away by its own limit
	Neighbour    = "neighbour"     // programs that do not belong to the service use its CPUs
	Unknown      = "unknown"       // not enough evidence

	ConnectionLimit = "connection-limit" // a database, a pooler or a proxy accepts no more connections
	Failures        = "failures"         // requests fail, and what was watched does not show why
)

// A Verdict is one answer to what stops the service.
type Verdict struct {
	Name     string   `json:"name"`
	Sentence string   `json:"sentence"` // what an engineer would write, with the numbers
	Evidence []Figure `json:"evidence"` // what it rests on, the strongest first
	Advice   string   `json:"advice"`   // the change to try
	Score    float64  `json:"score"`    // how far the evidence goes, 0 to 1; of Unknown 0

	symptom bool // it follows from whatever cause is supported as well
	named   bool // its sentence begins with the most frequent error, or with why that cannot be another
}

// A Figure is one number in both steps. Passing and Failing are nil if not known.
type Figure struct {
	Name    string   `json:"name"` // with its subject: "app: CPU"
	Passing *float64 `json:"passing"`
	Failing *float64 `json:"failing"`
	Unit    string   `json:"unit,omitempty"` // as in package sheet; "": a number
}

// Scores.
const (
	supported = 0.5 // from here on, causality orders verdicts
	undecided = 0.4 // at most, if what was watched does not tell two causes apart
	mentioned = 0.2 // below, a verdict is left out
)

// causes orders names from the deepest cause to the most superficial symptom.
var causes = []string{
	Ended, Ports, Descriptors, ConnectionLimit, Failures, Neighbour, Generator, RateLimit, Memory, DatabaseLock, Commit,
	RedisThread, DatabaseCPU, SystemCPU, UserCPU, DatabasePool, Bandwidth, NetworkDelay, WorkerPool, Lock, AcceptQueue,
}

// A comparison is the evidence: two steps, and the lightest one, which shows what a request takes without a queue.
type comparison struct {
	passing  *step // nil: none passed
	failing  *step
	lightest *step   // perhaps the same as another; nil without a load
	connect  float64 // median time to connect in the step where that was the shortest, seconds; NaN if not known
}

// Diagnose returns what stops the service in the step with the index failing, compared with the step with the index passing (-1:
// none passed). There is at least one verdict, and the likeliest is the first. It is a pure function of the run.
func Diagnose(run *result.Run, passing, failing int) []Verdict {
	series := run.Series()
	c := comparison{failing: newStep(run, series, failing), connect: math.NaN()}
	for i := range run.Steps { // a step may have opened none, and even one that is not VALID shows how far the service is
		if connects := decoded(run.Steps[i].Total.Latency.Connect); connects != nil {
			c.connect = -highest(-c.connect, -connects.Quantile(0.5).Seconds())
		}
	}
	if passing >= 0 {
		c.passing = newStep(run, series, passing)
	}
	if i := lightest(run); i >= 0 {
		c.lightest = newStep(run, series, i)
	}
	return c.verdicts()
}

// verdicts applies all rules.
func (c *comparison) verdicts() []Verdict {
	for _, s := range []*step{c.passing, c.failing, c.lightest} {
		if s != nil && s.load != nil && len(s.processes) == 0 {
			s.addTarget()
		}
	}
	rules := []func() Verdict{c.ended, c.limited, c.failures, c.generator, c.neighbour, c.ports, c.descriptors}
	switch {
	case c.measured():
		rules = append(rules, c.rateLimit, c.memory, c.databaseLock, c.commit, c.redisThread, c.cpu, c.databasePool,
			c.databaseReads, c.databaseSessions, c.bandwidth, c.networkDelay, c.connections, c.serial, c.acceptQueue)
	case c.failing.targetFull():
		rules = append(rules, c.cpu)
	}
	var found []Verdict
	for _, rule := range rules {
		v := rule()
		if v.Score < mentioned {
			continue
		}
		v.Evidence = append(v.Evidence, c.loadFigures()...)
		i := slices.IndexFunc(found, func(earlier Verdict) bool { return earlier.Name == v.Name })
		switch {
		case i < 0:
			found = append(found, v)
		case v.Score > found[i].Score:
			found[i] = v
		}
	}
	c.explain(found)
	slices.SortStableFunc(found, func(a, b Verdict) int {
		if first, second := a.Score >= supported, b.Score >= supported; first != second || !first {
			return cmp.Compare(b.Score, a.Score)
		}
		if a.symptom != b.symptom {
			if a.symptom {
				return 1
			}
			return -1
		}
		return slices.Index(causes, a.Name) - slices.Index(causes, b.Name)
	})
	if len(found) == 0 || found[0].Score < supported {
		found = slices.Insert(found, 0, c.unknown())
	}
	if f := c.failing.failure(); f != nil && !found[0].named {
		found[0].Sentence = f.sentence(c.at()) + " " + found[0].Sentence
	}
	return found
}

// worst is the verdict with the highest score on one of several.
func worst[T any](all []T, of func(T) Verdict) Verdict {
	var found Verdict
	for _, one := range all {
		if v := of(one); v.Score > found.Score {
			found = v
		}
	}
	return found
}

// explain puts errors behind a supported cause other than CPU and neighbours, of which they are a consequence.
func (c *comparison) explain(found []Verdict) {
	i := slices.IndexFunc(found, func(v Verdict) bool { return v.Name == Failures })
	if i < 0 {
		return
	}
	vague := []string{Failures, Neighbour, Generator, UserCPU, SystemCPU, DatabaseCPU, RedisThread}
	found[i].symptom = slices.ContainsFunc(found, func(v Verdict) bool {
		return v.Score >= supported && !v.symptom && !slices.Contains(vague, v.Name)
	})
}

// measured reports whether the failing step says anything about the service.
func (c *comparison) measured() bool { return c.failing.measured() }

// figure compares a figure of both steps.
func (c *comparison) figure(name, unit string, of func(*step) float64) Figure {
	f := Figure{Name: name, Unit: unit, Failing: known(of(c.failing))}
	if c.passing != nil {
		f.Passing = known(of(c.passing))
	}
	return f
}

// at says at which load the failing step ran: "at 1,050/s", "with 64 connections".
func (c *comparison) at() string {
	switch s := c.failing; {
	case s.load == nil:
		return "in the busiest interval"
	case s.offered > 0:
		return "at " + sheet.Rate(s.offered)
	default:
		return "with " + sheet.Plural(s.load.Connections, "connection")
	}
}

// known is nil for NaN and infinities.
func known(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// usageFigures compare figures of a watched subject.
func (c *comparison) usageFigures(u *result.SubjectUsage, names ...result.Figure) []Figure {
	var all []Figure
	for _, name := range names {
		d := result.Define(u.Sampler, name)
		title := d.Words
		if u.Name != "" {
			title = u.Name + ": " + title
		}
		all = append(all, c.figure(title, d.Unit, func(s *step) float64 { return s.find(u).Value(name) }))
	}
	return all
}

// loadFigures are the same with every verdict: what was offered and what came of it.
func (c *comparison) loadFigures() []Figure {
	all := []Figure{
		c.figure("arrivals", sheet.UnitRate, func(s *step) float64 { return s.offered }),
		c.figure("good answers", sheet.UnitRate, func(s *step) float64 { return s.rate }),
		c.figure("mean time in flight", sheet.UnitSeconds, func(s *step) float64 { return s.service }),
		c.figure("requests in flight", "", func(s *step) float64 { return s.inFlight }),
		c.figure("failed requests", sheet.UnitShare, func(s *step) float64 {
			if s.load == nil {
				return math.NaN()
			}
			return s.load.Total.ErrorShare()
		}),
	}
	return slices.DeleteFunc(all, func(f Figure) bool { return f.Failing == nil })
}

// processesUsed describes the CPUs of every process, for verdicts that rest on their being idle.
func (c *comparison) processesUsed() []Figure {
	var all []Figure
	for _, p := range c.failing.processes {
		all = append(all, c.usageFigures(p.SubjectUsage, result.CPUCores, result.CPULimit)...)
	}
	return all
}

// unknown: what was watched shows nothing that is full. It says what to watch.
func (c *comparison) unknown() Verdict {
	s := c.failing
	var missing []string
	applications, servers := 0, 0
	for _, p := range s.processes {
		if p.role == result.RoleApplication {
			applications++
		} else {
			servers++
		}
	}
	if applications == 0 {
		missing = append(missing, "the process of the service (--watch app=:PORT)")
	}
	if len(s.databases) == 0 {
		missing = append(missing, "what it calls, such as its database (--watch-db URL)")
	} else if servers == 0 {
		missing = append(missing, "the process of the database (--watch db=:5432)")
	}
	v := Verdict{Name: Unknown, Evidence: append(c.processesUsed(), c.loadFigures()...)}
	v.Sentence = fmt.Sprintf("Not enough evidence: nothing that was watched is full %s.", c.at())
	if len(s.usage.Of(result.SamplerHost)) == 0 && len(s.processes) == 0 && len(s.databases) == 0 {
		v.Sentence = "Not enough evidence: nothing was watched."
	}
	v.Advice = "Compare steps that differ more in their load, and are at least 5 s long."
	if c.lightest == nil && s.load != nil {
		v.Advice = "Add a step with a light load, which shows what a request takes alone."
	}
	if len(missing) > 0 {
		v.Advice = "Also watch " + strings.Join(missing, ", and ") + "."
	}
	return v
}
