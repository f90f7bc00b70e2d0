package report

import (
	"fmt"
	"slices"
	"strings"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/sheet"
)

// A StudySelection selects a part of a study for a table in a document.
type StudySelection struct {
	// View is "columns" (default), "peak", "by-level", "published" or "comparisons".
	View string
	// Columns are metrics with levels, "peak_hz" or "cpu_percent.db@rate-300", for the view "columns". The view
	// "by-level" takes one metric without a level.
	Columns []string
	// Variants are the rows. By default these are all variants except A/A controls.
	Variants []string
	// Published adds published figures in the view "columns".
	Published bool
	// Names labels the rows of the view "columns" with the names of the variants instead of their titles.
	Names bool
	// NoLevel leaves the levels out of the heads of the view "columns", if the text around the table names the level.
	NoLevel bool
	// Words translates heads and words of the table. Missing words stay as they are.
	Words map[string]string
}

// StudyTable writes the selection as a Markdown table. A metric, level or variant that the study lacks is an error.
func StudyTable(s *experiment.Study, selection StudySelection) (string, error) {
	t, err := selected(s, &selection)
	if err != nil {
		return "", err
	}
	if len(selection.Variants) > 0 && selection.View != "columns" && selection.View != "" {
		t.Rows = slices.DeleteFunc(t.Rows, func(row []string) bool { return !slices.Contains(selection.Variants, row[0]) })
	}
	for _, row := range append(t.Rows, t.Heads) {
		for i := range row {
			row[i] = selection.word(row[i])
		}
	}
	return t.Markdown(), nil
}

func selected(s *experiment.Study, selection *StudySelection) (*sheet.Table, error) {
	for _, name := range selection.Variants {
		if s.Variant(name) == nil {
			return nil, fmt.Errorf("the study has no variant %q", name)
		}
	}
	switch selection.View {
	case "", "columns":
		return columnsSection(s, selection)
	case "peak":
		if s.Metric(experiment.MetricPeak) == nil {
			return nil, fmt.Errorf("the study has no peak")
		}
		return peakSection(s).Table, nil
	case "by-level":
		if len(selection.Columns) != 1 {
			return nil, fmt.Errorf("the view by-level takes one metric, not %d", len(selection.Columns))
		}
		metric := s.Metric(selection.Columns[0])
		if metric == nil {
			return nil, fmt.Errorf("the study has no metric %q", selection.Columns[0])
		}
		return byLevelSection(s, metric).Table, nil
	case "published":
		return publishedSection(s).Table, nil
	case "comparisons":
		return comparisonSection(s, keyComparisons(s), "").Table, nil
	}
	return nil, fmt.Errorf("unknown view %q: columns, peak, by-level, published or comparisons", selection.View)
}

func columnsSection(s *experiment.Study, selection *StudySelection) (*sheet.Table, error) {
	if len(selection.Columns) == 0 {
		return nil, fmt.Errorf("the view columns needs columns, as rate_hz@%s", strings.Join(s.Levels(), " or @"))
	}
	heads := []string{"variant"}
	for _, column := range selection.Columns {
		name, level, _ := strings.Cut(column, "@")
		metric := s.Metric(name)
		if metric == nil {
			return nil, fmt.Errorf("the study has no metric %q", name)
		}
		if !slices.Contains(s.Levels(), level) {
			return nil, fmt.Errorf("%s: the study has no level %q", column, level)
		}
		head := selection.word(metricTitle(s, name, level))
		if !selection.NoLevel {
			head += atLevel(level)
		}
		heads = append(heads, head)
	}
	t := &sheet.Table{Heads: heads, Left: []int{0}}
	for _, v := range s.Manifest.Variants {
		if len(selection.Variants) == 0 && v.Again || len(selection.Variants) > 0 && !slices.Contains(selection.Variants, v.Name) {
			continue
		}
		t.Add("", columnsRow(s, &v, selection)...)
	}
	return t, nil
}

func atLevel(level string) string {
	if level == "" {
		return ""
	}
	return ", " + level
}

func (s *StudySelection) word(text string) string {
	if word, ok := s.Words[text]; ok {
		return word
	}
	return text
}

func columnsRow(s *experiment.Study, v *experiment.VariantFacts, selection *StudySelection) []string {
	row := []string{v.Name}
	if v.Title != "" && !selection.Names {
		row[0] = v.Title
	}
	for _, column := range selection.Columns {
		name, level, _ := strings.Cut(column, "@")
		unit := s.Metric(name).Unit
		text := "-"
		if f := s.Figure(name, v.Name, level); f != nil && !f.Unproved {
			text = studyRange(f, unit) + failMark(s.Cell(v.Name, level), name)
		}
		if theirs := publishedValue(s, name, v.Name, level); selection.Published && theirs > 0 {
			text += "; " + selection.word("published") + " " + sheet.Text(theirs, unit)
		}
		row = append(row, text)
	}
	return row
}
