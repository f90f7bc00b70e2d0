package report

import (
	"fmt"
	"math"
	"strings"

	"spillway/internal/lab/result"
)

// usageLines says what was used, a line for each process, host, TCP, database and the watch itself.
func (r *run) usageLines(u *result.Usage) []fact {
	var lines []fact
	add := func(host, name string, parts []string) {
		if len(parts) > 0 {
			lines = append(lines, fact{r.on(host, name), strings.Join(parts, ", ")})
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

// parts collects what is known.
type parts []string

// add writes the figures, which must all be known, by the format.
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

// positive leaves out a figure that is 0.
func positive(v *float64) *float64 {
	if v == nil || *v <= 0 {
		return nil
	}
	return v
}

func processParts(u *result.ProcessUsage) []string {
	var p parts
	if u.CPUPerRequest != nil {
		p.add("CPU %s/request (%s user + %s sys)", seconds, u.CPUPerRequest, u.CPUUserPerRequest, u.CPUSystemPerRequest)
		p.add("%s", cores, u.CPUCores)
	} else {
		p.add("CPU %s (%s user + %s sys)", coreNumber, u.CPUCores, u.CPUUserCores, u.CPUSystemCores)
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
		p.add("connections/request: %s opened + %s accepted", perRequest, u.ActivePerRequest, u.PassivePerRequest)
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
	p.add("%s connects failed", whole, positive(u.AttemptFails))
	p.add("%s of the segments sent again", share, positive(u.RetransmitShare))
	return p
}

// queueParts is about the deepest accept queue of the host.
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
	p.add("%s statements/request", perRequest, u.StatementsPerRequest)
	p.add("%s commands/request", perRequest, u.CommandsPerRequest)
	p.add("%s commits/request", perRequest, u.CommitsPerRequest)
	p.add("%s rollbacks/request", perRequest, positive(u.RollbacksPerRequest))
	p.add("%s fsyncs/request", perRequest, u.FsyncsPerRequest)
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
	p.add("CPU %s", coreNumber, u.CPUCores)
	p.add("%s memory", size, u.MemoryMax)
	return p
}

func watchParts(u *result.WatchUsage) []string {
	var p parts
	p.add("%s of a core", share, u.CPUCores)
	p.add("%s readings failed", whole, positive(u.Failures))
	return p
}

// whole writes a count; an interpolated one is rounded.
func whole(v float64) string { return integer(int64(math.Round(v))) }

// cores writes CPU time over time: "0.41 cores".
func cores(v float64) string {
	if v == 1 {
		return "1 core"
	}
	return coreNumber(v) + " cores"
}

// coreNumber writes CPU time over time to a thousandth of a core.
func coreNumber(v float64) string { return significant(math.Round(v*1000) / 1000) }

// perRequest writes how many there were for each request: below a thousandth it is 0.
func perRequest(v float64) string { return significant(math.Round(v*1000) / 1000) }
