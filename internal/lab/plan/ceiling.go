package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"spillway/internal/lab/peak"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// A Resource is something of which a host or a service has only so much.
type Resource string

// The resources of a Ceiling.
const (
	ProcessCPU  Resource = "process-cpu"  // CPU time of a process with its descendants, of the cores that it may use
	HostCPU     Resource = "host-cpu"     // CPU time of a host with all programs, of its cores
	ShareCPU    Resource = "share-cpu"    // CPU time of a host of an experiment or of --pin, of its share
	RedisThread Resource = "redis-thread" // CPU time of the main thread of a Redis, of one core
	Sessions    Resource = "sessions"     // sessions of a database that run a statement, of its connection limit
	Descriptors Resource = "descriptors"  // open files of a process with short connections, of its limit
	Ports       Resource = "ports"        // local ports of a host for connections that it opens, with TIME_WAIT
)

// TimeWait is how long in seconds a closed connection keeps the port of the side that closed first (TCP_TIMEWAIT_LEN of Linux).
const TimeWait = 60

// shortConnections is how many connections per request make connections short.
const shortConnections = 0.9

// A Ceiling is the rate at which a resource is used up, by the utilization law: U = X D, where X is the rate and D what a request
// needs of the resource (P. J. Denning and J. P. Buzen, "The operational analysis of queueing network models", Computing Surveys
// 10, 1978). No rate above the lowest ceiling can be sustained, and latencies rise before it.
type Ceiling struct {
	Resource    Resource `json:"resource"`
	Host        string   `json:"host,omitempty"`    // a result.Watch's
	Subject     string   `json:"subject,omitempty"` // process, database or share
	Demand      float64  `json:"demand_seconds"`    // D: how long a good answer keeps one unit of the capacity busy
	Capacity    float64  `json:"capacity"`          // cores, sessions, files or ports
	RateHz      float64  `json:"rate_hz"`           // Capacity / Demand
	Utilization float64  `json:"utilization_share"` // in the step
	AtLeast     bool     `json:"at_least,omitempty"`
	Basis       string   `json:"basis"` // where the capacity comes from

	pool    string  // what else uses the same capacity
	whole   bool    // the demand may include what other programs of the host need
	allowed float64 // cores that a process could use with more threads
}

// Ceilings returns the ceilings of a step by the usage of its samples, lowest first. Resources that were not watched have none. It
// does not ask whether the step is VALID.
func Ceilings(run *result.Run, step int) []*Ceiling {
	ceilings, _ := ceilingsOf(run, step, run.Series(), nil)
	return ceilings
}

// Beside puts the ceilings at the highest rate that met the SLO beside a measured peak, without those that other programs of the host
// may have a part in. A flow has none, because its rates count iterations.
func Beside(o *peak.Outcome) {
	if o.Passing < 0 || o.Flow {
		return
	}
	all := Ceilings(o.Run, o.Passing)
	for _, c := range all {
		alone := 0 // processes that have a share, each of which has a ceiling of its own
		for _, other := range all {
			if other.Resource == ProcessCPU && other.pool == "share "+c.Subject {
				alone++
			}
		}
		switch {
		case c.Resource == HostCPU && c.Host == "" && len(o.Run.Header.Hosts) > 0: // load and target have shares of it
		case c.whole:
		case c.Resource == ShareCPU && (c.Subject == "generator" || c.Subject == "load" || alone == 1):
		default:
			o.Ceilings = append(o.Ceilings, peak.Ceiling{RateHz: c.RateHz, Sentence: c.Sentence()})
		}
	}
}

// ceilingsOf is Ceilings of a run with its series, and of processes whose cores the run does not tell, by name. It also returns
// the usage of the step, nil without samples.
func ceilingsOf(run *result.Run, step int, series []*result.Series, cpus map[string]Share) ([]*Ceiling, *result.Usage) {
	s := &run.Steps[step]
	u := result.UsageOf(series, s.Start, s.Start+s.Total.Elapsed, s.Total.Completed)
	m := meter{run: run, step: s, usage: u, cpus: cpus, rate: s.Total.Rate()}
	if m.lighter = lighterThan(run, s); m.lighter != nil {
		l := m.lighter
		m.before = result.UsageOf(series, l.Start, l.Start+l.Total.Elapsed, l.Total.Completed)
	}
	if !(m.rate > 0) {
		return nil, u
	}
	m.shares()
	m.processes()
	m.hosts()
	m.databases()
	m.ports()
	slices.SortStableFunc(m.found, func(a, b *Ceiling) int { return cmp.Compare(a.RateHz, b.RateHz) })
	return m.found, u
}

