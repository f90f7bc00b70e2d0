package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"spillway/internal/lab/result"
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

// A usageSummary is the usage of one step or of the whole run, with a line per process, host and database.
type usageSummary struct {
	Title string
	Lines []fact
}

// usageSummaries are the usage of the key step and of the last step. The table has all steps.
func (r *run) usageSummaries() []usageSummary {
	if r.usage != nil {
		return []usageSummary{{"Used over " + wholeSeconds(r.usage.To-r.usage.From), r.usageLines(r.usage)}}
	}
	var summaries []usageSummary
	key := r.keyStep()
	for i := range r.steps {
		s := &r.steps[i]
		if s.usage == nil || s != key && i != len(r.steps)-1 {
			continue
		}
		summaries = append(summaries, usageSummary{"Used at " + s.load(), r.usageLines(s.usage)})
	}
	return summaries
}

// watchRemarks list what could not be read.
func (r *run) watchRemarks() []string {
	var lines []string
	for _, e := range r.watchErrors() {
		name := strings.TrimSpace(e.Sampler + " " + e.Subject)
		when := "could not be read from " + elapsed(math.Max(0, math.Round(e.At))) + " on"
		if e.UnreadFrom != nil {
			when = fmt.Sprintf("was not read from %.1f s to %.1f s", math.Max(0, *e.UnreadFrom), *e.UnreadUntil)
		}
		lines = append(lines, fmt.Sprintf("%s %s: %s", r.subject(e.Host, name), when, e.Error))
	}
	return lines
}

// watchHeadline sums up a run without steps.
func (r *run) watchHeadline() headline {
	h := headline{Mood: plain, Text: "Watched for " + wholeSeconds(r.usage.To-r.usage.From)}
	busiest := slices.Clone(r.usage.Processes)
	busiest = slices.DeleteFunc(busiest, func(p result.ProcessUsage) bool { return p.CPUCores == nil })
	slices.SortStableFunc(busiest, func(a, b result.ProcessUsage) int { return cmp.Compare(*b.CPUCores, *a.CPUCores) })
	var parts []string
	for i := range busiest[:min(3, len(busiest))] {
		parts = append(parts, r.subject(busiest[i].Host, busiest[i].Name)+" used "+bounded(&busiest[i], "cpu_cores", cores, *busiest[i].CPUCores))
	}
	if len(parts) > 0 {
		h.Text += ": " + strings.Join(parts, ", ")
	}
	h.Text += "."
	return h
}

