package peak

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"spillway/internal/lab/diagnose"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// Document is the JSON of an Outcome. Fields without a value are null.
type Document struct {
	Format  string `json:"format"`  // spillway-peak
	Version string `json:"version"` // gets a new first number if a field changes its meaning or is removed

	Target string `json:"target"`
	SLO    string `json:"slo"`
	Label  string `json:"label,omitempty"`
	Unit   string `json:"unit"` // of rates: requests or iterations per second

	DocumentAnswer
	Binding   *string  `json:"binding_slo"`
	Boundary  *string  `json:"boundary"` // smooth or cliff
	Confirmed bool     `json:"confirmed"`
	Warnings  []string `json:"warnings"`

	Bottleneck *diagnose.Verdict  `json:"bottleneck"` // what stops the target, the likeliest; null if no probe above FeasibleMax says
	Others     []diagnose.Verdict `json:"other_verdicts"`
	Ceilings   []Ceiling          `json:"ceilings"` // rates at which resources are used up, lowest first
	Knobs      []DocumentKnob     `json:"knobs"`
	File       string             `json:"file,omitempty"` // result file
}

// DocumentAnswer is what a search proved and cost, with the values in force or with another value of a knob.
type DocumentAnswer struct {
	FeasibleMax   *float64 `json:"feasible_max_hz"`   // highest rate that met the SLO in VALID probes
	InfeasibleMin *float64 `json:"infeasible_min_hz"` // lowest rate above it that missed it in VALID probes
	IntervalLow   *float64 `json:"interval_low_hz"`   // of the peak, at 95 %
	IntervalHigh  *float64 `json:"interval_high_hz"`

	Stopped  string          `json:"stopped,omitempty"` // "": there was no search
	Seconds  float64         `json:"seconds"`
	Requests int64           `json:"requests"`
	Probes   []DocumentProbe `json:"probes"`
}

// DocumentProbe is one probe of a Document.
type DocumentProbe struct {
	Step        int             `json:"step"` // in the result file
	Purpose     Purpose         `json:"purpose"`
	Rate        float64         `json:"rate_hz"`     // 0: a closed loop
	Connections int             `json:"connections"` // of a closed loop
	Validity    result.Validity `json:"validity"`
	Reason      string          `json:"reason,omitempty"`
	Met         bool            `json:"met"` // without VALID, it proves nothing
	Overloaded  bool            `json:"overloaded,omitempty"`
	Answered    float64         `json:"answered_hz"` // good answers
	Margins     []Margin        `json:"margins"`
	Seconds     float64         `json:"seconds"` // with the warm-up
	Requests    int64           `json:"requests"`
}

// Document returns the JSON document. file is the result file, "" for none.
func (o *Outcome) Document(file string) *Document {
	a := &o.Answer
	d := &Document{
		Format: "spillway-peak", Version: "1.0", Target: o.Run.Header.Target, SLO: o.Run.Header.SLO, Label: o.Run.Header.Label, Unit: o.unit(),
		DocumentAnswer: a.document(), Binding: known(a.Binding), Boundary: known(a.Boundary), Confirmed: a.Confirmed,
		Warnings: append([]string{}, a.Warnings...), Others: []diagnose.Verdict{}, Ceilings: append([]Ceiling{}, o.Ceilings...),
		Knobs: []DocumentKnob{}, File: file,
	}
	if len(o.Verdicts) > 0 {
		d.Bottleneck, d.Others = &o.Verdicts[0], o.Verdicts[1:]
	}
	for i := range o.Knobs {
		d.Knobs = append(d.Knobs, o.Knobs[i].document())
	}
	return d
}