// Sentence describes the ceiling: "app: 212 µs CPU per request; 0.5 cores last for 2,358/s".
func (c *Ceiling) Sentence() string {
	bound, least := "", ""
	if c.AtLeast {
		bound, least = "< ", "at least "
	}
	need := bound + sheet.Duration(c.Demand)
	switch c.Resource {
	case Sessions:
		return fmt.Sprintf("%s: a session is busy for %s per request; %s sessions last for %s%s", c.Subject, need, sheet.Number(c.Capacity),
			least,
			sheet.Rate(c.RateHz))
	case Descriptors:
		return fmt.Sprintf("%s: a file is open for %s per request; %s files last for %s%s", c.Subject, need, sheet.Number(c.Capacity), least,
			sheet.Rate(c.RateHz))
	case Ports:
		return fmt.Sprintf("local ports%s: %s connections opened per request hold a port for %d s; %s ports last for %s%s",
			on(c.Host), sheet.Number(c.Demand/TimeWait), TimeWait, sheet.Number(c.Capacity), least, sheet.Rate(c.RateHz))
	case HostCPU:
		return fmt.Sprintf("host%s: %s CPU per request in all; %s %s for %s%s", on(c.Host), need, sheet.Plural(c.Capacity, "core"),
			last(c.Capacity), least,
			sheet.Rate(c.RateHz))
	case RedisThread:
		return fmt.Sprintf("%s: %s CPU of the main thread per request; one core lasts for %s%s", c.Subject, need, least, sheet.Rate(c.RateHz))
	}
	return fmt.Sprintf("%s: %s CPU per request; %s %s for %s%s", c.Subject, need, sheet.Plural(c.Capacity, "core"), last(c.Capacity),
		least, sheet.Rate(c.RateHz))
}

func last(n float64) string {
	if n == 1 {
		return "lasts"
	}
	return "last"
}

func on(host string) string {
	if host == "" {
		return ""
	}
	return " of " + host
}

// A meter collects the ceilings of one step.
type meter struct {
	run   *result.Run
	step  *result.StepRun
	usage *result.Usage
	cpus  map[string]Share
	rate  float64
	found []*Ceiling

	lighter *result.StepRun // shows what other programs do; nil if there is none
	before  *result.Usage   // in it
}

// lighterMost is the rate of a step, as a share of another's, up to which the two show what a request adds.
const lighterMost = 0.7

// lighterThan is the VALID step with the lowest rate, nil if none has a clearly lower rate than s.
func lighterThan(run *result.Run, s *result.StepRun) *result.StepRun {
	var lightest *result.StepRun
	for i := range run.Steps {
		t := &run.Steps[i].Total
		if t.Validity == result.Valid && t.Rate() > 0 && t.Rate() <= lighterMost*s.Total.Rate() && (lightest == nil ||
			t.Rate() < lightest.Total.Rate()) {
			lightest = &run.Steps[i]
		}
	}
	return lightest
}

// added is what a request adds to something that a host does per second, now and in the lighter step. Without one, other programs may
// have a part in it: whole.
func (m *meter) added(now, before float64) (perRequest float64, whole bool) {
	if m.lighter == nil || math.IsNaN(before) {
		return now / m.rate, true
	}
	return min(max(0, (now-before)/(m.rate-m.lighter.Total.Rate())), now/m.rate), false
}

// add adds a ceiling if demand and capacity are known and above 0.
func (m *meter) add(c Ceiling) {
	if !(c.Demand > 0) || !(c.Capacity > 0) || math.IsInf(c.Demand, 0) || math.IsInf(c.Capacity, 0) {
		return
	}
	c.RateHz = c.Capacity / c.Demand
	c.Utilization = c.Demand * m.rate / c.Capacity
	m.found = append(m.found, &c)
}