// usageLines has one line per process, database, TCP stack and host, and one for the samplers.
func (r *run) usageLines(u *result.Usage) []fact {
	var lines []fact
	add := func(host, name string, parts []string) {
		if len(parts) > 0 {
			lines = append(lines, fact{r.subject(host, name), strings.Join(parts, ", ")})
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
		p = append(p, "CPU "+bounded(u, "cpu_seconds_per_request", seconds, *u.CPUPerRequest)+"/request"+bracketed(splitPerRequest(u, "sys")))
		p = append(p, bounded(u, "cpu_cores", cores, *u.CPUCores))
	case u.CPUCores != nil:
		p = append(p, "CPU "+bounded(u, "cpu_cores", threeDecimals, *u.CPUCores)+bracketed(splitCores(u, "sys")))
	}
	p.add("wait %s", share, u.WaitShare)
	p.add("%s", size, u.RSSMax)
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
func bounded(u *result.ProcessUsage, name string, write func(float64) string, v float64) string {
	if !u.Below(name) {
		return write(v)
	}
	if strings.HasSuffix(name, "_cores") {
		return "< " + write(max(v, coresShown))
	}
	return "< " + write(max(v, secondsShown))
}

// splitPerRequest writes user and system time per request: "250 µs user + 150 µs sys".
func splitPerRequest(u *result.ProcessUsage, system string) string {
	return split(u, "cpu_user_seconds_per_request", "cpu_system_seconds_per_request", system, seconds, u.CPUUserPerRequest,
		u.CPUSystemPerRequest)
}

// splitCores writes user and system time per second.
func splitCores(u *result.ProcessUsage, system string) string {
	return split(u, "cpu_user_cores", "cpu_system_cores", system, threeDecimals, u.CPUUserCores, u.CPUSystemCores)
}

// split is "" if neither part is more than a bound.
func split(u *result.ProcessUsage, userName, systemName, system string, write func(float64) string, userPart, systemPart *float64) string {
	if userPart == nil || systemPart == nil || u.Below(userName) && u.Below(systemName) {
		return ""
	}
	return bounded(u, userName, write, *userPart) + " user + " + bounded(u, systemName, write, *systemPart) + " " + system
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
		p.add("CPU %s busy", share, &busy)
		p.add("(%s user, %s system, %s steal)", share, u.User, u.System, u.Steal)
		if len(p) == 2 {
			p = parts{p[0] + " " + p[1]}
		}
	}
	p.add("%s cores", whole, u.Cores)
	p.add("load %s", significant, u.Load1)
	p.add("CPU pressure %s", share, u.PSICPU)
	p.add("I/O pressure %s", share, positive(u.PSIIOSome))
	p.add("memory pressure %s", share, positive(u.PSIMemory))
	p.add("%s available", size, u.MemoryAvailable)
	return p
}

func tcpParts(u *result.TCPUsage) []string {
	var p parts
	if u.ActivePerRequest != nil {
		p.add("connections/request: %s opened + %s accepted", threeDecimals, u.ActivePerRequest, u.PassivePerRequest)
	} else {
		p.add("connections/s: %s opened + %s accepted", number, u.Active, u.Passive)
	}
	p.add("TIME_WAIT %s", whole, u.TimeWaitMax)
	p.add("%s of %s ports in use", whole, u.PortsMax, u.PortsRange)
	if u.PortsGone != nil {
		p.add("%s left", whole, u.PortsLeft)
		p.add("gone in %s", seconds, positive(u.PortsGone))
	}
	p.add("%s listen drops", whole, positive(u.ListenDrops))
	p.add("%s accept queue overflows", whole, positive(u.ListenOverflows))
	p.add("connects failed: %s", whole, positive(u.AttemptFails))
	p.add("%s of segments retransmitted", share, positive(u.RetransmitShare))
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
	p.add("%s statements/request", threeDecimals, u.StatementsPerRequest)
	p.add("%s commands/request", threeDecimals, u.CommandsPerRequest)
	p.add("%s commits/request", threeDecimals, u.CommitsPerRequest)
	p.add("%s rollbacks/request", threeDecimals, positive(u.RollbacksPerRequest))
	p.add("%s fsyncs/request", threeDecimals, u.FsyncsPerRequest)
	p.add("%s WAL/request", size, u.WALPerRequest)
	if len(p) == 0 {
		p.add("%s statements/s", number, u.Statements)
		p.add("%s commands/s", number, u.Commands)
		p.add("%s commits/s", number, u.Commits)
		p.add("%s fsyncs/s", number, u.Fsyncs)
	}
	if u.ConnectionsLimit != nil {
		p.add("%s of %s connections", whole, u.ConnectionsMax, u.ConnectionsLimit)
	} else {
		p.add("%s connections", whole, u.ConnectionsMax)
	}
	p.add("%s active", significant, u.ActiveMean)
	p.add("most in "+strings.ReplaceAll(u.BusiestWait, "%", "%%")+" (%s sessions)", significant, u.BusiestWaitMean)
	p.add("CPU %s", threeDecimals, u.CPUCores)
	p.add("%s memory", size, u.MemoryMax)
	return p
}

func watchParts(u *result.WatchUsage) []string {
	var p parts
	p.add("%s of a core", share, u.CPUCores)
	p.add("%s readings failed", whole, positive(u.Failures))
	return p
}

// whole writes a rounded count.
func whole(v float64) string { return integer(int64(math.Round(v))) }

// cores writes CPU time per elapsed time: "0.41 cores".
func cores(v float64) string {
	if v == 1 {
		return "1 core"
	}
	return threeDecimals(v) + " cores"
}

// threeDecimals writes a number with up to three decimals.
func threeDecimals(v float64) string { return significant(math.Round(v*1000) / 1000) }

// watchTable has a row per step: load, latency, errors by class, and the CPU of each process in percent of one core. It
// is nil if nothing was watched.
func (r *run) watchTable() [][]string {
	if len(r.steps) == 0 || len(r.watched) == 0 {
		return nil
	}
	cols := []column{
		{name: "load", value: (*step).load},
		{name: "answered", value: func(s *step) string { return rate(s.Total.Rate()) }},
		{name: "p50", value: func(s *step) string { return s.figures.text(figureP50) }},
		{name: "p99", value: func(s *step) string { return s.figures.text(figureP99) }},
		{name: "errors", value: errorsByClass},
	}
	if r.anyStep(func(s *step) bool { return len(s.Total.Statuses) > 0 }) {
		cols = append(cols, column{name: "502", value: func(s *step) string { return integer(s.Total.Statuses[502]) }})
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
			value: func(s *step) string { return known(significant, s.usage.Hosts[i].Load1) },
		})
	}
	rows, _ := stepTable(cols, r.steps)
	return rows
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
	percent := func(v float64) string {
		if v < 0.0995 {
			return fmt.Sprintf("%.1f", v*100)
		}
		return fmt.Sprintf("%.0f", v*100)
	}
	whole := bounded(p, "cpu_cores", percent, *p.CPUCores) + " %"
	if p.Below("cpu_user_cores") && p.Below("cpu_system_cores") {
		return whole
	}
	return bounded(p, "cpu_user_cores", percent, *p.CPUUserCores) + " + " + bounded(p, "cpu_system_cores", percent, *p.CPUSystemCores) +
		" = " + whole
}

// known writes a figure, or "-" for nil.
func known(write func(float64) string, v *float64) string {
	if v == nil {
		return "-"
	}
	return write(*v)
}
