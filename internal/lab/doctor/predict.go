package doctor

import (
	"fmt"
	"math"
	"strings"

	"spillway/internal/lab/sheet"
)

const (
	// timeWaitSeconds is TCP_TIMEWAIT_LEN, a constant of the kernel.
	timeWaitSeconds = 60.0
	// reuseSeconds is the age from which tcp_tw_reuse takes a TIME_WAIT on
	// kernels without tcp_tw_reuse_delay.
	reuseSeconds = 1.0
)

// Prediction is what a workload does to ports, backlogs and files.
type Prediction struct {
	Workload            string   `json:"workload"`
	NewConnectionsHz    float64  `json:"new_connections_hz"`
	OpenConnections     int      `json:"open_connections"`
	LocalPorts          int      `json:"local_ports"` // ports x addresses x targets
	PortHeldSeconds     float64  `json:"port_held_seconds"`
	ReuseApplies        bool     `json:"tcp_tw_reuse_applies"`
	PortsUsed           int      `json:"local_ports_used"`
	PortsLeft           int      `json:"local_ports_left"`
	ClientTimeWait      int      `json:"client_time_wait_sockets"`
	ServerTimeWait      int      `json:"server_time_wait_sockets"`
	PortsRunOut         bool     `json:"local_ports_run_out"`
	RunOutSeconds       *float64 `json:"local_ports_run_out_after_seconds,omitempty"`
	MaxRateHz           *float64 `json:"max_rate_hz,omitempty"` // the highest rate that never uses up the ports; nil if every rate is
	StallSeconds        float64  `json:"stall_seconds"`
	BacklogNeeded       int      `json:"accept_backlog_needed"`
	BacklogLimit        int      `json:"accept_backlog_limit"`
	ClientFiles         int      `json:"client_open_files"`
	ServerFiles         int      `json:"server_open_files"`
	OpenFilesLimit      int64    `json:"open_files_limit"`
	ConntrackEntries    int      `json:"conntrack_entries"`
	LoopbackHidesReuse  bool     `json:"loopback_hides_exhaustion"`
	Closing             *Closing `json:"closing,omitempty"` // what the target does; nil if it was not asked
	withinDuration      bool
	timeWaitBoundByKnob bool
}

// Predict calculates what a workload does on a host. The host is the client,
// and for a loopback workload also the server.
func Predict(f *Facts, w *Workload) *Prediction {
	p := &Prediction{
		Workload:         w.Text,
		NewConnectionsHz: w.connectionRate(),
		OpenConnections:  ceil(w.openConnections()),
		LocalPorts:       f.ports() * w.Addresses * w.Targets,
		StallSeconds:     w.Stall.Seconds(),
		OpenFilesLimit:   f.FilesSoft,
		Closing:          w.Closing,
	}
	p.ports(f, w)
	p.backlog(f, w)
	p.files(w)
	if f.ConntrackMx > 0 && f.Conntracks > 0 && !w.Loopback { // loaded and in use
		held := timeWaitSeconds
		if f.ConntrackTW > 0 {
			held = float64(f.ConntrackTW)
		}
		p.ConntrackEntries = ceil(p.NewConnectionsHz*held + w.openConnections())
	}
	return p
}

// reuse returns whether tcp_tw_reuse lets a connection take a port in
// TIME_WAIT, and the age in seconds from which it does.
func reuse(f *Facts, loopback bool) (bool, float64) {
	age := reuseSeconds
	if f.TWReuseDelay >= 0 {
		age = float64(f.TWReuseDelay) / 1000
	}
	if f.Timestamps == 0 {
		return false, timeWaitSeconds
	}
	switch f.TWReuse {
	case 1:
		return true, age
	case 2:
		if loopback {
			return true, age
		}
	}
	return false, timeWaitSeconds
}