// shares are the hosts on this machine that have a share of its CPU.
func (m *meter) shares() {
	for _, h := range m.step.Total.Hosts {
		if h.Elapsed > 0 {
			m.add(Ceiling{Resource: ShareCPU, Subject: h.Name, Demand: h.Used / h.Elapsed / m.rate, Capacity: h.CPUs, Basis: "its share of CPU"})
		}
	}
}

func (m *meter) processes() {
	short := false
	for _, t := range m.usage.Of(result.SamplerTCP) {
		short = short || t.Value(result.PassiveOpensPerRequest) >= shortConnections
	}
	for _, p := range m.usage.Of(result.SamplerProcess) {
		capacity, basis, pool := m.coresOf(p)
		allowed, _, _ := m.coresAllowed(p)
		m.add(Ceiling{
			Resource: ProcessCPU, Host: p.Host, Subject: p.Name, Demand: p.Value(result.CPUPerRequest), Capacity: capacity,
			AtLeast: p.Below(result.CPUPerRequest), Basis: basis, pool: pool, allowed: allowed,
		})
		if short {
			m.add(Ceiling{
				Resource: Descriptors, Host: p.Host, Subject: p.Name, Demand: p.Value(result.FDsMax) / m.rate,
				Capacity: p.Value(result.FDsLimit), Basis: "its limit of open files",
			})
		}
	}
}

// Of a process of which one thread does nearly all of the work. It is only known of a thread that is busy enough.
const (
	oneThreadShare = 0.8 // of the CPU time of the process
	oneThreadBusy  = 0.7 // of a core
)

// coresOf is how many cores a process can use, how that is known, and a name of the pool that has them: those that it may use, unless
// the number of its threads or a single busy thread allows fewer.
func (m *meter) coresOf(p *result.SubjectUsage) (n float64, basis, pool string) {
	n, basis, pool = m.coresAllowed(p)
	own := "process " + p.Name
	if threads := p.Value(result.ThreadsMax); threads >= 1 && threads < n {
		n, basis, pool = threads, "it has "+sheet.Plural(threads, "thread"), own
	}
	busiest, used := p.Value(result.BusiestThread), p.Value(result.CPUCores)
	if busiest >= max(oneThreadBusy, oneThreadShare*used) && busiest <= 1.1 && max(1, used/busiest) < n {
		n, basis, pool = max(1, used/busiest), "one thread does nearly all of its work", own
	}
	return n, basis, pool
}

// coresAllowed are the cores of the share or the host of a process, or its limit of CPU if that is fewer.
func (m *meter) coresAllowed(p *result.SubjectUsage) (n float64, basis, pool string) {
	n, basis, pool = m.coresOfHost(p)
	limit := p.Value(result.CPULimit)
	if limit > 0 && (n == 0 || limit < 0.99*n) && !m.cpus[p.Name].told {
		return limit, "its limit of CPU", "process " + p.Name
	}
	return n, basis, pool
}

func (m *meter) coresOfHost(p *result.SubjectUsage) (n float64, basis, pool string) {
	if given, ok := m.cpus[p.Name]; ok {
		return given.Cores, givenBasis, given.Pool
	}
	if p.Host == "" && len(m.run.Header.Hosts) > 0 {
		if h := m.shareOf(p.Name); h != nil {
			return h.CPUs, "the share of " + h.Name, "share " + h.Name
		}
		return 0, "", ""
	}
	if cores := m.usage.Find(result.SamplerHost, p.Host, "").Value(result.Cores); cores > 0 {
		return cores, "the cores of its host", hostPool(p.Host)
	}
	return 0, "", ""
}

// givenBasis is the basis of the cores of Settings.CPUs and of Source.CPUs.
const givenBasis = "as given"

// hostPool names the cores of a host.
func hostPool(host string) string {
	if host == "" {
		return generatorPool
	}
	return "host " + host
}

// generatorPool is the cores of the host that wrote the file.
const generatorPool = "the load generator's host"

// shareOf is the share of a process: the one with its name, or the only one besides that of the load generator.
func (m *meter) shareOf(name string) *result.HostShare {
	hosts := m.run.Header.Hosts
	var other *result.HostShare
	for i := range hosts {
		h := &hosts[i]
		switch {
		case h.Name == name:
			return h
		case h.Name == "generator" || h.Name == "load":
		case other != nil:
			return nil
		default:
			other = h
		}
	}
	return other
}

