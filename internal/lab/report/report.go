// Package report writes load results and studies as a terminal table, Markdown, JSON, CSV, Go benchmark text, JUnit XML or one HTML page
// that works offline. For people, each result is one sheet (package sheet) in all forms.
//
// Every percentile is read from a histogram and left out if the sample is too small for it. A step that is not a valid
// measurement is marked. The output depends only on the runs given. The tables and pages for people show one run: two unrelated
// runs side by side are no evidence. WriteAgainst names changes, and internal/lab/experiment compares repeated runs.
package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"spillway/internal/exit"
	"spillway/internal/histogram"
	"spillway/internal/lab/peak"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// A Format is a way to show runs.
type Format string

// The formats.
const (
	Text       Format = "text"        // table for the terminal
	Markdown   Format = "markdown"    // the same for a README or pull request
	JSON       Format = "json"        // one document; docs/reference/json.md names its fields
	CSV        Format = "csv"         // one row per step
	CSVSeconds Format = "csv-seconds" // one row per second
	Bench      Format = "bench"       // Go benchmark text for benchstat
	HTML       Format = "html"        // one page with charts that loads nothing
	JUnit      Format = "junit"       // JUnit XML: a case per step and criterion
	Summary    Format = "summary"     // short Markdown for the summary of a CI job
)

// Formats returns all formats.
func Formats() []Format {
	return []Format{Text, Markdown, JSON, CSV, CSVSeconds, Bench, HTML, JUnit, Summary}
}

// Write writes the runs in a format. Runs without a label of their own get a number. A histogram that cannot be decoded
// is an error, and so are several runs in a format for one.
func Write(w io.Writer, format Format, runs []*result.Run) error {
	shown, err := decode(runs)
	if err != nil {
		return err
	}
	if len(shown) != 1 && slices.Contains(OneRunFormats(), format) {
		return exit.UsageError(fmt.Errorf("%s shows one run, not %d files: compare a run with another by --against BASE, or put the parts "+
			"of a load together by --merge; json, csv, bench and junit keep several runs apart", format, len(shown)))
	}
	switch format {
	case Text:
		return shown[0].sheet(format).WriteText(w)
	case Markdown:
		return shown[0].sheet(format).WriteMarkdown(w)
	case HTML:
		return writeHTML(w, shown[0])
	case JSON:
		return sheet.WriteJSON(w, documents(shown))
	case CSV:
		return writeCSV(w, shown)
	case CSVSeconds:
		return writeCSVSeconds(w, shown)
	case Bench:
		return writeBench(w, shown)
	case JUnit:
		return writeJUnit(w, shown)
	case Summary:
		return writeSummary(w, shown)
	}
	return fmt.Errorf("unknown report format %q; known are %v", format, Formats())
}

// OneRunFormats returns the formats that show one run only.
func OneRunFormats() []Format { return []Format{Text, Markdown, HTML} }

// A run is a result with decoded histograms.
type run struct {
	*result.Run
	label   string
	steps   []*step
	watched []*result.Series
	usage   *result.Usage // over the whole run; nil if it has steps or nothing was watched
	search  *peak.Outcome // nil if the run is no search for a peak
}

// underWay reports whether the run is a snapshot of one that has not ended.
func (r *run) underWay() bool { return r.End.Reason == result.UnderWay }

// A step is one load level with decoded histograms.
type step struct {
	*result.StepRun
	response, service       histogram.Censored
	lag, connect, firstByte *histogram.Histogram

	figures Figures       // of the response time
	usage   *result.Usage // nil if nothing was watched

	request string  // name of the request of a mix that this is a part for, "" for all
	labels  []*step // the part of each named request, with its own SLO

	iterations *Iterations // nil without a flow

	probe, told string // of a search: the purpose of the step, and what it told
}

func decode(results []*result.Run) ([]*run, error) {
	runs := make([]*run, len(results))
	for i, r := range results {
		runs[i] = &run{Run: r, label: labelOf(results, i), steps: make([]*step, len(r.Steps))}
		for k := range r.Steps {
			s, err := decodeStep(&r.Steps[k])
			if err != nil {
				return nil, fmt.Errorf("%s: step %d: %w", runs[i].label, k, err)
			}
			runs[i].steps[k] = s
		}
		runs[i].watch()
		if err := runs[i].readSearch(); err != nil {
			return nil, fmt.Errorf("%s: %w", runs[i].label, err)
		}
	}
	return runs, nil
}

// labelOf returns the label of run i, made unique. A single run without a label is named by its target.
func labelOf(runs []*result.Run, i int) string {
	label := runs[i].Header.Label
	if label == "" && len(runs) == 1 {
		return cmp.Or(runs[i].Header.Target, runs[i].Header.Machine.Host)
	}
	same := func(r *result.Run) bool { return r.Header.Label == label }
	if label == "" || slices.IndexFunc(runs, same) != i {
		return strings.TrimSpace(fmt.Sprintf("%s %d", label, i+1))
	}
	return label
}

func decodeStep(r *result.StepRun) (*step, error) {
	s := &step{StepRun: r}
	l := &r.Total.Latency
	var err error
	if s.response, err = l.Responses(); err != nil {
		return s, err
	}
	if s.service, err = l.Services(); err != nil {
		return s, err
	}
	for _, kind := range []struct {
		to      **histogram.Histogram
		payload result.HDR
	}{{&s.lag, l.Lag}, {&s.connect, l.Connect}, {&s.firstByte, l.FirstByte}} {
		if *kind.to, err = histogram.Decode(string(kind.payload)); err != nil {
			return s, err
		}
	}
	s.figures = figuresOf(s.response)
	if s.iterations, err = iterationsOf(&r.Total); err != nil {
		return s, err
	}
	for i := range r.Total.Labels {
		part, err := decodeStep(labelStep(r, &r.Total.Labels[i]))
		if err != nil {
			return s, fmt.Errorf("request %q: %w", r.Total.Labels[i].Name, err)
		}
		part.request = r.Total.Labels[i].Name
		s.labels = append(s.labels, part)
	}
	return s, nil
}

// labelStep is the part of a step that belongs to one named request.
func labelStep(r *result.StepRun, l *result.LabelTotal) *result.StepRun {
	part := &result.StepRun{Step: r.Step, Total: result.Total{
		Step: r.Total.Step, Elapsed: r.Total.Elapsed, Counters: l.Counters, Latency: l.Latency, Validity: r.Total.Validity,
	}}
	for _, c := range r.Total.SLO {
		if c.Label == l.Name {
			part.Total.SLO = append(part.Total.SLO, c)
		}
	}
	return part
}

// level is the load as a number: requests per second or connections.
func (s *step) level() float64 {
	if s.Loop == result.LoopOpen {
		return s.OfferedHz
	}
	return float64(s.Step.Connections)
}

// cpuPerRequest is the CPU time of the load generator per good answer, in seconds; 0 if unknown.
func (s *step) cpuPerRequest() float64 {
	if s.Total.Completed == 0 {
		return 0
	}
	return (s.Total.Cost.CPUUser + s.Total.Cost.CPUSystem) / float64(s.Total.Completed)
}

func (s *step) validity() string { return s.Total.Validity.Word() }

func (s *step) valid() bool { return s.Total.Validity == result.Valid }

// sloMet reports whether every criterion is met. It is true without criteria.
func (s *step) sloMet() bool {
	return !slices.ContainsFunc(s.Total.SLO, func(c result.Criterion) bool { return !c.Met })
}
