package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"iter"
	"reflect"
	"strconv"
	"strings"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// A field is one CSV column for rows of type T.
type field[T any] struct {
	name  string
	value func(T) string
}

func writeCSV(w io.Writer, runs []run) error {
	fields := []field[*step]{
		{"step", func(s *step) string { return strconv.Itoa(s.Index) }},
		{"loop", func(s *step) string { return s.Loop }},
		{"offered_hz", func(s *step) string { return decimal(s.OfferedHz) }},
		{"connections", func(s *step) string { return strconv.Itoa(s.Step.Connections) }},
		{"elapsed_seconds", func(s *step) string { return decimal(s.Total.Elapsed) }},
		{"rate_hz", func(s *step) string { return decimal(s.Total.Rate()) }},
	}
	fields = append(fields, counterFields(func(s *step) *result.Counters { return &s.Total.Counters })...)
	fields = append(fields, figureFields("response", func(s *step) *histogram.Histogram { return s.response })...)
	fields = append(fields, figureFields("service", func(s *step) *histogram.Histogram { return s.service })...)
	fields = append(fields, figureFields("lag", func(s *step) *histogram.Histogram { return s.lag })...)
	fields = append(fields, figureFields("connect", func(s *step) *histogram.Histogram { return s.connect })...)
	fields = append(fields, figureFields("first_byte", func(s *step) *histogram.Histogram { return s.firstByte })...)
	fields = append(
		fields,
		field[*step]{"parallel_max", func(s *step) string { return strconv.FormatInt(s.Total.Connections.ParallelMax, 10) }},
		field[*step]{"cpu_user_seconds", func(s *step) string { return decimal(s.Total.Cost.CPUUser) }},
		field[*step]{"cpu_system_seconds", func(s *step) string { return decimal(s.Total.Cost.CPUSystem) }},
		field[*step]{"validity", func(s *step) string { return string(s.Total.Validity) }},
	)
	t := newCSVTable(w, fields)
	for i := range runs {
		for k := range runs[i].steps {
			t.row(runs[i].label, &runs[i].steps[k])
		}
	}
	return t.finish()
}

// A second is one slice with a decoded response histogram.
type second struct {
	*result.Slice
	start    float64 // seconds since the start of the run
	response *histogram.Histogram
}

// seconds decodes one slice at a time, so that memory does not grow with the length of the step.
func (s *step) seconds() iter.Seq2[*second, error] {
	return func(yield func(*second, error) bool) {
		for i := range s.Slices {
			slice := &s.Slices[i]
			h, err := histogram.Decode(string(slice.Latency.Response))
			if err != nil {
				yield(nil, fmt.Errorf("step %d: second %d: %w", s.Index, slice.Second, err))
				return
			}
			if !yield(&second{Slice: slice, start: s.Start + float64(slice.Second), response: h}, nil) {
				return
			}
		}
	}
}

func writeCSVSeconds(w io.Writer, runs []run) error {
	fields := []field[*second]{
		{"step", func(s *second) string { return strconv.Itoa(s.Step) }},
		{"start_seconds", func(s *second) string { return decimal(s.start) }},
		{"length_seconds", func(s *second) string { return decimal(s.Length) }},
	}
	fields = append(fields, counterFields(func(s *second) *result.Counters { return &s.Counters })...)
	fields = append(fields, figureFields("response", func(s *second) *histogram.Histogram { return s.response })...)
	fields = append(
		fields,
		field[*second]{"connections", func(s *second) string { return strconv.FormatInt(s.Connections, 10) }},
		field[*second]{"in_flight", func(s *second) string { return strconv.FormatInt(s.InFlight, 10) }},
		field[*second]{"backlog", func(s *second) string { return strconv.FormatInt(s.Backlog, 10) }},
		field[*second]{"cpu_user_seconds", func(s *second) string { return decimal(s.CPUUser) }},
		field[*second]{"cpu_system_seconds", func(s *second) string { return decimal(s.CPUSystem) }},
	)
	t := newCSVTable(w, fields)
	for i := range runs {
		for k := range runs[i].steps {
			for sec, err := range runs[i].steps[k].seconds() {
				if err != nil {
					return fmt.Errorf("%s: %w", runs[i].label, err)
				}
				t.row(runs[i].label, sec)
			}
		}
	}
	return t.finish()
}

// counterFields are the columns of the counters, with one per error class.
func counterFields[T any](of func(T) *result.Counters) []field[T] {
	n := func(name string, value func(*result.Counters) int64) field[T] {
		return field[T]{name, func(row T) string { return strconv.FormatInt(value(of(row)), 10) }}
	}
	fields := []field[T]{
		n("requests", (*result.Counters).Requests),
		n("due", func(c *result.Counters) int64 { return c.Due }),
		n("sent", func(c *result.Counters) int64 { return c.Sent }),
		n("done", func(c *result.Counters) int64 { return c.Done }),
		n("bytes_in", func(c *result.Counters) int64 { return c.BytesIn }),
		n("bytes_out", func(c *result.Counters) int64 { return c.BytesOut }),
		n("connects", func(c *result.Counters) int64 { return c.Connects }),
		n("reconnects", func(c *result.Counters) int64 { return c.Reconnects }),
	}
	for _, class := range result.ErrorClasses() {
		fields = append(fields, n("errors_"+class.String(), func(c *result.Counters) int64 { return c.Errors[class] }))
	}
	return fields
}

