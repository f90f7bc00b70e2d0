package result

import (
	"math"
)

// A Usage is what the watched processes, hosts, sockets and databases used in a span of time. A figure that cannot be
// known is nil (null in JSON), never 0: fewer than two samples in the span, a counter that went backwards because what
// it counts was restarted, or no requests to divide by. Figures "per request" are per answered request.
type Usage struct {
	From      float64         `json:"from_seconds"` // since Header.StartedAt
	To        float64         `json:"to_seconds"`
	Requests  int64           `json:"answered"` // that the figures per request divide by
	Processes []ProcessUsage  `json:"processes"`
	Hosts     []HostUsage     `json:"hosts"`
	TCP       []TCPUsage      `json:"tcp"`
	Listeners []ListenerUsage `json:"listeners"`
	Databases []DatabaseUsage `json:"databases"`
	Watch     []WatchUsage    `json:"watch"` // one a host: what watching itself cost
}

// ProcessUsage is about a process with all its descendants.
type ProcessUsage struct {
	Host                string   `json:"host,omitempty"`
	Name                string   `json:"name"`
	CPUUser             *float64 `json:"cpu_user_seconds"`
	CPUSystem           *float64 `json:"cpu_system_seconds"`
	CPUCores            *float64 `json:"cpu_cores"` // user and system over the length of the span
	CPUUserCores        *float64 `json:"cpu_user_cores"`
	CPUSystemCores      *float64 `json:"cpu_system_cores"`
	CPUPerRequest       *float64 `json:"cpu_seconds_per_request"`
	CPUUserPerRequest   *float64 `json:"cpu_user_seconds_per_request"`
	CPUSystemPerRequest *float64 `json:"cpu_system_seconds_per_request"`
	WaitShare           *float64 `json:"run_queue_wait_share"` // threads that waited for a CPU, on average
	WaitPerRequest      *float64 `json:"run_queue_wait_seconds_per_request"`
	SwitchesPerRequest  *float64 `json:"switches_per_request"` // context switches, voluntary and not
	RSSMax              *float64 `json:"rss_max_bytes"`
	FDsMax              *float64 `json:"fds_max"`
	FDsLimit            *float64 `json:"fds_limit"`
	ThreadsMax          *float64 `json:"threads_max"`
	ProcessesMax        *float64 `json:"processes_max"`
}

// HostUsage is about a host. Shares of its CPUs are of all of them together and add up to 1.
type HostUsage struct {
	Host            string   `json:"host,omitempty"`
	Cores           *float64 `json:"cores"`
	User            *float64 `json:"cpu_user_share"`
	System          *float64 `json:"cpu_system_share"`
	Softirq         *float64 `json:"cpu_softirq_share"`
	IOWait          *float64 `json:"cpu_iowait_share"`
	Steal           *float64 `json:"cpu_steal_share"`
	Idle            *float64 `json:"cpu_idle_share"`
	Load1           *float64 `json:"load1_mean"`
	PSICPU          *float64 `json:"psi_cpu_some_share"` // of the time in which some task waited for a CPU
	PSIIOSome       *float64 `json:"psi_io_some_share"`
	PSIIOFull       *float64 `json:"psi_io_full_share"`
	PSIMemory       *float64 `json:"psi_memory_some_share"`
	MemoryAvailable *float64 `json:"memory_available_min_bytes"`
}

// TCPUsage is about the sockets of a host (of a network namespace).
type TCPUsage struct {
	Host              string   `json:"host,omitempty"`
	ActivePerRequest  *float64 `json:"active_opens_per_request"` // connections that this host opened
	PassivePerRequest *float64 `json:"passive_opens_per_request"`
	Active            *float64 `json:"active_opens_hz"`
	Passive           *float64 `json:"passive_opens_hz"`
	TimeWaitMax       *float64 `json:"time_wait_max"`
	EstablishedMax    *float64 `json:"established_max"`
	PortsMax          *float64 `json:"ports_in_use_max"`
	PortsRange        *float64 `json:"ports_range"`
	PortsLeft         *float64 `json:"ports_left"`         // at the end of the span
	PortsGone         *float64 `json:"ports_gone_seconds"` // until none is left, at the growth of the span's second half; nil when they do not grow
	ListenDrops       *float64 `json:"listen_drops"`
	ListenOverflows   *float64 `json:"listen_overflows"`
	AttemptFails      *float64 `json:"attempt_fails"`
	RetransmitShare   *float64 `json:"retransmit_share"` // of the segments sent
}

// ListenerUsage is about one listening socket.
type ListenerUsage struct {
	Host       string   `json:"host,omitempty"`
	Address    string   `json:"address"`
	QueueMax   *float64 `json:"accept_queue_max"`
	QueueLimit *float64 `json:"accept_queue_limit"`
}

