package report

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"spillway/internal/lab/experiment"
)

// StudyFormats returns the formats of WriteStudy.
func StudyFormats() []Format { return []Format{Text, Markdown, JSON, HTML} }

// WriteStudy writes the result of an experiment. JSON is the study's summary. The other formats show medians over the
// blocks with their range, and the study's verdict on each comparison.
func WriteStudy(w io.Writer, format Format, study *experiment.Study) error {
	var out bytes.Buffer
	switch format {
	case Text:
		writeStudyText(&out, study)
	case Markdown:
		writeStudyMarkdown(&out, study)
	case JSON:
		if err := study.WriteSummary(&out); err != nil {
			return err
		}
	case HTML:
		if err := writeStudyHTML(&out, study); err != nil {
			return err
		}
	default:
		return fmt.Errorf("a study can be written as text, markdown, json or html, not as %s", format)
	}
	return emit(w, &out)
}

// A studySection is a table with a note that explains it.
type studySection struct {
	title    string
	note     string
	rows     [][]string // heads first
	doubtful []bool     // per row without heads
	words    bool       // the last column is text
	folded   bool       // collapsed on the page
}

// levelsUnfolded is how many levels a page shows in full. With more levels, only key levels are.
const levelsUnfolded = 4

// studySections are the tables of a study in display order.
func studySections(s *experiment.Study) []studySection {
	var all []studySection
	if s.Cell(s.Manifest.Baseline, "") != nil {
		all = append(all, peakSection(s))
	}
	all = append(all, byLevelSections(s)...)
	if len(s.Published) > 0 {
		all = append(all, publishedSection(s))
	}
	all = append(all, comparisonSection(s, keyComparisons(s), "Against the baseline"))
	note, key := studyNote, keyLevels(s)
	for _, level := range s.Levels() {
		if level == "" {
			continue
		}
		sections := levelSections(s, level)
		for i := range sections {
			sections[i].folded = len(s.Manifest.Levels) > levelsUnfolded && !slices.Contains(key, level)
		}
		last := &sections[len(sections)-1]
		last.note, note = strings.TrimSpace(last.note+" "+note), "" // shown once
		all = append(all, sections...)
	}
	return append(all, differenceSection(s))
}

func writeStudyText(out *bytes.Buffer, s *experiment.Study) {
	head := newStudyHeadline(s)
	fmt.Fprintf(out, "%s\n", printable(studyTitle(s)))
	if s.Manifest.Question != "" {
		fmt.Fprintf(out, "%s\n", printable(s.Manifest.Question))
	}
	fmt.Fprintf(out, "\n%s\n", printable(head.Text))
	if head.Caveat != "" {
		fmt.Fprintf(out, "%s\n", printable(head.Caveat))
	}
	for _, line := range studyFindings(s) {
		fmt.Fprintf(out, "  %s\n", printable(line))
	}
	for _, section := range studySections(s) {
		fmt.Fprintf(out, "\n%s\n\n", printable(section.title))
		textTable(out, section.rows, 0)
		if section.note != "" {
			fmt.Fprintf(out, "\n%s\n", strings.ReplaceAll(section.note, ". ", ".\n"))
		}
	}
	if lines := studyProblems(s); len(lines) > 0 {
		out.WriteString("\nTo keep in mind\n\n")
		for _, line := range lines {
			fmt.Fprintf(out, "  %s\n", printable(line))
		}
	}
	out.WriteString("\n")
	for _, fact := range studyManifest(s) {
		fmt.Fprintf(out, "%s: %s\n", fact.Name, printable(fact.Value))
	}
}

func writeStudyMarkdown(out *bytes.Buffer, s *experiment.Study) {
	head := newStudyHeadline(s)
	fmt.Fprintf(out, "# %s\n\n", escapeMarkdown(studyTitle(s)))
	if s.Manifest.Question != "" {
		fmt.Fprintf(out, "%s\n\n", escapeMarkdown(s.Manifest.Question))
	}
	fmt.Fprintf(out, "**%s** %s\n\n", escapeMarkdown(head.Text), escapeMarkdown(head.Caveat))
	for _, line := range studyFindings(s) {
		fmt.Fprintf(out, "- %s\n", escapeMarkdown(line))
	}
	for _, section := range studySections(s) {
		fmt.Fprintf(out, "\n## %s\n\n", escapeMarkdown(section.title))
		markdownTable(out, section.rows, 0)
		if section.note != "" {
			fmt.Fprintf(out, "\n%s\n", escapeMarkdown(section.note))
		}
	}
	if lines := studyProblems(s); len(lines) > 0 {
		out.WriteString("\n## To keep in mind\n\n")
		for _, line := range lines {
			fmt.Fprintf(out, "- %s\n", escapeMarkdown(line))
		}
	}
	out.WriteString("\n## Where it was measured\n\n")
	for _, fact := range studyManifest(s) {
		fmt.Fprintf(out, "- %s: %s\n", fact.Name, escapeMarkdown(fact.Value))
	}
}
