package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// A column is one column of a table of steps.
type column struct {
	name  string
	value func(*step) string
	left  bool // aligned left
}

// columns are the columns of the step table. A column that would be empty in every step is left out.
func (r *run) columns() []column {
	open := slices.ContainsFunc(r.steps, func(s *step) bool { return s.Loop == result.LoopOpen })
	cols := []column{}
	search := slices.ContainsFunc(r.steps, func(s *step) bool { return s.probe != "" })
	switch {
	case search:
		cols = append(cols, column{name: "probe", value: func(s *step) string { return s.probe }}, column{name: "load", value: (*step).Load})
	case open:
		cols = append(cols, column{name: "offered", value: (*step).offered})
	}
	cols = append(cols, column{name: "conns", value: func(s *step) string { return sheet.Integer(s.Step.Connections) }})
	cols = append(cols, resultColumns()...)
	if search { // their rows are long, and the load tells the connections of a closed loop
		cols = slices.DeleteFunc(cols, func(c column) bool {
			return c.name == "conns" || c.name == "p99.9" && !slices.ContainsFunc(r.steps, func(s *step) bool { return c.value(s) != "-" })
		})
	}
	if slices.ContainsFunc(r.steps, func(s *step) bool { return s.connect.Count() > 0 }) {
		cols = append(cols, column{name: "connect", value: func(s *step) string { return meanOf(s.connect) }})
	}
	if !search && slices.ContainsFunc(r.steps, func(s *step) bool { return s.firstByte.Count() > 0 }) {
		cols = append(cols, column{name: "first byte", value: func(s *step) string { return meanOf(s.firstByte) }})
	}
	last := column{name: "validity", value: (*step).validity, left: true}
	if search {
		last = column{name: "outcome", value: func(s *step) string { return cmp.Or(s.told, s.validity()) }, left: true}
	}
	return append(
		cols,
		column{name: "parallel", value: func(s *step) string { return sheet.Integer(s.Total.Connections.ParallelMax) }},
		column{name: "own CPU", value: (*step).ownCPU},
		last,
	)
}

// resultColumns are the columns that a step has in common with its named requests.
func resultColumns() []column {
	return []column{
		{name: "requests", value: func(s *step) string { return sheet.Integer(s.Total.Requests()) }},
		answeredColumn(),
		responseColumn("p50", figureP50),
		responseColumn("p90", figureP90),
		responseColumn("p99", figureP99),
		responseColumn("p99.9", figureP999),
		responseColumn("max", figureMax),
		{name: "errors", value: func(s *step) string { return sheet.Share(s.Total.ErrorShare()) }},
	}
}

func answeredColumn() column {
	return column{name: "answered", value: func(s *step) string { return sheet.Rate(s.Total.Rate()) }}
}

// responseColumn shows a figure of the response time.
func responseColumn(name, figure string) column {
	return column{name: name, value: func(s *step) string { return s.figures.text(figure) }}
}

// tableNote explains the step table.
func (r *run) tableNote() string {
	note := "answered: good answers within the step. Response time counts from the intended start; \"-\" means too few samples. "
	if slices.ContainsFunc(r.steps, func(s *step) bool { return len(s.figures.LowerBounds) > 0 }) {
		note += "\">=\": at least, because it falls among requests without an answer, which rank above all answers. "
	}
	if slices.ContainsFunc(r.steps, (*step).saturates) {
		note = closedLoopNote + ". " + note
	}
	return note + "connect, first byte: mean. parallel: most connections open at once. own CPU: CPU time of the load generator per good " +
		"answer."
}

// stepTable has a row for each step.
func stepTable(cols []column, steps []*step) *sheet.Table {
	t := &sheet.Table{}
	for c := range cols {
		t.Heads = append(t.Heads, cols[c].name)
		if cols[c].left {
			t.Left = append(t.Left, c)
		}
	}
	for _, s := range steps {
		row := make([]string, len(cols))
		for c := range cols {
			row[c] = cols[c].value(s)
		}
		t.Add(s.mark(), row...)
	}
	return t
}

// mark is "doubtful" for a step that is not valid and "missed" for one that missed its SLO.
func (s *step) mark() string {
	switch {
	case !s.valid():
		return "doubtful"
	case !s.sloMet():
		return "missed"
	}
	return ""
}

// labels are the parts of each step that belong to one named request.
func (r *run) labels() []*step {
	var parts []*step
	for _, s := range r.steps {
		parts = append(parts, s.labels...)
	}
	return parts
}

func labelColumns() []column {
	cols := []column{
		{name: "load", value: (*step).Load},
		{name: "request", value: func(s *step) string { return s.request }, left: true},
	}
	return append(
		append(cols, resultColumns()...),
		column{name: "error classes", value: func(s *step) string { return cmp.Or(errorList(&s.Total.Errors), "-") }},
		column{name: "SLO", value: (*step).criteria},
	)
}

// generatorColumns are about the load generator and its connections.
func generatorColumns() []column {
	duration := func(name string, of func(*result.Cost) float64) column {
		return column{name: name, value: func(s *step) string { return sheet.Duration(of(&s.Total.Cost)) }}
	}
	count := func(name string, of func(*result.Total) int64) column {
		return column{name: name, value: func(s *step) string { return sheet.Integer(of(&s.Total)) }}
	}
	return []column{
		{name: "load", value: (*step).Load},
		count("requests", (*result.Total).Requests),
		count("connects", func(t *result.Total) int64 { return t.Connects }),
		count("reconnects", func(t *result.Total) int64 { return t.Reconnects }),
		{name: "received", value: func(s *step) string { return sheet.Size(s.Total.BytesIn) }},
		{name: "requests per connection, min / mean / max", value: func(s *step) string { return fairness(&s.Total.Connections) }},
		{name: "N / (X R)", value: func(s *step) string { return known(sheet.Number, positive(&s.Total.Little.Ratio)) }},
		{name: "lag p99", value: func(s *step) string { return known(sheet.Duration, figuresOf(exact(s.lag)).P99) }},
		duration("CPU user", func(c *result.Cost) float64 { return c.CPUUser }),
		duration("CPU system", func(c *result.Cost) float64 { return c.CPUSystem }),
		{name: "busiest thread", value: func(s *step) string { return sheet.Share(s.Total.Cost.ThreadBusyMax) }},
		duration("run-queue wait", func(c *result.Cost) float64 { return c.RunQueueWait }),
		{name: "memory", value: func(s *step) string { return sheet.Size(s.Total.Cost.MemoryMax) }},
	}
}

// generatorNote explains generatorColumns.
const generatorNote = "N / (X R): requests in flight over rate times service time, 1 if Little's law holds. lag: from the intended start " +
	"until the pacer took the request up."

func fairness(c *result.ConnectionStats) string {
	if c.Slots == 0 {
		return "-"
	}
	return fmt.Sprintf("%s / %s / %s", sheet.Integer(c.RequestsMin), sheet.Number(c.RequestsMean), sheet.Integer(c.RequestsMax))
}

// criteria writes the SLO of a step with the verdicts: "p99<5ms met (4.1 ms)".
func (s *step) criteria() string {
	var parts []string
	for _, c := range s.Total.SLO {
		verdict := "missed"
		if c.Met {
			verdict = "met"
		}
		parts = append(parts, c.Text+" "+verdict+" ("+c.Value()+")")
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// errorList lists the classes that are not 0: "timeout 3,000, reset 1".
func errorList(e *result.Errors) string {
	var parts []string
	for _, class := range result.ErrorClasses() {
		if e[class] != 0 {
			parts = append(parts, class.String()+" "+sheet.Integer(e[class]))
		}
	}
	return strings.Join(parts, ", ")
}

func (s *step) offered() string {
	if s.Loop != result.LoopOpen {
		return "-"
	}
	return s.Load()
}

// saturates reports whether each answer causes the next request at once.
func (s *step) saturates() bool { return s.Loop == result.LoopClosed && !s.ThinkTimes }

func (s *step) ownCPU() string {
	if s.cpuPerRequest() == 0 {
		return "-"
	}
	return sheet.Duration(s.cpuPerRequest())
}

// remarks are the sentences below the table: errors, missed SLOs and reasons of the validity verdict.
func (s *step) remarks() []string {
	var lines []string
	if s.iterations != nil {
		lines = append(lines, s.iterations.text())
	}
	if n := s.Total.Errors.Total(); n > 0 {
		line := fmt.Sprintf("%s of %s: %s", sheet.Plural(n, "error"), sheet.Plural(s.Total.Requests(), "request"), errorList(&s.Total.Errors))
		if bad := badStatuses(s.Total.Statuses); bad != "" && s.Total.Errors[result.StatusError] > 0 {
			line += " (HTTP " + bad + ")"
		}
		lines = append(lines, line)
	}
	if n := s.Total.Errors.Own(); n > 0 {
		lines = append(lines, sheet.Plural(n, "error")+" caused by the load generator (out of ports or open files), not by the target")
	}
	verdict := "SLO missed: "
	if !s.valid() {
		verdict = "SLO not judged: " // only a valid step supports a claim
	}
	for _, c := range s.Total.Missed() {
		if s.probe == "" { // a search tells it in a column, and misses most of its rates
			lines = append(lines, verdict+c.Observation()+" ("+criterionText(c)+")")
		}
	}
	if s.Total.Clamped > 0 {
		lines = append(lines, sheet.Plural(s.Total.Clamped, "latency sample")+" above 10 min, counted as 10 min")
	}
	if len(s.Total.Hosts) > 0 {
		lines = append(lines, "CPU of hosts: "+hostShares(s.Total.Hosts))
	}
	return append(lines, s.Total.Sentences()...)
}

// criterionText is a criterion as typed. The one that every SLO has is marked as a default.
func criterionText(c result.Criterion) string {
	if c.Default {
		return c.Text + ", the default"
	}
	return c.Text
}

// hostShares lists what each host used of its share: "app 98 % of 0.5 CPUs on cores 1, throttled 12 %, others 0 %".
func hostShares(hosts []result.HostShare) string {
	texts := make([]string, len(hosts))
	for i := range hosts {
		h := &hosts[i]
		texts[i] = fmt.Sprintf("%s %s of %s on cores %s", h.Name, sheet.Share(h.UsedShare()), sheet.Plural(h.CPUs, "core"), h.Cores)
		if h.Throttled > 0 {
			texts[i] += ", throttled " + sheet.Share(h.ThrottledShare())
		}
		texts[i] += ", others " + sheet.Share(h.ForeignShare()) + ", kernel " + sheet.Share(h.KernelShare())
	}
	return strings.Join(texts, "; ")
}

// badStatuses lists the HTTP statuses outside 2xx and 3xx in ascending order.
func badStatuses(statuses map[int]int64) string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(statuses)) {
		if status < 200 || status >= 400 {
			parts = append(parts, fmt.Sprintf("%d: %s", status, sheet.Integer(statuses[status])))
		}
	}
	return strings.Join(parts, ", ")
}
