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
	bytes      float64         // in and out, per second
	answerSize float64         // bytes per answer
	refused    float64         // share of the answers with status 429
	busy       float64         // share of the answers with status 503
	generator  float64         // cores that the load generator used

	generatorCores float64 // that it could use; NaN if not known

	usage     *result.Usage
	processes []*process
	databases []*database
	endings   []ending
}

// A process is a watched process tree in a step.
type process struct {
	*result.SubjectUsage
	role         result.Role
	cores, limit float64 // CPU time per elapsed time, and the cores that it may use
}

func newProcess(u *result.SubjectUsage, role result.Role) *process {
	return &process{SubjectUsage: u, role: role, cores: u.Value(result.CPUCores), limit: u.Value(result.CPULimit)}
}

// A database is a watched database in a step.
type database struct {
	*result.SubjectUsage
	statements []statement
}

// newStep gathers what is known of a load step.
func newStep(run *result.Run, series []*result.Series, index int) *step {
	load := &run.Steps[index]
	t := &load.Total
	s := newInterval(run, series, load.Start, load.Start+t.Elapsed, t.Completed)
	s.load, s.rate = load, t.Rate()
	if n := run.Header.Machine.Cores; n > 0 {
		s.generatorCores = float64(n)
	}
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
		s.bytesIn, s.bytes = float64(t.BytesIn)/t.Elapsed, float64(t.BytesIn+t.BytesOut)/t.Elapsed
		s.generator = (t.Cost.CPUUser + t.Cost.CPUSystem) / t.Elapsed
		s.answers, s.requests = float64(t.Done)/t.Elapsed, float64(t.Requests())/t.Elapsed
	}
	if t.Done > 0 {
		s.answerSize = float64(t.BytesIn) / float64(t.Done)
		s.refused, s.busy = float64(t.Statuses[429])/float64(t.Done), float64(t.Statuses[503])/float64(t.Done)
	}
	return s
}

// measured reports whether a step says anything about the service: the load generator could offer its load, or what disturbed it does
// not explain that the service answers so few requests.
func (s *step) measured() bool { return s.load == nil || valid(s.load) || s.despite() }

// Limits of a step that was disturbed, and that says something about the service all the same.
const (
	stolenLeast = 0.02 // share of the CPU time from which package load does not call a step VALID
	roomLeft    = 0.6  // share of the CPUs that the service could use, up to which stolen CPU time took nothing from it
	waitedMost  = 0.1  // of the time, how long all threads of the load generator together waited for a CPU
)

// despite reports whether the service answers so few requests for another reason than what disturbed the load generator, which was in
// time: the service had CPU to spare, even if all CPU time that the hypervisor took was its own, or it used all of its CPUs, or of one
// with a thread, by itself. A generator that waited for a CPU needed little.
func (s *step) despite() bool {
	t, u := &s.load.Total, s.host("")
	if !t.OnlyDisturbed(result.Stolen, result.CPUWait) || !(s.achieved() < keptUp*s.offered) || s.wasLate() {
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
	stolen := u.Value(result.StealShare) * u.Value(result.Cores)
	all := highest(s.filled(p), p.cores/p.limit)
	if t.OnlyStolen() {
		if !(u.Value(result.StealShare) >= stolenLeast) || t.Cost.RunQueueWait > waitedMost*t.Elapsed {
			return false
		}
	} else if all = s.use(p); t.Cost.ThreadBusyMax >= generatorIdle {
		return false
	}
	if slices.ContainsFunc(s.processes, func(p *process) bool { return p.Value(result.BusiestThread) >= targetFull }) {
		return true
	}
	return all+highest(stolen, 0)/p.limit < roomLeft || p.cores/p.limit >= targetFull
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

// unknownStep is a step of which nothing is known.
func unknownStep() *step {
	nan := math.NaN()
	return &step{
		rate: nan, offered: nan, inFlight: nan, service: nan, typical: nan, floor: nan, answered: nan, transfer: nan, bytesIn: nan, bytes: nan,
		answerSize: nan, refused: nan, busy: nan, generator: nan, generatorCores: nan, answers: nan, requests: nan, usage: &result.Usage{},
	}
}

// orUnknown is unknownStep without a step.
func (s *step) orUnknown() *step {
	if s == nil {
		return unknownStep()
	}
	return s
}

// endSeen is how long after the end of a process its sampler may see that, in seconds.
const endSeen = 1.0

// newInterval gathers what was watched between two times.
func newInterval(run *result.Run, series []*result.Series, from, to float64, answered int64) *step {
	s := unknownStep()
	if u := result.UsageOf(series, from, to, answered); u != nil {
		s.usage = u
	}
	for _, u := range s.usage.Of(result.SamplerProcess) {
		if cores := s.host(u.Host).Value(result.Cores); cores > 0 && !(u.Value(result.CPULimit) <= cores) {
			u.Figures[result.CPULimit] = cores
		}
		s.processes = append(s.processes, newProcess(u, run.Role(u.Host, u.Name)))
	}
	s.endings = endings(series, from, to+endSeen)
	for _, u := range s.usage.Databases() {
		if cores, known := u.Figures[result.CPUCores]; known && math.IsNaN(u.Value(result.MainThread)) {
			u.Figures[result.MainThread] = cores // before Redis 7
		}
		s.databases = append(s.databases, &database{u, statements(series, u, from, to)})
	}
	return s
}

// find returns a subject in this step, without figures if it was not watched then.
func (s *step) find(u *result.SubjectUsage) *result.SubjectUsage {
	return s.orUnknown().usage.Find(u.Sampler, u.Host, u.Name)
}

// process returns a process in this step, as find.
func (s *step) process(p *process) *process { return newProcess(s.find(p.SubjectUsage), p.role) }

// sockets returns those of a host in this step, as find.
func (s *step) sockets(host string) *result.SubjectUsage {
	return s.usage.Find(result.SamplerTCP, host, "")
}

// host returns the usage of a host in this step, as find.
func (s *step) host(name string) *result.SubjectUsage {
	return s.usage.Find(result.SamplerHost, name, "")
}

// share returns the divided cores that a process runs on: those of the host of its name, or else of the target; nil if cores were
// not divided.
func (s *step) share(p *process) *result.HostShare {
	if s.load == nil || p.Host != "" {
		return nil
	}
	var target *result.HostShare
	for i := range s.load.Total.Hosts {
		one := &s.load.Total.Hosts[i]
		switch {
		case one.Elapsed <= 0:
		case one.Name == p.Name:
			return one
		case one.Name == "target":
			target = one
		}
	}
	return target
}
