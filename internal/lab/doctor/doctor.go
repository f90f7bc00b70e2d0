// Package doctor checks a host, a database and a statement before a load, and
// shows the arithmetic behind each finding: local ports, backlogs, open files,
// the database's durability and memory, a missing index. It reads each fact
// once, judges it by the running kernel or server, and changes nothing. Fixes
// are commands for the user. Only a measurement of indexes writes, to temporary
// copies of tables.
package doctor

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"spillway/internal/lab/sheet"
)

// Status is the severity of a finding.
type Status string

// The statuses, from the best to the worst.
const (
	OK   Status = "ok"
	Note Status = "note" // for information; no change is needed
	Warn Status = "warn" // harmful under load
	Fail Status = "fail" // wrong, or loses data
)

// rank orders statuses; a larger rank is worse.
func (s Status) rank() int { return slices.Index([]Status{OK, Note, Warn, Fail}, s) }

// Finding is the outcome of one check. Observed and Arithmetic have numbers with
// units. Fix is a command to run, "" if there is none.
type Finding struct {
	Group      string    `json:"group"`
	Name       string    `json:"name"`
	Status     Status    `json:"status"`
	Observed   string    `json:"observed"`
	Arithmetic string    `json:"arithmetic,omitempty"`
	Why        string    `json:"why"`
	Fix        string    `json:"fix,omitempty"`
	OldAdvice  string    `json:"old_advice,omitempty"` // advice in old articles, and why it no longer applies
	Source     string    `json:"source"`               // of the fact
	Settings   []Setting `json:"settings,omitempty"`   // that Fix changes
}

// Setting is one kernel setting that a finding would change.
type Setting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// set makes a kernel setting part of the fix, in place of another value of it.
func (f *Finding) set(key, value string) {
	f.Settings = slices.DeleteFunc(f.Settings, func(s Setting) bool { return s.Key == key })
	f.Settings = append(f.Settings, Setting{Key: key, Value: value})
	var commands []string
	for _, s := range f.Settings {
		commands = append(commands, fmt.Sprintf("sysctl -w %s=%q", s.Key, s.Value))
	}
	f.Fix = strings.Join(commands, " && ")
}

// Report is one JSON document with all results.
type Report struct {
	Host       *Facts      `json:"host,omitempty"`
	Database   *Server     `json:"database,omitempty"`
	Prediction *Prediction `json:"prediction,omitempty"`
	Findings   []Finding   `json:"findings"`
	Query      *Query      `json:"query,omitempty"`
}

// Failed reports whether a check failed. A prediction that ports run out is a
// failed check.
func (r *Report) Failed() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Status == Fail })
}

// Add adds findings and sorts all: groups by their worst finding, and findings
// within a group from worst to best. Equal findings keep their order.
func (r *Report) Add(findings ...Finding) {
	r.Findings = slices.DeleteFunc(append(r.Findings, findings...), func(f Finding) bool { return f.Status == "" })
	worst := map[string]int{}
	first := map[string]int{}
	for i, f := range r.Findings {
		worst[f.Group] = max(worst[f.Group], f.Status.rank())
		if _, ok := first[f.Group]; !ok {
			first[f.Group] = i
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(worst[b.Group], worst[a.Group]),
			cmp.Compare(first[a.Group], first[b.Group]),
			cmp.Compare(b.Status.rank(), a.Status.rank()),
		)
	})
}

// WriteJSON writes the report as one JSON document.
func (r *Report) WriteJSON(w io.Writer) error { return sheet.WriteJSON(w, r) }
