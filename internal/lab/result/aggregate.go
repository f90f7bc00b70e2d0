package result

import (
	"maps"
	"math"
	"slices"
	"strings"
)

// Usage is the usage of a step, nil if nothing was watched.
func (r *Run) Usage(step int) *Usage {
	s := &r.Steps[step]
	return UsageOf(r.Series(), s.Start, s.Start+s.Total.Elapsed, s.Total.Completed)
}

// UsageOf is the usage between two times, in seconds since the start of the run. Figures per request divide by answered.
// It is nil without series.
func UsageOf(watched []*Series, from, to float64, answered int64) *Usage {
	if len(watched) == 0 {
		return nil
	}
	u := &Usage{
		From: from, To: to, Requests: answered,
		Processes: []ProcessUsage{}, Hosts: []HostUsage{}, TCP: []TCPUsage{}, Listeners: []ListenerUsage{}, Databases: []DatabaseUsage{},
		Watch: []WatchUsage{},
	}
	for _, t := range watched {
		s := interval{t, from, to, float64(answered)}
		switch {
		case t.Sampler == SamplerProcess:
			u.Processes = append(u.Processes, s.process())
		case t.Sampler == SamplerHost:
			u.Hosts = append(u.Hosts, s.host())
		case t.Sampler == SamplerTCP:
			u.TCP = append(u.TCP, s.tcp())
		case t.Sampler == SamplerListener:
			u.Listeners = append(u.Listeners, ListenerUsage{
				Host: t.Host, Address: t.Subject, QueueMax: s.max("accept_queue"), QueueLimit: s.last("accept_queue_limit"),
			})
		case Database(t.Sampler):
			u.Databases = append(u.Databases, s.database())
		case t.Sampler == SamplerWatch:
			u.addWatch(s)
		}
	}
	return u
}

func (u *Usage) addWatch(i interval) {
	if !i.series.Has("cpu_seconds_total") { // the clock or stream of another host
		return
	}
	cores, failures := i.rate("cpu_seconds_total"), i.growth("failures_total")
	for k := range u.Watch {
		if w := &u.Watch[k]; w.Host == i.series.Host {
			w.CPUCores, w.Failures = plus(w.CPUCores, cores), plus(w.Failures, failures)
			return
		}
	}
	u.Watch = append(u.Watch, WatchUsage{Host: i.series.Host, CPUCores: cores, Failures: failures})
}

// An interval reads figures of a series between two times. A figure is nil if it has fewer than samplesMin samples there.
type interval struct {
	series   *Series
	from, to float64
	answered float64
}

func (i interval) process() ProcessUsage {
	wait := i.growth("run_queue_wait_seconds_total")
	u := ProcessUsage{
		Host: i.series.Host, Name: i.series.Subject, BorderError: i.borderError("cpu_user_seconds_total"),
		CPUUser: i.growth("cpu_user_seconds_total"), CPUSystem: i.growth("cpu_system_seconds_total"),
		CPUResolution: i.resolution("cpu_resolution_seconds"), CPUSplitResolution: i.resolution("cpu_split_resolution_seconds"),
		WaitShare: i.perSecond(wait), WaitPerRequest: i.perRequest(wait),
		SwitchesPerRequest: i.perRequest(plus(i.growth("voluntary_switches_total"), i.growth("involuntary_switches_total"))),
		RSSMax:             i.max("rss_bytes"), FDsMax: i.max("fds"), FDsLimit: i.last("fds_limit"),
		ThreadsMax: i.max("threads"), ProcessesMax: i.max("processes"),
	}
	u.divideCPU(i.to-i.from, i.answered)
	return u
}

func (i interval) host() HostUsage {
	return HostUsage{
		Host: i.series.Host, Cores: i.last("cores"),
		User: i.cpuShare("user"), System: i.cpuShare("system"), Softirq: i.cpuShare("softirq"),
		IOWait: i.cpuShare("iowait"), Steal: i.cpuShare("steal"), Idle: i.cpuShare("idle"),
		Load1:  i.mean("load1"),
		PSICPU: i.rate("psi_cpu_some_seconds_total"), PSIIOSome: i.rate("psi_io_some_seconds_total"),
		PSIIOFull: i.rate("psi_io_full_seconds_total"), PSIMemory: i.rate("psi_memory_some_seconds_total"),
		MemoryAvailable: i.min("memory_available_bytes"),
	}
}

// cpuShare is the share of CPU time that the host spent in a mode.
func (i interval) cpuShare(mode string) *float64 {
	sum := 0.0
	for _, each := range []string{"user", "system", "softirq", "iowait", "steal", "idle"} {
		if v := i.growth("cpu_" + each + "_seconds_total"); v != nil {
			sum += *v
		}
	}
	return over(i.growth("cpu_"+mode+"_seconds_total"), sum)
}

func (i interval) tcp() TCPUsage {
	u := TCPUsage{
		Host:             i.series.Host,
		ActivePerRequest: i.perRequest(i.growth("active_opens_total")), PassivePerRequest: i.perRequest(i.growth("passive_opens_total")),
		Active: i.rate("active_opens_total"), Passive: i.rate("passive_opens_total"),
		TimeWaitMax: i.max("time_wait"), EstablishedMax: i.max("established"),
		PortsMax: i.max("ports_in_use"), PortsRange: i.last("ports_range"),
		ListenDrops: i.growth("listen_drops_total"), ListenOverflows: i.growth("listen_overflows_total"),
		AttemptFails: i.growth("attempt_fails_total"),
	}
	if sent := i.growth("segments_out_total"); sent != nil {
		u.RetransmitShare = over(i.growth("retransmits_total"), *sent)
	}
	u.PortsLeft = less(u.PortsRange, i.last("ports_in_use"))
	u.PortsGone = i.portsGone(u.PortsLeft, u.PortsRange)
	return u
}

// portsGrowth is the share of the port range that must be taken within half of an interval to count as growth. Less is
// noise.
const portsGrowth = 0.01

// portsGone is when the ports run out at the growth of the second half. The first half does not count, because ports in
// TIME_WAIT grow for a minute and then stay constant.
func (i interval) portsGone(left, all *float64) *float64 {
	if left == nil || all == nil {
		return nil
	}
	if *left <= 0 {
		return figure(0)
	}
	slope := i.series.Slope("ports_in_use", (i.from+i.to)/2, i.to)
	if math.IsNaN(slope) || slope*(i.to-i.from)/2 < portsGrowth**all {
		return nil
	}
	return figure(*left / slope)
}

func (i interval) database() DatabaseUsage {
	u := DatabaseUsage{
		Host: i.series.Host, Name: i.series.Subject, Kind: i.series.Sampler,
		StatementsPerRequest: i.perRequest(i.growth("statements_total")), CommandsPerRequest: i.perRequest(i.growth("commands_total")),
		CommitsPerRequest: i.perRequest(i.growth("commits_total")), RollbacksPerRequest: i.perRequest(i.growth("rollbacks_total")),
		FsyncsPerRequest: i.perRequest(i.growth("fsyncs_total")), WALPerRequest: i.perRequest(i.growth("wal_bytes_total")),
		Statements: i.rate("statements_total"), Commands: i.rate("commands_total"), Commits: i.rate("commits_total"),
		Fsyncs:         i.rate("fsyncs_total"),
		ConnectionsMax: i.max("connections"), ConnectionsLimit: i.last("connections_limit"), ActiveMean: i.mean("connections_active"),
		CPUCores:  i.perSecond(plus(i.growth("cpu_user_seconds_total"), i.growth("cpu_system_seconds_total"))),
		MemoryMax: i.max("memory_bytes"),
	}
	for _, name := range i.series.Waits() {
		if v := i.mean(name); v != nil && *v > 0 && (u.BusiestWaitMean == nil || *v > *u.BusiestWaitMean) {
			u.BusiestWait, u.BusiestWaitMean = name[len(WaitPrefix):], v
		}
	}
	return u
}

// samplesMin is how many samples a figure needs.
const samplesMin = 2

// waitWAL counts sessions that are also counted in wait_io or wait_lwlock.
const waitWAL = WaitPrefix + "wal"

// Waits returns the names of the gauges of sessions by what they wait for, in alphabetical order. Each session is counted
// in one of them; wait_wal is left out.
func (t *Series) Waits() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(t.Values)) {
		if strings.HasPrefix(name, WaitPrefix) && !Counter(name) && name != waitWAL {
			names = append(names, name)
		}
	}
	return names
}

// resolution is the coarsest resolution of the interval's samples, including the one for its end.
func (i interval) resolution(name string) *float64 {
	last := i.series.border(name, i.to)
	if math.IsNaN(last) {
		last = i.to
	}
	return figure(i.series.Max(name, i.from, last))
}

// growth is the growth of a counter.
func (i interval) growth(name string) *float64 {
	if i.borderError(name) != nil {
		return figure(i.series.StepGrowth(name, i.from, i.to))
	}
	return i.read(name, i.series.StepGrowth)
}

// borderError is how far the samples are from the interval's borders, nil if it is interpolated.
func (i interval) borderError(name string) *float64 {
	return figure(i.series.BorderError(name, i.from, i.to))
}

func (i interval) max(name string) *float64 { return i.read(name, i.series.Max) }

func (i interval) min(name string) *float64 { return i.read(name, i.series.Min) }

func (i interval) mean(name string) *float64 { return i.read(name, i.series.Mean) }

func (i interval) last(name string) *float64 { return i.read(name, i.series.Last) }

// read is a figure of the series if the interval has enough samples.
func (i interval) read(name string, of func(string, float64, float64) float64) *float64 {
	if i.series.Count(name, i.from, i.to) < samplesMin {
		return nil
	}
	return figure(of(name, i.from, i.to))
}

// rate is a counter's growth per second.
func (i interval) rate(name string) *float64 { return i.perSecond(i.growth(name)) }

func (i interval) perSecond(v *float64) *float64 { return over(v, i.to-i.from) }

func (i interval) perRequest(v *float64) *float64 { return over(v, i.answered) }

// figure is nil for NaN and infinities.
func figure(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// over is the quotient, nil if v is nil or by is not above 0.
func over(v *float64, by float64) *float64 {
	if v == nil || !(by > 0) {
		return nil
	}
	return figure(*v / by)
}

// plus is the sum, nil if one is nil.
func plus(a, b *float64) *float64 {
	if a == nil || b == nil {
		return nil
	}
	return figure(*a + *b)
}

// less is the difference, at least 0, and nil if one is nil.
func less(a, b *float64) *float64 {
	if a == nil || b == nil {
		return nil
	}
	return figure(max(0, *a-*b))
}
