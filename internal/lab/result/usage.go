package result

import (
	"maps"
	"math"
	"slices"
	"strings"
)

// A Usage is what the watched processes, hosts, sockets and databases used in an interval.
type Usage struct {
	From     float64         `json:"from_seconds"` // since Header.StartedAt
	To       float64         `json:"to_seconds"`
	Requests int64           `json:"answered"` // divisor of the figures per request
	Subjects []*SubjectUsage `json:"subjects"`
}

// SubjectUsage has the figures of one watched subject, or of all samplers of a host together. A figure is unknown with fewer than
// two samples, if a counter went backwards because of a restart, or without requests to divide by.
type SubjectUsage struct {
	Host            string             `json:"host,omitempty"`
	Sampler         string             `json:"sampler"`
	Name            string             `json:"name,omitempty"`
	Figures         map[Figure]float64 `json:"figures"`                    // without unknown ones
	BelowResolution []Figure           `json:"below_resolution,omitempty"` // figures that are only upper bounds, see divide
	BusiestWait     string             `json:"busiest_wait,omitempty"`     // what most sessions of a database waited for: lock, io, …
}

// Value is NaN for an unknown figure, of which no comparison is true.
func (u *SubjectUsage) Value(f Figure) float64 {
	v, known := u.Figures[f]
	if !known {
		return math.NaN()
	}
	return v
}

// Below reports whether a figure is only an upper bound.
func (u *SubjectUsage) Below(f Figure) bool { return slices.Contains(u.BelowResolution, f) }

// set adds a figure if it is known.
func (u *SubjectUsage) set(f Figure, v float64) {
	if !math.IsNaN(v) && !math.IsInf(v, 0) {
		u.Figures[f] = v
	}
}

// Of returns the subjects of samplers, none if u is nil.
func (u *Usage) Of(samplers ...string) []*SubjectUsage {
	if u == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(u.Subjects), func(s *SubjectUsage) bool { return !slices.Contains(samplers, s.Sampler) })
}

// Databases returns the databases and Redis, none if u is nil.
func (u *Usage) Databases() []*SubjectUsage { return u.Of(SamplerPostgres, SamplerMySQL, SamplerRedis) }

// Find returns a subject, without figures if it was not watched.
func (u *Usage) Find(sampler, host, name string) *SubjectUsage {
	for _, s := range u.Of(sampler) {
		if s.Host == host && s.Name == name {
			return s
		}
	}
	return &SubjectUsage{Host: host, Sampler: sampler, Name: name}
}

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
	u := &Usage{From: from, To: to, Requests: answered, Subjects: []*SubjectUsage{}}
	for _, t := range watched {
		i := interval{t, from, to, float64(answered)}
		switch {
		case len(Definitions(t.Sampler)) == 0:
		case t.Sampler == SamplerWatch:
			u.addWatch(i)
		default:
			u.Subjects = append(u.Subjects, i.usage())
		}
	}
	return u
}

// addWatch adds the cost of a sampler to that of the others of its host.
func (u *Usage) addWatch(i interval) {
	if !i.series.Has("cpu_seconds_total") { // the clock or stream of another host
		return
	}
	one, sum := i.usage(), u.Find(SamplerWatch, i.series.Host, "")
	if sum.Figures == nil {
		one.Name = ""
		u.Subjects = append(u.Subjects, one)
		return
	}
	for _, d := range Definitions(SamplerWatch) {
		both := sum.Value(d.Name) + one.Value(d.Name)
		delete(sum.Figures, d.Name)
		sum.set(d.Name, both)
	}
}

// An interval reads figures of a series between two times. They are NaN if the series has fewer than samplesMin samples there.
type interval struct {
	series   *Series
	from, to float64
	answered float64
}

// samplesMin is how many samples a figure needs.
const samplesMin = 2

// usage computes all figures of the series.
func (i interval) usage() *SubjectUsage {
	u := &SubjectUsage{Host: i.series.Host, Sampler: i.series.Sampler, Name: i.series.Subject, Figures: map[Figure]float64{}}
	for _, d := range Definitions(u.Sampler) {
		if d.how != "" {
			u.set(d.Name, ways[d.how](i, d.source))
		}
	}
	u.addDerived(i)
	return u
}

// addDerived adds the figures that do not come from one value of the samples.
func (u *SubjectUsage) addDerived(i interval) {
	switch {
	case u.Sampler == SamplerProcess:
		u.divideCPU(i.to-i.from, i.answered)
	case Database(u.Sampler):
		for _, name := range i.series.Waits() {
			if v := i.mean(name); v > 0 && !(v <= u.Value(BusiestWaitMean)) {
				u.BusiestWait = name[len(WaitPrefix):]
				u.set(BusiestWaitMean, v)
			}
		}
	}
}

// divideCPU adds the CPU time per second and per request.
func (u *SubjectUsage) divideCPU(seconds, requests float64) {
	user, system := u.Value(CPUUser), u.Value(CPUSystem)
	both, split := u.Value(CPUResolution), u.Value(CPUSplitResolution)
	u.divide(CPUCores, user+system, both, seconds, math.Inf(1))
	u.divide(CPUUserCores, user, split, seconds, u.Value(CPUCores))
	u.divide(CPUSystemCores, system, split, seconds, u.Value(CPUCores))
	u.divide(CPUPerRequest, user+system, both, requests, math.Inf(1))
	u.divide(CPUUserPerRequest, user, split, requests, u.Value(CPUPerRequest))
	u.divide(CPUSystemPerRequest, system, split, requests, u.Value(CPUPerRequest))
}

// resolvedUnits is how many units of its resolution a counter must grow by for a quotient of its growth to be a figure.
const resolvedUnits = 10

// divide adds the quotient of a counter's growth. If the counter grew by fewer than resolvedUnits units of its resolution, it is the
// quotient of that many, an upper bound; that of a part is at most the figure of the whole. An unknown resolution is exact.
func (u *SubjectUsage) divide(f Figure, growth, resolution, by, whole float64) {
	if !(by > 0) {
		return
	}
	if least := resolvedUnits * resolution; growth < least {
		u.BelowResolution = append(u.BelowResolution, f)
		u.set(f, min(least/by, whole))
		return
	}
	u.set(f, growth/by)
}

// growth is the growth of a counter, or of several together: "a + b".
func (i interval) growth(source string) float64 {
	sum := 0.0
	for name := range strings.SplitSeq(source, " + ") {
		if math.IsNaN(i.borderError(name)) && i.series.Count(name, i.from, i.to) < samplesMin {
			return math.NaN()
		}
		sum += i.series.StepGrowth(name, i.from, i.to)
	}
	return sum
}

// rate is a counter's growth per second.
func (i interval) rate(source string) float64 { return over(i.growth(source), i.to-i.from) }

func (i interval) perRequest(source string) float64 { return over(i.growth(source), i.answered) }

// quotient is the growth of one counter over that of another: "a / b".
func (i interval) quotient(source string) float64 {
	a, b, _ := strings.Cut(source, " / ")
	return over(i.growth(a), i.growth(b))
}

// over is the quotient, NaN if by is not above 0.
func over(v, by float64) float64 {
	if !(by > 0) {
		return math.NaN()
	}
	return v / by
}

// borderError is how far the samples are from the interval's borders, NaN if it is interpolated.
func (i interval) borderError(source string) float64 {
	return i.series.BorderError(source, i.from, i.to)
}

func (i interval) max(source string) float64 { return i.read(source, i.series.Max) }

func (i interval) min(source string) float64 { return i.read(source, i.series.Min) }

func (i interval) mean(source string) float64 { return i.read(source, i.series.Mean) }

func (i interval) last(source string) float64 { return i.read(source, i.series.Last) }

// read is a figure of the series if the interval has enough samples.
func (i interval) read(name string, of func(string, float64, float64) float64) float64 {
	if i.series.Count(name, i.from, i.to) < samplesMin {
		return math.NaN()
	}
	return of(name, i.from, i.to)
}

// coarsest is the coarsest resolution of the interval's samples, including the one for its end.
func (i interval) coarsest(source string) float64 {
	last := i.series.border(source, i.to)
	if math.IsNaN(last) {
		last = i.to
	}
	return i.series.Max(source, i.from, last)
}

// throttled is the share of the time in which a quota stopped a process. The counter adds up what each CPU was kept from running.
func (i interval) throttled(source string) float64 {
	stopped := i.rate(source)
	if cpus := min(i.last("cpu_allowed"), i.max("threads")); cpus > 1 {
		return stopped / cpus
	}
	return stopped
}

// cpuShare is the part of a counter in the CPU time that the host spent in all modes.
func (i interval) cpuShare(source string) float64 {
	sum := 0.0
	for _, mode := range []string{"user", "system", "softirq", "iowait", "steal", "idle"} {
		if v := i.growth("cpu_" + mode + "_seconds_total"); v > 0 {
			sum += v
		}
	}
	return over(i.growth(source), sum)
}

func (i interval) portsLeft(source string) float64 {
	return max(0, i.last("ports_range")-i.last(source))
}

// portsGrowth is the share of the port range that must be taken within half of an interval to count as growth. Less is
// noise.
const portsGrowth = 0.01

// portsGone is when the ports run out at the growth of the second half. The first half does not count, because ports in
// TIME_WAIT grow for a minute and then stay constant.
func (i interval) portsGone(source string) float64 {
	left := i.portsLeft(source)
	if left <= 0 {
		return 0
	}
	slope := i.series.Slope(source, (i.from+i.to)/2, i.to)
	if slope*(i.to-i.from)/2 < portsGrowth*i.last("ports_range") {
		return math.NaN()
	}
	return left / slope
}

// taken is the mean number of sessions of a database that run a statement or are in a transaction.
func (i interval) taken(source string) float64 {
	active := i.mean(source)
	if waiting := i.mean("connections_idle_in_transaction"); waiting > 0 {
		return active + waiting
	}
	return active
}

// lockWait is the mean number of sessions that waited for a lock, by looking at them or by the time that the server counted.
func (i interval) lockWait(source string) float64 {
	seen, counted := i.mean(source), i.rate("row_lock_seconds_total")
	if counted > 0 && !(counted < seen) {
		return counted
	}
	return seen
}

// waitWAL counts sessions that are also counted in wait_io or wait_lwlock.
const waitWAL = WaitPrefix + "wal"

// Waits returns the names of the gauges of sessions by what they wait for, in alphabetical order. Each session is counted
// in one of them; wait_wal is left out.
func (t *Series) Waits() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(t.Values)), func(name string) bool {
		return !strings.HasPrefix(name, WaitPrefix) || Counter(name) || name == waitWAL
	})
}
