package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// A WatchError is a reading that failed.
type WatchError struct {
	At      float64 `json:"at_seconds"`
	Host    string  `json:"host,omitempty"`
	Sampler string  `json:"sampler"`
	Subject string  `json:"subject,omitempty"`
	Error   string  `json:"error"`
	// Nothing was read between these times; nil if the subject was not read again, or some of its values were read.
	UnreadFrom  *float64 `json:"unread_from_seconds"`
	UnreadUntil *float64 `json:"unread_until_seconds"`
}

// watch computes the resource usage of each step, or of the whole run if it has no steps.
func (r *run) watch() {
	r.watched = r.Run.Series()
	for _, s := range r.steps {
		s.usage = result.UsageOf(r.watched, s.Start, s.Start+s.Total.Elapsed, s.Total.Completed)
	}
	if len(r.steps) > 0 || len(r.watched) == 0 {
		return
	}
	from, to := r.sampledTime()
	r.usage = result.UsageOf(r.watched, from, to, 0)
}

// sampledTime is when the first and the last sample were taken, in seconds.
func (r *run) sampledTime() (from, to float64) {
	for i := range r.Samples {
		at := r.Samples[i].At
		if i == 0 {
			from, to = at, at
		}
		from, to = min(from, at), max(to, at)
	}
	return from, to
}

// watchErrors lists each distinct error of the samplers once.
func (r *run) watchErrors() []WatchError {
	var all []WatchError
	for _, t := range r.watched {
		for _, e := range t.Errors {
			known := slices.ContainsFunc(all, func(w WatchError) bool {
				return w.Host == t.Host && w.Sampler == t.Sampler && w.Subject == t.Subject && w.Error == e.Text
			})
			if known {
				continue
			}
			one := WatchError{At: e.At, Host: t.Host, Sampler: t.Sampler, Subject: t.Subject, Error: e.Text}
			if e.Gap {
				one.UnreadFrom, one.UnreadUntil = &e.From, &e.Until
			}
			all = append(all, one)
		}
	}
	return all
}

// hosts returns the watched hosts in order of appearance.
func (r *run) hosts() []string {
	var hosts []string
	for _, t := range r.watched {
		if !slices.Contains(hosts, t.Host) {
			hosts = append(hosts, t.Host)
		}
	}
	return hosts
}

// subject names a subject, with its host in front if there are several.
func (r *run) subject(host, name string) string {
	if len(r.hosts()) < 2 {
		return name
	}
	return strings.TrimSpace(cmp.Or(host, r.Header.Machine.Host, "here") + " " + name)
}

// keyStep is the step that a search rests on, the valid step with the highest rate that holds, or the first step.
func (r *run) keyStep() *step {
	if r.search != nil && r.search.Passing >= 0 {
		return r.steps[r.search.Passing]
	}
	key := fastest(slices.DeleteFunc(slices.Clone(r.steps), func(s *step) bool { return !s.valid() }))
	if key == nil && len(r.steps) > 0 {
		return r.steps[0]
	}
	return key
}

// usageSections are the usage over a run without steps, or that of the key step, of the last step, and a table of at least so many steps.
func (r *run) usageSections(tableMin int) []sheet.Section {
	var sections []sheet.Section
	add := func(title string, u *result.Usage) {
		sections = append(sections, sheet.Section{Title: title, Facts: r.usageFacts(u)})
	}
	key := r.keyStep()
	for i, s := range r.steps {
		if s.usage != nil && (s == key || i == len(r.steps)-1) {
			add("Used at "+s.Load(), s.usage)
		}
	}
	if r.usage != nil {
		add("Used over "+sheet.Duration(r.usage.To-r.usage.From), r.usage)
	}
	if unread := r.watchRemarks(); len(unread) > 0 {
		sections = append(sections, sheet.Section{Title: "Not read", Lines: unread})
	}
	if len(r.steps) >= tableMin && len(r.watched) > 0 {
		sections = append(sections, sheet.Section{Title: "Used in each step", Table: r.watchTable(), Note: watchTableNote})
	}
	return sections
}

// watchRemarks list what could not be read.
func (r *run) watchRemarks() []string {
	var lines []string
	for _, e := range r.watchErrors() {
		name := strings.TrimSpace(e.Sampler + " " + e.Subject)
		when := "could not be read from " + sheet.At(e.At) + " on"
		if e.UnreadFrom != nil {
			when = "was not read from " + sheet.At(*e.UnreadFrom) + " to " + sheet.At(*e.UnreadUntil)
		}
		lines = append(lines, fmt.Sprintf("%s %s: %s", r.subject(e.Host, name), when, e.Error))
	}
	return lines
}

