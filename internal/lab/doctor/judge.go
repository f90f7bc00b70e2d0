package doctor

import (
	"fmt"
	"math"
)

// Findings judges the prediction.
func (p *Prediction) Findings(f *Facts, w *Workload) []Finding {
	return []Finding{p.portFinding(f, w), p.timeWaitFinding(w), p.backlogFinding(f, w), p.fileFinding(f, w), p.conntrackFinding(f)}
}

func prediction(name string) Finding {
	return Finding{Group: "prediction", Name: name, Status: OK, Source: "--for"}
}

func (p *Prediction) portFinding(f *Facts, w *Workload) Finding {
	finding := prediction("local ports")
	finding.Arithmetic = p.portArithmetic(f, w)
	limit := "no rate uses them up"
	if p.MaxRateHz != nil {
		limit = fmt.Sprintf("up to %s requests/s never run out", figure(*p.MaxRateHz))
	}
	switch {
	case !p.PortsRunOut:
		finding.Observed = fmt.Sprintf("%d of %d in use, %d left; %s", p.PortsUsed, p.LocalPorts, p.PortsLeft, limit)
		finding.Why = "a connection needs a local port that no connection to the same target holds"
		if p.LoopbackHidesReuse {
			finding.Status = Note
			finding.Why = "loopback hides it: tcp_tw_reuse=2 reuses ports on loopback only, so the same load between two hosts runs out"
		}
		if p.timeWaitBoundByKnob {
			finding.Status = Warn
			finding.Why = "only because tcp_max_tw_buckets ends TIME_WAIT early, which lets old segments reach new connections"
		}
		return finding
	case p.withinDuration:
		finding.Status = Fail
		finding.Observed = fmt.Sprintf("used up after %s s; %s", figure(*p.RunOutSeconds), limit)
	default:
		finding.Status = Warn
		finding.Observed = fmt.Sprintf("would be used up after %s s, later than this run ends; %s", figure(*p.RunOutSeconds), limit)
	}
	finding.Why = "then connect fails with EADDRNOTAVAIL (\"cannot assign requested address\"); keeping connections open is the mending, the rest buys time"
	if w.Closes == Client && f.TWReuse >= 0 && f.TWReuse != 1 && f.Timestamps != 0 && !p.ReuseApplies {
		finding.set("net.ipv4.tcp_tw_reuse", "1")
	}
	if portAdvisedLast-portAdvisedFirst+1 > f.ports() {
		finding.set("net.ipv4.ip_local_port_range", portRangeAdvised)
	}
	if after := mended(f, finding.Settings, w); after != nil {
		finding.Why += fmt.Sprintf(": with the fix, up to %s requests/s never run out", figure(*after))
	}
	return finding
}

// mended is the highest rate that never runs out of ports with those settings.
func mended(f *Facts, settings []Setting, w *Workload) *float64 {
	if len(settings) == 0 {
		return nil
	}
	after := *f
	for _, s := range settings {
		switch s.Key {
		case "net.ipv4.tcp_tw_reuse":
			after.TWReuse = 1
		case "net.ipv4.ip_local_port_range":
			after.PortFirst, after.PortLast = portAdvisedFirst, portAdvisedLast
		}
	}
	return Predict(&after, w).MaxRateHz
}

func (p *Prediction) portArithmetic(f *Facts, w *Workload) string {
	ports := fmt.Sprintf("%d ports x %s x %s = %d", f.ports(), plural(w.Addresses, "source address", "source addresses"), plural(w.Targets, "target", "targets"), p.LocalPorts)
	if p.NewConnectionsHz == 0 {
		return fmt.Sprintf("%s; %s requests/s x %s = %d connections kept open", ports, figure(w.Rate), w.Service, p.OpenConnections)
	}
	held := fmt.Sprintf("each held %s s", figure(p.PortHeldSeconds))
	switch {
	case w.Closes == ServerSide:
		held += " (the server closes first and has the TIME_WAIT)"
	case p.ReuseApplies:
		held += fmt.Sprintf(" (tcp_tw_reuse=%d takes a TIME_WAIT older than that)", f.TWReuse)
	default:
		held += " (TIME_WAIT at the client)"
	}
	need := p.NewConnectionsHz * p.PortHeldSeconds
	text := fmt.Sprintf("%s; %s new connections/s, %s, want %s ports", ports, figure(p.NewConnectionsHz), held, figure(math.Ceil(need)))
	if p.RunOutSeconds != nil {
		text += fmt.Sprintf("; %d / %s = %s s", p.LocalPorts, figure(p.NewConnectionsHz), figure(*p.RunOutSeconds))
	}
	return text
}

