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
	"spillway/internal/stats"
)

// The name and version that a study's JSON carries. A minor version only adds fields.
const (
	StudyFormat  = "spillway-study"
	StudyVersion = "1.2"
)

// A Study is the evaluation of a run: the metrics of each variant and level over the blocks, and the comparison of each variant
// with its baseline. Its JSON, the summary, is small enough to commit: see WriteSummary and ReadSummary. Figures are rounded to
// five digits. An unknown figure is absent, never 0.
//
// Only VALID runs support a figure or a verdict. The others are counted in the cells, and have figures only where no run
// supports one. Three exceptions hold: TOO_FEW_SAMPLES concerns percentiles only, NOT_STATIONARY does not excuse failed
// requests, and a run that overloads the target supports its rate and CPU time per request, but no latency.
type Study struct {
	Format      string       `json:"format"` // set by ReadStudy
	Version     string       `json:"version"`
	Manifest    Manifest     `json:"manifest"`     // a summary omits the plan
	Ended       string       `json:"ended"`        // State.Ended, "" if the run has not ended
	Blocks      int          `json:"blocks"`       // planned
	Whole       int          `json:"blocks_whole"` // blocks with every trial complete
	Problems    []Problem    `json:"problems"`     // missing, failed or doubtful parts; [] if none
	Metrics     []Metric     `json:"metrics"`      // that at least one cell has, in column order
	Cells       []Cell       `json:"cells"`        // by level and variant in the file's order; the peaks first
	Comparisons []Comparison `json:"comparisons"`  // A/A first, then by metric, level and variant
	Charts      []Chart      `json:"charts"`       // bar charts to draw
}

// A Problem is something to know before using the figures.
type Problem struct {
	Block   int    `json:"block,omitempty"` // 0: the whole run or several blocks
	Variant string `json:"variant,omitempty"`
	Level   string `json:"level,omitempty"`
	Text    string `json:"text"`    // a plain sentence
	Missing bool   `json:"missing"` // it makes figures missing
}

// A Cell is one variant at one level.
type Cell struct {
	Variant  string                  `json:"variant"`
	Level    string                  `json:"level,omitempty"`        // "": the peak of the variant
	Runs     int                     `json:"runs"`                   // blocks with a result
	Failing  int                     `json:"runs_failing,omitempty"` // runs with a share of errors above result.ErrorShareMax
	Validity map[result.Validity]int `json:"validity,omitempty"`     // runs by verdict
	Errors   map[string]int64        `json:"errors,omitempty"`       // failed requests by class, over all runs
	Statuses map[int]int64           `json:"statuses,omitempty"`     // answers by HTTP status, over all runs
	Figures  map[string]Figure       `json:"figures"`                // by metric
}

// A Figure is one metric over the blocks whose runs support a claim about it: see Study.
type Figure struct {
	N      int     `json:"n"` // of these blocks
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	// AtLeast: the median is a lower bound, because it falls among requests without an answer or is the limit of a search.
	AtLeast bool `json:"at_least,omitempty"`
	// Unproved: no run supports a claim, and the figure is of all runs.
	Unproved bool `json:"unproved,omitempty"`
}

// NotValid returns the number of runs that were not VALID.
func (c *Cell) NotValid() int {
	n := 0
	for validity, runs := range c.Validity {
		if validity != result.Valid {
			n += runs
		}
	}
	return n
}

// Fails reports whether most runs of the cell are above result.ErrorShareMax, or for a peak, whether no rate met the SLO.
func (c *Cell) Fails() bool { return 2*c.Failing > c.Runs }

// FailsByItself reports whether the cell fails and neither the load generator nor other programs on the host can be the cause
// in at least one run.
func (c *Cell) FailsByItself() bool {
	for validity, runs := range c.Validity {
		if runs > 0 && aboutTarget(validity) {
			return c.Fails()
		}
	}
	return false
}

// Cell returns the cell of a variant at a level, nil if there is none.
func (s *Study) Cell(variant, level string) *Cell {
	return find(s.Cells, func(c *Cell) bool { return c.Variant == variant && c.Level == level })
}

// Figure returns a figure of a variant at a level, nil if there is none.
func (s *Study) Figure(metric, variant, level string) *Figure {
	if c := s.Cell(variant, level); c != nil {
		if f, ok := c.Figures[metric]; ok {
			return &f
		}
	}
	return nil
}

