package diagnose

import (
	"math"
	"slices"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// A step is what is known of a load step, or of an interval of a watch without load. A figure is NaN if it is not known, which no
// comparison is true of.
type step struct {
	load       *result.StepRun // nil without load
	rate       float64         // good answers per second
	answers    float64         // per second, good or not
	requests   float64         // per second, answered or not
	offered    float64         // arrivals per second; NaN in a closed loop
	inFlight   float64         // mean number of requests sent and not answered
	service    float64         // mean time in flight, seconds
	typical    float64         // median time in flight of answers, seconds
	floor      float64         // lower quartile of the time in flight of answers, seconds
	answered   float64         // mean time in flight of answers, seconds
	transfer   float64         // mean time from the first to the last byte of an answer, seconds
	bytesIn    float64         // per second
	answerSize float64         // bytes per answer
	refused    float64         // share of the answers with status 429
	busy       float64         // share of the answers with status 503
	generator  float64         // cores that the load generator used

	processes []process
	databases []database
	usage     *result.Usage
	tcp       []sockets
}

// A process is a watched process tree in a step.
type process struct {
	host, name          string
	role                result.Role
	cores, user, system float64 // CPU time per elapsed time
	limit               float64 // cores that it may use
	allowed             float64 // cores of its affinity; more than the limit with a quota
	allowedBusy         float64 // of these, how many were busy, whoever used them
	waiting             float64 // mean number of threads that were ready to run and had no CPU
	busiest             float64 // cores of the busiest thread
	throttled           float64 // share of the time in which its quota stopped it
	perRequest          float64 // CPU seconds
	faults              float64 // pages read from a disk per second
	memory, memoryLimit float64 // bytes
	files, filesLimit   float64
	threads, processes  float64
}

// A database is a watched database in a step.
type database struct {
	host, name, kind          string
	connections, limit        float64
	held                      float64 // mean sessions that run a statement or are in a transaction
	active                    float64 // mean sessions that run a statement
	waitLock, waitLog, waitIO float64 // of the active ones
	waitCPU                   float64 // that run or are ready to
	commits, fsyncs           float64 // per second
	mainThread                float64 // Redis: cores of the thread that runs commands
	cores                     float64 // Redis: of the whole process
	commands                  float64 // Redis: per second
	statements                []statement
}

// sockets are those of a host's network namespace.
type sockets struct {
	host                    string
	sendQueue, receiveQueue float64 // mean bytes
	overflows               float64 // connections per second that a full accept queue rejected
	accepted                float64 // connections per second
	perRequest              float64 // connections accepted per request
	portsUsed, portsRange   float64
	timeWait                float64
	retransmits             float64 // share of the segments
}

// value is NaN for an unknown figure.
func value(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

// newStep gathers what is known of a load step.
func newStep(run *result.Run, series []*result.Series, index int) *step {
	load := &run.Steps[index]
	t := &load.Total
	s := newInterval(run, series, load.Start, load.Start+t.Elapsed, t.Completed)
	s.load, s.rate = load, t.Rate()
	if load.Loop == result.LoopOpen {
		s.offered = load.OfferedHz
	}
	if t.Little.InFlightMean > 0 {
		s.inFlight, s.service = t.Little.InFlightMean, t.Little.ServiceMean
	}
	if services, err := t.Latency.Services(); err == nil && services.Known.Count() > 0 {
		s.floor, s.typical = services.Known.Quantile(0.25).Seconds(), services.Known.Quantile(0.5).Seconds()
		s.answered = services.Known.Mean().Seconds()
		if first := decoded(t.Latency.FirstByte); first != nil {
			s.transfer = s.answered - first.Mean().Seconds()
		}
	}
	if t.Elapsed > 0 {
		s.bytesIn = float64(t.BytesIn) / t.Elapsed
		s.generator = (t.Cost.CPUUser + t.Cost.CPUSystem) / t.Elapsed
		s.answers, s.requests = float64(t.Done)/t.Elapsed, float64(t.Requests())/t.Elapsed
	}
	if t.Done > 0 {
		s.answerSize = float64(t.BytesIn) / float64(t.Done)
		s.refused, s.busy = float64(t.Statuses[429])/float64(t.Done), float64(t.Statuses[503])/float64(t.Done)
	}
	return s
}

// measured reports whether a step says anything about the service: the load generator could offer its load, or only the hypervisor
// disturbed it, by too little to explain that the service answers so few requests.
func (s *step) measured() bool { return s.load == nil || valid(s.load) || s.despiteSteal() }

// Limits of a step that the hypervisor disturbed, and that says something about the service all the same.
const (
	stolenLeast = 0.02 // share of the CPU time from which package load does not call a step VALID
	roomLeft    = 0.6  // share of the CPUs that the service could use, up to which stolen CPU time took nothing from it
	waitedMost  = 0.1  // of the time, how long all threads of the load generator together waited for a CPU
)

// despiteSteal reports whether the service answers so few requests for another reason than the CPU time that the hypervisor took: it
// had CPU to spare even if all of that time was its own, or it used all of its CPUs, or of one with a thread, by itself. The load
// generator was in time, and nothing else disturbed it.
func (s *step) despiteSteal() bool {
	t, u := &s.load.Total, s.hostUsage("")
	stolen := value(u.Steal) * value(u.Cores)
	if !t.OnlyStolen() || !(value(u.Steal) >= stolenLeast) || !(stolen > 0) {
		return false
	}
	if !(s.achieved() < keptUp*s.offered) || t.Cost.RunQueueWait > waitedMost*t.Elapsed || s.wasLate() {
		return false
	}
	for i := range t.Hosts {
		if t.Hosts[i].ForeignShare() > foreignMax {
			return false
		}
	}
	p, _ := s.fullest()
	if p == nil {
		return false
	}
	if slices.ContainsFunc(s.processes, func(p process) bool { return p.busiest >= targetFull }) {
		return true
	}
	all := highest(s.filled(p), p.cores/p.limit)
	return all+stolen/p.limit < roomLeft || p.cores/p.limit >= targetFull
}

// wasLate reports whether the load generator sent requests so late that their times say little.
func (s *step) wasLate() bool {
	lag := decoded(s.load.Total.Latency.Lag)
	times, err := s.load.Total.Latency.Responses()
	if err != nil || lag == nil {
		return true
	}
	response, _ := times.Quantile(0.99)
	return lag.Quantile(0.99) > max(time.Millisecond, response/10)
}

// decoded is nil for an empty or unreadable histogram.
func decoded(h result.HDR) *histogram.Histogram {
	decoded, err := histogram.Decode(string(h))
	if err != nil || decoded.Count() == 0 {
		return nil
	}
	return decoded
}

// newInterval gathers what was watched between two times.
func newInterval(run *result.Run, series []*result.Series, from, to float64, answered int64) *step {
	nan := math.NaN()
	s := &step{
		rate: nan, offered: nan, inFlight: nan, service: nan, typical: nan, floor: nan, answered: nan, transfer: nan, bytesIn: nan,
		answerSize: nan, refused: nan, busy: nan, generator: nan, answers: nan, requests: nan,
		usage: result.UsageOf(series, from, to, answered),
	}
	if s.usage == nil {
		s.usage = &result.Usage{}
	}
	between := func(sampler, host, name string) reader {
		for _, one := range series {
			if one.Sampler == sampler && one.Host == host && one.Subject == name {
				return reader{one, from, to}
			}
		}
		return reader{nil, from, to}
	}
	for i := range s.usage.Processes {
		u := &s.usage.Processes[i]
		s.processes = append(s.processes, s.process(run, u, between(result.SamplerProcess, u.Host, u.Name)))
	}
	for i := range s.usage.Databases {
		u := &s.usage.Databases[i]
		d := newDatabase(u, between(u.Kind, u.Host, u.Name))
		d.statements = statements(series, u, from, to)
		s.databases = append(s.databases, d)
	}
	for i := range s.usage.TCP {
		u := &s.usage.TCP[i]
		r := between(result.SamplerTCP, u.Host, "")
		s.tcp = append(s.tcp, sockets{
			host: u.Host, sendQueue: r.mean("send_queue_bytes"), receiveQueue: r.mean("receive_queue_bytes"),
			overflows: value(u.ListenOverflows) / (to - from), accepted: value(u.Passive), perRequest: value(u.PassivePerRequest),
			portsUsed: value(u.PortsMax), portsRange: value(u.PortsRange), timeWait: value(u.TimeWaitMax), retransmits: value(u.RetransmitShare),
		})
	}
	return s
}

func (s *step) process(run *result.Run, u *result.ProcessUsage, r reader) process {
	p := process{
		host: u.Host, name: u.Name, cores: value(u.CPUCores), user: value(u.CPUUserCores), system: value(u.CPUSystemCores),
		waiting: value(u.WaitShare), perRequest: value(u.CPUPerRequest), memory: value(u.RSSMax),
		files: value(u.FDsMax), filesLimit: value(u.FDsLimit), threads: value(u.ThreadsMax), processes: value(u.ProcessesMax),
		limit: r.last("cpu_limit"), allowed: r.last("cpu_allowed"), allowedBusy: r.rate("cpu_allowed_busy_seconds_total"),
		busiest: r.mean("busiest_thread_cores"), faults: r.rate("major_faults_total"),
		throttled: r.rate("throttled_seconds_total"), memoryLimit: r.last("memory_limit_bytes"),
	}
	if cpus := min(p.allowed, p.threads); cpus > 1 { // the counter adds up what each CPU was kept from running
		p.throttled /= cpus
	}
	p.role = run.Role(u.Host, u.Name)
	cores := math.NaN()
	for i := range s.usage.Hosts {
		if s.usage.Hosts[i].Host == u.Host {
			cores = value(s.usage.Hosts[i].Cores)
		}
	}
	if !(p.limit <= cores) && cores > 0 {
		p.limit = cores
	}
	return p
}

func newDatabase(u *result.DatabaseUsage, r reader) database {
	d := database{
		host: u.Host, name: u.Name, kind: u.Kind, connections: value(u.ConnectionsMax), limit: value(u.ConnectionsLimit),
		active: value(u.ActiveMean), held: value(u.ActiveMean), commits: value(u.Commits), fsyncs: value(u.Fsyncs),
		waitLock: r.mean("wait_lock"), waitLog: r.mean("wait_wal"), waitIO: r.mean("wait_io"), waitCPU: r.mean("wait_cpu"),
		cores: value(u.CPUCores), commands: value(u.Commands),
		mainThread: r.rate("main_thread_user_seconds_total") + r.rate("main_thread_system_seconds_total"),
	}
	if inTransaction := r.mean("connections_idle_in_transaction"); inTransaction > 0 {
		d.held += inTransaction
	}
	if waited := r.rate("row_lock_seconds_total"); waited > 0 && !(waited < d.waitLock) {
		d.waitLock = waited
	}
	if kind := u.Kind; kind == result.SamplerRedis && math.IsNaN(d.mainThread) {
		d.mainThread = d.cores
	}
	return d
}

// A reader reads figures of a series between two times; NaN without a series.
type reader struct {
	series   *result.Series
	from, to float64
}

func (r reader) mean(name string) float64 {
	if r.series == nil {
		return math.NaN()
	}
	return r.series.Mean(name, r.from, r.to)
}

func (r reader) last(name string) float64 {
	if r.series == nil {
		return math.NaN()
	}
	return r.series.Last(name, r.from, r.to)
}

func (r reader) rate(name string) float64 {
	if r.series == nil {
		return math.NaN()
	}
	return r.series.StepGrowth(name, r.from, r.to) / (r.to - r.from)
}

// find returns the same process in this step; every figure of a process that is not there is NaN.
func (s *step) find(p *process) *process {
	if s != nil {
		for i := range s.processes {
			if s.processes[i].host == p.host && s.processes[i].name == p.name {
				return &s.processes[i]
			}
		}
	}
	nan := math.NaN()
	return &process{
		cores: nan, user: nan, system: nan, limit: nan, allowed: nan, allowedBusy: nan, waiting: nan, busiest: nan, throttled: nan,
		perRequest: nan, faults: nan,
		memory: nan, memoryLimit: nan, files: nan, filesLimit: nan, threads: nan, processes: nan,
	}
}

// findDatabase returns the same database in this step, as find.
func (s *step) findDatabase(d *database) *database {
	if s != nil {
		for i := range s.databases {
			if s.databases[i].host == d.host && s.databases[i].name == d.name {
				return &s.databases[i]
			}
		}
	}
	nan := math.NaN()
	return &database{
		connections: nan, limit: nan, held: nan, active: nan, waitLock: nan, waitLog: nan, waitIO: nan, waitCPU: nan, commits: nan,
		fsyncs: nan, mainThread: nan, cores: nan, commands: nan,
	}
}

// findSockets returns those of the same host in this step, as find.
func (s *step) findSockets(host string) *sockets {
	if s != nil {
		for i := range s.tcp {
			if s.tcp[i].host == host {
				return &s.tcp[i]
			}
		}
	}
	nan := math.NaN()
	return &sockets{
		sendQueue: nan, receiveQueue: nan, overflows: nan, accepted: nan, perRequest: nan, portsUsed: nan, portsRange: nan,
		timeWait: nan, retransmits: nan,
	}
}

// hostUsage returns the usage of a host in this step; empty if it was not watched.
func (s *step) hostUsage(host string) *result.HostUsage {
	for i := range s.usage.Hosts {
		if s.usage.Hosts[i].Host == host {
			return &s.usage.Hosts[i]
		}
	}
	return &result.HostUsage{}
}

// share returns the divided cores that a process runs on: those of the host of its name, or else of the target; nil if cores were
// not divided.
func (s *step) share(p *process) *result.HostShare {
	if s.load == nil || p.host != "" {
		return nil
	}
	var target *result.HostShare
	for i := range s.load.Total.Hosts {
		one := &s.load.Total.Hosts[i]
		switch {
		case one.Elapsed <= 0:
		case one.Name == p.name:
			return one
		case one.Name == "target":
			target = one
		}
	}
	return target
}
