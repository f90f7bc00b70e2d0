package doctor

import "math"

const (
	// timeWait is TCP_TIMEWAIT_LEN, fixed when the kernel is built.
	timeWaitSeconds = 60.0
	// reuseSeconds is how old a TIME_WAIT must be before tcp_tw_reuse takes it,
	// where the kernel has no tcp_tw_reuse_delay.
	reuseSeconds = 1.0
)

// Prediction is what a workload will do to ports, backlogs and files.
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
	MaxRateHz           *float64 `json:"max_rate_hz,omitempty"` // that never runs out; none: no rate does
	StallSeconds        float64  `json:"stall_seconds"`
	BacklogNeeded       int      `json:"accept_backlog_needed"`
	BacklogLimit        int      `json:"accept_backlog_limit"`
	ClientFiles         int      `json:"client_open_files"`
	ServerFiles         int      `json:"server_open_files"`
	OpenFilesLimit      int64    `json:"open_files_limit"`
	ConntrackEntries    int      `json:"conntrack_entries"`
	LoopbackHidesReuse  bool     `json:"loopback_hides_exhaustion"`
	withinDuration      bool
	timeWaitBoundByKnob bool
}

// Predict works out what a workload does on a host with these facts. It takes
// this host for the client, and for the server where the workload is loopback.
func Predict(f *Facts, w *Workload) *Prediction {
	p := &Prediction{
		Workload:         w.Text,
		NewConnectionsHz: w.connectionRate(),
		OpenConnections:  ceil(w.openConnections()),
		LocalPorts:       f.ports() * w.Addresses * w.Targets,
		StallSeconds:     w.Stall.Seconds(),
		OpenFilesLimit:   f.FilesSoft,
	}
	p.ports(f, w)
	p.backlog(f, w)
	p.files(w)
	if f.ConntrackMx > 0 && f.Conntracks > 0 && !w.Loopback { // loaded, and in use
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

// ports models the life of a local port: taken at connect, held while the
// connection is open and, when the client closes first, until its TIME_WAIT
// ends or may be reused. A TIME_WAIT at the server holds none of the client's
// ports: the next SYN from the same port has a later sequence number or
// timestamp and opens it again.
func (p *Prediction) ports(f *Facts, w *Workload) {
	total, rate, open := float64(p.LocalPorts), p.NewConnectionsHz, w.openConnections()
	buckets := float64(f.MaxTWBuckets)
	if f.MaxTWBuckets < 0 {
		buckets = math.Inf(1)
	}
	var waiting, held float64 // sockets in TIME_WAIT that hold a port; for how long each does
	switch {
	case rate == 0:
	case w.Closes == ServerSide:
		p.ServerTimeWait = ceil(min(rate*timeWaitSeconds, buckets, total))
	default:
		p.ReuseApplies, held = reuse(f, w.Loopback)
		// With reuse a TIME_WAIT still lasts 60 s, unless a connection takes it over.
		p.ClientTimeWait = ceil(min(rate*timeWaitSeconds, buckets, total))
		waiting = min(rate*held, buckets)
		p.timeWaitBoundByKnob = buckets < rate*held && rate*held+open > total
		p.LoopbackHidesReuse = w.Loopback && f.TWReuse == 2 && p.ReuseApplies && rate*timeWaitSeconds+open > total
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
		after := 0.0 // kept connections are opened at once
		if rate > 0 {
			after = total / rate
		}
		p.RunOutSeconds = &after
		p.withinDuration = w.Duration == 0 || after < w.Duration.Seconds()
	}
	p.MaxRateHz = maxRate(total, buckets, held, w)
}

// maxRate is the highest rate of requests at which ports never run out.
func maxRate(total, buckets, held float64, w *Workload) *float64 {
	perConnection := float64(max(1, w.PerConnection))
	lifetime := w.Service.Seconds() * perConnection // of one connection, at the least
	if w.PerConnection == 0 {
		held = 0
		lifetime = w.Service.Seconds()
	}
	rate := total / (held + lifetime) * perConnection
	if buckets < total { // TIME_WAIT never takes all the ports
		rate = max(rate, (total-buckets)/lifetime*perConnection)
	}
	if math.IsInf(rate, 0) || math.IsNaN(rate) {
		return nil
	}
	return &rate
}

// backlog is the queue of connections that the server has not accepted yet.
func (p *Prediction) backlog(f *Facts, w *Workload) {
	p.BacklogNeeded = ceil(p.NewConnectionsHz * w.Stall.Seconds())
	p.BacklogLimit = int(max(0, f.Somaxconn))
	if f.Listener != nil {
		p.BacklogLimit = f.Listener.Backlog
	}
}

// files are the connections open at once, with those that a stall piles up.
func (p *Prediction) files(w *Workload) {
	open := w.openConnections()
	if w.PerConnection == 1 {
		open += w.Rate * w.Stall.Seconds()
	}
	p.ClientFiles = ceil(open)
	p.ServerFiles = ceil(open)
}

func ceil(x float64) int { return int(math.Ceil(min(x, math.MaxInt32))) }