// Metric returns the metric of that name, nil if no cell has it.
func (s *Study) Metric(name string) *Metric {
	return find(s.Metrics, func(m *Metric) bool { return m.Name == name })
}

// Variant returns the variant of that name, nil if there is none.
func (s *Study) Variant(name string) *VariantFacts {
	return find(s.Manifest.Variants, func(v *VariantFacts) bool { return v.Name == name })
}

// Level returns the level of that name, nil if there is none.
func (s *Study) Level(name string) *LevelFacts {
	return find(s.Manifest.Levels, func(l *LevelFacts) bool { return l.Name == name })
}

// Levels returns the names of the levels that have cells; "" is the peak.
func (s *Study) Levels() []string {
	var names []string
	for i := range s.Cells {
		if !slices.Contains(names, s.Cells[i].Level) {
			names = append(names, s.Cells[i].Level)
		}
	}
	return names
}

// defaultCharts returns a chart of the peak, or without one of the leading metric of the first two levels.
func (s *Study) defaultCharts() []Chart {
	if s.Metric(MetricPeak) != nil {
		return []Chart{{Metric: MetricPeak}}
	}
	var charts []Chart
	for _, level := range s.Levels() {
		charts = append(charts, Chart{Metric: s.Leading(level), Level: level})
	}
	return charts[:min(len(charts), 2)]
}

// Leading returns the main metric of a level: the peak; what a chart shows of the level; the rate, if connections set the load;
// or else the CPU per request of the first watched process, or the p99.
func (s *Study) Leading(level string) string {
	if level == "" {
		return MetricPeak
	}
	for _, chart := range s.Charts {
		name, process, _ := strings.Cut(chart.Metric, ".")
		if name == MetricCores && chart.Level == level {
			return MetricCPU + "." + process // proportional at a given rate, and compared
		}
		if m := s.Metric(chart.Metric); m != nil && m.Compared && chart.Level == level {
			return m.Name
		}
	}
	if facts := s.Level(level); facts != nil && facts.Flags["rate"] == "" {
		return MetricRate
	}
	for _, m := range s.Metrics {
		if m.Compared && m.Process != "" {
			return m.Name
		}
	}
	return MetricP99
}

// Claims reports whether the study has a verdict. After --quick or with too few blocks it has none.
func (s *Study) Claims() bool {
	return slices.ContainsFunc(s.Comparisons, func(c Comparison) bool { return c.Verdict != NoVerdict })
}

// figureOf summarizes a metric over the blocks; false if none has it.
func figureOf(runs []levelFigures, metric string) (Figure, bool) {
	var values, bounds []float64
	for i := range runs {
		values = append(values, runs[i].of(metric))
		if runs[i].atLeast[metric] {
			bounds = append(bounds, runs[i].of(metric))
		}
	}
	sample := stats.Summarize(values, stats.Level)
	if sample.N == 0 {
		return Figure{}, false
	}
	f := Figure{N: sample.N, Median: round(sample.Median), Min: round(sample.Min), Max: round(sample.Max)}
	f.AtLeast = len(bounds) > 0 && slices.Min(bounds) <= sample.Median // a higher bound does not move the median
	return f, true
}

// round rounds to five digits: more would be noise in a committed file.
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

// summaryMax limits the size of a summary.
const summaryMax = 64 << 20

// ErrNotSummary means that a file is not the summary of a study.
var ErrNotSummary = errors.New("not the summary of a study")

// WriteSummary writes the study as JSON, one line per element of a list, which keeps diffs small. It omits the plan.
func (s *Study) WriteSummary(w io.Writer) error {
	short := *s
	short.Manifest.Plan = nil
	var out bytes.Buffer
	separator := "{\n"
	v := reflect.ValueOf(short)
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
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

// writeValue writes a list line by line and any other value on one line.
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

// ReadSummary reads a summary. The error for any other file is ErrNotSummary.
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

// checkVersion returns an error for another major version.
func checkVersion(what, got, ours string) error {
	major, _, _ := strings.Cut(got, ".")
	want, _, _ := strings.Cut(ours, ".")
	if major != want {
		return fmt.Errorf("%s is of version %q, this program reads %s.x: use the release that wrote it", what, got, want)
	}
	return nil
}
