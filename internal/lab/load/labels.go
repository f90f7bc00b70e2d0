package load

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// labels count the requests of one thread by name, over the whole step. It is not safe
// for concurrent use.
type labels struct {
	byName []label
	random *rand.Rand
	flow   bool // the names are the steps of a flow
}

// label counts the requests with one name. The times of requests without an answer have
// the precision of a slice.
type label struct {
	counters result.Counters
	latency  latencies
}

// newLabels returns nil with fewer than two names.
func newLabels(names int, seed uint64) *labels {
	if names < 2 {
		return nil
	}
	l := &labels{byName: make([]label, names), random: rand.New(rand.NewPCG(seed, uint64(names)))}
	for i := range l.byName {
		l.byName[i].latency = latencies{
			response: histogram.New(), responseUnanswered: histogram.NewSlice(), service: histogram.New(),
			serviceUnanswered: histogram.NewSlice(),
		}
		l.byName[i].latency.touch()
	}
	return l
}

// observe counts the end of a request. inTime and counted say whether it ended within
// the step and was due in it.
func (l *labels) observe(o *target.Outcome, class result.ErrorClass, inTime, counted bool) {
	n := &l.byName[o.Request]
	if o.Err == nil && inTime {
		n.counters.Completed++
	}
	if counted {
		n.counters.Due++
		n.latency.ended(&n.counters, o, class)
	}
}

// unsent counts an arrival that never became a request. Its name is drawn by the shares
// of the requests so far, as the mix would have. In a flow, it has the first name.
func (l *labels) unsent(waited time.Duration) {
	total := int64(0)
	for i := range l.byName {
		total += l.byName[i].counters.Due + 1
	}
	n, draw := 0, l.random.Int64N(total)
	for ; !l.flow && draw > l.byName[n].counters.Due; n++ {
		draw -= l.byName[n].counters.Due + 1
	}
	c := &l.byName[n].counters
	c.Due++
	c.Errors[result.Unsent]++
	l.byName[n].latency.responseUnanswered.Record(waited)
}

// labelTotals returns the figures per name. A single name has those of the step.
func (s *stepRun) labelTotals(t *result.Total) ([]result.LabelTotal, error) {
	names := s.config.Target.Names()
	if len(names) == 1 {
		return []result.LabelTotal{{Name: names[0], Counters: t.Counters, Latency: t.Latency}}, nil
	}
	var totals []result.LabelTotal
	for i, name := range names {
		sum := label{latency: newLatencies(histogram.New)}
		for _, r := range s.observers {
			sum.counters.Add(&r.labels.byName[i].counters)
			sum.latency.merge(&r.labels.byName[i].latency)
		}
		latency, err := sum.latency.encode()
		if err != nil {
			return nil, err
		}
		totals = append(totals, result.LabelTotal{Name: name, Counters: sum.counters, Latency: latency})
	}
	return totals, nil
}

// checkLabels refuses an SLO on requests that do not exist.
func checkLabels(slo result.SLO, names []string) error {
	for _, label := range slo.Labels() {
		switch {
		case slices.Contains(names, label):
		case len(names) == 0:
			return fmt.Errorf("--slo: no request has the name %q; name it, as in --requests-file", label)
		default:
			return fmt.Errorf("--slo: no request has the name %q; the names are %q", label, names)
		}
	}
	return nil
}
