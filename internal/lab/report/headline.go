package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
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
	inFlightMax = 0.25
)

// holds reports whether the target met the SLO, or kept up with few errors if there is no SLO.
// A target whose backlog grew does not hold the rate.
func (s *step) holds() bool {
	switch {
	case s.Total.Overloaded:
		return false
	case len(s.Total.SLO) > 0:
		return s.sloMet()
	}
	return s.Total.Completed > 0 && s.Total.ErrorShare() <= result.ErrorShareMax && s.keptUp()
}

// keptUp reports whether the target answered the arrivals within the step. Those of the last median response time may
// still be in flight when the step ends. If a target falls behind, twice that time is missing at the end, because the
// median request waits half as long as the last one. A closed loop waits for its target.
func (s *step) keptUp() bool {
	if s.Loop == result.LoopClosed {
		return true
	}
	var inFlight float64
	if s.figures.P50 != nil && s.Total.Elapsed > 0 {
		inFlight = min(*s.figures.P50/s.Total.Elapsed, inFlightMax)
	}
	return float64(s.Total.Completed) >= (keptUpMin-inFlight)*float64(s.Total.Due)
}

func (r *run) headline() headline {
	if r.search != nil {
		return r.searchHeadline()
	}
	h := headline{Mood: doubt, Text: "Nothing was measured."}
	valid := slices.DeleteFunc(slices.Clone(r.steps), func(s *step) bool { return !s.valid() })
	// a peak search begins with closed loops
	open := slices.DeleteFunc(slices.Clone(valid), func(s *step) bool { return s.Loop != result.LoopOpen })
	failed, within := r.allFailed(), ""
	if r.Header.SLO != "" {
		within = " within " + r.Header.SLO
	}
	switch {
	case r.usage != nil:
		h = r.watchHeadline()
	case len(r.steps) == 0:
	case failed != "":
		h = headline{Mood: bad, Text: failed}
	case len(valid) == 0:
		best := slices.MaxFunc(r.steps, byRate)
		h.Text = fmt.Sprintf("Seen, not proved: %s %s, %s.", best.answered(), best.offer(), best.latencyAndErrors())
	case len(open) > 0:
		h = openHeadline(open, within)
	default:
		h = closedHeadline(valid, within)
	}
	h.Caveat = r.caveat(len(valid))
	if len(valid) < len(r.steps) && h.Mood == good {
		h.Mood = doubt
	}
	return h
}

// allFailed states why every request of the run failed, "" if one did not.
func (r *run) allFailed() string {
	var all result.Counters
	var reasons []result.Reason
	for _, s := range r.steps {
		all.Add(&s.Total.Counters)
		reasons = append(reasons, s.Total.Reasons...)
	}
	if all.Requests() == 0 || all.Errors.Total() < all.Requests() || all.Completed > 0 {
		return ""
	}
	most := slices.MaxFunc(result.ErrorClasses(), func(a, b result.ErrorClass) int { return cmp.Compare(all.Errors[a], all.Errors[b]) })
	detail := firstError(reasons, most)
	if bad := maps.Keys(all.Statuses); most == result.StatusError && all.Errors[most] == all.Requests() && len(all.Statuses) == 1 {
		status := fmt.Sprintf("status %d", slices.Collect(bad)[0])
		detail = strings.TrimPrefix(detail, status)
		return strings.TrimRight("Every answer was "+status+strings.TrimRight(detail, "."), ": ") + "."
	}
	text := "Every request failed: " + errorList(&all.Errors)
	if detail != "" {
		text += " (" + detail + ")"
	}
	return text + "."
}

// firstError returns the text of the first error of a class, "" if the reasons do not have it.
func firstError(reasons []result.Reason, class result.ErrorClass) string {
	for _, reason := range reasons {
		if reason.Code == result.FirstError && reason.Class == class.String() {
			return reason.Text
		}
	}
	return ""
}

// caveat lists invalid steps with the first reason of each verdict, and what is missing from the file.
func (r *run) caveat(valid int) string {
	var parts []string
	var names, verdicts []string
	n := 0
	for _, s := range r.steps {
		if s.valid() || r.underWay() && s.Total.Validity == result.Unjudged {
			continue
		}
		if n++; slices.Contains(verdicts, s.validity()) {
			continue
		}
		verdicts = append(verdicts, s.validity())
		names = append(names, s.validity())
		if why := s.Total.Reasons; len(why) > 0 && why[0].Code != result.FirstError { // an error of the target is a finding
			names[len(names)-1] += " (" + why[0].String() + ")"
		}
	}
	if n > 0 {
		which := "not valid"
		if len(r.steps) > 1 {
			which = fmt.Sprintf("%d of %d steps %s not valid", n, len(r.steps), isOrAre(n))
		}
		parts = append(parts, which+": "+strings.Join(names, ", "))
		if valid == 0 && r.Header.SLO != "" {
			parts = append(parts, "so the SLO is neither met nor missed")
		}
	}
	switch reason := r.endedEarly(); {
	case r.CutOff != "":
		parts = append(parts, "the file is incomplete: "+r.CutOff)
	case r.underWay():
		parts = append(parts, "the run is under way")
	case reason != "":
		parts = append(parts, "the run "+reason)
	}
	return sentence(parts)
}

