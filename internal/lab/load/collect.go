package load

import (
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// Second is one second of a step.
type Second struct {
	Elapsed    time.Duration // since the start of the step, at its end
	Slice      result.Slice
	Response   *histogram.Histogram // at slice precision, of the answers
	Unanswered *histogram.Histogram // how long the requests without an answer had waited
}

// sum is the total of the tallies of one second.
type sum struct {
	counters result.Counters
	latency  latencies
	gauges   gauges
}

// collector adds up the tallies of all observers, per second and in total.
type collector struct {
	step   int
	phase  *phase
	report func(*Second) error
	full   chan *tally
	empty  chan *tally

	reached  []int // per observer: its current second
	open     map[int]*sum
	reported int // number of seconds reported
	before   usage
	err      error
	total    result.Counters
	latency  latencies
	failures map[result.ErrorClass]string
}

// handOverMax is how many seconds an observer may be ahead of the listener before
// it waits.
const handOverMax = 60

func newCollector(observers int) *collector {
	return &collector{
		full: make(chan *tally, handOverMax*observers), empty: make(chan *tally, 2*observers), reached: make([]int, observers),
		open: make(map[int]*sum), latency: newLatencies(histogram.New), failures: make(map[result.ErrorClass]string),
	}
}

// run collects until full is closed.
func (c *collector) run() {
	c.before = readUsage(unix.RUSAGE_SELF)
	for t := range c.full {
		c.add(t)
		first := slices.Min(c.reached)
		for c.reported < first && len(c.open) > 0 {
			c.emit(c.reported)
			c.reported++
		}
	}
}

func (c *collector) add(t *tally) {
	s := c.open[t.second]
	if s == nil {
		s = &sum{latency: newLatencies(histogram.NewSlice)}
		c.open[t.second] = s
	}
	for status, n := range t.statuses {
		if n > 0 {
			if t.counters.Statuses == nil {
				t.counters.Statuses = make(map[int]int64)
			}
			t.counters.Statuses[status] = int64(n)
		}
	}
	s.counters.Add(&t.counters)
	c.total.Add(&t.counters)
	s.latency.merge(&t.latency)
	c.latency.merge(&t.latency)
	s.gauges.open += t.gauges.open
	s.gauges.inFlight += t.gauges.inFlight
	s.gauges.backlog += t.gauges.backlog
	for class, text := range t.failures {
		if text != "" && c.failures[result.ErrorClass(class)] == "" {
			c.failures[result.ErrorClass(class)] = text
		}
	}
	c.reached[t.observer] = t.next
	t.reset()
	select {
	case c.empty <- t:
	default:
	}
}

// emit reports a second that all observers have completed.
func (c *collector) emit(number int) {
	s := c.open[number]
	delete(c.open, number)
	if s == nil {
		s = &sum{latency: newLatencies(histogram.NewSlice)}
	}
	elapsed := time.Duration(number+1) * time.Second
	elapsed = min(elapsed, time.Duration(c.phase.elapsed()))
	if number > 0 && elapsed <= time.Duration(number)*time.Second && s.counters.Requests() == 0 {
		return // the step ended before
	}
	length := max(elapsed-time.Duration(number)*time.Second, time.Millisecond)
	used := readUsage(unix.RUSAGE_SELF)
	delta := used.since(c.before)
	c.before = used
	latency, err := s.latency.encode()
	slice := result.Slice{
		Step: c.step, Second: number, Length: length.Seconds(), Counters: s.counters, Latency: latency,
		Connections: s.gauges.open, InFlight: s.gauges.inFlight, Backlog: s.gauges.backlog,
		CPUUser: delta.user.Seconds(), CPUSystem: delta.system.Seconds(),
	}
	if err == nil {
		err = c.report(&Second{
			Elapsed: elapsed, Slice: slice, Response: s.latency.response,
			Unanswered: s.latency.responseUnanswered,
		})
	}
	if c.err == nil {
		c.err = err
	}
}

// encode returns the histograms in the format of the result file.
func (l *latencies) encode() (result.Latency, error) {
	var encoded result.Latency
	payloads := encoded.Histograms()
	for i, h := range l.all() {
		text, err := h.Encode()
		if err != nil {
			return result.Latency{}, err
		}
		*payloads[i] = result.HDR(text)
	}
	return encoded, nil
}

func (l *latencies) clamped() int64 {
	n := int64(0)
	for _, h := range l.all() {
		n += h.Clamped()
	}
	return n
}

// failureNotes returns the text of the first error of each class.
func (c *collector) failureNotes() []result.Reason {
	var notes []result.Reason
	for _, class := range slices.Sorted(maps.Keys(c.failures)) {
		notes = append(notes, result.Reason{Code: result.FirstError, Class: class.String(), Text: c.failures[class]})
	}
	return notes
}
