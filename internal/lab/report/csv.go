package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// A cell is one named column of a CSV row.
type cell struct{ name, value string }

func writeCSV(w io.Writer, runs []*run) error {
	t := newCSVTable(w, stepCells("", &DocumentStep{}))
	for _, r := range runs {
		for _, s := range r.steps {
			d := s.document()
			t.row(r.label, stepCells("", &d))
			for _, l := range s.labels {
				d := l.document()
				t.row(r.label, stepCells(l.request, &d))
			}
		}
	}
	return t.finish()
}

// stepCells are the columns of a step, or of the part of one of its named requests.
func stepCells(request string, d *DocumentStep) []cell {
	cells := []cell{
		{"step", strconv.Itoa(d.Step)},
		{"request", escapeFormula(request)},
		{"loop", d.Loop},
		{"offered_hz", decimal(d.OfferedHz)},
		{"connections", strconv.Itoa(d.Connections)},
		{"elapsed_seconds", decimal(d.Elapsed)},
		{"rate_hz", decimal(d.Rate)},
	}
	cells = append(cells, counterCells(&d.Counters)...)
	cells = append(cells, d.Response.boundedCells("response")...)
	cells = append(cells, d.Service.boundedCells("service")...)
	cells = append(cells, d.Lag.cells("lag")...)
	cells = append(cells, d.Connect.cells("connect")...)
	cells = append(cells, d.FirstByte.cells("first_byte")...)
	whole := []cell{
		{"parallel_max", strconv.FormatInt(d.ConnectionStats.ParallelMax, 10)},
		{"cpu_user_seconds", decimal(d.Cost.CPUUser)},
		{"cpu_system_seconds", decimal(d.Cost.CPUSystem)},
	}
	for i := range whole {
		if request != "" {
			whole[i].value = ""
		}
	}
	return append(append(cells, whole...), cell{"validity", string(d.Validity)})
}

// A second is one slice with a decoded response histogram.
type second struct {
	*result.Slice
	start    float64 // seconds since the start of the run
	response histogram.Censored
}

// seconds decodes one slice at a time, so that memory does not grow with the length of the step.
func (s *step) seconds() iter.Seq2[*second, error] {
	return func(yield func(*second, error) bool) {
		for i := range s.Slices {
			slice := &s.Slices[i]
			times, err := slice.Latency.Responses()
			if err != nil {
				yield(nil, fmt.Errorf("step %d: second %d: %w", s.Index, slice.Second, err))
				return
			}
			if !yield(&second{Slice: slice, start: s.Start + float64(slice.Second), response: times}, nil) {
				return
			}
		}
	}
}

func writeCSVSeconds(w io.Writer, runs []*run) error {
	t := newCSVTable(w, secondCells(&second{Slice: &result.Slice{}}, Figures{}))
	for _, r := range runs {
		for _, s := range r.steps {
			for sec, err := range s.seconds() {
				if err != nil {
					return fmt.Errorf("%s: %w", r.label, err)
				}
				t.row(r.label, secondCells(sec, figuresOf(sec.response)))
			}
		}
	}
	return t.finish()
}

func secondCells(s *second, response Figures) []cell {
	cells := []cell{
		{"step", strconv.Itoa(s.Step)},
		{"start_seconds", decimal(s.start)},
		{"length_seconds", decimal(s.Length)},
	}
	cells = append(cells, counterCells(&s.Counters)...)
	cells = append(cells, response.boundedCells("response")...)
	return append(
		cells,
		cell{"connections", strconv.FormatInt(s.Connections, 10)},
		cell{"in_flight", strconv.FormatInt(s.InFlight, 10)},
		cell{"backlog", strconv.FormatInt(s.Backlog, 10)},
		cell{"cpu_user_seconds", decimal(s.CPUUser)},
		cell{"cpu_system_seconds", decimal(s.CPUSystem)},
	)
}

// counterCells are the columns of the counters, with one per error class.
func counterCells(c *result.Counters) []cell {
	cells := []cell{
		{"requests", strconv.FormatInt(c.Requests(), 10)},
		{"due", strconv.FormatInt(c.Due, 10)},
		{"sent", strconv.FormatInt(c.Sent, 10)},
		{"done", strconv.FormatInt(c.Done, 10)},
		{"completed", strconv.FormatInt(c.Completed, 10)},
		{"bytes_in", strconv.FormatInt(c.BytesIn, 10)},
		{"bytes_out", strconv.FormatInt(c.BytesOut, 10)},
		{"connects", strconv.FormatInt(c.Connects, 10)},
		{"reconnects", strconv.FormatInt(c.Reconnects, 10)},
	}
	for _, class := range result.ErrorClasses() {
		cells = append(cells, cell{"errors_" + class.String(), strconv.FormatInt(c.Errors[class], 10)})
	}
	return cells
}

// cells are the columns of the figures. A percentile that the sample is too small for is empty.
func (f *Figures) cells(name string) []cell {
	var cells []cell
	for _, figure := range []string{figureMean, figureP50, figureP90, figureP99, figureP999, figureMax} {
		one := cell{name: name + "_" + figure + "_seconds"}
		if v := f.value(figure); v != nil {
			one.value = decimal(*v)
		}
		cells = append(cells, one)
	}
	return cells
}

// boundedCells has one more that names those that are lower bounds.
func (f *Figures) boundedCells(name string) []cell {
	return append(f.cells(name), cell{name + "_lower_bounds", strings.Join(f.LowerBounds, " ")})
}

func decimal(v float64) string { return strconv.FormatFloat(v, 'g', 10, 64) }

// A csvTable writes rows behind the label of their run.
type csvTable struct{ out *csv.Writer }

// newCSVTable writes the heads of rows like this one.
func newCSVTable(w io.Writer, like []cell) csvTable {
	t := csvTable{csv.NewWriter(w)}
	names := []string{"run"}
	for _, c := range like {
		names = append(names, c.name)
	}
	_ = t.out.Write(names) // finish reports the first error
	return t
}

func (t csvTable) row(label string, cells []cell) {
	values := []string{escapeFormula(label)}
	for _, c := range cells {
		values = append(values, c.value)
	}
	_ = t.out.Write(values) // finish reports the first error
}

func (t csvTable) finish() error {
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
	return sheet.Printable(text)
}