func (p *Prediction) timeWaitFinding(w *Workload) Finding {
	if p.ClientTimeWait == 0 && p.ServerTimeWait == 0 {
		return Finding{}
	}
	finding := prediction("TIME_WAIT")
	finding.Observed = fmt.Sprintf("%d sockets at the %s", max(p.ClientTimeWait, p.ServerTimeWait), w.Closes)
	finding.Arithmetic = fmt.Sprintf("%s new connections/s x %.0f s, at most one for each local port and address", figure(p.NewConnectionsHz), timeWaitSeconds)
	finding.Why = "whoever closes first keeps the connection's addresses for 60 s"
	if w.Closes == ServerSide {
		finding.Why += "; at the server they cost some memory and no client port"
	}
	return finding
}

func (p *Prediction) backlogFinding(f *Facts, w *Workload) Finding {
	if p.NewConnectionsHz == 0 {
		return Finding{}
	}
	finding := prediction("accept backlog")
	finding.Observed = fmt.Sprintf("%d connections wait after a stall of %s; the limit is %d", p.BacklogNeeded, w.Stall, p.BacklogLimit)
	finding.Arithmetic = fmt.Sprintf("%s new connections/s x %s = %d", figure(p.NewConnectionsHz), w.Stall, p.BacklogNeeded)
	finding.Why = "a full accept queue drops the handshake's last packet, and the client tries again after 1 s, 3 s, 7 s"
	if p.BacklogNeeded > p.BacklogLimit {
		finding.Status = Warn
		switch {
		case !w.Loopback:
			finding.Why += "; the limit is this host's: look at the server's own"
		case int64(p.BacklogNeeded) > f.Somaxconn:
			finding.set("net.core.somaxconn", fmt.Sprint(powerOfTwo(p.BacklogNeeded)))
		}
		finding.Why += "; the service must ask for as much in listen()"
	}
	return finding
}

func (p *Prediction) fileFinding(f *Facts, w *Workload) Finding {
	finding := prediction("open files")
	finding.Observed = fmt.Sprintf("%d at each side; a proxy between them needs %d", p.ClientFiles, 2*p.ClientFiles)
	finding.Arithmetic = fmt.Sprintf("Little's law: %s requests/s x %s = %d connections", figure(w.Rate), w.Service, p.OpenConnections)
	if p.ClientFiles > p.OpenConnections {
		finding.Arithmetic += fmt.Sprintf("; with a stall of %s, %d", w.Stall, p.ClientFiles)
	}
	finding.Why = "each connection is an open file of the process; the soft limit counts, " + limitText(f.FilesSoft) + " for " + f.FilesOf
	if f.FilesSoft >= 0 && int64(p.ClientFiles) >= f.FilesSoft {
		finding.Status = Warn
		finding.Fix = fmt.Sprintf("ulimit -n %d, or LimitNOFILE=%d in the unit", powerOfTwo(2*p.ClientFiles), powerOfTwo(2*p.ClientFiles))
	}
	return finding
}

func (p *Prediction) conntrackFinding(f *Facts) Finding {
	if p.ConntrackEntries == 0 {
		return Finding{}
	}
	finding := prediction("connection tracking")
	finding.Observed = fmt.Sprintf("%d entries of %d", p.ConntrackEntries, f.ConntrackMx)
	finding.Arithmetic = fmt.Sprintf("%s new connections/s x %d s in TIME_WAIT (nf_conntrack_tcp_timeout_time_wait)", figure(p.NewConnectionsHz), f.ConntrackTW)
	finding.Why = "a full table drops packets of new connections"
	if int64(p.ConntrackEntries) > f.ConntrackMx {
		finding.Status = Warn
		finding.set("net.netfilter.nf_conntrack_max", fmt.Sprint(powerOfTwo(p.ConntrackEntries)))
	}
	return finding
}
