package experiment

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/lab/result"
	"spillway/internal/lab/stats"
)

// The name and version that a study's JSON carries. A minor version only adds fields.
const (
	StudyFormat  = "spillway-study"
	StudyVersion = "1.0"
)

// A Study is what the files of a run show: for each variant and level the metrics over the blocks, and how each variant
// compares with its baseline. Its JSON is its summary, small enough to be committed: WriteSummary and ReadSummary.
// Figures are rounded to five digits; one that is not known is absent, never 0.
type Study struct {
	Format      string           `json:"format"` // set by ReadStudy
	Version     string           `json:"version"`
	Manifest    Manifest         `json:"manifest"`     // without the plan and the file's text in a summary
	Ended       string           `json:"ended"`        // State.Ended, "" when the run has not ended
	Blocks      int              `json:"blocks"`       // planned
	Whole       int              `json:"blocks_whole"` // whose every trial is complete
	Problems    []Problem        `json:"problems"`     // what is missing, failed or doubtful; [] when nothing is
	Metrics     []Metric         `json:"metrics"`      // that any cell has, in the order of columns
	Cells       []Cell           `json:"cells"`        // by level, then by variant, both in the file's order; the peaks first
	Comparisons []Comparison     `json:"comparisons"`  // A/A first, then by metric, level and variant
	Published   []PublishedCheck `json:"published"`    // figures of others beside ours
	Charts      []Chart          `json:"charts"`       // bar charts to draw

	// Timelines is one run of each variant, from the first block in which its trial is complete: its levels one behind the
	// other, waits left out. A summary has none.
	Timelines []*result.Run `json:"-"`
}

// A Problem is something that a reader of the figures must know.
type Problem struct {
	Block   int    `json:"block,omitempty"` // 0: of the whole run, or of several blocks
	Variant string `json:"variant,omitempty"`
	Level   string `json:"level,omitempty"`
	Text    string `json:"text"`    // a plain sentence
	Missing bool   `json:"missing"` // figures are missing because of it
}

// A Cell is one variant at one level.
type Cell struct {
	Variant  string                  `json:"variant"`
	Level    string                  `json:"level,omitempty"`    // "": the variant as a whole, its peak
	Runs     int                     `json:"runs"`               // blocks that have a result
	Validity map[result.Validity]int `json:"validity,omitempty"` // runs by verdict
	Errors   map[string]int64        `json:"errors,omitempty"`   // bad requests by class, all runs together
	Statuses map[int]int64           `json:"statuses,omitempty"` // answers by HTTP status, all runs together
	Figures  map[string]Figure       `json:"figures"`            // by metric
}

