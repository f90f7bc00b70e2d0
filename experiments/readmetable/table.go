package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/report"
	"spillway/internal/lab/sheet"
)

// A selection selects a part of a study for a table in a document.
type selection struct {
	comparisons bool              // the key comparisons instead of figures
	columns     []string          // metrics with their levels: "peak_hz", "cpu_percent.db@rate-300"
	variants    []string          // rows; default: all variants except A/A controls
	published   bool              // show what others published too
	names       bool              // rows have the names of variants instead of their titles
	noLevel     bool              // heads do not name the level, because the text around the table does
	words       map[string]string // translations of words of the table; missing words stay as they are
}

// table writes the selection as a Markdown table. A metric, level or variant that the study lacks is an error.
func (s *selection) table(study *experiment.Study, theirs published) (string, error) {
	t := report.KeyComparisons(study)
	if !s.comparisons {
		var err error
		if t, err = s.figures(study, theirs); err != nil {
			return "", err
		}
	}
	for _, row := range append(t.Rows, t.Heads) {
		for i := range row {
			row[i] = s.word(row[i])
		}
	}
	return t.Markdown(), nil
}

// figures has a row for each variant.
func (s *selection) figures(study *experiment.Study, theirs published) (*sheet.Table, error) {
	if len(s.columns) == 0 {
		return nil, fmt.Errorf("the table needs columns, as rate_hz@%s", strings.Join(study.Levels(), " or @"))
	}
	for _, name := range s.variants {
		if study.Variant(name) == nil {
			return nil, fmt.Errorf("the study has no variant %q", name)
		}
	}
	t := &sheet.Table{Heads: []string{"variant"}, Left: []int{0}}
	for _, column := range s.columns {
		metric, level, _ := strings.Cut(column, "@")
		if study.Metric(metric) == nil {
			return nil, fmt.Errorf("the study has no metric %q", metric)
		}
		if !slices.Contains(study.Levels(), level) {
			return nil, fmt.Errorf("%s: the study has no level %q", column, level)
		}
		head := s.word(report.MetricTitle(study, metric, level))
		if level != "" && !s.noLevel {
			head += ", " + level
		}
		t.Heads = append(t.Heads, head)
	}
	for _, v := range study.Manifest.Variants {
		if len(s.variants) == 0 && v.Again || len(s.variants) > 0 && !slices.Contains(s.variants, v.Name) {
			continue
		}
		t.Add("", s.row(study, &v, theirs)...)
	}
	return t, nil
}

func (s *selection) row(study *experiment.Study, v *experiment.VariantFacts, theirs published) []string {
	row := []string{v.Name}
	if v.Title != "" && !s.names {
		row[0] = v.Title
	}
	for _, column := range s.columns {
		metric, level, _ := strings.Cut(column, "@")
		text := report.StudyFigure(study, metric, v.Name, level)
		if value, known := theirs[v.Name+" "+column]; known {
			text += "; " + s.word("published") + " " + sheet.Text(value, study.Metric(metric).Unit)
		}
		row = append(row, text)
	}
	return row
}

func (s *selection) word(text string) string {
	if word, ok := s.words[text]; ok {
		return word
	}
	return text
}

// published are the figures of a study that others published, by variant and column, in the unit of the metric.
type published map[string]float64

// readPublished reads the published figures of a study. Each line of the file has study, variant, column, value and a note.
func readPublished(root, study string) (published, error) {
	const name = "experiments/published.csv"
	file, err := os.Open(filepath.Join(root, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read published figures: %w", err)
	}
	defer file.Close()
	reader := csv.NewReader(file)
	reader.FieldsPerRecord = 5
	lines, err := reader.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	figures := published{}
	for i, line := range lines {
		if line[0] != study {
			continue
		}
		if figures[line[1]+" "+line[2]], err = strconv.ParseFloat(line[3], 64); err != nil {
			return nil, fmt.Errorf("%s: line %d: %q is not a number", name, i+1, line[3])
		}
	}
	return figures, nil
}
