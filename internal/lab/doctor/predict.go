package doctor

import (
	"fmt"
	"math"

	"spillway/internal/lab/sheet"
)

const (
	// timeWaitSeconds is TCP_TIMEWAIT_LEN, a constant of the kernel.
	timeWaitSeconds = 60.0
	// reuseSeconds is the age from which tcp_tw_reuse takes a TIME_WAIT on
	// kernels without tcp_tw_reuse_delay.
	reuseSeconds = 1.0
	// The recommended range of local ports lies above the ports that services commonly listen on.
	portAdvisedFirst = 10240
	portAdvisedLast  = 65535
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
	WithinDuration      bool     `json:"-"`                 // they run out before the end of the workload
	TimeWaitBoundByKnob bool     `json:"-"`                 // they last only because of tcp_max_tw_buckets
}

// Predict calculates what a workload does on a host. The host is the client,
// and for a loopback workload also the server.
func Predict(f *Facts, w *Workload) *Prediction {
	p := &Prediction{
		Workload:         w.Text,
		NewConnectionsHz: w.connectionRate(),
		OpenConnections:  ceil(w.openConnections()),
		LocalPorts:       f.Ports() * w.Addresses * w.Targets,
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
	share := w.ClientShare()
	ours, theirs := rate*share, rate*(1-share) // connections per second that the client and the server close first
	if theirs > 0 {
		p.ServerTimeWait = ceil(min(theirs*timeWaitSeconds, buckets, total))
	}
	if ours > 0 {
		p.ReuseApplies, held = reuse(f, w.Loopback)
		// With reuse a TIME_WAIT still lasts 60 s, unless a connection takes its port.
		p.ClientTimeWait = ceil(min(ours*timeWaitSeconds, buckets, total))
		waiting = min(ours*held, buckets)
		p.TimeWaitBoundByKnob = buckets < ours*held && ours*held+open > total
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
		p.WithinDuration = w.Duration == 0 || after < w.Duration.Seconds()
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

// Findings returns the findings about the prediction. Its only errors are mistakes in checks.yaml.
func (p *Prediction) Findings(f *Facts, w *Workload) ([]Finding, error) {
	c, err := readCatalog()
	if err != nil {
		return nil, err
	}
	findings, err := (&scope{Facts: f, P: p, W: w}).findings(c.Prediction)
	if err != nil {
		return nil, err
	}
	if after := maxRateWith(f, findings[0].Settings, w); after != nil { // of the local ports
		findings[0].Why += fmt.Sprintf("; with the fix, up to %s requests/s never use up the ports", sheet.Number(*after))
	}
	return findings, nil
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
