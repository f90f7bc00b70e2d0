package report

import (
	"cmp"
	"slices"

	"spillway/internal/lab/peak"
	"spillway/internal/lab/plan"
	"spillway/internal/lab/result"
)

// readSearch reads the run as a search for a peak, if it is one.
func (r *run) readSearch() error {
	search, err := peak.OutcomeOf(r.Run)
	if err != nil || search == nil {
		return err
	}
	r.search = search
	plan.Beside(search)
	for k, s := range r.steps {
		s.probe, s.told = string(search.Purpose(k)), search.Told(k)
	}
	return nil
}

// searchHeadline is the answer of a search, with what makes it doubtful.
func (r *run) searchHeadline() headline {
	a := &r.search.Answer
	h := headline{Mood: doubt, Text: r.search.Headline()}
	switch {
	case a.Feasible == 0 && a.Infeasible > 0:
		h.Mood = bad
	case a.Confirmed && len(a.Warnings) == 0 && r.CutOff == "":
		h.Mood = good
	}
	parts := append([]string{}, a.Warnings...)
	switch {
	case r.CutOff != "":
		parts = append(parts, "the file is incomplete: "+r.CutOff)
	case r.underWay():
		parts = append(parts, "the search is under way")
	}
	h.Caveat = sentence(parts)
	return h
}

// failing says what the failing step of the diagnosis proves: "missed", or that it is not VALID.
func (r *run) failing() string {
	if _, missed := r.search.Met(r.search.Failing); missed {
		return "missed"
	}
	return "not VALID"
}

// searchStep is a step of a search as in the charts.
type searchStep struct {
	*step
	met, missed bool // false both: it proves nothing
}

// openSteps are the probes at a rate, the lowest rate first.
func (r *run) openSteps() []searchStep {
	var all []searchStep
	for k, s := range r.steps {
		if s.Loop == result.LoopOpen && s.OfferedHz > 0 {
			met, missed := r.search.Met(k)
			all = append(all, searchStep{s, met, missed})
		}
	}
	slices.SortStableFunc(all, func(a, b searchStep) int { return cmp.Compare(a.OfferedHz, b.OfferedHz) })
	return all
}