// DatabaseUsage is about a database or store.
type DatabaseUsage struct {
	Host                 string   `json:"host,omitempty"`
	Name                 string   `json:"name"`
	Kind                 string   `json:"kind"` // postgres, mysql or redis
	StatementsPerRequest *float64 `json:"statements_per_request"`
	CommandsPerRequest   *float64 `json:"commands_per_request"` // Redis
	CommitsPerRequest    *float64 `json:"commits_per_request"`
	RollbacksPerRequest  *float64 `json:"rollbacks_per_request"`
	FsyncsPerRequest     *float64 `json:"fsyncs_per_request"`
	WALPerRequest        *float64 `json:"wal_bytes_per_request"`
	Statements           *float64 `json:"statements_hz"`
	Commands             *float64 `json:"commands_hz"`
	Commits              *float64 `json:"commits_hz"`
	Fsyncs               *float64 `json:"fsyncs_hz"`
	ConnectionsMax       *float64 `json:"connections_max"`
	ConnectionsLimit     *float64 `json:"connections_limit"`
	ActiveMean           *float64 `json:"connections_active_mean"`
	BusiestWait          string   `json:"busiest_wait,omitempty"` // what the most sessions waited for: lock, io, …
	BusiestWaitMean      *float64 `json:"busiest_wait_mean"`      // sessions that waited for it, on average
	CPUCores             *float64 `json:"cpu_cores"`              // where the database tells it
	MemoryMax            *float64 `json:"memory_max_bytes"`
}

// WatchUsage is about the samplers of a host.
type WatchUsage struct {
	Host     string   `json:"host,omitempty"`
	CPUCores *float64 `json:"cpu_cores"` // share of one core that all its samplers used
	Failures *float64 `json:"failures"`  // readings that failed
}

// Usage is what was used in the step, nil when nothing was watched.
func (r *Run) Usage(step int) *Usage {
	s := &r.Steps[step]
	return UsageOf(r.Series(), s.Start, s.Start+s.Total.Elapsed, s.Total.Done)
}

// UsageOf is what was used from one time to another, in which so many requests were answered; nil without tracks.
func UsageOf(tracks []*Series, from, to float64, answered int64) *Usage {
	if len(tracks) == 0 {
		return nil
	}
	u := &Usage{
		From: from, To: to, Requests: answered,
		Processes: []ProcessUsage{}, Hosts: []HostUsage{}, TCP: []TCPUsage{}, Listeners: []ListenerUsage{}, Databases: []DatabaseUsage{}, Watch: []WatchUsage{},
	}
	for _, t := range tracks {
		s := span{t, from, to, float64(answered)}
		switch {
		case t.Sampler == SamplerProcess:
			u.Processes = append(u.Processes, s.process())
		case t.Sampler == SamplerHost:
			u.Hosts = append(u.Hosts, s.host())
		case t.Sampler == SamplerTCP:
			u.TCP = append(u.TCP, s.tcp())
		case t.Sampler == SamplerListener:
			u.Listeners = append(u.Listeners, ListenerUsage{
				Host: t.Host, Address: t.Subject, QueueMax: s.highest("accept_queue"), QueueLimit: s.last("accept_queue_limit"),
			})
		case Database(t.Sampler):
			u.Databases = append(u.Databases, s.database())
		case t.Sampler == SamplerWatch:
			u.addWatch(s)
		}
	}
	return u
}

func (u *Usage) addWatch(s span) {
	if !s.track.Has("cpu_seconds_total") { // a stream from another host, or its clock
		return
	}
	cores, failures := s.rate("cpu_seconds_total"), s.grown("failures_total")
	for i := range u.Watch {
		if w := &u.Watch[i]; w.Host == s.track.Host {
			w.CPUCores, w.Failures = plus(w.CPUCores, cores), plus(w.Failures, failures)
			return
		}
	}
	u.Watch = append(u.Watch, WatchUsage{Host: s.track.Host, CPUCores: cores, Failures: failures})
}

// A span reads figures of a track over a length of time. Each is nil where fewer than two samples lie within.
type span struct {
	track    *Series
	from, to float64
	answered float64
}

func (s span) process() ProcessUsage {
	user, system := s.grown("cpu_user_seconds_total"), s.grown("cpu_system_seconds_total")
	wait := s.grown("run_queue_wait_seconds_total")
	return ProcessUsage{
		Host: s.track.Host, Name: s.track.Subject,
		CPUUser: user, CPUSystem: system,
		CPUCores: s.perSecond(plus(user, system)), CPUUserCores: s.perSecond(user), CPUSystemCores: s.perSecond(system),
		CPUPerRequest: s.perRequest(plus(user, system)), CPUUserPerRequest: s.perRequest(user), CPUSystemPerRequest: s.perRequest(system),
		WaitShare: s.perSecond(wait), WaitPerRequest: s.perRequest(wait),
		SwitchesPerRequest: s.perRequest(plus(s.grown("voluntary_switches_total"), s.grown("involuntary_switches_total"))),
		RSSMax:             s.highest("rss_bytes"), FDsMax: s.highest("fds"), FDsLimit: s.last("fds_limit"),
		ThreadsMax: s.highest("threads"), ProcessesMax: s.highest("processes"),
	}
}

