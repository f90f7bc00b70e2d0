package diagnose

import (
	"cmp"
	"slices"

	"spillway/internal/lab/result"
)

// Steps chooses the steps to compare: the failed one with the lowest load, and the VALID one with the highest load below it that
// passed (-1: none). failing is -1 if none failed. A step fails if it misses the SLO, if more than 1 % of its requests fail, or if it
// is overloaded. Closed loops, which load the service as much as they can, are left out if there are open ones. Steps that did not
// measure the service are chosen only if no other failed, those that failed before those whose load the generator could not offer.
func Steps(run *result.Run) (passing, failing int) {
	order, series := openOf(run, byLoad(run)), run.Series()
	for _, fits := range []func(i int) bool{
		func(i int) bool { return failed(&run.Steps[i]) && newStep(run, series, i).measured() },
		func(i int) bool { return failed(&run.Steps[i]) },
		func(i int) bool { return !valid(&run.Steps[i]) },
	} {
		for _, i := range order {
			if fits(i) {
				return Below(run, i), i
			}
		}
	}
	return Below(run, -1), -1
}

// Failed reports whether the service did not hold the load of a step, and the step says something about the service.
func Failed(run *result.Run, step int) bool {
	return failed(&run.Steps[step]) && newStep(run, run.Series(), step).measured()
}

// openOf leaves closed loops out of the steps if the run has open ones.
func openOf(run *result.Run, order []int) []int {
	if !slices.ContainsFunc(run.Steps, isOpen) {
		return order
	}
	return slices.DeleteFunc(slices.Clone(order), func(i int) bool { return !isOpen(run.Steps[i]) })
}

// Below is the VALID step with the highest load below another that passed, -1 if there is none. Below -1 it is the highest of all. Closed
// loops are left out if there are open ones.
func Below(run *result.Run, index int) int {
	order := byLoad(run)
	if index >= 0 {
		order = order[:slices.Index(order, index)]
	}
	for _, i := range slices.Backward(openOf(run, order)) {
		if s := &run.Steps[i]; s.Total.Validity == result.Valid && !failed(s) {
			return i
		}
	}
	return -1
}

// quartileMin is how many answers show the lower quartile of the time in flight, which needs fewer than a percentile of an SLO.
const quartileMin = 100

// generatorIdle is the share of its time that the busiest thread of a load generator uses if something else held it up.
const generatorIdle = 0.5

// lightest is the step with the lowest load and without many errors that shows what a request takes, -1 if there is none: a VALID
// one, or one whose only fault is that it has too few answers for a percentile of the SLO, or else one that the host disturbed.
func lightest(run *result.Run) int {
	disturbed := -1
	for _, i := range byLoad(run) {
		t := &run.Steps[i].Total
		if t.Overloaded || t.ErrorShare() > result.ErrorShareMax {
			continue
		}
		switch t.Validity {
		case result.Valid:
			return i
		case result.TooFewSamples:
			if t.Done >= quartileMin {
				return i
			}
		case result.HostContended, result.GeneratorLimited:
			if disturbed < 0 && t.Done >= quartileMin && t.Cost.ThreadBusyMax < generatorIdle && !failed(&run.Steps[i]) {
				disturbed = i
			}
		}
	}
	return disturbed
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
			return s.OfferedHz
		}
		return s.Total.Rate()
	}
	allClosed := !slices.ContainsFunc(run.Steps, isOpen)
	slices.SortStableFunc(order, func(a, b int) int {
		if allClosed {
			return run.Steps[a].Connections - run.Steps[b].Connections
		}
		return cmp.Compare(load(a), load(b))
	})
	return order
}

func isOpen(s result.StepRun) bool { return s.Loop == result.LoopOpen }

// failed reports whether the service did not hold the load of a step.
func failed(s *result.StepRun) bool {
	t := &s.Total
	return slices.ContainsFunc(t.SLO, func(c result.Criterion) bool { return !c.Met }) || t.Overloaded || t.ErrorShare() > result.ErrorShareMax
}

// valid reports whether the load generator could offer the load of a step.
func valid(s *result.StepRun) bool {
	return s.Total.Validity != result.GeneratorLimited && s.Total.Validity != result.HostContended
}