// A Figure is one metric over the blocks.
type Figure struct {
	N      int     `json:"n"` // blocks
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`

	values []float64 // by block, from the first; NaN where a block has none
}

// NotValid is how many runs were no valid measurement.
func (c *Cell) NotValid() int {
	n := 0
	for validity, runs := range c.Validity {
		if validity != result.Valid {
			n += runs
		}
	}
	return n
}

// Comparable says whether comparisons use any run of the cell: one that was judged, and in which the generator was not the
// limit.
func (c *Cell) Comparable() bool {
	for validity, runs := range c.Validity {
		if runs > 0 && validity != result.GeneratorLimited && validity != result.Unjudged {
			return true
		}
	}
	return len(c.Validity) == 0
}

// Cell is that of a variant at a level, nil when there is none.
func (s *Study) Cell(variant, level string) *Cell {
	i := slices.IndexFunc(s.Cells, func(c Cell) bool { return c.Variant == variant && c.Level == level })
	if i < 0 {
		return nil
	}
	return &s.Cells[i]
}

// Figure is that of a variant at a level, nil when there is none.
func (s *Study) Figure(metric, variant, level string) *Figure {
	if c := s.Cell(variant, level); c != nil {
		if f, ok := c.Figures[metric]; ok {
			return &f
		}
	}
	return nil
}

// Metric is the metric of that name, nil when no cell has it.
func (s *Study) Metric(name string) *Metric {
	i := slices.IndexFunc(s.Metrics, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Metrics[i]
}

// Variant is the variant of that name, nil when there is none.
func (s *Study) Variant(name string) *VariantFacts {
	i := slices.IndexFunc(s.Manifest.Variants, func(v VariantFacts) bool { return v.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Manifest.Variants[i]
}

// Levels are the names of the levels that cells have, "" for the peak among them.
func (s *Study) Levels() []string {
	var names []string
	for i := range s.Cells {
		if !slices.Contains(names, s.Cells[i].Level) {
			names = append(names, s.Cells[i].Level)
		}
	}
	return names
}

// Claims says whether the study claims anything: not after --quick, and not with too few blocks.
func (s *Study) Claims() bool {
	return slices.ContainsFunc(s.Comparisons, func(c Comparison) bool { return c.Verdict != NoVerdict })
}

// figureOf sums up the values of the blocks; false when none has one.
func figureOf(values []float64) (Figure, bool) {
	sample := stats.Summarize(values, stats.Level)
	if sample.N == 0 {
		return Figure{}, false
	}
	return Figure{N: sample.N, Median: round(sample.Median), Min: round(sample.Min), Max: round(sample.Max), values: values}, true
}

// round keeps five digits: more would only be noise in a committed file.
func round(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return v
	}
	rounded, err := strconv.ParseFloat(fmt.Sprintf("%.4e", v), 64)
	if err != nil {
		return v
	}
	return rounded
}

// summaryMax bounds a summary that is read.
const summaryMax = 64 << 20

// ErrNotSummary says that a file is not the summary of a study.
var ErrNotSummary = errors.New("not the summary of a study")

// WriteSummary writes the study as JSON: one line for each element of a list, so that a change of it is small in a
// diff. The plan, the experiment's text and the timelines are left out.
func (s *Study) WriteSummary(w io.Writer) error {
	short := *s
	short.Manifest.Plan, short.Manifest.File = nil, ""
	var out bytes.Buffer
	separator := "{\n"
	v := reflect.ValueOf(short)
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		fmt.Fprintf(&out, "%s%q: ", separator, name)
		separator = ",\n"
		if err := writeValue(&out, v.Field(i)); err != nil {
			return fmt.Errorf("write summary: %s: %w", name, err)
		}
	}
	out.WriteString("\n}\n")
	if _, err := out.WriteTo(w); err != nil {
		return fmt.Errorf("write summary: %w", err)
	}
	return nil
}

// writeValue writes a list line by line and anything else on one line.
func writeValue(out *bytes.Buffer, v reflect.Value) error {
	if v.Kind() != reflect.Slice {
		return writeLine(out, v.Interface())
	}
	out.WriteString("[")
	for i := range v.Len() {
		if i > 0 {
			out.WriteString(",")
		}
		out.WriteString("\n ")
		if err := writeLine(out, v.Index(i).Interface()); err != nil {
			return err
		}
	}
	out.WriteString("]")
	return nil
}

func writeLine(out *bytes.Buffer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false) // "p99<70ms" stays readable
	if err := encoder.Encode(v); err != nil {
		return err
	}
	out.Truncate(out.Len() - 1) // the newline of Encode
	return nil
}

// ReadSummary reads what WriteSummary wrote: a Study without timelines. Another file is ErrNotSummary.
func ReadSummary(r io.Reader) (*Study, error) {
	var s Study
	if err := json.NewDecoder(io.LimitReader(r, summaryMax)).Decode(&s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSummary, err)
	}
	if s.Format != StudyFormat {
		return nil, ErrNotSummary
	}
	return &s, checkVersion("summary", s.Version, StudyVersion)
}

// checkVersion refuses another major version.
func checkVersion(what, got, ours string) error {
	major, _, _ := strings.Cut(got, ".")
	want, _, _ := strings.Cut(ours, ".")
	if major != want {
		return fmt.Errorf("%s is of version %q, this program reads %s.x: use the release that wrote it", what, got, want)
	}
	return nil
}
