package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"spillway/internal/exit"
	"spillway/internal/lab/experiment"
	"spillway/internal/lab/sheet"
)

// WriteStudy writes the result of an experiment as text, Markdown, JSON or HTML. JSON is the study's summary. The other formats show
// medians over the blocks with their range, and the study's verdict on each comparison.
func WriteStudy(w io.Writer, format Format, study *experiment.Study) error {
	switch format {
	case Text:
		return studySheet(study).WriteText(w)
	case Markdown:
		return studySheet(study).WriteMarkdown(w)
	case JSON:
		return study.WriteSummary(w)
	case HTML:
		return writeStudyHTML(w, study)
	}
	return exit.UsageError(fmt.Errorf("an experiment can be written as text, markdown, json or html, not as %s", format))
}

// levelsUnfolded is how many levels a page shows in full. With more levels, only key levels are.
const levelsUnfolded = 4

// studySections are the tables of a study in display order.
func studySections(s *experiment.Study) []sheet.Section {
	var all []sheet.Section
	if s.Cell(s.Manifest.Baseline, "") != nil {
		all = append(all, peakSection(s))
	}
	all = append(all, byLevelSections(s)...)
	all = append(all, comparisonSection(s, keyComparisons(s), "Against the baseline"))
	note, key := studyNote, keyLevels(s)
	for _, level := range s.Levels() {
		if level == "" {
			continue
		}
		sections := levelSections(s, level)
		for i := range sections {
			sections[i].Folded = len(s.Manifest.Levels) > levelsUnfolded && !slices.Contains(key, level)
		}
		last := &sections[len(sections)-1]
		last.Note, note = strings.TrimSpace(last.Note+" "+note), "" // shown once
		all = append(all, sections...)
	}
	return append(all, differenceSection(s))
}

// studySheet is the study for people.
func studySheet(s *experiment.Study) *sheet.Sheet {
	head := newStudyHeadline(s)
	all := &sheet.Sheet{Title: studyTitle(s), Verdict: head.Text, Caveat: head.Caveat, Findings: studyFindings(s)}
	if s.Manifest.Question != "" {
		all.Title += " · " + s.Manifest.Question
	}
	if lines := studyProblems(s); len(lines) > 0 {
		all.Sections = append(all.Sections, sheet.Section{Title: "To keep in mind", Lines: lines})
	}
	all.Sections = append(all.Sections, studySections(s)...)
	all.Sections = append(all.Sections, sheet.Section{Title: "Where it was measured", Facts: studyManifest(s)})
	return all
}
