package diagnose

import (
	"cmp"
	"slices"

	"spillway/internal/lab/result"
)

// Steps chooses the steps to compare: the failed one with the lowest load, and the VALID one with the highest load below it that
// passed (-1: none). failing is -1 if none failed. A step fails if it misses the SLO, if more than 1 % of its requests fail, or if it
// is overloaded. Steps that did not measure the service are chosen only if no other failed, those that failed before those whose
// load the generator could not offer.
func Steps(run *result.Run) (passing, failing int) {
	order := byLoad(run)
	for _, fits := range []func(*result.StepRun) bool{
		func(s *result.StepRun) bool { return failed(s) && measures(s) },
		failed,
		func(s *result.StepRun) bool { return !measures(s) },
	} {
		for _, i := range order {
			if fits(&run.Steps[i]) {
				return Below(run, i), i
			}
		}
	}
	return Below(run, -1), -1
}

// Below is the VALID step with the highest load below another that passed, -1 if there is none. Below -1 it is the highest of all.
func Below(run *result.Run, index int) int {
	order := byLoad(run)
	if index >= 0 {
		order = order[:slices.Index(order, index)]
	}
	for _, i := range slices.Backward(order) {
		if s := &run.Steps[i]; s.Total.Validity == result.Valid && !failed(s) {
			return i
		}
	}
	return -1
}

// Heaviest is the step with the highest load, -1 without steps.
func Heaviest(run *result.Run) int {
	order := byLoad(run)
	if len(order) == 0 {
		return -1
	}
	return order[len(order)-1]
}

// quartileMin is how many answers show the lower quartile of the time in flight, which needs fewer than a percentile of an SLO.
const quartileMin = 100

// lightest is the step with the lowest load and without many errors that shows what a request takes, -1 if there is none: a VALID
// one, or one whose only fault is that it has too few answers for a percentile of the SLO.
func lightest(run *result.Run) int {
	for _, i := range byLoad(run) {
		t := &run.Steps[i].Total
		enough := t.Validity == result.Valid || t.Validity == result.TooFewSamples && t.Done >= quartileMin
		if enough && !t.Overloaded && t.ErrorShare() <= result.ErrorShareMax {
			return i
		}
	}
	return -1
}

// byLoad sorts the indexes of the steps by their load. A closed loop is as heavy as what it achieved, and closed loops of equal
// rates as their connections.
func byLoad(run *result.Run) []int {
	order := make([]int, len(run.Steps))
	for i := range order {
		order[i] = i
	}
	load := func(i int) float64 {
		s := &run.Steps[i]
		if s.Loop == result.LoopOpen {
			return max(s.OfferedHz, s.OfferedEndHz)
		}
		return s.Total.Rate()
	}
	allClosed := !slices.ContainsFunc(run.Steps, func(s result.StepRun) bool { return s.Loop == result.LoopOpen })
	slices.SortStableFunc(order, func(a, b int) int {
		if allClosed {
			return run.Steps[a].Connections - run.Steps[b].Connections
		}
		return cmp.Compare(load(a), load(b))
	})
	return order
}

// failed reports whether the service did not hold the load of a step.
func failed(s *result.StepRun) bool {
	t := &s.Total
	return slices.ContainsFunc(t.SLO, func(c result.Criterion) bool { return !c.Met }) || t.Overloaded || t.ErrorShare() > result.ErrorShareMax
}

// measures reports whether a step says anything about the service.
func measures(s *result.StepRun) bool {
	return s.Total.Validity != result.GeneratorLimited && s.Total.Validity != result.HostContended
}
