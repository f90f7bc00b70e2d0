package result

import (
	"fmt"
	"slices"
	"time"
)

// overlapMin is the share of a step that all hosts must have run at the same time by their own clocks, whose difference
// nobody knows.
const overlapMin = 0.5

// shortShare is the share of a step's planned time below which a host offered too little of its load.
const shortShare = 0.9

// distinct returns an error if two runs, or parts of merged runs, are the same: no host begins two runs in the same
// nanosecond.
func distinct(runs []*Run) error {
	type identity struct {
		host  string
		start int64
	}
	seen := make(map[identity]bool)
	for _, run := range runs {
		headers := []Header{run.Header}
		for i := range run.Header.Parts {
			headers = append(headers, run.Header.Parts[i].Header)
		}
		for i := range headers {
			h := &headers[i]
			id := identity{h.Machine.Host, h.StartedAt.UnixNano()}
			if seen[id] {
				return fmt.Errorf("the run that %s began at %s is given twice", h.Machine.Host, h.StartedAt.UTC().Format(time.RFC3339Nano))
			}
			seen[id] = true
		}
	}
	return nil
}

// sameKind returns an error if step i of two runs cannot be shares of one step.
func sameKind(a, b *Run, i int) error {
	s, o := &a.Steps[i], &b.Steps[i]
	if s.Loop != o.Loop || s.Arrival != o.Arrival || s.PerConnection != o.PerConnection || s.Duration != o.Duration ||
		(s.Step.Requests > 0) != (o.Step.Requests > 0) || s.Warmup != o.Warmup || s.TimeoutLimit != o.TimeoutLimit {
		return fmt.Errorf("%s ran another kind of step than %s", b.Header.Machine.Host, a.Header.Machine.Host)
	}
	same := func(c, d Criterion) bool { return c.Text == d.Text && c.Default == d.Default }
	if !slices.EqualFunc(s.Total.SLO, o.Total.SLO, same) {
		return fmt.Errorf("%s judged other criteria than %s", b.Header.Machine.Host, a.Header.Machine.Host)
	}
	return nil
}

// overlap returns the smallest share of a part that another one ran at the same time, of the shorter of the two. Below
// overlapMin it returns an error.
func overlap(parts []*StepRun, runs []*Run) (least float64, err error) {
	least = 1
	type interval struct{ from, to time.Time }
	ran := make([]interval, len(parts))
	for i, part := range parts {
		from := runs[i].Header.StartedAt.Add(time.Duration(part.Start * float64(time.Second)))
		ran[i] = interval{from, from.Add(time.Duration(part.Total.Elapsed * float64(time.Second)))}
	}
	for i, a := range ran {
		for k, b := range ran[:i] {
			from, to := a.from, a.to
			if b.from.After(from) {
				from = b.from
			}
			if b.to.Before(to) {
				to = b.to
			}
			shorter := min(parts[i].Total.Elapsed, parts[k].Total.Elapsed)
			together := to.Sub(from).Seconds()
			if together < overlapMin*shorter {
				const clock = "15:04:05.0"
				return 0, fmt.Errorf("%s ran it from %s to %s and %s from %s to %s by their own clocks: shares of one run overlap by at least "+
					"half of the step, so these are other runs, or a clock is off",
					runs[k].Header.Machine.Host, b.from.UTC().Format(clock), b.to.UTC().Format(clock),
					runs[i].Header.Machine.Host, a.from.UTC().Format(clock), a.to.UTC().Format(clock))
			}
			if shorter > 0 {
				least = min(least, together/shorter)
			}
		}
	}
	return least, nil
}

// noteOffset makes a step NOT_STATIONARY whose parts ran together for too little of it: the target had the sum of their loads only
// then.
func (t *Total) noteOffset(together float64) {
	if together >= shortShare {
		return
	}
	t.Reasons = append(t.Reasons, Reason{
		Code: NotTogether, Verdict: NotStationary,
		Text: fmt.Sprintf("the hosts ran it at the same time for %.0f %% of it by their own clocks, and only then "+
			"did the target have the sum of their loads", 100*together),
	})
	if NotStationary.worse(t.Validity) {
		t.Validity = NotStationary
	}
}

// noteShortShares makes a step GENERATOR_LIMITED in which a host ended early, because the sum then covers only a part of
// the time. A host that has made all requests of its share ended early if its connections were idle while others were not:
// in a closed loop, for longer than the longest request, which can be the last of the others.
func (t *Total) noteShortShares(parts []*StepRun, hosts []string) error {
	services, err := t.Latency.Services()
	if err != nil {
		return err
	}
	longest, _ := services.Max()
	for i, part := range parts {
		planned := part.Duration
		if part.Step.Requests > 0 && part.Total.Requests() >= part.Step.Requests {
			planned = 0
			if part.Loop == LoopClosed && t.Elapsed-part.Total.Elapsed > longest.Seconds() {
				planned = t.Elapsed
			}
		}
		if planned == 0 || part.Total.Elapsed >= shortShare*planned {
			continue
		}
		t.Reasons = append(t.Reasons, Reason{
			Code: ShareAbsent, Verdict: GeneratorLimited, Host: hosts[i],
			Text: fmt.Sprintf("ended after %.3g s of %.3g s", part.Total.Elapsed, planned),
		})
		if GeneratorLimited.worse(t.Validity) {
			t.Validity = GeneratorLimited
		}
	}
	return nil
}