// ports models the life of a local port. A connection takes it and holds it
// while it is open; if the client closes first, until the TIME_WAIT ends or may
// be reused. A TIME_WAIT at the server holds no port of the client, because the
// next SYN from that port has a later sequence number or timestamp.
func (p *Prediction) ports(f *Facts, w *Workload) {
	total, rate, open := float64(p.LocalPorts), p.NewConnectionsHz, w.openConnections()
	buckets := float64(f.MaxTWBuckets)
	if f.MaxTWBuckets < 0 {
		buckets = math.Inf(1)
	}
	var waiting, held float64 // sockets in TIME_WAIT that hold a port, and the seconds that a connection holds it in the mean
	share := w.clientShare()
	ours, theirs := rate*share, rate*(1-share) // connections per second that the client and the server close first
	if theirs > 0 {
		p.ServerTimeWait = ceil(min(theirs*timeWaitSeconds, buckets, total))
	}
	if ours > 0 {
		p.ReuseApplies, held = reuse(f, w.Loopback)
		// With reuse a TIME_WAIT still lasts 60 s, unless a connection takes its port.
		p.ClientTimeWait = ceil(min(ours*timeWaitSeconds, buckets, total))
		waiting = min(ours*held, buckets)
		p.timeWaitBoundByKnob = buckets < ours*held && ours*held+open > total
		p.LoopbackHidesReuse = w.Loopback && f.TWReuse == 2 && p.ReuseApplies && ours*timeWaitSeconds+open > total
		held *= share
	}
	demand := waiting + open
	p.PortHeldSeconds = held
	if rate > 0 {
		p.PortHeldSeconds += open / rate
	}
	p.PortsRunOut = demand > total
	p.PortsUsed = int(min(math.Ceil(demand), total))
	p.PortsLeft = p.LocalPorts - p.PortsUsed
	if p.PortsRunOut {
		after := 0.0 // keep-alive connections open at once
		switch {
		case ours > 0:
			after = total / ours // the ports of the others are free again
		case rate > 0:
			after = total / rate
		}
		p.RunOutSeconds = &after
		p.withinDuration = w.Duration == 0 || after < w.Duration.Seconds()
	}
	p.MaxRateHz = maxRate(total, buckets, held, w)
}

// maxRate is the highest request rate at which ports never run out.
func maxRate(total, buckets, held float64, w *Workload) *float64 {
	perConnection := float64(max(1, w.PerConnection))
	lifetime := w.Service.Seconds() * perConnection // of one connection, at least
	if w.PerConnection == 0 {
		held = 0
		lifetime = w.Service.Seconds()
	}
	rate := total / (held + lifetime) * perConnection
	if buckets < total { // TIME_WAIT never takes all ports
		rate = max(rate, (total-buckets)/lifetime*perConnection)
	}
	if math.IsInf(rate, 0) || math.IsNaN(rate) {
		return nil
	}
	return &rate
}

// backlog calculates the queue of connections that wait to be accepted.
func (p *Prediction) backlog(f *Facts, w *Workload) {
	p.BacklogNeeded = ceil(p.NewConnectionsHz * w.Stall.Seconds())
	p.BacklogLimit = int(max(0, f.Somaxconn))
	if f.Listener != nil {
		p.BacklogLimit = f.Listener.Backlog
	}
}

// files calculates the connections open at once, including those that queue
// during a stall.
func (p *Prediction) files(w *Workload) {
	open := w.openConnections()
	if w.PerConnection == 1 {
		open += w.Rate * w.Stall.Seconds()
	}
	p.ClientFiles = ceil(open)
	p.ServerFiles = ceil(open)
}

func ceil(x float64) int { return int(math.Ceil(min(x, math.MaxInt32))) }

// Findings returns the findings about the prediction.
func (p *Prediction) Findings(f *Facts, w *Workload) []Finding {
	return []Finding{
		p.portFinding(f, w), p.closingFinding(f, w), p.timeWaitFinding(w), p.backlogFinding(f, w), p.fileFinding(f, w),
		p.conntrackFinding(f),
	}
}

func prediction(name string) Finding {
	return Finding{Group: "prediction", Name: name, Status: OK, Source: "--for"}
}

