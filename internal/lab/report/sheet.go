package report

import (
	"bytes"
	"io"
	"slices"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// verdictsShown is how many verdicts of a search a page has.
const verdictsShown = 3

// sheet is the run for people. A page also has more verdicts, what a single step used as a table, and the costs of the load generator. Only
// the text leaves out where it was measured, because it is read there.
func (r *run) sheet(format Format) *sheet.Sheet {
	s := r.head()
	verdicts, usedMin := 1, 2
	if format == HTML {
		verdicts, usedMin = verdictsShown, 1
	}
	if r.search != nil {
		s.Facts = r.search.Facts()
		if found := r.search.Diagnosis(verdicts); len(found) > 0 {
			s.Sections = []sheet.Section{{Title: "What stops the service"}}
			for _, one := range found {
				one.Nested = true
				s.Sections = append(s.Sections, one)
			}
		}
	}
	if len(r.steps) > 0 {
		s.Sections = append(s.Sections, sheet.Section{
			Title: "Steps", Table: stepTable(r.columns(), r.steps), Lines: r.remarks(), Note: r.tableNote(),
		})
		if parts := r.labels(); len(parts) > 0 {
			s.Sections = append(s.Sections, sheet.Section{Title: "Named requests", Table: stepTable(labelColumns(), parts)})
		}
	}
	s.Sections = append(s.Sections, r.usageSections(usedMin)...)
	if format == HTML && len(r.steps) > 0 {
		s.Sections = append(s.Sections, sheet.Section{
			Title: "Generator and connections", Table: stepTable(generatorColumns(), r.steps), Note: generatorNote,
		})
	}
	if format == Text {
		s.Findings = r.Header.Notes
	} else {
		s.Sections = append(s.Sections, sheet.Section{Title: "Where it was measured", Facts: r.manifest()})
	}
	return s
}

// head is what a sheet begins with.
func (r *run) head() *sheet.Sheet {
	h := r.headline()
	return &sheet.Sheet{Title: r.label, Verdict: h.Text, Caveat: h.Caveat}
}

// remarks are those of all steps.
func (r *run) remarks() []string {
	var lines []string
	for _, s := range r.steps {
		for _, line := range s.remarks() {
			lines = append(lines, s.Load()+": "+line)
		}
	}
	return lines
}

// writeSummary writes the verdict, the figures and the reasons of each run as short Markdown, for the summary of a CI job.
func writeSummary(w io.Writer, runs []*run) error {
	var out bytes.Buffer
	for i, r := range runs {
		s := r.head()
		if r.search != nil {
			s.Facts, s.Sections = r.search.Facts(), r.search.Diagnosis(1)
			for k := range s.Sections {
				s.Sections[k].Table = nil
			}
		}
		if len(r.steps) > 0 {
			s.Sections = append(s.Sections, sheet.Section{Table: stepTable(r.summaryColumns(), r.steps), Lines: r.remarks()})
		}
		if i > 0 {
			out.WriteString("\n")
		}
		if err := s.WriteMarkdown(&out); err != nil {
			return err
		}
	}
	return sheet.Emit(w, &out)
}

func (r *run) summaryColumns() []column {
	cols := []column{
		{name: "load", value: (*step).Load},
		{name: "requests", value: func(s *step) string { return sheet.Integer(s.Total.Requests()) }},
		answeredColumn(),
		responseColumn("p50", figureP50),
		responseColumn("p99", figureP99),
		{name: "errors", value: func(s *step) string { return sheet.Share(s.Total.ErrorShare()) }},
	}
	if slices.ContainsFunc(r.steps, func(s *step) bool { return len(s.Total.SLO) > 0 }) {
		cols = append(cols, column{name: "SLO", value: (*step).sloVerdict})
	}
	return append(cols, column{name: "validity", value: (*step).validity, left: true})
}

// sloVerdict is the verdict on the SLO, which only a valid step supports.
func (s *step) sloVerdict() string {
	switch {
	case len(s.Total.SLO) == 0 || s.Total.Validity == result.Unjudged:
		return "-"
	case !s.valid():
		return "not judged"
	case s.sloMet():
		return "met"
	}
	return "missed"
}
