package load

import (
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// latencies are the histograms of one stretch of time.
type latencies struct {
	response, service, lag, connect, firstByte *histogram.Histogram
}

func newLatencies(create func() *histogram.Histogram) latencies {
	return latencies{create(), create(), create(), create(), create()}
}

func (l *latencies) all() [5]*histogram.Histogram {
	return [...]*histogram.Histogram{l.response, l.service, l.lag, l.connect, l.firstByte}
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

// statusMax is the highest HTTP status, and one more.
const statusMax = 1000

// tally is what one recorder counted in one second.
type tally struct {
	recorder int
	second   int // counted from the end of the warm-up
	next     int // the second that the recorder went on with
	counters result.Counters
	statuses [statusMax]int32
	latency  latencies
	failures [16]string // by class: the first error's text
	gauges   gauges
}

// gauges are how things stood at the end of a tally.
type gauges struct {
	open, inFlight, backlog int64
}

// newTally returns an empty tally, its memory touched so that the first
// requests need not fault it in.
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

// served is what one connection did in a step.
type served struct {
	requests int64
	busy     int64 // nanoseconds with a request in flight
}

// recorder counts for one thread, and hands over what it counted second by
// second. What begins during the warm-up is not counted. It is not safe for
// concurrent use.
type recorder struct {
	number     int
	from       int64 // end of the warm-up, on the run's clock
	lastSecond int   // what comes later counts into this second
	open       bool  // arrivals go by the clock: lag is recorded
	now        *tally
	ends       int64 // when the second in hand is over
	served     []served
	done       int64 // counted requests that have ended
	full       chan<- *tally
	empty      <-chan *tally
}

const second = int64(time.Second)

// observe counts the end of a request.
func (r *recorder) observe(o *target.Outcome) {
	if o.Intended < r.from {
		return
	}
	t := r.now
	c := &t.counters
	r.done++
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

// countKind counts a statement or command by what it did.
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

// fail counts a bad end and reports whether there was an answer all the same.
func (r *recorder) fail(o *target.Outcome) bool {
	class := target.Classify(o.Err)
	r.now.counters.Errors[class]++
	if r.now.failures[class] == "" {
		r.now.failures[class] = o.Err.Error()
	}
	return class == result.StatusError || class == result.CheckError
}

// due counts an arrival that was taken up at now.
func (r *recorder) due(intended, now int64) {
	if intended < r.from {
		return
	}
	r.now.counters.Due++
	if r.open {
		r.now.latency.lag.Record(time.Duration(now - intended))
	}
}

// unsent counts an arrival that is given up.
func (r *recorder) unsent(intended int64) {
	if intended >= r.from {
		r.now.counters.Errors[result.Unsent]++
		r.done++
	}
}

// roll hands the second in hand over when it has ended by now, and reports
// whether it did.
func (r *recorder) roll(now int64, read func() gauges) bool {
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
	r.hand(next, read())
	return true
}

// finish hands over what is left.
func (r *recorder) finish(g gauges) { r.hand(1<<31-1, g) }

func (r *recorder) hand(next int, g gauges) {
	r.now.recorder, r.now.next, r.now.gauges = r.number, next, g
	r.full <- r.now
	select {
	case r.now = <-r.empty:
	default:
		r.now = newTally()
	}
	r.now.second = next
}
