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
	for i := range r.steps {
		s := &r.steps[i]
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

// usageSections are the usage over a run without steps, or that of the key step, of the last step, and a table of at least so many steps.
func (r *run) usageSections(tableMin int) []sheet.Section {
	var sections []sheet.Section
	add := func(title string, u *result.Usage) {
		sections = append(sections, sheet.Section{Title: title, Facts: r.usageFacts(u)})
	}
	key := r.keyStep()
	for i := range r.steps {
		if s := &r.steps[i]; s.usage != nil && (s == key || i == len(r.steps)-1) {
			add("Used at "+s.load(), s.usage)
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
	busiest := slices.Clone(r.usage.Processes)
	busiest = slices.DeleteFunc(busiest, func(p result.ProcessUsage) bool { return p.CPUCores == nil })
	slices.SortStableFunc(busiest, func(a, b result.ProcessUsage) int { return cmp.Compare(*b.CPUCores, *a.CPUCores) })
	var parts []string
	for i := range busiest[:min(3, len(busiest))] {
		parts = append(parts, r.subject(busiest[i].Host, busiest[i].Name)+" used "+bounded(&busiest[i], "cpu_cores", sheet.UnitCores,
			*busiest[i].CPUCores))
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
	add := func(host, name string, parts []string) {
		if len(parts) > 0 {
			lines = append(lines, fact(r.subject(host, name), strings.Join(parts, ", ")))
		}
	}
	for i := range u.Processes {
		add(u.Processes[i].Host, u.Processes[i].Name, processParts(&u.Processes[i]))
	}
	for i := range u.Databases {
		add(u.Databases[i].Host, u.Databases[i].Name+" ("+u.Databases[i].Kind+")", databaseParts(&u.Databases[i]))
	}
	for i := range u.TCP {
		add(u.TCP[i].Host, "tcp", append(tcpParts(&u.TCP[i]), queueParts(u, u.TCP[i].Host)...))
	}
	for i := range u.Hosts {
		add(u.Hosts[i].Host, "host", hostParts(&u.Hosts[i]))
	}
	for i := range u.Watch {
		add(u.Watch[i].Host, "watch", watchParts(&u.Watch[i]))
	}
	return lines
}

// parts collects the known figures of a line.
type parts []string

// add formats the figures and appends them if all are known.
func (p *parts) add(format string, write func(float64) string, figures ...*float64) {
	texts := make([]any, len(figures))
	for i, v := range figures {
		if v == nil {
			return
		}
		texts[i] = write(*v)
	}
	*p = append(*p, fmt.Sprintf(format, texts...))
}

// positive returns nil for a figure that is not above 0.
func positive(v *float64) *float64 {
	if v == nil || *v <= 0 {
		return nil
	}
	return v
}

func processParts(u *result.ProcessUsage) []string {
	var p parts
	switch {
	case u.CPUPerRequest != nil:
		p = append(p, "CPU "+bounded(u, "cpu_seconds_per_request", sheet.UnitSeconds,
			*u.CPUPerRequest)+"/request"+bracketed(splitPerRequest(u, "sys")))
		p = append(p, bounded(u, "cpu_cores", sheet.UnitCores, *u.CPUCores))
	case u.CPUCores != nil:
		p = append(p, "CPU "+bounded(u, "cpu_cores", sheet.UnitCount, *u.CPUCores)+bracketed(splitCores(u, "sys")))
	}
	p.add("wait %s", sheet.Share, u.WaitShare)
	p.add("%s", sheet.Size, u.RSSMax)
	if u.FDsLimit != nil {
		p.add("%s of %s fds", whole, u.FDsMax, u.FDsLimit)
	} else {
		p.add("%s fds", whole, u.FDsMax)
	}
	p.add("%s threads", whole, u.ThreadsMax)
	return p
}

// The smallest bounds that are printed.
const (
	coresShown   = 0.001
	secondsShown = 1e-9
)

// bounded writes a figure of a process: "244 ns", or "< 244 ns" if it is only an upper bound.
func bounded(u *result.ProcessUsage, name, unit string, v float64) string {
	switch {
	case !u.Below(name):
		return sheet.Text(v, unit)
	case unit == sheet.UnitSeconds:
		return sheet.AtMost(max(v, secondsShown), unit)
	case unit == sheet.UnitPercent:
		return sheet.AtMost(max(v, 100*coresShown), unit)
	}
	return sheet.AtMost(max(v, coresShown), unit)
}

// splitPerRequest writes user and system time per request: "250 µs user + 150 µs sys".
func splitPerRequest(u *result.ProcessUsage, system string) string {
	return split(u, "cpu_user_seconds_per_request", "cpu_system_seconds_per_request", system, sheet.UnitSeconds, u.CPUUserPerRequest,
		u.CPUSystemPerRequest)
}

// splitCores writes user and system time per second.
func splitCores(u *result.ProcessUsage, system string) string {
	return split(u, "cpu_user_cores", "cpu_system_cores", system, sheet.UnitCount, u.CPUUserCores, u.CPUSystemCores)
}

// split is "" if neither part is more than a bound.
func split(u *result.ProcessUsage, userName, systemName, system, unit string, userPart, systemPart *float64) string {
	if userPart == nil || systemPart == nil || u.Below(userName) && u.Below(systemName) {
		return ""
	}
	return bounded(u, userName, unit, *userPart) + " user + " + bounded(u, systemName, unit, *systemPart) + " " + system
}

func bracketed(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

func hostParts(u *result.HostUsage) []string {
	var p parts
	if u.Idle != nil {
		busy := 1 - *u.Idle
		p.add("CPU %s busy", sheet.Share, &busy)
		p.add("(%s user, %s system, %s steal)", sheet.Share, u.User, u.System, u.Steal)
		if len(p) == 2 {
			p = parts{p[0] + " " + p[1]}
		}
	}
	p.add("%s cores", sheet.Number, u.Cores)
	p.add("load %s", sheet.Number, u.Load1)
	p.add("CPU pressure %s", sheet.Share, u.PSICPU)
	p.add("I/O pressure %s", sheet.Share, positive(u.PSIIOSome))
	p.add("memory pressure %s", sheet.Share, positive(u.PSIMemory))
	p.add("%s available", sheet.Size, u.MemoryAvailable)
	return p
}

func tcpParts(u *result.TCPUsage) []string {
	var p parts
	if u.ActivePerRequest != nil {
		p.add("connections/request: %s opened + %s accepted", sheet.Number, u.ActivePerRequest, u.PassivePerRequest)
	} else {
		p.add("connections/s: %s opened + %s accepted", sheet.Number, u.Active, u.Passive)
	}
	p.add("TIME_WAIT %s", whole, u.TimeWaitMax)
	p.add("%s of %s ports in use", whole, u.PortsMax, u.PortsRange)
	if u.PortsGone != nil {
		p.add("%s left", whole, u.PortsLeft)
		p.add("gone in %s", sheet.Duration, positive(u.PortsGone))
	}
	p.add("%s listen drops", whole, positive(u.ListenDrops))
	p.add("%s accept queue overflows", whole, positive(u.ListenOverflows))
	p.add("connects failed: %s", whole, positive(u.AttemptFails))
	p.add("%s of segments retransmitted", sheet.Share, positive(u.RetransmitShare))
	return p
}

// queueParts describes the deepest accept queue of the host.
func queueParts(u *result.Usage, host string) []string {
	var deepest *result.ListenerUsage
	for i := range u.Listeners {
		l := &u.Listeners[i]
		if l.Host == host && l.QueueMax != nil && (deepest == nil || *l.QueueMax > *deepest.QueueMax) {
			deepest = l
		}
	}
	if deepest == nil || *deepest.QueueMax == 0 {
		return nil
	}
	var p parts
	p.add("accept queue %s of %s at "+strings.ReplaceAll(deepest.Address, "%", "%%"), whole, deepest.QueueMax, deepest.QueueLimit)
	return p
}

func databaseParts(u *result.DatabaseUsage) []string {
	var p parts
	p.add("%s statements/request", sheet.Number, u.StatementsPerRequest)
	p.add("%s commands/request", sheet.Number, u.CommandsPerRequest)
	p.add("%s commits/request", sheet.Number, u.CommitsPerRequest)
	p.add("%s rollbacks/request", sheet.Number, positive(u.RollbacksPerRequest))
	p.add("%s fsyncs/request", sheet.Number, u.FsyncsPerRequest)
	p.add("%s WAL/request", sheet.Size, u.WALPerRequest)
	if len(p) == 0 {
		p.add("%s statements/s", sheet.Number, u.Statements)
		p.add("%s commands/s", sheet.Number, u.Commands)
		p.add("%s commits/s", sheet.Number, u.Commits)
		p.add("%s fsyncs/s", sheet.Number, u.Fsyncs)
	}
	if u.ConnectionsLimit != nil {
		p.add("%s of %s connections", whole, u.ConnectionsMax, u.ConnectionsLimit)
	} else {
		p.add("%s connections", whole, u.ConnectionsMax)
	}
	p.add("%s active", sheet.Number, u.ActiveMean)
	p.add("most in "+strings.ReplaceAll(u.BusiestWait, "%", "%%")+" (%s sessions)", sheet.Number, u.BusiestWaitMean)
	p.add("CPU %s", sheet.Number, u.CPUCores)
	p.add("%s memory", sheet.Size, u.MemoryMax)
	return p
}

func watchParts(u *result.WatchUsage) []string {
	var p parts
	p.add("%s of a core", sheet.Share, u.CPUCores)
	p.add("%s readings failed", whole, positive(u.Failures))
	return p
}

// whole writes a rounded count.
func whole(v float64) string { return sheet.Number(math.Round(v)) }

// watchTable has a row per step: load, latency, errors by class, and the CPU of each process in percent of one core.
func (r *run) watchTable() *sheet.Table {
	cols := []column{
		{name: "load", value: (*step).load},
		{name: "answered", value: func(s *step) string { return sheet.Rate(s.Total.Rate()) }},
		{name: "p50", value: func(s *step) string { return s.figures.text(figureP50) }},
		{name: "p99", value: func(s *step) string { return s.figures.text(figureP99) }},
		{name: "errors", value: errorsByClass},
	}
	if r.anyStep(func(s *step) bool { return len(s.Total.Statuses) > 0 }) {
		cols = append(cols, column{name: "502", value: func(s *step) string { return sheet.Integer(s.Total.Statuses[502]) }})
	}
	first := r.steps[0].usage // every step has the same subjects in the same order
	for i := range first.Processes {
		name := r.subject(first.Processes[i].Host, first.Processes[i].Name)
		cols = append(cols, column{name: name + " CPU, user + sys", value: func(s *step) string { return corePercent(&s.usage.Processes[i]) }})
	}
	for i := range first.TCP {
		cols = append(
			cols,
			column{name: r.subject(first.TCP[i].Host, "TIME_WAIT"), value: func(s *step) string { return known(whole, s.usage.TCP[i].TimeWaitMax) }},
			column{name: r.subject(first.TCP[i].Host, "ports used"), value: func(s *step) string { return known(whole, s.usage.TCP[i].PortsMax) }},
		)
	}
	for i := range first.Hosts {
		cols = append(cols, column{
			name:  r.subject(first.Hosts[i].Host, "load average"),
			value: func(s *step) string { return known(sheet.Number, s.usage.Hosts[i].Load1) },
		})
	}
	return stepTable(cols, r.steps)
}

// watchTableNote explains watchTable.
const watchTableNote = "CPU: percent of one core, user + system = total. TIME_WAIT, ports used: highest value. Load average: mean " +
	"over the step."

func errorsByClass(s *step) string {
	if s.Total.Errors.Total() == 0 {
		return "0"
	}
	return errorList(&s.Total.Errors)
}

// corePercent writes the CPU of a process in percent of one core: "38 + 21 = 59 %".
func corePercent(p *result.ProcessUsage) string {
	if p.CPUCores == nil {
		return "-"
	}
	total := bounded(p, "cpu_cores", sheet.UnitPercent, 100**p.CPUCores)
	if p.Below("cpu_user_cores") && p.Below("cpu_system_cores") {
		return total
	}
	part := func(name string, v *float64) string {
		return strings.TrimSuffix(bounded(p, name, sheet.UnitPercent, 100**v), " %")
	}
	return part("cpu_user_cores", p.CPUUserCores) + " + " + part("cpu_system_cores", p.CPUSystemCores) + " = " + total
}

// known writes a figure, or "-" for nil.
func known(write func(float64) string, v *float64) string {
	if v == nil {
		return "-"
	}
	return write(*v)
}
