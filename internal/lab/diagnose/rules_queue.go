package diagnose

import (
	"fmt"
	"math"
	"slices"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// shortest is the time in flight below which the time of a request says nothing about workers, in seconds.
const shortest = 0.0005

// workers is how many requests the service works on at once, by Little's law: the rate that it keeps up, times the time of a request
// that waits for none other. NaN without a lighter step than the failing one.
func (c *comparison) workers() float64 {
	if c.lightest == nil || c.lightest.load == c.failing.load {
		return math.NaN()
	}
	return c.failing.rate * c.lightest.floor
}

// serial: requests queue within the service, and nothing that was watched is busy. It is a lock, if the service works on one request
// at a time, or else a pool of workers.
func (c *comparison) serial() Verdict {
	s, workers := c.failing, c.workers()
	v := Verdict{
		Name:  WorkerPool,
		Score: s.room() * ramp(s.inFlight/workers, 1.1, 1.5) * ramp(workers, 0.6, 0.8) * ramp(c.lightest.orUnknown().floor, shortest/2, shortest),
	}
	if !s.saturated() {
		v.Score *= 1 - ramp(s.retried(), 0.25, 0.5)
	}
	v.Score *= 1 - 0.6*max(c.databaseLock().Score, c.commit().Score, c.databasePool().Score, c.redisThread().Score) // what they wait for
	if math.IsNaN(workers) || v.Score == 0 {
		return Verdict{}
	}
	growth := fmt.Sprintf("A request takes %s when it is alone and %s %s%s", sheet.Duration(c.lightest.floor),
		sheet.Duration(s.service), c.at(), s.spare())
	before := c.passing.orUnknown().rate * c.lightest.floor
	v.Evidence = append([]Figure{
		{Name: "requests worked on at once (rate x time alone)", Failing: known(workers), Passing: known(before)},
		c.figure("time in flight, lower quartile", sheet.UnitSeconds, func(s *step) float64 { return s.floor }),
	}, c.processesUsed()...)
	for _, p := range s.processes {
		v.Evidence = append(v.Evidence, c.usageFigures(p.SubjectUsage, result.ThreadsMax, result.ProcessesMax)...)
	}
	if workers < 1.45 && !c.oneWorker() {
		v.Name = Lock
		v.Sentence = fmt.Sprintf("%s: at %s it works on one request at a time (%s x %s = %s), so that a lock or another serial section "+
			"holds the others up.",
			growth, sheet.Rate(s.rate), sheet.Rate(s.rate), sheet.Duration(c.lightest.floor), sheet.Number(workers))
		v.Advice = "Find the lock (a mutex or block profile, perf lock, a thread dump under load), and hold it shorter, or divide what it " +
			"protects. No I/O under a lock."
		return v
	}
	atOnce := "one request"
	if n := math.Round(workers); n > 1 {
		atOnce = "about " + sheet.Number(n) + " requests"
	}
	v.Sentence = fmt.Sprintf("%s: at %s it works on %s at once (%s x %s), and the others wait for a worker.",
		growth, sheet.Rate(s.rate), atOnce, sheet.Rate(s.rate), sheet.Duration(c.lightest.floor))
	v.Advice = "Use more workers (threads, processes, max_children, maxconn), as long as what they wait for has room, or make that wait " +
		"shorter."
	if len(s.databases) == 0 {
		v.Advice += " --watch-db shows whether they wait for a database."
	}
	return v
}

// oneWorker reports whether the service has one worker without threads, which does not accept connections while it works.
func (c *comparison) oneWorker() bool {
	return slices.ContainsFunc(c.failing.processes, func(p *process) bool {
		processes := p.Value(result.ProcessesMax)
		return p.role == result.RoleApplication && p.Value(result.ThreadsMax) <= processes && processes <= 2
	})
}

// retryPause is how long a client waits before it repeats the first packet of a connection, in seconds.
const retryPause = 1.0

// retried is the share of the time in flight that dropped connections explain: each is tried again after a second.
func (s *step) retried() float64 {
	dropped := 0.0
	for _, t := range s.usage.Of(result.SamplerTCP) {
		dropped = max(dropped, highest(t.Value(result.OverflowRate), 0))
	}
	return dropped * retryPause / (s.rate * s.service)
}

// acceptQueue: connections are dropped because the service does not accept them in time, with CPU to spare.
func (c *comparison) acceptQueue() Verdict {
	return worst(c.failing.usage.Of(result.SamplerTCP), func(t *result.SubjectUsage) Verdict {
		dropped := t.Value(result.OverflowRate)
		v := Verdict{
			Name: AcceptQueue, Score: c.failing.roomOr(0.6) * ramp(dropped, 0.3, 2),
			Sentence: fmt.Sprintf("The kernel dropped %s connections %s, because a queue of connections to accept was full; each is tried "+
				"again after a second.", sheet.Rate(dropped), c.at()),
			Evidence: c.usageFigures(t, result.OverflowRate, result.PassiveOpens),
			Advice:   "Raise the backlog of the listener and net.core.somaxconn, accept in a thread of its own, or keep connections open.",
		}
		if l := fullestListener(c.failing.usage, t.Host); l != nil {
			v.Sentence += fmt.Sprintf(" At %s, %s of %s places were taken.", l.Name, sheet.Number(l.Value(result.AcceptQueueMax)),
				sheet.Number(l.Value(result.AcceptQueueLimit)))
			v.Evidence = append(v.Evidence, c.usageFigures(l, result.AcceptQueueMax)...)
		}
		v.Evidence = append(v.Evidence, c.processesUsed()...)
		return v
	})
}

// fullestListener is the listener whose queue came closest to its limit, nil if none is known.
func fullestListener(u *result.Usage, host string) *result.SubjectUsage {
	var fullest *result.SubjectUsage
	part := math.NaN()
	for _, l := range u.Of(result.SamplerListener) {
		now := l.Value(result.AcceptQueueMax) / max(l.Value(result.AcceptQueueLimit), 1)
		if l.Host == host && now > 0 && !(now <= part) {
			fullest, part = l, now
		}
	}
	return fullest
}

// Sizes from which the bytes of an answer can fill a link.
const (
	answerSmall, answerLarge = 2 << 10, 8 << 10
	queueSmall, queueLarge   = 64 << 10, 512 << 10
)

// drainMost is how many seconds a full link needs at most to carry the bytes that wait. More of them wait for a program that does not
// read, on connections that are not the load's.
const drainMost = 10

// bandwidth: large answers take long from their first to their last byte, or bytes wait to be sent, more than with a light load.
func (c *comparison) bandwidth() Verdict {
	s := c.failing
	before := c.lightest
	if before == nil {
		before = c.passing
	}
	large := ramp(s.answerSize, answerSmall, answerLarge)
	score := ramp(s.transfer/s.answered, 0.15, 0.35) * large
	if before != nil && before.load != s.load {
		score *= ramp(s.transfer/before.transfer, 1.3, 2)
	} else { // a slow answer is as likely as a slow link, unless the link shows it
		score *= max(undecided, s.congested())
	}
	before = before.orUnknown()
	queue, host := math.NaN(), ""
	for _, t := range s.usage.Of(result.SamplerTCP) {
		score = max(score, ramp(t.Value(result.RetransmitShare), 0.01, 0.04)*large*ramp(s.answered/before.answered, 1.2, 1.6))
		unsent, earlier := t.Value(result.SendQueue), before.find(t).Value(result.SendQueue)
		now := ramp(unsent, queueSmall, queueLarge) * ramp(unsent/max(earlier, 1), 1.5, 3)
		if now > 0 && !(unsent <= queue) && !(unsent > drainMost*s.bytes) {
			queue, host = unsent, t.Host
			score = max(score, now*ramp(s.service/before.service, 1.2, 1.6))
		}
	}
	v := Verdict{Name: Bandwidth, Score: s.room() * score}
	claim := "the link is full"
	if v.Score < supported {
		claim = "the link may be full"
	}
	v.Sentence = fmt.Sprintf("%s come back %s, and an answer of %s takes %s from its first to its last byte%s: %s.",
		sheet.Text(s.bytesIn, sheet.UnitBytesRate), c.at(), sheet.Size(s.answerSize), sheet.Duration(s.transfer), s.spare(), claim)
	v.Evidence = slices.Concat([]Figure{
		c.figure("received", sheet.UnitBytesRate, func(s *step) float64 { return s.bytesIn }),
		c.figure("bytes per answer", sheet.UnitBytes, func(s *step) float64 { return s.answerSize }),
		c.figure("first to last byte of an answer", sheet.UnitSeconds, func(s *step) float64 { return s.transfer }),
	}, c.usageFigures(s.sockets(host), result.SendQueue, result.RetransmitShare), c.processesUsed())
	v.Advice = "Send fewer bytes (compression, smaller pages, a cache near the clients), or use a faster link."
	return v
}

// congested is how surely a link was full, by what one step alone shows.
func (s *step) congested() float64 {
	score := 0.0
	for _, t := range s.usage.Of(result.SamplerTCP) {
		score = max(score, ramp(t.Value(result.RetransmitShare), 0.01, 0.04), ramp(t.Value(result.SendQueue), queueSmall, queueLarge))
	}
	return score
}

// flat is how far requests take as long as with a light load, 0 to 1, and that time in seconds.
func (c *comparison) flat() (score, floor float64) {
	floor = c.failing.floor
	if c.lightest != nil {
		floor = c.lightest.floor
	}
	return (1 - ramp(c.failing.typical/floor, 1.2, 1.6)) * ramp(floor, 0.002, 0.008), floor
}

// crowded is how far all connections of the load wait for answers, 0 to 1.
func (c *comparison) crowded() float64 {
	s := c.failing
	if s.load == nil || !(c.lightest.orUnknown().floor > 0) || c.lightest.load == s.load {
		return 0
	}
	return ramp(s.inFlight/float64(s.load.Connections), 0.8, 0.9)
}

// near reports whether opening a connection is known to take a small part of the time of a request.
func (c *comparison) near(floor float64) bool { return c.connect < floor/10 }

// connections: requests take no longer than with a light load, and all connections of an open loop wait for them. The service may
// have room for more.
func (c *comparison) connections() Verdict {
	s := c.failing
	flat, floor := c.flat()
	if !c.near(floor) || !(s.offered > 0) || !s.saturated() {
		return Verdict{}
	}
	v := Verdict{Name: Generator, Score: 0.7 * s.room() * flat * c.crowded()}
	if v.Score == 0 {
		return v
	}
	v.Score *= 1 - 0.6*max(c.databaseLock().Score, c.commit().Score, c.databasePool().Score, c.redisThread().Score)
	v.Sentence = fmt.Sprintf("All %d connections of the load wait for answers %s, and a request takes %s, "+
		"nearly as with a light load (%s)%s: "+
		"the load has too few connections for more than %s.", s.load.Connections, c.at(), sheet.Duration(s.typical),
		sheet.Duration(floor), s.spare(), sheet.Rate(s.answers))
	v.Advice = "Raise --connections and search again. If the rate stays, the service works on so many requests at once at most."
	v.Evidence = append([]Figure{
		c.figure("requests in flight", "", func(s *step) float64 { return s.inFlight }),
		c.figure("time in flight, median", sheet.UnitSeconds, func(s *step) float64 { return s.typical }),
		c.figure("time to connect, median", sheet.UnitSeconds, func(*step) float64 { return c.connect }),
	}, c.processesUsed()...)
	return v
}

// networkDelay: a request takes as long as with a light load, that is long, and nothing works in that time. Either opening a
// connection, which is one round trip, takes about as long, or all connections wait for such answers, and may be far.
func (c *comparison) networkDelay() Verdict {
	s := c.failing
	flat, floor := c.flat()
	distance := ramp(c.connect, 0.001, 0.004) * ramp(c.connect/floor, 0.25, 0.6) // the handshake takes as long as a round trip
	crowded := 0.35
	if !c.near(floor) {
		crowded = max(crowded, 0.7*c.crowded())
	}
	v := Verdict{Name: NetworkDelay, Score: s.room() * flat * max(distance, crowded)}
	v.Sentence = fmt.Sprintf("A request takes %s %s, nearly as with a light load (%s)%s: the time passes on the way.",
		sheet.Duration(s.typical), c.at(), sheet.Duration(floor), s.spare())
	switch {
	case distance >= supported:
		v.Sentence = fmt.Sprintf("Opening a connection alone takes %s, and a request %s %s, nearly as with a light load (%s): the time "+
			"passes on the way.",
			sheet.Duration(c.connect), sheet.Duration(s.typical), c.at(), sheet.Duration(floor))
	case crowded >= supported:
		v.Sentence = fmt.Sprintf("All %d connections wait for answers %s, and a request takes %s, nearly as with a light load (%s)%s: "+
			"the time passes on the way, or in something that is not watched.",
			s.load.Connections, c.at(), sheet.Duration(s.typical), sheet.Duration(floor), s.spare())
	}
	v.Evidence = append([]Figure{
		c.figure("time to connect, median", sheet.UnitSeconds, func(*step) float64 { return c.connect }),
		c.figure("time in flight, lower quartile", sheet.UnitSeconds, func(s *step) float64 { return s.floor }),
		c.figure("time in flight, median", sheet.UnitSeconds, func(s *step) float64 { return s.typical }),
	}, c.processesUsed()...)
	v.Advice = "Move the service or what it calls nearer, make fewer round trips per request, or, if only the rate matters, use more " +
		"connections at once."
	return v
}
