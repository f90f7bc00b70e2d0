package result

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/internal/lab/sheet"
)

// overlapMin is the share of a step that all parts must have run at the same time by the clocks of their hosts.
const overlapMin = 0.5

// shortShare is the share of a step's planned time below which a part offered too little of its load.
const shortShare = 0.9

// inOrder returns the parts of one load by number, each of which must be there once.
func inOrder(runs []*Run) ([]*Run, error) {
	if len(runs) == 0 {
		return nil, errors.New("no part is given")
	}
	for _, run := range runs {
		if run.Header.Part == nil {
			return nil, fmt.Errorf("the run that %s began at %s is no part of a load: make parts with load --part K/N --start-at TIME",
				run.Header.Machine.Host, run.Header.StartedAt.UTC().Format(time.RFC3339))
		}
	}
	of := runs[0].Header.Part.Of
	ordered := make([]*Run, of)
	for _, run := range runs {
		if err := sameLoad(&runs[0].Header, &run.Header); err != nil {
			return nil, err
		}
		place := &ordered[run.Header.Part.Number-1]
		if *place != nil {
			return nil, fmt.Errorf("part %d of %d is given twice: of %s and of %s", run.Header.Part.Number, of,
				(*place).Header.Machine.Host, run.Header.Machine.Host)
		}
		*place = run
	}
	var missing []string
	for i, run := range ordered {
		if run == nil {
			missing = append(missing, strconv.Itoa(i+1))
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("of the %d parts of the load, these are missing: %s; nothing is summed without them", of,
			strings.Join(missing, ", "))
	}
	return ordered, nil
}

// sameLoad returns an error that names the first difference if two parts are not of the same load.
func sameLoad(a, b *Header) error {
	start := func(h *Header) string { return h.Part.StartAt.UTC().Format(time.RFC3339Nano) }
	for _, fact := range []struct{ name, a, b string }{
		{"start", start(a), start(b)},
		{"number of parts", strconv.Itoa(a.Part.Of), strconv.Itoa(b.Part.Of)},
		{"name", a.Run, b.Run},
		{"target", a.Target, b.Target},
		{"SLO", a.SLO, b.SLO},
		{"seed", strconv.FormatUint(a.Seed, 10), strconv.FormatUint(b.Seed, 10)},
		{"version of spillway", a.Tool, b.Tool},
	} {
		if fact.a != fact.b {
			return fmt.Errorf("%s is of another load than %s: the %s is %q instead of %q", b.PartName(), a.PartName(), fact.name,
				fact.b, fact.a)
		}
	}
	return nil
}

// sameKind reports whether two steps can be parts of one.
func sameKind(a, b *StepRun) bool {
	return a.Name == b.Name && a.Loop == b.Loop && a.Arrival == b.Arrival && a.PerConnection == b.PerConnection &&
		a.Duration == b.Duration && (a.Step.Requests > 0) == (b.Step.Requests > 0) && a.Warmup == b.Warmup &&
		a.TimeoutLimit == b.TimeoutLimit
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
				return 0, fmt.Errorf("%s ran it from %s to %s and %s from %s to %s by their own clocks: parts of one load overlap by at least "+
					"half of the step, so one was late, or a clock is off",
					runs[k].Header.PartName(), b.from.UTC().Format(clock), b.to.UTC().Format(clock),
					runs[i].Header.PartName(), a.from.UTC().Format(clock), a.to.UTC().Format(clock))
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
	t.Blame(Reason{
		Code: NotTogether, Verdict: NotStationary,
		Text: fmt.Sprintf("the parts ran it at the same time for %s of it by their own clocks, and only then "+
			"did the target have the sum of their loads", sheet.Share(together)),
	})
}

// noteShortParts makes a step GENERATOR_LIMITED that a part ended early, because the sum then covers too little of the
// time. A part that has made all its requests, or has used up its data, ended early if its connections were idle while
// those of others were not: in a closed loop, for longer than the longest request, which can be the last of the others.
func (t *Total) noteShortParts(parts []*StepRun, names []string) error {
	services, err := t.Latency.Services()
	if err != nil {
		return err
	}
	longest, _ := services.Max()
	for i, part := range parts {
		planned := part.Duration
		usedUp := slices.Contains(part.Total.Codes(), DataUsedUp)
		if usedUp || part.Step.Requests > 0 && part.Total.Requests() >= part.Step.Requests {
			planned = 0
			if part.Loop == LoopClosed && t.Elapsed-part.Total.Elapsed > longest.Seconds() {
				planned = t.Elapsed
			}
		}
		if planned == 0 || part.Total.Elapsed >= shortShare*planned {
			continue
		}
		t.Blame(Reason{
			Code: PartAbsent, Verdict: GeneratorLimited, Host: names[i],
			Text: fmt.Sprintf("ended after %s of %s", sheet.Duration(part.Total.Elapsed), sheet.Duration(planned)),
		})
	}
	return nil
}