func (s span) host() HostUsage {
	return HostUsage{
		Host: s.track.Host, Cores: s.last("cores"),
		User: s.cpuShare("user"), System: s.cpuShare("system"), Softirq: s.cpuShare("softirq"),
		IOWait: s.cpuShare("iowait"), Steal: s.cpuShare("steal"), Idle: s.cpuShare("idle"),
		Load1:  s.mean("load1"),
		PSICPU: s.rate("psi_cpu_some_seconds_total"), PSIIOSome: s.rate("psi_io_some_seconds_total"),
		PSIIOFull: s.rate("psi_io_full_seconds_total"), PSIMemory: s.rate("psi_memory_some_seconds_total"),
		MemoryAvailable: s.lowest("memory_available_bytes"),
	}
}

// cpuShare is the time that the host's CPUs spent so, over the time that they spent in all ways.
func (s span) cpuShare(way string) *float64 {
	sum := 0.0
	for _, each := range []string{"user", "system", "softirq", "iowait", "steal", "idle"} {
		if v := s.grown("cpu_" + each + "_seconds_total"); v != nil {
			sum += *v
		}
	}
	return over(s.grown("cpu_"+way+"_seconds_total"), sum)
}

func (s span) tcp() TCPUsage {
	u := TCPUsage{
		Host:             s.track.Host,
		ActivePerRequest: s.perRequest(s.grown("active_opens_total")), PassivePerRequest: s.perRequest(s.grown("passive_opens_total")),
		Active: s.rate("active_opens_total"), Passive: s.rate("passive_opens_total"),
		TimeWaitMax: s.highest("time_wait"), EstablishedMax: s.highest("established"),
		PortsMax: s.highest("ports_in_use"), PortsRange: s.last("ports_range"),
		ListenDrops: s.grown("listen_drops_total"), ListenOverflows: s.grown("listen_overflows_total"),
		AttemptFails: s.grown("attempt_fails_total"),
	}
	if sent := s.grown("segments_out_total"); sent != nil {
		u.RetransmitShare = over(s.grown("retransmits_total"), *sent)
	}
	u.PortsLeft = less(u.PortsRange, s.last("ports_in_use"))
	u.PortsGone = s.portsGone(u.PortsLeft, u.PortsRange)
	return u
}

// portsGrowth is the share of the range that ports in use must gain within half of a span to count as growing: below
// that, noise would foretell an end that never comes.
const portsGrowth = 0.01

// portsGone looks at the second half only: ports in TIME_WAIT grow for a minute and then no more.
func (s span) portsGone(left, all *float64) *float64 {
	if left == nil || all == nil {
		return nil
	}
	if *left <= 0 {
		return figure(0)
	}
	slope := s.track.Slope("ports_in_use", (s.from+s.to)/2, s.to)
	if math.IsNaN(slope) || slope*(s.to-s.from)/2 < portsGrowth**all {
		return nil
	}
	return figure(*left / slope)
}

func (s span) database() DatabaseUsage {
	u := DatabaseUsage{
		Host: s.track.Host, Name: s.track.Subject, Kind: s.track.Sampler,
		StatementsPerRequest: s.perRequest(s.grown("statements_total")), CommandsPerRequest: s.perRequest(s.grown("commands_total")),
		CommitsPerRequest: s.perRequest(s.grown("commits_total")), RollbacksPerRequest: s.perRequest(s.grown("rollbacks_total")),
		FsyncsPerRequest: s.perRequest(s.grown("fsyncs_total")), WALPerRequest: s.perRequest(s.grown("wal_bytes_total")),
		Statements: s.rate("statements_total"), Commands: s.rate("commands_total"), Commits: s.rate("commits_total"), Fsyncs: s.rate("fsyncs_total"),
		ConnectionsMax: s.highest("connections"), ConnectionsLimit: s.last("connections_limit"), ActiveMean: s.mean("connections_active"),
		CPUCores:  s.perSecond(plus(s.grown("cpu_user_seconds_total"), s.grown("cpu_system_seconds_total"))),
		MemoryMax: s.highest("memory_bytes"),
	}
	for _, name := range s.track.Waits() {
		if v := s.mean(name); v != nil && *v > 0 && (u.BusiestWaitMean == nil || *v > *u.BusiestWaitMean) {
			u.BusiestWait, u.BusiestWaitMean = name[len(WaitPrefix):], v
		}
	}
	return u
}
