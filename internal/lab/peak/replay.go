package peak

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"spillway/internal/lab/result"
)

// OutcomeOf returns the search that a run is, nil if it is none: every step of a search is named by its purpose. It feeds the
// steps to a new Search, which comes to the same answer. Of a run that has not ended, or whose file is incomplete, it is what
// is proved by then.
func OutcomeOf(run *result.Run) (*Outcome, error) {
	if !isSearch(run) {
		return nil, nil
	}
	slo, err := result.ParseSLO(run.Header.SLO)
	if err != nil {
		return nil, fmt.Errorf("read search: %w", err)
	}
	o := &Outcome{Run: run, Flow: slices.ContainsFunc(run.Steps, func(s result.StepRun) bool { return s.Total.Iterations != nil })}
	search := NewSearch(Settings{})
	for i := range counted(run) {
		s := &run.Steps[i]
		observation, err := ObservationOf(slo, &s.Total, tookOf(run, i))
		if err != nil {
			return nil, fmt.Errorf("read search: step %d: %w", i, err)
		}
		search.Observe(probeOf(s), observation)
		m := search.proof()
		o.Bounds = append(o.Bounds, Bound{m.feasible.rateOrZero(), m.infeasible.rateOrZero()})
	}
	o.Answer = search.Answer()
	switch end := run.End.Search; {
	case end != nil:
		o.Answer.Stopped, o.Answer.Took, o.Answer.Unfit = end.Stopped, inSeconds(end.Seconds), inSeconds(end.Unfit)
	case run.CutOff != "":
		o.Answer.Stopped = StoppedCutOff
	case run.End.Reason == result.UnderWay:
		o.Answer.Stopped = StoppedUnderWay
	}
	o.diagnose()
	return o, nil
}

// A Bound is what was proved after a probe; 0: nothing.
type Bound struct{ Feasible, Infeasible float64 }

// isSearch reports whether the steps are probes.
func isSearch(run *result.Run) bool {
	return len(run.Steps) > 0 && !slices.ContainsFunc(run.Steps, func(s result.StepRun) bool { return purposeOf(&s.Step) == "" })
}

// purposeOf is the purpose that begins the name of a step, "" if there is none.
func purposeOf(s *result.Step) Purpose {
	word, _, _ := strings.Cut(s.Name, " ")
	p := Purpose(word)
	if !slices.Contains([]Purpose{Closed, Bracket, Refine, Repeat, ConfirmBelow, ConfirmAbove}, p) ||
		(p == Closed) != (s.Loop == result.LoopClosed) {
		return ""
	}
	return p
}

// counted is the number of steps that the search took in. One more was interrupted or is under way.
func counted(run *result.Run) int {
	n := len(run.Steps)
	switch {
	case run.End.Search != nil:
		return min(run.End.Search.Probes, n)
	case run.Steps[n-1].Total.Validity == result.Unjudged, run.End.Reason == result.Interrupted:
		return n - 1
	}
	return n
}

func probeOf(s *result.StepRun) Probe {
	p := Probe{Purpose: purposeOf(&s.Step), Rate: s.OfferedHz, Duration: inSeconds(s.Duration), Warmup: inSeconds(s.Warmup)}
	if s.Loop == result.LoopClosed {
		p.Rate, p.Connections = 0, s.Step.Connections
	}
	return p
}

// tookOf is the time from the warm-up of a step until that of the next one, or until its own end.
func tookOf(run *result.Run, i int) time.Duration {
	s := &run.Steps[i]
	end := s.Start + s.Total.Elapsed
	if i+1 < len(run.Steps) {
		end = run.Steps[i+1].Start - run.Steps[i+1].Warmup
	}
	return inSeconds(max(0, end-s.Start+s.Warmup))
}

func inSeconds(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }
