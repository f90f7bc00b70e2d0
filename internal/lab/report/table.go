package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"spillway/internal/lab/result"
)

// A column is one column of a table of steps.
type column struct {
	name  string
	value func(*step) string
	left  bool // aligned left
}

// columns are the columns of the step table. A column that would be empty in every step is left out.
func columns(runs []run) []column {
	open := anyStep(runs, func(s *step) bool { return s.Loop == result.LoopOpen })
	cols := []column{{name: "offered", value: (*step).offered}}
	if !open {
		cols = nil
	}
	cols = append(
		cols,
		column{name: "conns", value: func(s *step) string { return integer(int64(s.Step.Connections)) }},
		column{name: "answered", value: func(s *step) string { return rate(s.Total.Rate()) }},
		column{name: "p50", value: func(s *step) string { return orDash(figuresOf(s.response).P50) }},
		column{name: "p90", value: func(s *step) string { return orDash(figuresOf(s.response).P90) }},
		column{name: "p99", value: func(s *step) string { return orDash(figuresOf(s.response).P99) }},
		column{name: "p99.9", value: func(s *step) string { return orDash(figuresOf(s.response).P999) }},
		column{name: "max", value: func(s *step) string { return orDash(figuresOf(s.response).Max) }},
		column{name: "errors", value: func(s *step) string { return share(s.Total.ErrorShare()) }},
	)
	if anyStep(runs, func(s *step) bool { return s.connect.Count() > 0 }) {
		cols = append(cols, column{name: "connect", value: func(s *step) string { return orDash(figuresOf(s.connect).Mean) }})
	}
	if anyStep(runs, func(s *step) bool { return s.firstByte.Count() > 0 }) {
		cols = append(cols, column{name: "first byte", value: func(s *step) string { return orDash(figuresOf(s.firstByte).Mean) }})
	}
	return append(
		cols,
		column{name: "parallel", value: func(s *step) string { return integer(s.Total.Connections.ParallelMax) }},
		column{name: "own CPU", value: (*step).ownCPU},
		column{name: "validity", value: (*step).validity, left: true},
	)
}

// tableNote explains the step table.
const tableNote = "Response time counts from the intended start; \"-\" means too few samples. connect, first byte: mean. " +
	"parallel: most connections open at once. own CPU: CPU time of the load generator per answered request."

// sideBySide is a table of several runs by load level, grouped by figure. It is nil for a single run.
func sideBySide(runs []run) (heads []string, rows [][]string) {
	if len(runs) < 2 {
		return nil, nil
	}
	figures := []column{
		{name: "answered", value: func(s *step) string { return rate(s.Total.Rate()) }},
		{name: "p50", value: func(s *step) string { return orDash(figuresOf(s.response).P50) }},
		{name: "p99", value: func(s *step) string { return orDash(figuresOf(s.response).P99) }},
		{name: "errors", value: func(s *step) string { return share(s.Total.ErrorShare()) }},
	}
	heads = []string{"load"}
	for _, f := range figures {
		for i := range runs {
			heads = append(heads, f.name+" "+runs[i].label)
		}
	}
	for _, load := range loads(runs) {
		row := []string{load}
		for _, f := range figures {
			for i := range runs {
				cell := "-"
				if s := runs[i].withLoad(load); s != nil {
					cell = f.value(s)
				}
				row = append(row, cell)
			}
		}
		rows = append(rows, row)
	}
	return heads, rows
}

// loads returns the load levels of all runs in ascending order.
func loads(runs []run) []string {
	var names []string
	levels := make(map[string]float64)
	for i := range runs {
		for k := range runs[i].steps {
			s := &runs[i].steps[k]
			if _, seen := levels[s.load()]; !seen {
				names = append(names, s.load())
			}
			levels[s.load()] = s.level()
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(levels[a], levels[b]) })
	return names
}

func (s *step) offered() string {
	if s.Loop != result.LoopOpen {
		return "-"
	}
	return s.load()
}

func (s *step) ownCPU() string {
	if s.cpuPerRequest() == 0 {
		return "-"
	}
	return seconds(s.cpuPerRequest())
}

func anyStep(runs []run, has func(*step) bool) bool {
	for i := range runs {
		for k := range runs[i].steps {
			if has(&runs[i].steps[k]) {
				return true
			}
		}
	}
	return false
}

// remarks are the sentences below the table: errors, missed SLOs and reasons of the validity verdict.
func (s *step) remarks() []string {
	var lines []string
	if n := s.Total.Errors.Total(); n > 0 {
		line := fmt.Sprintf("%s of %s: %s", plural(n, "error"), plural(s.Total.Requests(), "request"), s.Total.Errors.String())
		if bad := badStatuses(s.Total.Statuses); bad != "" && s.Total.Errors[result.StatusError] > 0 {
			line += " (HTTP " + bad + ")"
		}
		lines = append(lines, line)
	}
	if n := s.Total.Errors.Own(); n > 0 {
		lines = append(lines, plural(n, "error")+" caused by the load generator (out of ports or open files), not by the target")
	}
	for _, c := range s.Total.SLO {
		if !c.Met {
			lines = append(lines, "SLO missed: "+observed(c)+" ("+c.Text+")")
		}
	}
	if s.Total.Clamped > 0 {
		lines = append(lines, plural(s.Total.Clamped, "latency sample")+" above 10 min, counted as 10 min")
	}
	if len(s.Total.Hosts) > 0 {
		lines = append(lines, "CPU of hosts: "+hostShares(s.Total.Hosts))
	}
	return append(lines, s.Total.Reasons...)
}

// hostShares lists what each host used of its share: "app 98 % of 0.5 CPUs on cores 1, throttled 12 %, others 0 %".
func hostShares(hosts []result.HostShare) string {
	texts := make([]string, len(hosts))
	for i := range hosts {
		h := &hosts[i]
		texts[i] = fmt.Sprintf("%s %s of %s on cores %s", h.Name, share(h.UsedShare()), cores(h.CPUs), h.Cores)
		if h.Throttled > 0 {
			texts[i] += ", throttled " + share(h.ThrottledShare())
		}
		texts[i] += ", others " + share(h.ForeignShare()) + ", kernel " + share(h.KernelShare())
	}
	return strings.Join(texts, "; ")
}

// badStatuses lists the HTTP statuses outside 2xx and 3xx in ascending order.
func badStatuses(statuses map[int]int64) string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(statuses)) {
		if status < 200 || status >= 400 {
			parts = append(parts, fmt.Sprintf("%d: %s", status, integer(statuses[status])))
		}
	}
	return strings.Join(parts, ", ")
}