// figureFields are the columns of one histogram. A percentile that the sample is too small for is empty.
func figureFields[T any](name string, of func(T) *histogram.Histogram) []field[T] {
	f := func(figure string, value func(Figures) *float64) field[T] {
		return field[T]{name + "_" + figure + "_seconds", func(row T) string {
			if v := value(figuresOf(of(row))); v != nil {
				return decimal(*v)
			}
			return ""
		}}
	}
	return []field[T]{
		f("mean", func(f Figures) *float64 { return f.Mean }),
		f("p50", func(f Figures) *float64 { return f.P50 }),
		f("p90", func(f Figures) *float64 { return f.P90 }),
		f("p99", func(f Figures) *float64 { return f.P99 }),
		f("p999", func(f Figures) *float64 { return f.P999 }),
		f("max", func(f Figures) *float64 { return f.Max }),
	}
}

func decimal(v float64) string { return strconv.FormatFloat(v, 'g', 10, 64) }

// A csvTable writes rows of one type behind the label of their run.
type csvTable[T any] struct {
	out    *csv.Writer
	fields []field[T]
}

func newCSVTable[T any](w io.Writer, fields []field[T]) *csvTable[T] {
	t := &csvTable[T]{out: csv.NewWriter(w), fields: fields}
	names := []string{"run"}
	for _, f := range fields {
		names = append(names, f.name)
	}
	_ = t.out.Write(names) // finish reports the first error
	return t
}

func (t *csvTable[T]) row(label string, row T) {
	cells := []string{escapeFormula(label)}
	for _, f := range t.fields {
		cells = append(cells, f.value(row))
	}
	_ = t.out.Write(cells) // finish reports the first error
}

func (t *csvTable[T]) finish() error {
	t.out.Flush()
	if err := t.out.Error(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// escapeFormula keeps a spreadsheet from reading text as a formula.
func escapeFormula(text string) string {
	if text != "" && (text[0] == '=' || text[0] == '+' || text[0] == '-' || text[0] == '@') {
		return "'" + text
	}
	return printable(text)
}

// A watchRow is one figure of one watched subject in one step.
type watchRow struct {
	step             string // "" for the whole run
	host, kind, name string
	figure, value    string // value is "" if unknown
}

func writeCSVWatch(w io.Writer, runs []run) error {
	text := func(name string, value func(watchRow) string) field[watchRow] {
		return field[watchRow]{name, func(row watchRow) string { return escapeFormula(value(row)) }}
	}
	t := newCSVTable(w, []field[watchRow]{
		{"step", func(row watchRow) string { return row.step }},
		text("host", func(row watchRow) string { return row.host }),
		text("kind", func(row watchRow) string { return row.kind }),
		text("name", func(row watchRow) string { return row.name }),
		text("figure", func(row watchRow) string { return row.figure }),
		{"value", func(row watchRow) string { return row.value }},
	})
	for i := range runs {
		for _, row := range watchRows(runs[i].usage, "") {
			t.row(runs[i].label, row)
		}
		for k := range runs[i].steps {
			for _, row := range watchRows(runs[i].steps[k].usage, strconv.Itoa(k)) {
				t.row(runs[i].label, row)
			}
		}
	}
	return t.finish()
}

// watchRows lists every figure of a usage.
func watchRows(u *result.Usage, step string) []watchRow {
	if u == nil {
		return nil
	}
	var rows []watchRow
	for i := range u.Processes {
		p := &u.Processes[i]
		rows = append(rows, figureRows(watchRow{step: step, host: p.Host, kind: result.SamplerProcess, name: p.Name}, *p)...)
	}
	for i := range u.Hosts {
		rows = append(rows, figureRows(watchRow{step: step, host: u.Hosts[i].Host, kind: result.SamplerHost}, u.Hosts[i])...)
	}
	for i := range u.TCP {
		rows = append(rows, figureRows(watchRow{step: step, host: u.TCP[i].Host, kind: result.SamplerTCP}, u.TCP[i])...)
	}
	for i := range u.Listeners {
		l := &u.Listeners[i]
		rows = append(rows, figureRows(watchRow{step: step, host: l.Host, kind: result.SamplerListener, name: l.Address}, *l)...)
	}
	for i := range u.Databases {
		d := &u.Databases[i]
		rows = append(rows, figureRows(watchRow{step: step, host: d.Host, kind: d.Kind, name: d.Name}, *d)...)
		if d.BusiestWait != "" {
			rows = append(rows, watchRow{step: step, host: d.Host, kind: d.Kind, name: d.Name, figure: "busiest_wait", value: escapeFormula(d.BusiestWait)})
		}
	}
	for i := range u.Watch {
		rows = append(rows, figureRows(watchRow{step: step, host: u.Watch[i].Host, kind: result.SamplerWatch}, u.Watch[i])...)
	}
	return rows
}

// figureRows makes a row of each *float64 field of a struct, named as in JSON.
func figureRows(like watchRow, figures any) []watchRow {
	var rows []watchRow
	v := reflect.ValueOf(figures)
	for i := range v.NumField() {
		figure, is := v.Field(i).Interface().(*float64)
		if !is {
			continue
		}
		row := like
		row.figure, _, _ = strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if figure != nil {
			row.value = decimal(*figure)
		}
		rows = append(rows, row)
	}
	return rows
}
