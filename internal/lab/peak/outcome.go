package peak

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"spillway/internal/exit"
	"spillway/internal/lab/diagnose"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// Outcome is a search that has ended.
type Outcome struct {
	Answer Answer
	Run    *result.Run // step i is Answer.Path[i]; one more step was interrupted
	Flow   bool        // rates count iterations

	Failing  int                // index of the step that Verdicts explain; -1: none failed
	Passing  int                // index of the step that it was compared with; -1: none passed
	Verdicts []diagnose.Verdict // the likeliest first; empty if no step failed

	Ceilings []Ceiling // at the highest rate that met the SLO, lowest first; set by plan.Beside

	Knobs   []KnobResult // every value that was to be tried
	Problem error        // what went wrong with the knobs, or what is not restored; nil: nothing
	Bounds  []Bound      // after each probe of Answer.Path; only of OutcomeOf
}

// A Ceiling is a rate at which a resource is used up, by what a request needs of it.
type Ceiling struct {
	RateHz   float64 `json:"rate_hz"`
	Sentence string  `json:"sentence"`
}

// diagnose names what stopped the target at the lowest rate that missed the SLO, or else at one above the highest that met it whose
// probe was not VALID.
func (o *Outcome) diagnose() {
	failing, passing := o.stepAt(o.Answer.Infeasible, false), o.stepAt(o.Answer.Feasible, true)
	if failing < 0 && passing >= 0 {
		failing = o.invalidStep()
	}
	if o.Failing, o.Passing = failing, passing; failing >= 0 {
		o.Verdicts = diagnose.Diagnose(o.Run, passing, failing)
	}
}

// invalidStep is the last step above the highest rate that met the SLO which was not VALID, failed, and says something about the target.
// Failing that, it is the last that the generator could not make, or that was disturbed; -1 if there is none.
func (o *Outcome) invalidStep() int {
	invalid := -1
	for i, v := range slices.Backward(o.Answer.Path) {
		switch kind := v.Observation.Validity; {
		case v.Rate <= o.Answer.Feasible, v.Observation.Down, kind == result.Valid:
		case diagnose.Failed(o.Run, i):
			return i
		case invalid < 0 && (kind == result.GeneratorLimited || kind == result.HostContended):
			invalid = i
		}
	}
	return invalid
}

// Diagnosis is the first verdicts with their evidence. It is empty if no step failed.
func (o *Outcome) Diagnosis(verdicts int) []sheet.Section {
	if len(o.Verdicts) == 0 {
		return nil
	}
	d := diagnose.Document{Failing: o.Run.Steps[o.Failing].Name, Verdicts: o.Verdicts}
	if o.Passing >= 0 {
		d.Passing = o.Run.Steps[o.Passing].Name
	}
	sections := d.Sections(verdicts)
	if _, missed := o.Met(o.Failing); !missed {
		if note := diagnose.NoteOf(o.Run, o.Failing); note != "" {
			sections[0].Text = append(sections[0].Text, note)
		}
	}
	return sections
}

// Purpose is that of a step.
func (o *Outcome) Purpose(step int) Purpose { return purposeOf(&o.Run.Steps[step].Step) }

// Told says in a few words what a step told the search: "met", "missed", a validity, "-" of a closed loop.
func (o *Outcome) Told(step int) string {
	if step >= len(o.Answer.Path) {
		return "not counted"
	}
	switch v := &o.Answer.Path[step]; {
	case v.Observation.Validity != result.Valid:
		return string(v.Observation.Validity)
	case v.Observation.Down:
		return "the target was down"
	case v.Rate == 0:
		return "-"
	case v.Observation.passes():
		return "met"
	case v.Observation.Overloaded:
		return "missed, the backlog grew"
	}
	return "missed"
}

// Met reports whether a VALID step met the SLO at a rate, and whether one missed it. Both are false if it proves nothing.
func (o *Outcome) Met(step int) (met, missed bool) {
	if step >= len(o.Answer.Path) {
		return false, false
	}
	v := &o.Answer.Path[step]
	return v.shows(true), v.shows(false)
}

// Judge returns Problem if there is one. Otherwise it returns nil if a rate is proved to meet the SLO, an error with the code exit.Failed
// if only rates that miss it are proved,
// and one with exit.NothingValid if nothing is.
func (o *Outcome) Judge() error {
	switch a := &o.Answer; {
	case o.Problem != nil:
		return o.Problem
	case a.Feasible > 0:
		return nil
	case a.Infeasible > 0:
		missed := ""
		if i := o.stepAt(a.Infeasible, false); i >= 0 {
			missed = " (" + missedText(&o.Run.Steps[i].Total) + ")"
		}
		return exit.FailedError(fmt.Errorf("no rate that was tried met the SLO: the lowest was %s%s", sheet.Rate(a.Infeasible), missed))
	}
	reason := "no probe at a rate was run to its end"
	for i, v := range o.Answer.Path {
		if v.Observation.Down {
			reason = "the target was down"
		} else if v.Observation.Validity != result.Valid {
			reason = fmt.Sprintf("%s is %s", o.Run.Steps[i].Name, v.Observation.Validity)
			if v.Observation.Reason != "" {
				reason += " (" + v.Observation.Reason + ")"
			}
		}
	}
	return exit.NothingValidError(errors.New("nothing valid was measured: " + reason))
}

// stepAt returns the last VALID step at a rate that passed, or that did not; -1 if there is none.
func (o *Outcome) stepAt(rate float64, passed bool) int {
	for i := len(o.Answer.Path) - 1; i >= 0; i-- {
		if v := &o.Answer.Path[i]; v.Rate == rate && v.shows(passed) {
			return i
		}
	}
	return -1
}

// outcomeText describes what the search learned from a probe: "met, p99 12.3 ms, errors 0 %", or the rate of a closed loop instead of a
// verdict.
func outcomeText(t *result.Total, o *Observation, closed bool) string {
	if o.Validity != result.Valid {
		text := string(o.Validity)
		if o.Reason != "" {
			text += ": " + o.Reason
		}
		return text
	}
	told := "missed"
	switch {
	case closed:
		told = sheet.Rate(answered(t))
	case o.passes():
		told = "met"
	}
	return told + ", " + criteriaText(t)
}

// missedText lists the criteria that a step missed, with their values.
func missedText(t *result.Total) string {
	var parts []string
	for _, c := range t.Missed() {
		parts = append(parts, c.Observation())
	}
	if len(parts) == 0 && t.Overloaded {
		return "the backlog grew"
	}
	return strings.Join(parts, ", ")
}

// loadText writes a rate of requests, or of the iterations of a flow: 1,234 iterations/s.
func loadText(rate float64, flow bool) string {
	if flow {
		return sheet.Number(rate) + " iterations/s"
	}
	return sheet.Rate(rate)
}

// boundsText says what is proved.
func boundsText(a Answer) string {
	switch {
	case a.Feasible > 0 && a.Infeasible > 0:
		return fmt.Sprintf("met at %s, missed at %s", sheet.Rate(a.Feasible), sheet.Rate(a.Infeasible))
	case a.Feasible > 0:
		return fmt.Sprintf("met at %s", sheet.Rate(a.Feasible))
	case a.Infeasible > 0:
		return fmt.Sprintf("missed at %s", sheet.Rate(a.Infeasible))
	}
	return ""
}
