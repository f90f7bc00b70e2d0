package report

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"spillway/internal/lab/diagnose"
	"spillway/internal/lab/peak"
	"spillway/internal/lab/plan"
	"spillway/internal/lab/result"
)

// searched reads the run as a search for a peak, if it is one.
func (r *run) searched() error {
	search, err := peak.OutcomeOf(r.Run)
	if err != nil || search == nil {
		return err
	}
	if r.search = search; search != nil {
		plan.Beside(search)
	}
	for k := range r.steps {
		s := &r.steps[k]
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

// searchFacts are the parts of the answer, and the likeliest verdict.
func (r *run) searchFacts() []fact {
	var facts []fact
	for _, f := range r.search.Facts() {
		facts = append(facts, fact{f[0], f[1]})
	}
	if d, ok := r.search.Diagnosis(1); ok {
		v := &d.Verdicts[0]
		facts = append(facts, fact{"bottleneck", v.Name + v.Confidence() + ". " + v.Sentence + " Try: " + v.Advice + noted(&d)})
	}
	return facts
}

// verdictsShown is how many verdicts a page has in full.
const verdictsShown = 3

// A pageVerdict is an answer to what stops the service, with its evidence.
type pageVerdict struct {
	Title, Sentence, Advice string
	Evidence                *pageTable
}

// pageVerdicts are the likeliest verdicts of a search.
func (r *run) pageVerdicts() []pageVerdict {
	if r.search == nil {
		return nil
	}
	d, ok := r.search.Diagnosis(verdictsShown)
	if !ok {
		return nil
	}
	var all []pageVerdict
	for i := range d.Verdicts {
		v := &d.Verdicts[i]
		all = append(all, pageVerdict{
			Title: fmt.Sprintf("%d. %s%s", i+1, v.Name, v.Confidence()), Sentence: v.Sentence, Advice: v.Advice +
				noted(&d), Evidence: newPageTable(r.evidenceRows(&d, v), ""),
		})
	}
	return all
}

// noted is the note of a diagnosis as a further sentence.
func noted(d *diagnose.Document) string {
	if d.Note == "" {
		return ""
	}
	return " " + d.Note
}

// failing says what the failing step of the diagnosis proves: "missed", or that it is not VALID.
func (r *run) failing() string {
	if _, missed := r.search.Met(r.search.Failing); missed {
		return "missed"
	}
	return "not VALID"
}

// evidenceRows has the figures of a verdict at the passing and at the failing step, heads first. It is nil without figures.
func (r *run) evidenceRows(d *diagnose.Document, v *diagnose.Verdict) [][]string {
	passing := d.Passing
	if passing == "" {
		passing = "none passed"
	}
	rows := [][]string{{"figure", "met: " + passing, r.failing() + ": " + d.Failing}}
	for _, f := range v.Evidence {
		if f.Failing != nil {
			rows = append(rows, []string{f.Name, f.Text(f.Passing), f.Text(f.Failing)})
		}
	}
	if len(rows) == 1 {
		return nil
	}
	return rows
}

// writeTextSearch writes the answer of a search and the likeliest verdict with its evidence.
func writeTextSearch(out *bytes.Buffer, r *run) error {
	if r.search == nil {
		return nil
	}
	fmt.Fprintf(out, "%s\n\n", printable(r.Header.Target+" within "+r.Header.SLO))
	facts := r.search.Facts()
	width := 0
	for _, f := range facts {
		width = max(width, utf8.RuneCountInString(f[0]))
	}
	for _, f := range facts {
		fmt.Fprintf(out, "  %-*s  %s\n", width, f[0], printable(f[1]))
	}
	d, ok := r.search.Diagnosis(1)
	if !ok {
		return nil
	}
	var text bytes.Buffer
	if err := d.WriteText(&text); err != nil {
		return err
	}
	out.WriteString("\n")
	for line := range strings.Lines(text.String()) {
		fmt.Fprintf(out, "%s\n", strings.TrimRight(printable(line), " "))
	}
	return nil
}

// writeMarkdownSearch writes the same as Markdown.
func writeMarkdownSearch(out *bytes.Buffer, r *run, evidence bool) {
	if r.search == nil {
		return
	}
	for _, f := range r.searchFacts() {
		fmt.Fprintf(out, "- %s: %s\n", f.Name, escapeMarkdown(f.Value))
	}
	out.WriteString("\n")
	if d, ok := r.search.Diagnosis(1); ok && evidence {
		if rows := r.evidenceRows(&d, &d.Verdicts[0]); rows != nil {
			markdownTable(out, rows, 0)
			out.WriteString("\n")
		}
	}
}

// searchStep is a step of a search as in the charts.
type searchStep struct {
	*step
	met, missed bool // false both: it proves nothing
}

// openSteps are the probes at a rate, in their order.
func (r *run) openSteps() []searchStep {
	var all []searchStep
	for k := range r.steps {
		if s := &r.steps[k]; s.Loop == result.LoopOpen && s.OfferedHz > 0 {
			met, missed := r.search.Met(k)
			all = append(all, searchStep{s, met, missed})
		}
	}
	return all
}
