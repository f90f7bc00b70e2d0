package load

import (
	"math"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// latencies are the histograms of a period. Those of a name have no lag, connect and firstByte.
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
		if sources[i] != nil && sources[i].Count() > 0 {
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

// touch makes the kernel provide the memory, so that the first requests cause no page faults.
func (l *latencies) touch() {
	for _, h := range l.all() {
		if h != nil {
			h.Reset()
		}
	}
}

// ended counts a request that ended, with the class of its error if it has one, and reports whether it was answered.
func (l *latencies) ended(c *result.Counters, o *target.Outcome, class result.ErrorClass) (answered bool) {
	if o.Sent != 0 {
		c.Sent++
	}
	c.BytesOut += int64(o.BytesSent)
	c.BytesIn += o.BytesReceived
	if o.Err != nil {
		c.Errors[class]++
		if !class.Answered() {
			l.responseUnanswered.Record(time.Duration(o.Done - o.Intended))
			if o.Sent != 0 {
				l.serviceUnanswered.Record(time.Duration(o.Done - o.Sent))
			}
			return false
		}
	}
	c.Done++
	l.response.Record(time.Duration(o.Done - o.Intended))
	l.service.Record(time.Duration(o.Done - o.Sent))
	return true
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
	failures [len(result.Errors{})]string // per class: text of the first error
	gauges   gauges
}

// gauges are the values at the end of a tally.
type gauges struct {
	open, inFlight, backlog int64
}

func newTally() *tally {
	t := &tally{latency: newLatencies(histogram.New)}
	t.latency.touch()
	return t
}

func (t *tally) reset() {
	latency := t.latency
	latency.reset()
	*t = tally{latency: latency}
}

// driver is what an observer counts for: a thread, or the pool of sessions.
type driver interface {
	// mark begins the measurement of the driver's own resources.
	mark(now int64)
	// gauges reads the values at the end of a second.
	gauges() gauges
}

// observer counts the requests of one thread and hands over a tally per second.
// Requests that were due in the warm-up are not counted, except in the rate of the
// answers within the step. It is not safe for concurrent use.
type observer struct {
	number int
	driver driver
	phase  *phase
	from   int64 // end of the warm-up, on the run's clock
	open   bool  // an open loop: lag is recorded
	now    *tally
	border int64   // the end of the warm-up, or of the current point of the trend
	served []int64 // requests, by connection
	window window
	host   contention // during the window; of the first observer
	trend  trend
	labels *labels // nil with fewer than two names
	last   int64   // when the last request ended
	full   chan<- *tally
	empty  <-chan *tally
}

const second = int64(time.Second)

// window is the part of a step in which the resources of the generator and Little's
// law are measured.
type window struct {
	from, to int64 // on the run's clock
	ended    int64 // requests that ended within it, whenever they were due
	inFlight int64 // sum of the times that requests were in flight within it, in nanoseconds
}

// add counts a request that was in flight from begin to end.
func (w *window) add(begin, end int64) {
	if end > w.from && end <= w.to {
		w.ended++
	}
	if within := min(end, w.to) - max(begin, w.from); within > 0 {
		w.inFlight += within
	}
}

// start prepares the observer for the step.
func (r *observer) start(p *phase) {
	r.phase, r.from, r.border = p, p.from, p.from
	r.window = window{from: math.MaxInt64, to: math.MaxInt64}
	r.trend = newTrend()
}

// observe counts the end of a request.
func (r *observer) observe(o *target.Outcome) {
	if o.Done >= r.border {
		r.roll(o.Done)
	}
	r.last = o.Done
	r.window.add(o.Begin, o.Done)
	r.trend.owed--
	t := r.now
	c := &t.counters
	inTime := o.Done >= r.from && o.Done <= r.phase.end.Load()
	var class result.ErrorClass
	switch {
	case o.Err != nil:
		class = target.Classify(o.Err)
	case inTime:
		c.Completed++ // also if it was due in the warm-up
	}
	if r.labels != nil {
		r.labels.observe(o, class, inTime, o.Intended >= r.from)
	}
	if o.Intended < r.from {
		return
	}
	if inTime {
		r.trend.add(o.Done-o.Intended, o.Err == nil)
	}
	if o.Connected != 0 {
		c.Connects++
		t.latency.connect.Record(time.Duration(o.Connected - o.Begin))
	}
	r.served[o.Connection]++
	if o.Err != nil && t.failures[class] == "" {
		t.failures[class] = o.Err.Error()
	}
	if !t.latency.ended(c, o, class) {
		return
	}
	if o.Status > 0 && o.Status < statusMax {
		t.statuses[o.Status]++ // HTTP
	} else {
		countKind(c, o.Kind)
	}
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

// due counts an arrival that was started at now.
func (r *observer) due(intended, now int64) {
	r.trend.owed++
	if intended < r.from {
		return
	}
	r.now.counters.Due++
	if r.open {
		r.now.latency.lag.Record(time.Duration(now - intended))
	}
}

// unsent counts an arrival that is given up at now. The trend does not count it as
// ended: the target still owes its answer.
func (r *observer) unsent(intended, now int64) {
	r.last = now
	if intended < r.from {
		return
	}
	r.now.counters.Errors[result.Unsent]++
	r.now.latency.responseUnanswered.Record(time.Duration(now - intended))
	if r.labels != nil {
		r.labels.unsent(time.Duration(now - intended))
	}
}

// roll passes the borders up to now: the end of the warm-up, those of the trend, and
// those of the seconds, which are handed over.
func (r *observer) roll(now int64) {
	if now < r.border {
		return
	}
	if r.window.from == math.MaxInt64 {
		r.window.from = now
		if r.number == 0 {
			r.host = readContention()
		}
		r.driver.mark(now)
		r.trend.begin(r.from)
	}
	end := r.phase.end.Load()
	r.trend.roll(min(now, end))
	if next := min(int((now-r.from)/second), r.phase.lastSecond()); next > r.now.second {
		r.handOver(next)
	}
	r.border = min(r.trend.next, r.from+int64(r.now.second+1)*second, end)
	if now >= end {
		r.border = math.MaxInt64
	}
}

// closeWindow ends the window and reports whether it was open.
func (r *observer) closeWindow(now int64) bool {
	if r.window.from == math.MaxInt64 || r.window.to != math.MaxInt64 {
		return false
	}
	r.window.to = now
	if r.number == 0 {
		r.host = readContention().since(r.host)
	}
	return true
}

// finish hands the last second over, after the last request has ended.
func (r *observer) finish() {
	r.phase.finish(r.last)
	r.handOver(math.MaxInt32)
}

func (r *observer) handOver(next int) {
	r.now.observer, r.now.next, r.now.gauges = r.number, next, r.driver.gauges()
	r.full <- r.now
	select {
	case r.now = <-r.empty:
	default:
		r.now = newTally()
	}
	r.now.second = next
}
