package diagnose

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// A Document is a diagnosis with what was compared.
type Document struct {
	Format   string    `json:"format"` // "spillway-diagnose"
	Target   string    `json:"target,omitempty"`
	Passing  string    `json:"passing"` // names of steps, or times of intervals; "" if none passed
	Failing  string    `json:"failing"`
	Note     string    `json:"note,omitempty"` // what limits the comparison, as a sentence
	Verdicts []Verdict `json:"verdicts"`
}

// Options choose the steps of a file.
type Options struct {
	File    string `arg:"" help:"Result file of load, peak or watch."`
	Passing string `filled:"" placeholder:"STEP" help:"Step that held: its name (800/s) or its number from 0. Default: the heaviest VALID one below the failing one."`
	Failing string `filled:"" placeholder:"STEP" help:"Step that did not hold. Default: the lightest that missed the SLO."`
	JSON    bool   `name:"json" help:"Print one JSON document."`
}

// WriteFile diagnoses a result file and writes the document.
func WriteFile(o Options, w io.Writer) error {
	run, err := result.ReadFile(o.File)
	if err != nil {
		return err
	}
	var document *Document
	if err = run.Header.CheckWhole(); err == nil {
		document, err = o.diagnose(run)
	}
	if err != nil {
		return exit.UsageError(fmt.Errorf("diagnose %s: %w", o.File, err))
	}
	if o.JSON {
		return sheet.WriteJSON(w, document)
	}
	return document.WriteText(w)
}

func (o *Options) diagnose(run *result.Run) (*Document, error) {
	d := &Document{Format: "spillway-diagnose", Target: run.Header.Target}
	if len(run.Steps) == 0 {
		if o.Passing != "" || o.Failing != "" {
			return nil, errors.New("the file has no load steps; leave --passing and --failing out")
		}
		verdicts, quietest, busiest, ok := watched(run)
		if !ok {
			return nil, errors.New("the file has no load steps, and too few samples to compare two times; watch for at least 10s")
		}
		d.Passing, d.Failing, d.Verdicts = quietest.span(), busiest.span(), verdicts
		d.Note = "Nothing was loaded: the busiest interval is compared with the quietest, and the verdict is what the service is closest to."
		return d, nil
	}
	passing, failing := Steps(run)
	if o.Failing != "" {
		i, err := stepNamed(run, o.Failing)
		if err != nil {
			return nil, fmt.Errorf("--failing %s: %w", o.Failing, err)
		}
		failing, passing = i, Below(run, i)
	}
	if failing < 0 {
		order := openOf(run, byLoad(run))
		failing = order[len(order)-1]
		passing = Below(run, failing)
		d.Note = "No step failed: the heaviest is compared with the one below it, and the verdict is what the service is closest to."
	}
	if o.Passing != "" {
		i, err := stepNamed(run, o.Passing)
		if err != nil {
			return nil, fmt.Errorf("--passing %s: %w", o.Passing, err)
		}
		passing = i
	}
	if passing < 0 && d.Note == "" {
		d.Note = "No VALID step with a lower load passed, so nothing shows what a request takes without a queue."
		if i := lightest(run); i >= 0 && i != failing {
			passing = i
			d.Note = fmt.Sprintf("No VALID step with a lower load passed. The figures for comparison are those of %s.", run.Steps[i].Title())
		}
	}
	if passing >= 0 {
		d.Passing = run.Steps[passing].Title()
		if o.Passing != "" && failed(&run.Steps[passing]) {
			d.note("%s, which --passing names, failed itself.", d.Passing)
		}
	}
	d.noteFailing(newStep(run, run.Series(), failing), o.Failing != "")
	d.Failing, d.Verdicts = run.Steps[failing].Title(), Diagnose(run, passing, failing)
	return d, nil
}

// note adds a sentence to the note.
func (d *Document) note(format string, arguments ...any) {
	if d.Note != "" {
		d.Note += " "
	}
	d.Note += fmt.Sprintf(format, arguments...)
}

// NoteOf says what limits what a failing step shows, "" for nothing.
func NoteOf(run *result.Run, failing int) string {
	var d Document
	d.noteFailing(newStep(run, run.Series(), failing), false)
	return d.Note
}

// noteFailing says what limits what the failing step shows.
func (d *Document) noteFailing(s *step, chosen bool) {
	if chosen && !failed(s.load) && valid(s.load) {
		d.note("%s, which --failing names, did not fail: the verdict is what the service is closest to.", s.load.Title())
	}
	switch t := &s.load.Total; {
	case t.Validity == result.Unjudged:
		d.note("%s was %s: read the verdicts with care.", s.load.Title(), reason(t))
	case t.Validity != result.Valid && s.measured():
		d.note("%s is not VALID but %s (%s): read the verdicts with care.", s.load.Title(), t.Validity, reason(t))
	}
}

// stepNamed finds a step by its name or its number.
func stepNamed(run *result.Run, text string) (int, error) {
	for i := range run.Steps {
		if s := &run.Steps[i]; text == s.Name || text == s.LevelName() || text == fmt.Sprint(i) {
			return i, nil
		}
	}
	var names []string
	for i := range run.Steps {
		names = append(names, fmt.Sprintf("%d (%s)", i, run.Steps[i].Title()))
	}
	return 0, fmt.Errorf("no such step; the steps are %s", strings.Join(names, ", "))
}

// shownMax is how many verdicts the text has in full.
const shownMax = 3

// WriteText writes the first verdicts with their evidence.
func (d *Document) WriteText(w io.Writer) error {
	s := sheet.Sheet{Verdict: d.Note, Sections: d.Sections(shownMax)}
	return s.WriteText(w)
}

// Sections are the first verdicts with their evidence.
func (d *Document) Sections(most int) []sheet.Section {
	var sections []sheet.Section
	for i := range d.Verdicts[:min(most, len(d.Verdicts))] {
		v := &d.Verdicts[i]
		sections = append(sections, sheet.Section{
			Title: fmt.Sprintf("%d. %s%s", i+1, v.Name, v.Confidence()), Text: []string{v.Sentence, "Try: " + v.Advice},
			Table: d.evidence(v),
		})
	}
	return sections
}

// evidence has the figures of a verdict in both steps. It is nil without figures.
func (d *Document) evidence(v *Verdict) *sheet.Table {
	t := &sheet.Table{Heads: []string{"figure", "passing: " + cmp.Or(d.Passing, "none"), "failing: " + d.Failing}, Left: []int{0}}
	for _, f := range v.Evidence {
		if f.Failing != nil {
			t.Add("", f.Name, f.text(f.Passing), f.text(f.Failing))
		}
	}
	if len(t.Rows) == 0 {
		return nil
	}
	return t
}

// Confidence says how far the evidence goes, in words.
func (v *Verdict) Confidence() string {
	switch {
	case v.Name == Unknown:
		return ""
	case v.Score >= 0.8:
		return " (strong evidence)"
	case v.Score >= supported:
		return " (some evidence)"
	}
	return " (weak evidence)"
}

// text writes a value of the figure with its unit, "-" if it is not known.
func (f *Figure) text(v *float64) string {
	if v == nil {
		return "-"
	}
	return sheet.Text(*v, f.Unit)
}
