package report

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A synthetic is a made-up target: a queue that answers so many requests a second, and 502 beyond.
type synthetic struct {
	label    string
	capacity float64
	base     time.Duration // service time when idle
	seconds  int           // of a step
	hangs    int           // every so many requests one gets no answer within hangTimeout; 0: none
	slo      bool
	seed     uint64
}

// hangTimeout is the timeout of a synthetic run.
const hangTimeout = 2 * time.Second

func (m synthetic) header(loop string) result.Header {
	h := result.Header{
		Format: result.Format, Version: "1.0",
		Run: "run-1", Label: m.label, StartedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		Command: []string{"spillway", "load", "http://127.0.0.1:8080/goodslist?offset=0", "--" + loop, "--header", "Accept: text/plain"},
		Tool:    "v1.0.0", Go: "go1.26.0", Seed: 42, Target: "http://127.0.0.1:8080/goodslist?offset=0",
		Machine: result.Machine{
			Host: "lab-1", OS: "Debian GNU/Linux 12 (bookworm)", Kernel: "6.1.0", Arch: "amd64", CPU: "Example CPU", Cores: 4, GOMAXPROCS: 4,
			Memory: 8 << 30, NoFile: 65536, NoFileHard: 65536, PortLow: 32768, PortHigh: 60999, SoMaxConn: 4096, TCPTWReuse: 2, MaxTWBuckets: 65536,
		},
	}
	if m.slo {
		h.SLO = "p99<70ms errors<0.5%"
	}
	return h
}

// open is an open-loop run with one step per rate.
func (m synthetic) open(t testing.TB, rates ...float64) *result.Run {
	t.Helper()
	return madeOnce(fmt.Sprintf("open %+v %v", m, rates), func() *result.Run { return m.makeOpen(t, rates) })
}

func (m synthetic) makeOpen(t testing.TB, rates []float64) *result.Run {
	t.Helper()
	run := &result.Run{Header: m.header("rate"), End: result.End{Reason: result.Finished, Elapsed: float64(len(rates) * (m.seconds + 2))}}
	rnd := rand.New(rand.NewPCG(m.seed, 7))
	for i, hz := range rates {
		plan := result.Step{
			Index: i, Loop: result.LoopOpen, Arrival: "poisson", OfferedHz: hz, Connections: 100,
			Duration: float64(m.seconds), Start: float64(i * (m.seconds + 2)),
		}
		run.Steps = append(run.Steps, m.step(t, rnd, plan, hz))
	}
	return run
}

// closed is a closed-loop run with one step per number of connections.
func (m synthetic) closed(t testing.TB, connections ...int) *result.Run {
	t.Helper()
	return madeOnce(fmt.Sprintf("closed %+v %v", m, connections), func() *result.Run { return m.makeClosed(t, connections) })
}

func (m synthetic) makeClosed(t testing.TB, connections []int) *result.Run {
	t.Helper()
	run := &result.Run{Header: m.header("connections"), End: result.End{Reason: result.Finished, Elapsed: float64(len(connections) * m.seconds)}}
	rnd := rand.New(rand.NewPCG(m.seed, 8))
	for i, n := range connections {
		plan := result.Step{Index: i, Loop: result.LoopClosed, Connections: n, Duration: float64(m.seconds), Start: float64(i * m.seconds)}
		hz := math.Min(float64(n)/m.base.Seconds(), m.capacity*float64(n)/(float64(n)+2))
		run.Steps = append(run.Steps, m.step(t, rnd, plan, hz))
	}
	return run
}

// A recorder holds the histograms of one slice or step.
type recorder struct{ response, unanswered, service, lag, connect, firstByte *histogram.Histogram }

func newRecorder(make func() *histogram.Histogram) recorder {
	return recorder{make(), make(), make(), make(), make(), make()}
}

func (r recorder) latency(t testing.TB) result.Latency {
	t.Helper()
	encode := func(h *histogram.Histogram) result.HDR {
		payload, err := h.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return result.HDR(payload)
	}
	unanswered := encode(r.unanswered)
	return result.Latency{
		Response: encode(r.response), ResponseUnanswered: unanswered, Service: encode(r.service), ServiceUnanswered: unanswered,
		Lag: encode(r.lag), Connect: encode(r.connect), FirstByte: encode(r.firstByte),
	}
}