func (p *Prediction) portFinding(f *Facts, w *Workload) Finding {
	finding := prediction("local ports")
	finding.Arithmetic = p.portArithmetic(f, w)
	limit := "no rate uses up the ports"
	if p.MaxRateHz != nil {
		limit = fmt.Sprintf("up to %s requests/s never use up the ports", sheet.Number(*p.MaxRateHz))
	}
	switch {
	case !p.PortsRunOut:
		finding.Observed = fmt.Sprintf("%s of %s in use, %s left; %s",
			sheet.Integer(p.PortsUsed), sheet.Integer(p.LocalPorts), sheet.Integer(p.PortsLeft), limit)
		finding.Why = "a connection needs a local port that no connection to the same target holds"
		if p.LoopbackHidesReuse {
			finding.Status = Note
			finding.Why = "loopback hides a problem: tcp_tw_reuse=2 reuses ports on loopback only, so the same load between two hosts runs out " +
				"of ports"
		}
		if p.timeWaitBoundByKnob {
			finding.Status = Warn
			finding.Why = "ports last only because tcp_max_tw_buckets ends TIME_WAIT early, which lets old segments reach new connections"
		}
		return finding
	case p.withinDuration:
		finding.Status = Fail
		finding.Observed = fmt.Sprintf("used up after %s; %s", sheet.Duration(*p.RunOutSeconds), limit)
	default:
		finding.Status = Warn
		finding.Observed = fmt.Sprintf("would be used up after %s, after the end of this run; %s", sheet.Duration(*p.RunOutSeconds), limit)
	}
	finding.Why = "then connect fails with EADDRNOTAVAIL (\"cannot assign requested address\"); keep connections open, since other fixes " +
		"only delay it"
	if w.clientShare() > 0 && f.TWReuse >= 0 && f.TWReuse != 1 && f.Timestamps != 0 && !p.ReuseApplies {
		finding.set("net.ipv4.tcp_tw_reuse", "1")
	}
	if portAdvisedLast-portAdvisedFirst+1 > f.ports() {
		finding.set("net.ipv4.ip_local_port_range", portRangeAdvised)
	}
	if after := maxRateWith(f, finding.Settings, w); after != nil {
		finding.Why += fmt.Sprintf("; with the fix, up to %s requests/s never use up the ports", sheet.Number(*after))
	}
	return finding
}

// maxRateWith is the highest rate that never uses up the ports with those
// settings.
func maxRateWith(f *Facts, settings []Setting, w *Workload) *float64 {
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
	ports := fmt.Sprintf("%s x %s x %s = %s", sheet.Plural(f.ports(), "port"), sheet.Plural(w.Addresses, "source address"),
		sheet.Plural(w.Targets, "target"), sheet.Integer(p.LocalPorts))
	if p.NewConnectionsHz == 0 {
		return fmt.Sprintf("%s; %s requests/s x %s = %s kept open", ports, sheet.Number(w.Rate),
			sheet.Duration(w.Service.Seconds()), sheet.Plural(p.OpenConnections, "connection"))
	}
	held := "each held " + sheet.Duration(p.PortHeldSeconds)
	switch {
	case w.clientShare() == 0:
		held += " (the server closes first and has the TIME_WAIT)"
	case p.ReuseApplies:
		held += fmt.Sprintf(" (tcp_tw_reuse=%d takes a port whose TIME_WAIT is older)", f.TWReuse)
	default:
		held += " (TIME_WAIT at the client)"
	}
	if share := w.clientShare(); share > 0 && share < 1 {
		held += fmt.Sprintf(" in the mean, because the client closes %s first", sheet.Share(share))
	}
	need := p.NewConnectionsHz * p.PortHeldSeconds
	text := fmt.Sprintf("%s; %s new connections/s, %s, need %s ports", ports, sheet.Number(p.NewConnectionsHz), held,
		sheet.Number(math.Ceil(need)))
	if p.RunOutSeconds != nil {
		by := p.NewConnectionsHz
		if share := w.clientShare(); share > 0 {
			by *= share
		}
		text += fmt.Sprintf("; %s / %s = %s", sheet.Integer(p.LocalPorts), sheet.Number(by), sheet.Duration(*p.RunOutSeconds))
	}
	return text
}

