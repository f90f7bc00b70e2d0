package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"spillway/internal/lab/result"
)

// A mood is the color of a headline.
type mood string

const (
	good  mood = "good"  // everything held
	bad   mood = "bad"   // an SLO was missed, or the target failed
	doubt mood = "doubt" // some figures are not valid measurements of the target
	plain mood = "plain" // nothing to judge
)

// A headline is the verdict in one sentence, with the caveat that limits it.
type headline struct {
	Mood   mood
	Text   string
	Caveat string
}

// Without an SLO, a step holds if it answered keptUpMin of its arrivals within its time and had at most
// result.ErrorShareMax errors. At most inFlightMax of the arrivals count as in flight at its end.
const (
	keptUpMin   = 0.99
	inFlightMax = 0.1
)

// holds reports whether the target met the SLO, or kept up with few errors if there is no SLO.
func (s *step) holds() bool {
	if len(s.Total.SLO) > 0 {
		return s.sloMet()
	}
	return s.Total.Completed > 0 && s.Total.ErrorShare() <= result.ErrorShareMax && s.keptUp()
}

// keptUp reports whether the target answered the arrivals within the step. Those of the last median response time may
// still be in flight when the step ends.
func (s *step) keptUp() bool {
	var inFlight float64
	if s.figures.P50 != nil && s.Total.Elapsed > 0 {
		inFlight = min(*s.figures.P50/s.Total.Elapsed, inFlightMax)
	}
	return float64(s.Total.Completed) >= (keptUpMin-inFlight)*float64(s.Total.Due)
}

func (r *run) headline() headline {
	h := headline{Mood: doubt, Text: "Nothing was measured."}
	valid := slices.DeleteFunc(slices.Clone(r.steps), func(s step) bool { return !s.valid() })
	switch {
	case r.usage != nil:
		h = r.watchHeadline()
	case len(r.steps) == 0:
	case len(valid) == 0:
		h.Text = "No step is a valid measurement of the target."
	case r.steps[0].Loop == result.LoopOpen:
		h = openHeadline(valid, r.Header.SLO)
	default:
		h = closedHeadline(valid, r.Header.SLO)
	}
	h.Caveat = r.caveat(len(valid))
	if len(valid) < len(r.steps) && h.Mood == good {
		h.Mood = doubt
	}
	return h
}

// caveat lists invalid steps and what is missing from the file.
func (r *run) caveat(valid int) string {
	var parts []string
	if n := len(r.steps) - valid; n > 0 {
		var names []string
		for _, s := range r.steps {
			if !s.valid() && !slices.Contains(names, s.validity()) {
				names = append(names, s.validity())
			}
		}
		parts = append(parts, fmt.Sprintf("%d of %s not valid (%s)", n, plural(int64(len(r.steps)), "step"), strings.Join(names, ", ")))
	}
	switch {
	case r.CutOff != "":
		parts = append(parts, "the file is incomplete: "+r.CutOff)
	case r.End.Reason == result.Interrupted:
		parts = append(parts, "the run was interrupted")
	}
	return sentence(parts)
}

// sentence joins parts to a sentence, "" without parts.
func sentence(parts []string) string {
	text := strings.Join(parts, "; ")
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// openHeadline states the highest rate below the first one that does not hold.
func openHeadline(steps []step, slo string) headline {
	ordered := slices.Clone(steps)
	slices.SortStableFunc(ordered, func(a, b step) int { return cmp.Compare(a.level(), b.level()) })
	failed := slices.IndexFunc(ordered, func(s step) bool { return !s.holds() })
	under := ""
	if slo != "" {
		under = " within " + slo
	}
	switch {
	case failed < 0:
		last := &ordered[len(ordered)-1]
		return headline{Mood: good, Text: fmt.Sprintf("Holds %s%s: %s.", last.load(), under, last.summary())}
	case failed == 0:
		return headline{Mood: bad, Text: fmt.Sprintf("Does not hold %s%s: %s.", ordered[0].load(), under, ordered[0].failure())}
	}
	return headline{Mood: bad, Text: fmt.Sprintf("Holds %s%s, but not %s: %s.",
		ordered[failed-1].load(), under, ordered[failed].load(), ordered[failed].failure())}
}

// closedHeadline states the step with the highest rate that holds.
func closedHeadline(steps []step, slo string) headline {
	best := -1
	for i := range steps {
		if steps[i].holds() && (best < 0 || steps[i].Total.Rate() > steps[best].Total.Rate()) {
			best = i
		}
	}
	within := ""
	if slo != "" {
		within = " within " + slo
	}
	if best < 0 {
		return headline{Mood: bad, Text: fmt.Sprintf("Does not hold %s%s: %s.", steps[0].load(), within, steps[0].failure())}
	}
	verb := "Answers"
	if len(steps) > 1 {
		verb = "Answers at most"
	}
	h := headline{Mood: good, Text: fmt.Sprintf("%s %s with %s%s: %s.", verb, rate(steps[best].Total.Rate()), steps[best].load(), within, steps[best].latencyAndErrors())}
	if slices.ContainsFunc(steps, func(s step) bool { return !s.holds() }) && slo != "" {
		h.Mood = bad
	}
	return h
}

// summary is rate, tail latency and errors of a step.
func (s *step) summary() string {
	return fmt.Sprintf("%s answered, %s", rate(s.Total.Rate()), s.latencyAndErrors())
}

func (s *step) latencyAndErrors() string {
	name, value := tail(s)
	errors := "no errors"
	if n := s.Total.Errors.Total(); n > 0 {
		errors = fmt.Sprintf("%s errors (%s)", share(s.Total.ErrorShare()), s.Total.Errors.String())
	}
	return fmt.Sprintf("%s %s, %s", name, value, errors)
}

// tail is the highest percentile up to p99 that the sample is large enough for.
func tail(s *step) (name, value string) {
	f := &s.figures
	switch {
	case f.P99 != nil:
		return "p99", f.text(figureP99)
	case f.P90 != nil:
		return "p90", f.text(figureP90)
	case f.P50 != nil:
		return "median", f.text(figureP50)
	}
	return "longest", f.text(figureMax)
}

// failure states why the step does not hold.
func (s *step) failure() string {
	var missed []string
	for _, c := range s.Total.SLO {
		if !c.Met {
			missed = append(missed, observed(c))
		}
	}
	if len(missed) > 0 {
		return strings.Join(missed, " and ")
	}
	return s.summary()
}

// observed writes the value of a criterion: "p99 912 ms".
func observed(c result.Criterion) string {
	value := number(c.Observed)
	switch {
	case c.AtLeast:
		value = atLeast(c.Observed)
	case strings.HasSuffix(c.Metric, "_seconds"):
		value = seconds(c.Observed)
	case c.Metric == result.MetricErrorShare:
		value = share(c.Observed)
	case c.Metric == result.MetricRate:
		value = rate(c.Observed)
	}
	name := c.Text
	if at := strings.IndexAny(name, "<>="); at >= 0 {
		name = strings.TrimSpace(name[:at])
	}
	return name + " " + value
}