func (m synthetic) step(t testing.TB, rnd *rand.Rand, plan result.Step, hz float64) result.StepRun {
	t.Helper()
	step := result.StepRun{Step: plan, Total: result.Total{Step: plan.Index, Elapsed: float64(m.seconds), Validity: result.Valid}}
	all := newRecorder(histogram.New)
	backlog := 0.0
	for second := range m.seconds {
		coarse := newRecorder(histogram.NewSlice)
		slice := m.second(rnd, []recorder{coarse, all}, plan, hz, &backlog)
		slice.Step, slice.Second, slice.Length = plan.Index, second, 1
		slice.Latency = coarse.latency(t)
		step.Total.Add(&slice.Counters)
		step.Total.Cost.CPUUser += slice.CPUUser
		step.Total.Cost.CPUSystem += slice.CPUSystem
		step.Slices = append(step.Slices, slice)
	}
	step.Total.Latency = all.latency(t)
	m.close(&step.Total, plan, all.service.Mean().Seconds())
	return step
}

// second simulates one second. Up to one second of excess load is queued, the rest gets a 502.
func (m synthetic) second(rnd *rand.Rand, into []recorder, plan result.Step, hz float64, backlog *float64) result.Slice {
	n := int64(hz)
	failed := int64(max(0, *backlog+hz-2*m.capacity))
	*backlog = min(max(0, *backlog+hz-m.capacity), m.capacity)
	wait := *backlog / m.capacity
	load := min(hz/m.capacity, 0.97)
	hung := int64(0)
	for k := range n {
		if m.hangs > 0 && int(k)%m.hangs == 0 {
			hung++
			for _, to := range into {
				to.unanswered.Record(hangTimeout)
			}
			continue
		}
		service := time.Duration(float64(m.base) * (0.6 + 0.4*rnd.ExpFloat64()) / (1 - load*0.9))
		lag := time.Duration(rnd.ExpFloat64() * float64(20*time.Microsecond))
		for _, to := range into {
			to.service.Record(service)
			to.response.Record(service + lag + time.Duration(wait*float64(time.Second)))
			to.firstByte.Record(service * 9 / 10)
			if plan.Loop == result.LoopOpen {
				to.lag.Record(lag)
			}
		}
	}
	for _, to := range into {
		to.connect.RecordN(180*time.Microsecond, 3)
	}
	slice := result.Slice{
		Counters: result.Counters{
			Due: n, Sent: n, Done: n - hung, Completed: n - hung - failed, BytesIn: (n - hung) * 1700, BytesOut: n * 90, Connects: 3,
			Statuses: map[int]int64{200: n - hung - failed},
		},
		Connections: int64(plan.Connections), InFlight: int64(hz*m.base.Seconds() + *backlog), Backlog: int64(*backlog),
		CPUUser: float64(n) * 3e-6, CPUSystem: float64(n) * 4e-6,
	}
	slice.Errors[result.Timeout] = hung
	if failed > 0 {
		slice.Errors[result.StatusError] = failed
		slice.Statuses[502] = failed
	}
	return slice
}

// close fills in the totals of a step.
func (m synthetic) close(total *result.Total, plan result.Step, service float64) {
	total.Connections = result.ConnectionStats{
		ParallelMax: int64(plan.Connections), ParallelMean: float64(plan.Connections), Slots: int64(plan.Connections),
		RequestsMin: total.Done/int64(plan.Connections) - 1, RequestsMax: total.Done/int64(plan.Connections) + 2,
		RequestsMean: float64(total.Done) / float64(plan.Connections),
	}
	total.Little = result.Little{InFlightMean: total.Rate() * service, Rate: total.Rate(), ServiceMean: service, Ratio: 1}
	total.Cost.Threads, total.Cost.ThreadBusyMax, total.Cost.MemoryMax = 1, 0.2, 24<<20
	if float64(total.Done) > 2800*total.Elapsed {
		total.Validity = result.GeneratorLimited
		total.Reasons = []result.Reason{{Code: result.ThreadBusy, Text: "the busiest thread of the generator was busy 97 % of the time"}}
	}
	if !m.slo {
		return
	}
	slo, err := result.ParseSLO("p99<70ms errors<0.5%")
	if err == nil {
		total.SLO, err = slo.Judge(total)
	}
	if err != nil {
		panic(fmt.Sprintf("bug: %v", err))
	}
}

// made holds runs by what they are made of. Most of the time of a test would go into making them.
var made sync.Map

// madeOnce returns a copy of the run, which a test may change.
func madeOnce(key string, make func() *result.Run) *result.Run {
	run, _ := made.LoadOrStore(key, sync.OnceValue(make))
	return copyOf(run.(func() *result.Run)())
}

