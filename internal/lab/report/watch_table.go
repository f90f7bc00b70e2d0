package report

import (
	"fmt"

	"spillway/internal/lab/result"
)

// watchTable is what was used, step by step: load, latency, errors by class, and each process's CPU in percent of one
// core. It is nil where nothing was watched.
func (r *run) watchTable() [][]string {
	if len(r.steps) == 0 || len(r.tracks) == 0 {
		return nil
	}
	cols := []column{
		{name: "load", value: (*step).load},
		{name: "answered", value: func(s *step) string { return rate(s.Total.Rate()) }},
		{name: "p50", value: func(s *step) string { return orDash(figuresOf(s.response).P50) }},
		{name: "p99", value: func(s *step) string { return orDash(figuresOf(s.response).P99) }},
		{name: "errors", value: errorsByClass},
	}
	if anyStep([]run{*r}, func(s *step) bool { return len(s.Total.Statuses) > 0 }) {
		cols = append(cols, column{name: "502", value: func(s *step) string { return integer(s.Total.Statuses[502]) }})
	}
	first := r.steps[0].usage // every step's usage lists the same subjects in the same order
	for i := range first.Processes {
		name := r.on(first.Processes[i].Host, first.Processes[i].Name)
		cols = append(cols, column{name: name + " CPU, user + sys", value: func(s *step) string { return corePercent(&s.usage.Processes[i]) }})
	}
	for i := range first.TCP {
		cols = append(
			cols,
			column{name: r.on(first.TCP[i].Host, "TIME_WAIT"), value: func(s *step) string { return known(whole, s.usage.TCP[i].TimeWaitMax) }},
			column{name: r.on(first.TCP[i].Host, "ports used"), value: func(s *step) string { return known(whole, s.usage.TCP[i].PortsMax) }},
		)
	}
	for i := range first.Hosts {
		cols = append(cols, column{name: r.on(first.Hosts[i].Host, "load average"), value: func(s *step) string { return known(significant, s.usage.Hosts[i].Load1) }})
	}
	rows, _ := stepTable(cols, r.steps)
	return rows
}

// watchTableNote explains the table.
const watchTableNote = "CPU: percent of one core, user + system = total. TIME_WAIT, ports used: at most. Load average: mean over the step."

func errorsByClass(s *step) string {
	if s.Total.Errors.Total() == 0 {
		return "0"
	}
	return s.Total.Errors.String()
}

// corePercent is a process's CPU in percent of one core: "38 + 21 = 59 %".
func corePercent(p *result.ProcessUsage) string {
	if p.CPUCores == nil {
		return "-"
	}
	percent := func(v float64) string {
		if v < 0.0995 {
			return fmt.Sprintf("%.1f", v*100)
		}
		return fmt.Sprintf("%.0f", v*100)
	}
	return fmt.Sprintf("%s + %s = %s %%", percent(*p.CPUUserCores), percent(*p.CPUSystemCores), percent(*p.CPUCores))
}

// known writes a figure, or a dash where there is none.
func known(write func(float64) string, v *float64) string {
	if v == nil {
		return "-"
	}
	return write(*v)
}
