package load

import (
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// latencies are the histograms of a period.
type latencies struct {
	response, responseUnanswered, service, serviceUnanswered, lag, connect, firstByte *histogram.Histogram
}

func newLatencies(create func() *histogram.Histogram) latencies {
	return latencies{create(), create(), create(), create(), create(), create(), create()}
}

func (l *latencies) all() [7]*histogram.Histogram {
	return [...]*histogram.Histogram{l.response, l.responseUnanswered, l.service, l.serviceUnanswered, l.lag, l.connect, l.firstByte}
}

// responses are the response times of all requests that ended.
func (l *latencies) responses() histogram.Censored {
	return histogram.Censored{Known: l.response, Beyond: l.responseUnanswered}
}

func (l *latencies) merge(from *latencies) {
	sources := from.all()
	for i, h := range l.all() {
		if sources[i].Count() > 0 {
			h.Merge(sources[i])
		}
	}
}

func (l *latencies) reset() {
	for _, h := range l.all() {
		if h.Count() > 0 {
			h.Reset()
		}
	}
}

// statusMax is the highest HTTP status plus one.
const statusMax = 1000

// tally is the counts of one observer for one second.
type tally struct {
	observer int
	second   int // from the end of the warm-up
	next     int // the second that the observer counts next
	counters result.Counters
	statuses [statusMax]int32
	latency  latencies
	failures [16]string // per class: text of the first error
	gauges   gauges
}

// gauges are the values at the end of a tally.
type gauges struct {
	open, inFlight, backlog int64
}

// newTally returns an empty tally. It touches the memory, so that the first
// requests cause no page faults.
func newTally() *tally {
	t := &tally{latency: newLatencies(histogram.New)}
	for _, h := range t.latency.all() {
		h.Reset()
	}
	return t
}

func (t *tally) reset() {
	latency := t.latency
	latency.reset()
	*t = tally{latency: latency}
}

// served is the work of one connection in a step.
type served struct {
	requests int64
	busy     int64 // nanoseconds with a request in flight
}

// observer counts the requests of one thread and hands over a tally per second.
// It ignores requests of the warm-up. It is not safe for concurrent use.
type observer struct {
	number     int
	from       int64 // end of the warm-up, on the run's clock
	until      int64 // end of the step
	lastSecond int   // later requests count as part of this second
	open       bool  // an open loop: lag is recorded
	now        *tally
	ends       int64 // end of the current second
	served     []served
	full       chan<- *tally
	empty      <-chan *tally
}

const second = int64(time.Second)

// observe counts the end of a request.
func (r *observer) observe(o *target.Outcome) {
	t := r.now
	c := &t.counters
	if o.Err == nil && o.Done >= r.from && o.Done <= r.until {
		c.Completed++ // also if it was due in the warm-up
	}
	if o.Intended < r.from {
		return
	}
	if o.Connected != 0 {
		c.Connects++
		t.latency.connect.Record(time.Duration(o.Connected - o.Begin))
	}
	if o.Sent != 0 {
		c.Sent++
	}
	c.BytesOut += int64(o.BytesSent)
	c.BytesIn += o.BytesReceived
	s := &r.served[o.Connection]
	s.requests++
	s.busy += o.Done - o.Begin
	if o.Err != nil && !r.fail(o) {
		return
	}
	c.Done++
	if o.Status > 0 && o.Status < statusMax {
		t.statuses[o.Status]++ // HTTP
	} else {
		countKind(c, o.Kind)
	}
	t.latency.response.Record(time.Duration(o.Done - o.Intended))
	t.latency.service.Record(time.Duration(o.Done - o.Sent))
	t.latency.firstByte.Record(time.Duration(o.First - o.Sent))
}

// countKind counts a statement or command by its kind.
func countKind(c *result.Counters, k target.Kind) {
	switch k {
	case target.Read:
		c.Reads++
	case target.Write:
		c.Writes++
	default:
		c.Others++
	}
}

// fail counts an error and reports whether there was an answer nevertheless.
func (r *observer) fail(o *target.Outcome) bool {
	class := target.Classify(o.Err)
	r.now.counters.Errors[class]++
	if r.now.failures[class] == "" {
		r.now.failures[class] = o.Err.Error()
	}
	if class.Answered() {
		return true
	}
	r.now.latency.responseUnanswered.Record(time.Duration(o.Done - o.Intended))
	if o.Sent != 0 {
		r.now.latency.serviceUnanswered.Record(time.Duration(o.Done - o.Sent))
	}
	return false
}

// due counts an arrival that was started at now.
func (r *observer) due(intended, now int64) {
	if intended < r.from {
		return
	}
	r.now.counters.Due++
	if r.open {
		r.now.latency.lag.Record(time.Duration(now - intended))
	}
}

// unsent counts an arrival that is given up at now.
func (r *observer) unsent(intended, now int64) {
	if intended >= r.from {
		r.now.counters.Errors[result.Unsent]++
		r.now.latency.responseUnanswered.Record(time.Duration(now - intended))
	}
}

// roll hands the current second over if it has ended, and reports whether it did.
func (r *observer) roll(now int64, read func() gauges) bool {
	if now < r.ends {
		return false
	}
	next := min(int((now-r.from)/second), r.lastSecond)
	r.ends = r.from + int64(next+1)*second
	if next == r.lastSecond {
		r.ends = 1<<63 - 1
	}
	if next <= r.now.second {
		return false
	}
	r.handOver(next, read())
	return true
}

// finish hands the last second over.
func (r *observer) finish(g gauges) { r.handOver(1<<31-1, g) }

func (r *observer) handOver(next int, g gauges) {
	r.now.observer, r.now.next, r.now.gauges = r.number, next, g
	r.full <- r.now
	select {
	case r.now = <-r.empty:
	default:
		r.now = newTally()
	}
	r.now.second = next
}