func (a *Answer) document() DocumentAnswer {
	d := DocumentAnswer{
		FeasibleMax: known(a.Feasible), InfeasibleMin: known(a.Infeasible), IntervalLow: known(a.Low), IntervalHigh: known(a.High),
		Stopped: a.Stopped, Seconds: a.Took.Seconds(), Requests: a.Requests, Probes: []DocumentProbe{},
	}
	for i := range a.Path {
		v := &a.Path[i]
		d.Probes = append(d.Probes, DocumentProbe{
			Step: i, Purpose: v.Purpose, Rate: v.Rate, Connections: v.Connections, Validity: v.Observation.Validity, Reason: v.Observation.Reason,
			Met: v.Observation.passes(), Overloaded: v.Observation.Overloaded, Answered: v.Observation.Rate, Margins: v.Observation.Margins,
			Seconds: v.Observation.Took.Seconds(), Requests: v.Observation.Requests,
		})
	}
	return d
}

// known returns nil for the zero value.
func known[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func (o *Outcome) unit() string {
	if o.Flow {
		return "iterations"
	}
	return "requests"
}

// WriteJSON writes the Document.
func (o *Outcome) WriteJSON(w io.Writer, file string) error {
	return sheet.WriteJSON(w, o.Document(file))
}

// WriteText writes the answer and the table of probes.
func (o *Outcome) WriteText(w io.Writer) error {
	s := sheet.Sheet{
		Verdict: o.Headline(), Facts: o.Facts(), Sections: o.Diagnosis(1),
	}
	for _, warning := range o.Answer.Warnings {
		s.Facts = append(s.Facts, sheet.Fact{Name: "warning", Value: warning})
	}
	if len(o.Knobs) > 0 {
		s.Sections = append(s.Sections, sheet.Section{Title: "Knobs", Table: o.knobTable()})
	}
	s.Sections = append(s.Sections, sheet.Section{Title: "Probes", Table: o.probeTable()})
	return s.WriteText(w)
}

// Headline is the answer in one sentence.
func (o *Outcome) Headline() string {
	text := func(rate float64) string { return loadText(rate, o.Flow) }
	switch a := &o.Answer; {
	case a.Feasible > 0 && a.Infeasible > 0 && text(a.Feasible) == text(a.Infeasible): // too close for three digits
		return fmt.Sprintf("Peak: %.6g met the SLO, %.6g %s missed it.", a.Feasible, a.Infeasible, o.unit()+" per second")
	case a.Feasible > 0 && a.Infeasible > 0:
		return fmt.Sprintf("Peak: %s met the SLO, %s missed it.", text(a.Feasible), text(a.Infeasible))
	case a.Feasible > 0:
		return fmt.Sprintf("Peak: at least %s. No higher rate is proved to miss the SLO.", text(a.Feasible))
	case a.Infeasible > 0:
		return fmt.Sprintf("Peak: below %s. No rate that was tried met the SLO.", text(a.Infeasible))
	}
	return "Peak: unknown. Nothing valid was measured."
}

// Facts are the parts of the answer.
func (o *Outcome) Facts() []sheet.Fact {
	a := &o.Answer
	var facts []sheet.Fact
	add := func(name, value string) { facts = append(facts, sheet.Fact{Name: name, Value: value}) }
	add("target", o.Run.Header.Target+" within "+o.Run.Header.SLO)
	if i := o.stepAt(a.Feasible, true); i >= 0 {
		add("highest met", sheet.Rate(a.Feasible)+": "+criteriaText(&o.Run.Steps[i].Total))
	}
	if i := o.stepAt(a.Infeasible, false); i >= 0 {
		add("lowest missed", sheet.Rate(a.Infeasible)+": "+criteriaText(&o.Run.Steps[i].Total))
	}
	if a.Low > 0 || a.High > 0 {
		add("peak at 95 %", intervalText(a))
	}
	if a.Binding != "" && a.Infeasible > 0 {
		binding := a.Binding
		if a.Boundary == BoundaryCliff {
			binding += ", which jumps past its limit (a cliff)"
		}
		add("limited by", binding)
	}
	if len(o.Verdicts) > 0 {
		add("bottleneck", o.Verdicts[0].Name+o.Verdicts[0].Confidence())
	}
	for _, c := range o.Ceilings[:min(ceilingsShown, len(o.Ceilings))] {
		add("ceiling", c.Sentence)
	}
	add("stopped", o.stoppedText())
	add("cost", fmt.Sprintf("%s, %s in %s", sheet.Duration(a.Took.Seconds()),
		sheet.Plural(a.Requests, "request"), sheet.Plural(a.Probes, "probe")))
	return facts
}

// ceilingsShown is how many of the lowest ceilings the text has.
const ceilingsShown = 3

func criteriaText(t *result.Total) string {
	var parts []string
	for i := range t.SLO {
		parts = append(parts, t.SLO[i].Observation())
	}
	if t.Overloaded {
		parts = append(parts, "the backlog grew")
	}
	return strings.Join(parts, ", ")
}

// stoppedText says why the search ended and what is not proved.
func (o *Outcome) stoppedText() string {
	a := &o.Answer
	text := map[string]string{
		StoppedPrecision:   "the interval is as narrow as asked for",
		StoppedDeadline:    "no time was left for another probe; raise --max-time",
		StoppedInterrupted: "interrupted",
		StoppedMaximum:     "the highest rate of the search met the SLO; raise --max",
		StoppedGenerator:   "the generator could not make more load (GENERATOR_LIMITED)",
		StoppedNothingMet:  "no rate that was tried met the SLO",
		StoppedInvalid:     "the probes that would decide more were not VALID",
		StoppedUnstable:    "later probes contradicted earlier ones too often",
		StoppedUsedUp:      "the rows of the flow are used up",
		StoppedTargetDown:  "the target went down",
		StoppedUnderWay:    "the search is under way",
		StoppedCutOff:      "the file is incomplete",
		StoppedProbes:      fmt.Sprintf("%d probes, which is the limit", ProbesMax),
	}[a.Stopped]
	switch {
	case text == "":
		text = a.Stopped
	case a.Stopped == StoppedDeadline && len(a.Path) > 0 &&
		!slices.ContainsFunc(a.Path, func(v Visit) bool { return v.Observation.Validity == result.Valid }):
		text = "no time was left for another probe, and none was VALID"
	case a.Stopped == StoppedDeadline && a.Unfit > 0:
		text = fmt.Sprintf("no time was left for another probe, which needs %s; raise --max-time",
			sheet.Duration(max(a.Unfit.Round(time.Second), time.Second).Seconds()))
	}
	var missing []string
	if a.Feasible > 0 && a.Infeasible == 0 && a.Stopped != StoppedMaximum {
		missing = append(missing, "that a higher rate misses the SLO")
	}
	if a.Feasible > 0 && a.Infeasible > 0 && !a.Confirmed {
		missing = append(missing, "the confirmation at 0.95 and 1.05 of the peak")
	}
	if len(missing) > 0 {
		text += "; not proved: " + strings.Join(missing, ", ")
	}
	return text
}

// probeTable has a row per probe.
func (o *Outcome) probeTable() *sheet.Table {
	t := &sheet.Table{Heads: []string{"probe", "load", "answered"}}
	if len(o.Run.Steps) > 0 {
		for _, criterion := range o.Run.Steps[0].Total.SLO {
			t.Heads = append(t.Heads, criterion.Text)
		}
	}
	t.Left = []int{len(t.Heads)}
	t.Heads = append(t.Heads, "outcome")
	for i := range o.Run.Steps {
		s := &o.Run.Steps[i]
		purpose := "interrupted"
		if i < len(o.Answer.Path) {
			purpose = string(o.Answer.Path[i].Purpose)
		}
		cells := []string{purpose, s.Load(), sheet.Rate(answered(&s.Total))}
		for k := range s.Total.SLO {
			cells = append(cells, s.Total.SLO[k].Value())
		}
		t.Add("", append(cells, o.Told(i))...)
	}
	return t
}