// watchHeadline sums up a run without steps.
func (r *run) watchHeadline() headline {
	h := headline{Mood: plain, Text: "Watched for " + sheet.Duration(r.usage.To-r.usage.From)}
	busiest := r.usage.Of(result.SamplerProcess)
	slices.SortStableFunc(busiest, func(a, b *result.SubjectUsage) int {
		return cmp.Compare(b.Value(result.CPUCores), a.Value(result.CPUCores)) // unknown ones come last
	})
	var parts []string
	for _, p := range busiest[:min(3, len(busiest))] {
		if !math.IsNaN(p.Value(result.CPUCores)) {
			parts = append(parts, r.subject(p.Host, p.Name)+" used "+bounded(p, result.CPUCores, sheet.UnitCores))
		}
	}
	if len(parts) > 0 {
		h.Text += ": " + strings.Join(parts, ", ")
	}
	h.Text += "."
	return h
}

// usageFacts has one line per process, database, TCP stack and host, and one for the samplers.
func (r *run) usageFacts(u *result.Usage) []sheet.Fact {
	var lines []sheet.Fact
	add := func(s *result.SubjectUsage, name string, more ...string) {
		if parts := append(usageParts(s, u.Requests > 0), more...); len(parts) > 0 {
			lines = append(lines, fact(r.subject(s.Host, name), strings.Join(parts, ", ")))
		}
	}
	for _, s := range u.Of(result.SamplerProcess) {
		add(s, s.Name)
	}
	for _, s := range u.Databases() {
		add(s, s.Name+" ("+s.Sampler+")")
	}
	for _, s := range u.Of(result.SamplerTCP) {
		add(s, s.Sampler, deepestQueue(u, s.Host)...)
	}
	for _, s := range slices.Concat(u.Of(result.SamplerHost), u.Of(result.SamplerWatch)) {
		add(s, s.Sampler)
	}
	return lines
}

// positive returns nil for a figure that is not above 0.
func positive(v *float64) *float64 {
	if v == nil || *v <= 0 {
		return nil
	}
	return v
}

// usageParts are the known figures of a subject. Those per second are left out beside those per request.
func usageParts(s *result.SubjectUsage, perRequest bool) []string {
	var parts []string
	switch s.Sampler {
	case result.SamplerProcess:
		parts = processCPU(s)
	case result.SamplerHost:
		parts = hostCPU(s)
	case result.SamplerTCP:
		parts = newConnections(s)
	}
	for _, d := range result.Definitions(s.Sampler) {
		v := s.Value(d.Name)
		switch {
		case d.Line == "" || math.IsNaN(v) || d.Rare && v <= 0 || d.Unit == sheet.UnitRate && perRequest:
			continue
		case d.Name == result.PortsLeft && math.IsNaN(s.Value(result.PortsGone)):
			continue
		}
		text := lineValue(v, d.Unit)
		if limit := s.Value(d.Of); !math.IsNaN(limit) {
			text += " of " + lineValue(limit, d.Unit)
		}
		parts = append(parts, strings.NewReplacer("{}", text, "{wait}", s.BusiestWait).Replace(d.Line))
	}
	return parts
}

// lineValue writes a figure whose unit is in the words around it.
func lineValue(v float64, unit string) string {
	switch unit {
	case sheet.UnitCount:
		return sheet.Number(math.Round(v))
	case sheet.UnitRate:
		return sheet.Number(v)
	}
	return sheet.Bare(v, unit)
}

// processCPU is the CPU time of a process per request, or per second without requests, and how long its threads waited for a CPU.
func processCPU(s *result.SubjectUsage) []string {
	var parts []string
	switch {
	case !math.IsNaN(s.Value(result.CPUPerRequest)):
		halves := split(s, result.CPUUserPerRequest, result.CPUSystemPerRequest, sheet.UnitSeconds)
		parts = append(parts, "CPU "+bounded(s, result.CPUPerRequest, sheet.UnitSeconds)+"/request"+halves,
			bounded(s, result.CPUCores, sheet.UnitCores))
	case !math.IsNaN(s.Value(result.CPUCores)):
		halves := split(s, result.CPUUserCores, result.CPUSystemCores, sheet.UnitCount)
		parts = append(parts, "CPU "+bounded(s, result.CPUCores, sheet.UnitCount)+halves)
	}
	if wait := s.Value(result.RunQueueWait); !math.IsNaN(wait) {
		parts = append(parts, "wait "+sheet.Share(wait))
	}
	return parts
}

// The smallest bounds that are printed.
const (
	coresShown   = 0.001
	secondsShown = 1e-9
)

// bounded writes a CPU time of a process: "244 ns", or "< 244 ns" if it is only an upper bound. In percent, it is that of one core.
func bounded(s *result.SubjectUsage, f result.Figure, unit string) string {
	v, least := s.Value(f), coresShown
	switch unit {
	case sheet.UnitSeconds:
		least = secondsShown
	case sheet.UnitPercent:
		v, least = 100*v, 100*least
	}
	if s.Below(f) {
		return sheet.AtMost(max(v, least), unit)
	}
	return sheet.Text(v, unit)
}

// split writes user and system time, " (250 µs user + 150 µs sys)"; "" if the parts are not known, or neither is more than a bound.
func split(s *result.SubjectUsage, user, system result.Figure, unit string) string {
	if math.IsNaN(s.Value(user)+s.Value(system)) || s.Below(user) && s.Below(system) {
		return ""
	}
	return " (" + bounded(s, user, unit) + " user + " + bounded(s, system, unit) + " sys)"
}

