// Package peak finds the highest rate at which a target meets an SLO.
//
// The search is a pure state machine: it has no clock, no network and no randomness. Next says what to run, Observe takes the
// result, and Answer tells at any time what is proved.
package peak

import (
	"math"
	"slices"
	"time"

	"spillway/internal/lab/result"
)

// Search finds the highest rate that meets an SLO. The caller runs what Next returns, hands the result to Observe, and repeats
// until Next returns false. It may stop earlier: Answer is complete after every step. A Search is not safe for concurrent use.
//
// It brackets the edge by doubling, as Nighthawk's exponential search does, and then interpolates between the bounds or
// bisects. Rates are repeated only near the edge (Shivam et al., "Cutting Corners: Workbench Automation for Server
// Benchmarking", USENIX ATC 2008).
type Search struct {
	settings Settings
	path     []Visit
	since    int     // first visit that proves something: the target changed before
	doubts   []doubt // discard visits that were contradicted
	falls    int     // contradictions: a rate that had passed is missed
	rises    int     // contradictions: a rate that had been missed passes
	stopped  string
	unfit    time.Duration // least time for what is still to be proved, if it was more than what was left
}

// Settings describe what a search looks for and what it may cost.
type Settings struct {
	Precision  float64       // widest interval of the peak at the end, as a part of its lower bound; 0: 0.05
	Quantile   float64       // highest percentile of the SLO, as 0.99; 0: none
	Errors     float64       // smallest limit on a share of errors, as 0.01; 0: none
	Start, Max float64       // rates per second; 0: Start is found by closed-loop probes, Max is unlimited
	Warmup     time.Duration // least warm-up of a probe
	Deadline   time.Duration // latest end of the last probe, on the clock that Next is given; 0: none
}

// Purpose says why a probe is run.
type Purpose string

// The purposes of probes.
const (
	Closed       Purpose = "closed"        // closed loop: how fast the target can be at all
	Bracket      Purpose = "bracket"       // find a rate that passes and one that fails
	Refine       Purpose = "refine"        // narrow the interval between them
	Repeat       Purpose = "repeat"        // decide a rate near the edge by majority
	ConfirmBelow Purpose = "confirm-below" // show that 0.95 x the peak passes
	ConfirmAbove Purpose = "confirm-above" // show that 1.05 x the peak fails
)

// Probe is one step of load to run.
type Probe struct {
	Purpose     Purpose
	Rate        float64       // open loop, arrivals per second; 0: closed loop
	Connections int           // of a closed loop
	Duration    time.Duration // without the warm-up
	Warmup      time.Duration
}

// Observation is the result of a probe.
type Observation struct {
	Validity   result.Validity
	Reason     string        // why the step is not VALID, or what was remarkable
	Rate       float64       // of good answers per second
	Service    time.Duration // mean time in flight; of a flow, mean length of an iteration
	Margins    []Margin      // one per criterion of the SLO, in its order
	Overloaded bool
	Disturbed  bool          // not VALID because something on the generator's host held it up, which may not happen again
	Down       bool          // hardly a connection was not refused or reset, which proves nothing about the rate
	Took       time.Duration // of the whole probe, with the warm-up
	Requests   int64
}

// Margin tells how far a criterion of the SLO is from its limit.
type Margin = result.Margin

// Visit is a probe and what it observed.
type Visit struct {
	Probe
	Observation Observation
}

// Reasons for the end of a search.
const (
	StoppedPrecision   = "precision"     // the interval is narrow enough
	StoppedDeadline    = "deadline"      // no time is left for another probe
	StoppedInterrupted = "interrupted"   // Next would have gone on
	StoppedMaximum     = "maximum"       // Settings.Max meets the SLO
	StoppedGenerator   = "generator"     // higher rates are GENERATOR_LIMITED
	StoppedNothingMet  = "nothing-met"   // no rate that was tried met the SLO
	StoppedInvalid     = "nothing-valid" // the rates that would decide more gave no VALID probe
	StoppedUnstable    = "unstable"      // later probes contradicted earlier ones too often
	StoppedUsedUp      = "rows-used-up"  // the flow has no rows left
	StoppedTargetDown  = "target-down"   // a probe found hardly a connection that was not refused or reset
	StoppedProbes      = "probes"        // ProbesMax probes ran
	StoppedUnderWay    = "under way"     // it has not ended; only of OutcomeOf
	StoppedCutOff      = "cut off"       // the file ends early; only of OutcomeOf
)

// Boundaries between the rates that meet the SLO and those that miss it.
const (
	BoundarySmooth = "smooth"
	BoundaryCliff  = "cliff" // the margin jumps: there is hardly a rate at which the SLO is just met
)