// copyOf copies a run with all that tests change.
func copyOf(run *result.Run) *result.Run {
	c := *run
	c.Steps, c.Samples, c.Watches = slices.Clone(run.Steps), slices.Clone(run.Samples), slices.Clone(run.Watches)
	for i := range c.Steps {
		s := &c.Steps[i]
		s.Slices, s.Total.SLO, s.Total.Reasons = slices.Clone(s.Slices), slices.Clone(s.Total.SLO), slices.Clone(s.Total.Reasons)
		s.Total.Statuses = maps.Clone(s.Total.Statuses)
	}
	for i := range c.Samples {
		c.Samples[i].Values = maps.Clone(c.Samples[i].Values)
	}
	if run.End.Search != nil {
		search := *run.End.Search
		c.End.Search = &search
	}
	return &c
}

// The runs that the golden files show.
func stagedRun(t testing.TB) *result.Run {
	return synthetic{capacity: 900, base: 2 * time.Millisecond, seconds: 12, slo: true, seed: 1}.open(t, 100, 500, 1000, 3000)
}

func compareRuns(t testing.TB) []*result.Run {
	return []*result.Run{
		synthetic{label: "before", capacity: 900, base: 2 * time.Millisecond, seconds: 10, slo: true, seed: 1}.open(t, 100, 1000),
		synthetic{label: "after", capacity: 2600, base: time.Millisecond, seconds: 10, slo: true, seed: 2}.open(t, 100, 1000, 2000),
	}
}

// hangingRun has a step in which 10 % of the requests get no answer, and one in which none does.
func hangingRun(t testing.TB) *result.Run {
	run := synthetic{capacity: 4000, base: time.Millisecond, seconds: 12, hangs: 10, slo: true, seed: 5}.open(t, 500)
	dead := synthetic{capacity: 4000, base: time.Millisecond, seconds: 12, hangs: 1, slo: true, seed: 5}.open(t, 600).Steps[0]
	dead.Index, dead.Start, dead.Total.Step = 1, 14, 1
	run.Steps, run.End.Elapsed = append(run.Steps, dead), 28
	return run
}

// mixedRun is a step at 1,000/s of two named requests.
func mixedRun(t testing.TB) *result.Run {
	slow := synthetic{capacity: 900, base: 2 * time.Millisecond, seconds: 10, seed: 6}.open(t, 400)
	fast := synthetic{capacity: 2600, base: time.Millisecond, seconds: 10, seed: 7}.open(t, 600)
	run := mergedRun(t, slow, fast)
	run.Header = slow.Header
	run.Header.Part = nil
	total := &run.Steps[0].Total
	total.Labels = []result.LabelTotal{
		{Name: "login", Counters: slow.Steps[0].Total.Counters, Latency: slow.Steps[0].Total.Latency},
		{Name: "GET /list", Counters: fast.Steps[0].Total.Counters, Latency: fast.Steps[0].Total.Latency},
	}
	slo, err := result.ParseSLO("p99<70ms p99{login}<5ms errors{GET /list}<1%")
	if err == nil {
		total.SLO, err = slo.Judge(total)
	}
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func sweepRun(t testing.TB) *result.Run {
	return synthetic{capacity: 2500, base: 3 * time.Millisecond, seconds: 6, seed: 3}.closed(t, 1, 16, 256)
}

func singleRun(t testing.TB) *result.Run {
	return synthetic{capacity: 4000, base: time.Millisecond, seconds: 20, seed: 4}.open(t, 1500)
}

// mergedRun puts runs together as parts of one load, on hosts with synchronized clocks.
func mergedRun(t testing.TB, parts ...*result.Run) *result.Run {
	t.Helper()
	for k := range parts[0].Steps {
		whole := 0.0
		for _, part := range parts {
			whole += part.Steps[k].OfferedHz
		}
		for _, part := range parts {
			part.Steps[k].Name = fmt.Sprintf("%g/s", whole)
		}
	}
	for i, part := range parts {
		part.Header.Machine.Host = fmt.Sprintf("lab-%d", i+1)
		part.Header.Part = &result.Part{
			Number: i + 1, Of: len(parts), StartAt: part.Header.StartedAt, Clock: result.Clock{Synchronized: true, Error: 0.0003},
		}
	}
	run, err := result.Merge(parts)
	if err != nil {
		t.Fatal(err)
	}
	return run
}
