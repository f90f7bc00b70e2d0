//go:build linux

package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// wantedRight is the number of faults, of 18, that must be named in most rounds.
const (
	faultCount  = 18
	wantedRight = 16
)

// A table collects and prints reports.
type table struct {
	out    io.Writer
	rounds int
	rows   []*row
}

// A row is one scenario.
type row struct {
	scenario scenario
	reports  []report
}

// expected returns the verdicts that are right; "for a human" if that is for a human to judge.
func (s scenario) expected() string {
	if len(s.expect) == 0 {
		return "for a human"
	}
	return strings.Join(s.expect, "/")
}

// add prints a report and keeps it.
func (t *table) add(s scenario, r report) {
	at := -1
	for i, row := range t.rows {
		if row.scenario.name == s.name {
			at = i
		}
	}
	if at < 0 {
		at = len(t.rows)
		t.rows = append(t.rows, &row{scenario: s})
	}
	t.rows[at].reports = append(t.rows[at].reports, r)
	judged := "WRONG"
	switch {
	case len(s.expect) == 0:
		judged = ""
	case r.err == nil && s.right(r.verdict):
		judged = "right"
	}
	fmt.Fprintf(t.out, "%-18s %-14s expected %-14s %-5s  %s  %s\n", s.name, r.name(), s.expected(), judged, r.rates(),
		r.took.Round(time.Second))
	if r.busy > busyMost {
		fmt.Fprintf(t.out, "    other programs used %.0f %% of the CPUs when it started: run it again on an idle machine\n", 100*r.busy)
	}
	if r.err != nil {
		fmt.Fprintf(t.out, "    %v\n", r.err)
		return
	}
	fmt.Fprintf(t.out, "    %s\n", r.evidence)
	if r.advice != "" {
		fmt.Fprintf(t.out, "    try: %s\n", r.advice)
	}
	if r.second != "" {
		fmt.Fprintf(t.out, "    second: %s\n", r.second)
	}
}

func (r report) name() string {
	if r.err != nil {
		return "none"
	}
	return r.verdict
}

func (r report) rates() string {
	if r.feasible == 0 && r.missed == 0 {
		return ""
	}
	return fmt.Sprintf("%.4g/s met the SLO, %.4g/s missed it", r.feasible, r.missed)
}

// right returns in how many rounds the verdict was right.
func (w *row) right() int {
	n := 0
	for _, r := range w.reports {
		if r.err == nil && w.scenario.right(r.verdict) {
			n++
		}
	}
	return n
}

// named reports whether the verdict was right in most rounds.
func (w *row) named() bool { return 2*w.right() > len(w.reports) }

func (w *row) isHealthy() bool { return strings.HasPrefix(w.scenario.name, "healthy-") }

// counts returns how many faults were named, of how many.
func (t *table) counts() (named, faults int) {
	for _, w := range t.rows {
		if w.isHealthy() || len(w.scenario.expect) == 0 {
			continue
		}
		faults++
		if w.named() {
			named++
		}
	}
	return named, faults
}

// passed reports whether enough faults were named, at most 2 of 18 were not, and no healthy server was ever called anything
// else.
func (t *table) passed() bool {
	named, faults := t.counts()
	for _, w := range t.rows {
		if w.isHealthy() && w.right() < len(w.reports) {
			return false
		}
	}
	allowed := 0
	if faults == faultCount {
		allowed = faultCount - wantedRight
	}
	return named >= faults-allowed
}

// summarize prints a line per scenario.
func (t *table) summarize() {
	fmt.Fprintf(t.out, "\n| scenario | planted | expected | first place in each round |\n|---|---|---|---|\n")
	for _, w := range t.rows {
		var names []string
		for _, r := range w.reports {
			names = append(names, r.name())
		}
		fmt.Fprintf(t.out, "| %s | %s | %s | %s |\n", w.scenario.name, w.scenario.plants, w.scenario.expected(), strings.Join(names, ", "))
	}
	if named, faults := t.counts(); faults > 0 {
		fmt.Fprintf(t.out, "\n%d of %d faults are named in most rounds\n", named, faults)
	}
}
