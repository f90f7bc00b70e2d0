package main

import (
	"fmt"
	"strings"

	"spillway/internal/lab/result"
)

// lineSpan is how many seconds a line looks back at least: processes and
// databases are read once a second, and figures need two readings.
const lineSpan = 3.0

// watchLine sums up the span before a time, in seconds since the start.
func watchLine(run *result.Run, at, span float64) string {
	samples := run.Samples
	for i := range samples {
		if samples[i].At >= at-span-1.5 { // one reading before the span
			samples = samples[i:]
			break
		}
	}
	recent := result.Run{Watches: run.Watches, Samples: samples}
	u := result.UsageOf(recent.Series(), at-span, at, 0)
	if u == nil {
		return "nothing read yet"
	}
	var parts []string
	add := func(host, format string, figures ...*float64) {
		values := make([]any, len(figures))
		for i, v := range figures {
			if v == nil {
				return
			}
			values[i] = *v
		}
		if host != "" {
			format = strings.ReplaceAll(host, "%", "%%") + " " + format
		}
		parts = append(parts, fmt.Sprintf(format, values...))
	}
	for i := range u.Processes {
		p := &u.Processes[i]
		add(p.Host, strings.ReplaceAll(p.Name, "%", "%%")+" %.2f cores (%.2f+%.2f) wait %.2f", p.CPUCores, p.CPUUserCores, p.CPUSystemCores, p.WaitShare)
	}
	for i := range u.Hosts {
		add(u.Hosts[i].Host, "load %.2f", u.Hosts[i].Load1)
	}
	for i := range u.TCP {
		t := &u.TCP[i]
		add(t.Host, "TIME_WAIT %.0f", t.TimeWaitMax)
		add(t.Host, "ports %.0f/%.0f", t.PortsMax, t.PortsRange)
		add(t.Host, "new %.0f/s in %.0f/s out", t.Passive, t.Active)
	}
	for i := range u.Databases {
		d := &u.Databases[i]
		name := strings.ReplaceAll(d.Name, "%", "%%")
		add(d.Host, name+" %.0f conns", d.ConnectionsMax)
		add(d.Host, name+" %.1f active", d.ActiveMean)
		add(d.Host, name+" "+strings.ReplaceAll(d.BusiestWait, "%", "%%")+" %.1f", d.BusiestWaitMean)
		add(d.Host, name+" %.0f commits/s", d.Commits)
	}
	return strings.Join(parts, "  ")
}