// endedEarly says why a run did not reach its end: "was interrupted", "was aborted: errors>20%", "is incomplete". It is "" for one
// that did, or that is under way.
func (r *run) endedEarly() string {
	switch {
	case r.CutOff != "":
		return "is incomplete"
	case r.underWay(), r.End.Reason == result.Finished:
		return ""
	}
	return "was " + r.End.Reason
}

func isOrAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// sentence joins parts to a sentence, "" without parts.
func sentence(parts []string) string {
	text := strings.Join(parts, "; ")
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// openHeadline states the highest rate below the first one that does not hold. within names the SLO, "" without one.
func openHeadline(steps []*step, within string) headline {
	ordered := slices.Clone(steps)
	slices.SortStableFunc(ordered, func(a, b *step) int { return cmp.Compare(a.level(), b.level()) })
	failed := slices.IndexFunc(ordered, func(s *step) bool { return !s.holds() })
	switch {
	case failed < 0:
		last := ordered[len(ordered)-1]
		return headline{Mood: good, Text: fmt.Sprintf("Holds %s%s: %s.", last.Load(), within, last.summary())}
	case failed == 0:
		return headline{Mood: bad, Text: fmt.Sprintf("Does not hold %s%s: %s.", ordered[0].Load(), within, ordered[0].failure())}
	}
	return headline{Mood: bad, Text: fmt.Sprintf("Holds %s%s, but not %s: %s.",
		ordered[failed-1].Load(), within, ordered[failed].Load(), ordered[failed].failure())}
}

// closedHeadline states the step with the highest rate that holds.
func closedHeadline(steps []*step, within string) headline {
	best := fastest(steps)
	if best == nil {
		return headline{Mood: bad, Text: fmt.Sprintf("Does not hold %s%s: %s.", steps[0].Load(), within, steps[0].failure())}
	}
	verb := "Answers"
	if len(steps) > 1 {
		verb = "Answers at most"
	}
	h := headline{Mood: good, Text: fmt.Sprintf("%s %s with %s%s: %s.", verb, sheet.Rate(best.Total.Rate()), best.Load(), within,
		best.latencyAndErrors())}
	if slices.ContainsFunc(steps, func(s *step) bool { return !s.holds() }) && within != "" {
		h.Mood = bad
	}
	return h
}

// fastest is the first step with the highest rate of those that hold, nil without any.
func fastest(steps []*step) *step {
	holding := slices.DeleteFunc(slices.Clone(steps), func(s *step) bool { return !s.holds() })
	if len(holding) == 0 {
		return nil
	}
	return slices.MaxFunc(holding, byRate)
}

func byRate(a, b *step) int { return cmp.Compare(a.Total.Rate(), b.Total.Rate()) }

// summary is rate, tail latency and errors of a step.
func (s *step) summary() string {
	return fmt.Sprintf("%s, %s", s.answered(), s.latencyAndErrors())
}

// answered is the rate that the target managed, in the unit of the load: an open loop of a flow offers iterations.
func (s *step) answered() string {
	if s.iterations != nil && s.Loop == result.LoopOpen {
		return sheet.Rate(s.iterations.Rate) + " iterations completed"
	}
	return sheet.Rate(s.Total.Rate()) + " answered"
}

func (s *step) latencyAndErrors() string {
	times := s.limited()
	if times == "" {
		name, value := tail(s)
		times = name + " " + value
	}
	errors := "no errors"
	if n := s.Total.Errors.Total(); n > 0 {
		errors = fmt.Sprintf("%s errors (%s)", sheet.Share(s.Total.ErrorShare()), errorList(&s.Total.Errors))
	}
	if s.saturates() {
		times += " at saturation"
	}
	return fmt.Sprintf("%s, %s", times, errors)
}

// limited is the response times of all requests that the SLO limits, "" if it limits none: "p95 31 ms".
func (s *step) limited() string {
	var all []string
	for _, c := range s.Total.SLO {
		if strings.HasPrefix(c.Metric, "response_") && c.Label == "" && s.Total.Validity != result.TooFewSamples {
			all = append(all, c.Observation())
		}
	}
	return strings.Join(all, ", ")
}

// offer is the load behind the answered rate: "of 1,000/s", "with 64 connections".
func (s *step) offer() string {
	if s.Loop == result.LoopOpen {
		return "of " + s.Load()
	}
	return "with " + s.Load()
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
	for _, c := range s.Total.Missed() {
		missed = append(missed, c.Observation())
	}
	if len(missed) > 0 {
		return strings.Join(missed, " and ")
	}
	return s.summary()
}