// Answer is what a search has proved so far.
type Answer struct {
	Feasible   float64       // highest rate that is proved to meet the SLO; 0: none
	Infeasible float64       // lowest rate above Feasible that is proved to miss it; 0: none
	Low, High  float64       // interval of the peak at 95 %; High is 0 if there is no upper bound
	Binding    string        // criterion that misses at Infeasible, or has the least room at Feasible
	Boundary   string        // BoundarySmooth or BoundaryCliff; empty without both bounds
	Confirmed  bool          // at 0.95 x the peak the SLO was met, and at 1.05 x missed, after both bounds had been found
	Stopped    string        // why the search ended: StoppedPrecision …
	Unfit      time.Duration // of StoppedDeadline: least time of another probe, with the confirmations after it; 0: not known
	Warnings   []string      // what makes the answer doubtful, one sentence each
	Path       []Visit       // every probe, in the order in which they ran
	Probes     int           // number of probes
	Took       time.Duration // total time of the probes
	Requests   int64         // total number of requests
	Flat       bool          // Binding hardly depends on the rate, so that noise moves the peak far
}

// NewSearch returns a search that has not run a probe yet.
func NewSearch(settings Settings) *Search {
	if !(settings.Precision > 0) {
		settings.Precision = precisionDefault
	}
	if !(settings.Max > 0) {
		settings.Max = RateMax
	}
	settings.Max = clamp(settings.Max, rateMin, RateMax)
	if settings.Start > 0 {
		settings.Start = clamp(settings.Start, rateMin, settings.Max)
	}
	return &Search{settings: settings}
}

// Limits of a search. At most ProbesMax probes run, none is longer than DurationMax without its warm-up, and no rate is above
// RateMax per second.
const (
	ProbesMax        = 80
	DurationMax      = 10 * time.Minute
	RateMax          = 1e9
	rateMin          = 0.001
	precisionDefault = 0.05
	invalidMax       = 10 // open-loop probes in a row that are not VALID, without a deadline
	invalidTimed     = 20 // the same with a deadline
	roundsMax        = 6  // contradictions
)

// Next returns the next probe, false if the search has ended. elapsed is the time since the start of the search. Without a call
// of Observe in between, it returns the same probe again unless the deadline is too close.
func (s *Search) Next(elapsed time.Duration) (Probe, bool) {
	if s.stopped != "" {
		return Probe{}, false
	}
	left := time.Duration(math.MaxInt64)
	if s.settings.Deadline > 0 {
		left = s.settings.Deadline - elapsed
	}
	p, stop := s.plan(left)
	if stop == "" && p.cost() > left {
		s.unfit, stop = p.cost(), StoppedDeadline
	}
	if stop != "" {
		s.stopped = stop
		return Probe{}, false
	}
	return p, true
}

// Stop ends the search for that reason, unless it has ended.
func (s *Search) Stop(reason string) {
	if s.stopped == "" {
		s.stopped, s.unfit = reason, 0
	}
}

// plan returns the next probe, or why the search ends.
func (s *Search) plan(left time.Duration) (p Probe, stop string) {
	if len(s.path) >= ProbesMax {
		return Probe{}, StoppedProbes
	}
	if p, ok := s.planClosed(left); ok {
		return p, ""
	}
	m, most := s.proof(), invalidMax
	if s.settings.Deadline > 0 { // what disturbs a host may pass before it
		most = invalidTimed
	}
	switch {
	case s.invalidRow(m) >= most:
		return Probe{}, StoppedInvalid
	case s.falls+s.rises > roundsMax:
		return Probe{}, StoppedUnstable
	}
	if p, ok := s.planAgain(m, left); ok {
		return p, ""
	}
	if m.feasible == nil || m.top() == 0 {
		return s.planBracket(m, left)
	}
	return s.planEdge(m, left)
}

// Observe takes the result of the probe that Next returned.
func (s *Search) Observe(p Probe, o Observation) {
	o.Margins = slices.Clone(o.Margins)
	s.path = append(s.path, Visit{p, o})
	if o.Down {
		s.Stop(StoppedTargetDown)
	}
	if p.Rate == 0 || o.Validity != result.Valid || o.Down {
		return
	}
	s.judgeContradiction(p)
}

// invalidRow is the number of open-loop probes that were not VALID since the last that was. Those that only show how far the
// generator reaches do not count.
func (s *Search) invalidRow(m *proof) int {
	n := 0
	for _, v := range slices.Backward(s.path) {
		if v.Rate == 0 || v.Observation.Validity == result.Valid {
			break
		}
		if m.feasible == nil || v.Observation.obstacle() != result.GeneratorLimited {
			n++
		}
	}
	return n
}