// hosts are the CPUs of each host, used by the watched processes and the load generator, or else by what a request adds.
func (m *meter) hosts() {
	for _, h := range m.usage.Of(result.SamplerHost) {
		cores := h.Value(result.Cores)
		demand, whole := m.added(busyCores(h), busyCores(m.before.Find(result.SamplerHost, h.Host, "")))
		if used := m.watchedCores(h.Host); used > 0 {
			demand, whole = min(used, busyCores(h))/m.rate, false
		}
		m.add(Ceiling{
			Resource: HostCPU, Host: h.Host, Demand: demand, Capacity: cores, Basis: "its cores", pool: hostPool(h.Host), whole: whole,
		})
	}
}

// busyCores are the cores of a host that were not idle. No iowait is none.
func busyCores(h *result.SubjectUsage) float64 {
	return (1 - h.Value(result.IdleShare) - h.Figures[result.IOWaitShare]) * h.Value(result.Cores)
}

// watchedCores are the cores that the watched processes of a host used, and the load generator on it; 0 if none was watched.
func (m *meter) watchedCores(host string) float64 {
	sum := 0.0
	for _, p := range m.usage.Of(result.SamplerProcess) {
		if p.Host == host && p.Value(result.CPUCores) > 0 {
			sum += p.Value(result.CPUCores)
		}
	}
	if t := &m.step.Total; sum > 0 && host == "" {
		sum += (t.Cost.CPUUser + t.Cost.CPUSystem) / t.Elapsed
	}
	return sum
}

func (m *meter) databases() {
	for _, d := range m.usage.Databases() {
		if d.Sampler != result.SamplerRedis {
			m.add(Ceiling{
				Resource: Sessions, Host: d.Host, Subject: d.Name, Demand: d.Value(result.ConnectionsActive) / m.rate,
				Capacity: d.Value(result.ConnectionsLimit), Basis: "its connection limit",
			})
			continue
		}
		c := Ceiling{Resource: RedisThread, Host: d.Host, Subject: d.Name, Capacity: 1, Basis: redisThreadBasis}
		used := d.Value(result.MainThread)
		if math.IsNaN(used) { // before Redis 7
			used, c.Basis = d.Value(result.CPUCores), "commands run on one thread; its CPU was measured with all threads"
		}
		c.Demand = used / m.rate
		m.add(c)
	}
}

// redisThreadBasis is the basis of the ceiling of a Redis that tells the CPU time of its main thread.
const redisThreadBasis = "commands run on one thread"

// opensMin is how many connections per request count as opened for requests.
const opensMin = 0.01

// ports are those of connections that a host opens besides those of the load, unless far fewer ports were in use than such
// connections had been opened: then the other side closes first, or the ports are used again at once, as over loopback.
func (m *meter) ports() {
	for _, t := range m.usage.Of(result.SamplerTCP) {
		before := math.NaN()
		if m.lighter != nil {
			before = opened(m.lighter, m.before.Find(result.SamplerTCP, t.Host, ""))
		}
		hz, all := opened(m.step, t), t.Value(result.PortsRange)
		opens, whole := m.added(hz, before)
		held := min(hz*min(TimeWait, m.step.Total.Elapsed), all)
		if !(opens >= opensMin) || t.Value(result.PortsMax) < held/2 {
			continue
		}
		m.add(Ceiling{
			Resource: Ports, Host: t.Host, Demand: opens * TimeWait, Capacity: all, whole: whole,
			Basis: "the range of local ports, for one source address and one target, if the opening side closes first",
		})
	}
}

// opened is how many connections per second a host opened in a step, without those of the load generator on it.
func opened(s *result.StepRun, t *result.SubjectUsage) float64 {
	hz := t.Value(result.ActiveOpens)
	if t.Host == "" && s.Total.Elapsed > 0 {
		hz -= float64(s.Total.Connects) / s.Total.Elapsed
	}
	return max(0, hz)
}

// roleShared is a process that all hosts share, as told. They also share databases and Redis; each has its own application.
const roleShared result.Role = "shared"