func (p *Prediction) timeWaitFinding(w *Workload) Finding {
	if p.ClientTimeWait == 0 && p.ServerTimeWait == 0 {
		return Finding{}
	}
	finding := prediction("TIME_WAIT")
	var at []string
	if p.ClientTimeWait > 0 {
		at = append(at, sheet.Plural(p.ClientTimeWait, "socket")+" at the client")
	}
	if p.ServerTimeWait > 0 {
		at = append(at, sheet.Plural(p.ServerTimeWait, "socket")+" at the server")
	}
	finding.Observed = strings.Join(at, ", ")
	finding.Arithmetic = fmt.Sprintf("%s new connections/s x %s, at most one per local port and address", sheet.Number(p.NewConnectionsHz),
		sheet.Duration(timeWaitSeconds))
	finding.Why = "the side that closes first keeps the connection's addresses for 60 s"
	if p.ServerTimeWait > 0 {
		finding.Why += "; at the server they take some memory, but no port of the client"
	}
	return finding
}

func (p *Prediction) backlogFinding(f *Facts, w *Workload) Finding {
	if p.NewConnectionsHz == 0 {
		return Finding{}
	}
	finding, stall := prediction("accept backlog"), sheet.Duration(w.Stall.Seconds())
	finding.Observed = fmt.Sprintf("%s wait after a stall of %s; the limit is %s", sheet.Plural(p.BacklogNeeded, "connection"), stall,
		sheet.Integer(p.BacklogLimit))
	finding.Arithmetic = fmt.Sprintf("%s new connections/s x %s = %s", sheet.Number(p.NewConnectionsHz), stall, sheet.Integer(p.BacklogNeeded))
	finding.Why = "a full accept queue drops the last packet of the handshake, and the client retries after 1 s, 3 s and 7 s"
	if p.BacklogNeeded > p.BacklogLimit {
		finding.Status = Warn
		switch {
		case !w.Loopback:
			finding.Why += "; the limit is that of this host: check the server's"
		case int64(p.BacklogNeeded) > f.Somaxconn:
			finding.set("net.core.somaxconn", fmt.Sprint(powerOfTwo(p.BacklogNeeded)))
		}
		finding.Why += "; the service must also request it in listen()"
	}
	return finding
}

func (p *Prediction) fileFinding(f *Facts, w *Workload) Finding {
	finding := prediction("open files")
	finding.Observed = fmt.Sprintf("%s on each side; a proxy between them needs %s", sheet.Integer(p.ClientFiles),
		sheet.Integer(2*p.ClientFiles))
	finding.Arithmetic = fmt.Sprintf("Little's law: %s requests/s x %s = %s", sheet.Number(w.Rate), sheet.Duration(w.Service.Seconds()),
		sheet.Plural(p.OpenConnections, "connection"))
	if p.ClientFiles > p.OpenConnections {
		finding.Arithmetic += fmt.Sprintf("; with a stall of %s, %s", sheet.Duration(w.Stall.Seconds()), sheet.Integer(p.ClientFiles))
	}
	finding.Why = fmt.Sprintf("each connection is an open file of the process: %s may have %s by its soft limit, a load started here %s",
		f.FilesOf, limitText(f.FilesSoft), limitText(f.FilesOfLoad))
	short := func(limit int64) bool { return limit >= 0 && int64(p.ClientFiles) >= limit }
	switch want := powerOfTwo(2 * p.ClientFiles); {
	case short(f.FilesSoft):
		finding.Status, finding.Fix = Warn, raiseFiles(want, f.FilesHard)
	case short(f.FilesOfLoad):
		finding.Status, finding.Fix = Warn, "for the load: "+raiseFiles(want, f.FilesOfLoad)
	}
	return finding
}

func (p *Prediction) conntrackFinding(f *Facts) Finding {
	if p.ConntrackEntries == 0 {
		return Finding{}
	}
	finding := prediction("connection tracking")
	finding.Observed = fmt.Sprintf("%s entries of %s", sheet.Integer(p.ConntrackEntries), sheet.Integer(f.ConntrackMx))
	finding.Arithmetic = fmt.Sprintf("%s new connections/s x %d s in TIME_WAIT (nf_conntrack_tcp_timeout_time_wait)",
		sheet.Number(p.NewConnectionsHz), f.ConntrackTW)
	finding.Why = "a full table drops packets of new connections"
	if int64(p.ConntrackEntries) > f.ConntrackMx {
		finding.Status = Warn
		finding.set("net.netfilter.nf_conntrack_max", fmt.Sprint(powerOfTwo(p.ConntrackEntries)))
	}
	return finding
}