// hostCPU is how busy the CPUs of a host were.
func hostCPU(s *result.SubjectUsage) []string {
	idle := s.Value(result.IdleShare)
	if math.IsNaN(idle) {
		return nil
	}
	text := "CPU " + sheet.Share(1-idle) + " busy"
	user, system, steal := s.Value(result.UserShare), s.Value(result.SystemShare), s.Value(result.StealShare)
	if !math.IsNaN(user + system + steal) {
		text += fmt.Sprintf(" (%s user, %s system, %s steal)", sheet.Share(user), sheet.Share(system), sheet.Share(steal))
	}
	return []string{text}
}

// newConnections are those that a host opened and accepted, per request, or per second without requests.
func newConnections(s *result.SubjectUsage) []string {
	unit, opened, accepted := "request", s.Value(result.ActiveOpensPerRequest), s.Value(result.PassiveOpensPerRequest)
	if math.IsNaN(opened) {
		unit, opened, accepted = "s", s.Value(result.ActiveOpens), s.Value(result.PassiveOpens)
	}
	if math.IsNaN(opened + accepted) {
		return nil
	}
	return []string{fmt.Sprintf("connections/%s: %s opened + %s accepted", unit, sheet.Number(opened), sheet.Number(accepted))}
}

// deepestQueue describes the deepest accept queue of a host.
func deepestQueue(u *result.Usage, host string) []string {
	var deepest *result.SubjectUsage
	for _, s := range u.Of(result.SamplerListener) {
		if v := s.Value(result.AcceptQueueMax); s.Host == host && v > 0 && (deepest == nil || v > deepest.Value(result.AcceptQueueMax)) {
			deepest = s
		}
	}
	if deepest == nil {
		return nil
	}
	return []string{strings.Join(usageParts(deepest, false), ", ") + " at " + deepest.Name}
}

// watchTable has a row per step: load, latency, errors by class, and the CPU of each process in percent of one core.
func (r *run) watchTable() *sheet.Table {
	cols := []column{
		{name: "load", value: (*step).Load},
		{name: "answered", value: func(s *step) string { return sheet.Rate(s.Total.Rate()) }},
		{name: "p50", value: func(s *step) string { return s.figures.text(figureP50) }},
		{name: "p99", value: func(s *step) string { return s.figures.text(figureP99) }},
		{name: "errors", value: func(s *step) string { return cmp.Or(errorList(&s.Total.Errors), "0") }},
	}
	if slices.ContainsFunc(r.steps, func(s *step) bool { return len(s.Total.Statuses) > 0 }) {
		cols = append(cols, column{name: "502", value: func(s *step) string { return sheet.Integer(s.Total.Statuses[502]) }})
	}
	add := func(of *result.SubjectUsage, name string, value func(*result.SubjectUsage) string) {
		cols = append(cols, column{
			name:  r.subject(of.Host, name),
			value: func(s *step) string { return value(s.usage.Find(of.Sampler, of.Host, of.Name)) },
		})
	}
	shown := func(f result.Figure, unit string) func(*result.SubjectUsage) string {
		return func(s *result.SubjectUsage) string {
			v := s.Value(f)
			if math.IsNaN(v) {
				return "-"
			}
			return lineValue(v, unit)
		}
	}
	first := r.steps[0].usage // every step has the same subjects
	for _, p := range first.Of(result.SamplerProcess) {
		add(p, p.Name+" CPU, user + sys", corePercent)
	}
	for _, t := range first.Of(result.SamplerTCP) {
		add(t, "TIME_WAIT", shown(result.TimeWaitMax, sheet.UnitCount))
		add(t, "ports used", shown(result.PortsMax, sheet.UnitCount))
	}
	for _, h := range first.Of(result.SamplerHost) {
		add(h, "load average", shown(result.LoadMean, ""))
	}
	return stepTable(cols, r.steps)
}

// watchTableNote explains watchTable.
const watchTableNote = "CPU: percent of one core, user + system = total. TIME_WAIT, ports used: highest value. Load average: mean " +
	"over the step."

// corePercent writes the CPU of a process in percent of one core: "38 + 21 = 59 %".
func corePercent(p *result.SubjectUsage) string {
	total := bounded(p, result.CPUCores, sheet.UnitPercent)
	switch {
	case math.IsNaN(p.Value(result.CPUCores)):
		return "-"
	case p.Below(result.CPUUserCores) && p.Below(result.CPUSystemCores):
		return total
	}
	user, system := bounded(p, result.CPUUserCores, sheet.UnitPercent), bounded(p, result.CPUSystemCores, sheet.UnitPercent)
	return strings.TrimSuffix(user, " %") + " + " + strings.TrimSuffix(system, " %") + " = " + total
}

// known writes a figure, or "-" for nil.
func known(write func(float64) string, v *float64) string {
	if v == nil {
		return "-"
	}
	return write(*v)
}
