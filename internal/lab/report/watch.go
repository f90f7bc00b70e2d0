package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"spillway/internal/lab/result"
)

// A WatchError is what kept a sampler from reading.
type WatchError struct {
	At      float64 `json:"at_seconds"`
	Host    string  `json:"host,omitempty"`
	Sampler string  `json:"sampler"`
	Subject string  `json:"subject,omitempty"`
	Error   string  `json:"error"`
}

// watch derives what the watched things used: in each step, or over the whole time when there are none.
func (r *run) watch() {
	r.tracks = r.Run.Tracks()
	for i := range r.steps {
		s := &r.steps[i]
		s.usage = result.UsageOf(r.tracks, s.Start, s.Start+s.Total.Elapsed, s.Total.Done)
	}
	if len(r.steps) > 0 || len(r.tracks) == 0 {
		return
	}
	from, to := r.watched()
	r.usage = result.UsageOf(r.tracks, from, to, 0)
}

// watched is the time from the first sample to the last.
func (r *run) watched() (from, to float64) {
	for i := range r.Samples {
		at := r.Samples[i].At
		if i == 0 {
			from, to = at, at
		}
		from, to = min(from, at), max(to, at)
	}
	return from, to
}

// watchErrors is what the samplers said, each once.
func (r *run) watchErrors() []WatchError {
	var all []WatchError
	for _, t := range r.tracks {
		for _, e := range t.Errors {
			known := slices.ContainsFunc(all, func(w WatchError) bool {
				return w.Host == t.Host && w.Sampler == t.Sampler && w.Subject == t.Subject && w.Error == e.Text
			})
			if !known {
				all = append(all, WatchError{At: e.At, Host: t.Host, Sampler: t.Sampler, Subject: t.Subject, Error: e.Text})
			}
		}
	}
	return all
}

// hosts are the hosts that were watched, in the order in which they appear.
func (r *run) hosts() []string {
	var hosts []string
	for _, t := range r.tracks {
		if !slices.Contains(hosts, t.Host) {
			hosts = append(hosts, t.Host)
		}
	}
	return hosts
}

// on names a subject, behind its host's name when there are several.
func (r *run) on(host, subject string) string {
	if len(r.hosts()) < 2 {
		return subject
	}
	name := cmp.Or(host, r.Header.Machine.Host, "here")
	if subject == "" {
		return name
	}
	return name + " " + subject
}

// A block is what was used in one step, or over the whole time: a line for each process, host, database.
type block struct {
	Title string
	Lines []fact
}

// blocks are those worth reading first: of the step that holds the most and of the last one. The table has all steps.
func (r *run) blocks() []block {
	if r.usage != nil {
		return []block{{"Used over " + wholeSeconds(r.usage.To-r.usage.From), r.usageLines(r.usage)}}
	}
	var blocks []block
	key := r.keyStep()
	for i := range r.steps {
		s := &r.steps[i]
		if s.usage == nil || s != key && i != len(r.steps)-1 {
			continue
		}
		blocks = append(blocks, block{"Used at " + s.load(), r.usageLines(s.usage)})
	}
	return blocks
}

// watchRemarks say what could not be read and what watching cost.
func (r *run) watchRemarks() []string {
	var lines []string
	for _, e := range r.watchErrors() {
		name := strings.TrimSpace(e.Sampler + " " + e.Subject)
		lines = append(lines, fmt.Sprintf("%s could not be read from %s on: %s", r.on(e.Host, name), elapsed(math.Max(0, math.Round(e.At))), e.Error))
	}
	return lines
}

// watchHeadline sums up a file without steps.
func (r *run) watchHeadline() headline {
	h := headline{Mood: plain, Text: "Watched for " + wholeSeconds(r.usage.To-r.usage.From)}
	busiest := slices.Clone(r.usage.Processes)
	busiest = slices.DeleteFunc(busiest, func(p result.ProcessUsage) bool { return p.CPUCores == nil })
	slices.SortStableFunc(busiest, func(a, b result.ProcessUsage) int { return cmp.Compare(*b.CPUCores, *a.CPUCores) })
	var parts []string
	for i := range busiest[:min(3, len(busiest))] {
		parts = append(parts, r.on(busiest[i].Host, busiest[i].Name)+" used "+cores(*busiest[i].CPUCores))
	}
	if len(parts) > 0 {
		h.Text += ": " + strings.Join(parts, ", ")
	}
	h.Text += "."
	return h
}
