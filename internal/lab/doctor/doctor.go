// Package doctor looks at a host and a database before a load does, and says
// with the arithmetic what will stop it: local ports, backlogs, files, the
// database's durability and memory, a missing index. It promises to read each
// fact once, to judge it by the kernel or server that runs, and to change
// nothing: fixes are commands to run, or a sysctl file that the caller asks for.
// Only Measure writes, and only copies of a table that end with its session.
package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// Status is how bad a finding is.
type Status string

// The statuses, from the best to the worst.
const (
	OK   Status = "ok"
	Note Status = "note" // worth knowing; nothing needs to change
	Warn Status = "warn" // will hurt under load
	Fail Status = "fail" // is wrong, or loses data
)

// rank orders statuses: a larger one is worse.
func (s Status) rank() int { return slices.Index([]Status{OK, Note, Warn, Fail}, s) }

// Finding is one check's outcome. Observed and Arithmetic hold numbers with
// their units; Fix is a command to run, "" when there is none.
type Finding struct {
	Group      string    `json:"group"`
	Name       string    `json:"name"`
	Status     Status    `json:"status"`
	Observed   string    `json:"observed"`
	Arithmetic string    `json:"arithmetic,omitempty"`
	Why        string    `json:"why"`
	Fix        string    `json:"fix,omitempty"`
	OldAdvice  string    `json:"old_advice,omitempty"` // what old articles say, and why it no longer holds
	Source     string    `json:"source"`               // where the fact was read
	Settings   []Setting `json:"settings,omitempty"`   // what a sysctl file would hold
}

// Setting is one kernel setting that a finding would change.
type Setting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// set makes the fix of a finding: kernel settings, as a command and for a
// sysctl file.
func (f *Finding) set(key, value string) {
	if f.Fix != "" {
		f.Fix += " && "
	}
	f.Fix += fmt.Sprintf("sysctl -w %s=%q", key, value)
	f.Settings = append(f.Settings, Setting{Key: key, Value: value})
}

// Report is all that doctor found. It is one JSON document.
type Report struct {
	Host       *Facts      `json:"host,omitempty"`
	Database   *Server     `json:"database,omitempty"`
	Prediction *Prediction `json:"prediction,omitempty"`
	Findings   []Finding   `json:"findings"`
	Query      *Query      `json:"query,omitempty"`
}

// Failed reports whether a check failed; a prediction that ports run out is one.
func (r *Report) Failed() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Status == Fail })
}

// Add appends findings and keeps them in order: groups by their worst finding,
// findings of a group from the worst to the best, equals as they came.
func (r *Report) Add(findings ...Finding) {
	for _, f := range findings {
		if f.Status != "" {
			r.Findings = append(r.Findings, f)
		}
	}
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
func (r *Report) WriteJSON(w io.Writer) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	if err := out.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
