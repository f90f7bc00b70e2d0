package plan

import (
	"fmt"
	"math"
	"testing"
	"time"

	"go.uber.org/goleak"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A model is a queue with one server as fast as the cores of the application (M/M/1): the response time has an exponential
// distribution with the mean 1/(capacity - rate). A database and a Redis on other hosts have known demands and add no time.
type model struct {
	app   float64 // CPU seconds per request
	cores float64 // of the application's host; below 1, or with share, a share of the generator's machine
	share bool
	db    float64       // CPU seconds per request of the database, on two cores; 0: none
	redis float64       // CPU seconds per request of the main thread; 0: none
	opens float64       // connections per request that the application opens
	limit time.Duration // of p99
	short bool          // a connection per request
}

const modelSeconds = 100

// A failer is a test or a rapid.T.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func (m model) capacity() float64 { return m.cores / m.app }

// peak is the rate at which p99 is the limit.
func (m model) peak() float64 { return m.capacity() - math.Log(100)/m.limit.Seconds() }

// run is one run with a step per rate.
func (m model) run(t failer, rates ...float64) *result.Run {
	t.Helper()
	run := &result.Run{
		Header: result.Header{
			Format: result.Format, Version: "1.2", Target: "http://app-1/list", SLO: fmt.Sprintf("p99<%s", m.limit),
			Machine: result.Machine{Host: "load-1", Cores: 4, PortLow: 32768, PortHigh: 60999},
		},
		Watches: []result.Watch{{Host: "app-1"}, {Host: "db-1"}},
		End:     result.End{Reason: result.Finished},
	}
	host := "app-1"
	if m.share {
		host = ""
		run.Header.Hosts = []result.HostShare{{Name: "generator", CPUs: 1, CoreCount: 1}, {Name: "target", CPUs: m.cores, CoreCount: 1}}
	}
	for i, hz := range rates {
		step := m.step(t, i, hz)
		m.sample(run, host, &step)
		run.Steps = append(run.Steps, step)
	}
	return run
}

func (m model) step(t failer, i int, hz float64) result.StepRun {
	t.Helper()
	done := int64(math.Round(min(hz, m.capacity()) * modelSeconds))
	h := histogram.New()
	const parts = 5000
	gap := m.capacity() - hz
	for k := range parts {
		took := time.Duration(-math.Log(1-(float64(k)+0.5)/parts) / gap * float64(time.Second))
		if gap <= 0 {
			took = time.Second
		}
		h.RecordN(took, done*int64(k+1)/parts-done*int64(k)/parts)
	}
	payload, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	step := result.StepRun{
		Step: result.Step{Index: i, Loop: result.LoopOpen, Arrival: "poisson", OfferedHz: hz, Connections: 100, Duration: modelSeconds, Start: float64(i) * (modelSeconds + 2)},
		Total: result.Total{
			Step: i, Elapsed: modelSeconds, Validity: result.Valid, Overloaded: gap <= 0,
			Counters: result.Counters{Due: done, Sent: done, Done: done, Completed: done, BytesIn: done * 1500, BytesOut: done * 100, Connects: 100},
			Latency:  result.Latency{Response: result.HDR(payload), Service: result.HDR(payload)},
			Little:   result.Little{ServiceMean: h.Mean().Seconds(), Ratio: 1},
		},
	}
	if m.short {
		step.Total.Connects = done
	}
	return step
}

// sample adds the samples at both ends of a step and two within.
func (m model) sample(run *result.Run, host string, step *result.StepRun) {
	per := func(demand float64) float64 { return demand * float64(step.Total.Completed) }
	for _, part := range []float64{0, 0.3, 0.7, 1} {
		add := func(host, sampler, subject string, values map[string]float64) {
			run.Samples = append(run.Samples, result.Sample{
				At: step.Start + part*modelSeconds, Host: host, Sampler: sampler, Subject: subject, Values: values, Border: part == 0 || part == 1,
			})
		}
		process := func(host, name string, demand float64) {
			add(host, result.SamplerProcess, name, map[string]float64{
				"cpu_user_seconds_total": part * per(demand) * 0.6, "cpu_system_seconds_total": part * per(demand) * 0.4,
				"rss_bytes": 64 << 20, "fds": 120, "fds_limit": 1024, "threads": 12, "processes": 1,
			})
		}
		process(host, "app", m.app)
		add("app-1", result.SamplerHost, "", map[string]float64{"cores": m.cores})
		add("app-1", result.SamplerTCP, "", map[string]float64{
			"active_opens_total": part * per(m.opens), "passive_opens_total": part * float64(step.Total.Connects), "ports_range": 28232, "ports_in_use": min(28232, 40+m.opens*step.Total.Rate()*TimeWait),
		})
		if m.db > 0 {
			process("db-1", "db", m.db)
			add("db-1", result.SamplerHost, "", map[string]float64{"cores": 2})
			add("db-1", result.SamplerPostgres, "postgres", map[string]float64{
				"connections": 12, "connections_limit": 100, "connections_active": 3e-3 * step.Total.Rate(),
				"commits_total": part * per(1), "fsyncs_total": part * per(0.2), "wal_bytes_total": part * per(400),
			})
		}
		if m.redis > 0 {
			add("db-1", result.SamplerRedis, "redis", map[string]float64{
				"main_thread_user_seconds_total": part * per(m.redis) / 2, "main_thread_system_seconds_total": part * per(m.redis) / 2,
				"commands_total": part * per(3), "memory_bytes": 40 << 20, "connections": 10, "connections_limit": 10000,
			})
		}
	}
}

// grid is rates around the peak. The highest below it is 1 % lower.
func (m model) grid() []float64 {
	var rates []float64
	for _, part := range []float64{0.6, 0.95, 0.99, 1.02, 1.2} {
		rates = append(rates, part*m.peak())
	}
	return rates
}

func (m model) source(t failer) Source {
	t.Helper()
	return Source{File: "run.ndjson", Run: m.run(t, m.grid()...)}
}

// line returns the line of a name.
func line(t failer, p *Plan, name string) Line {
	t.Helper()
	for _, l := range p.Lines {
		if l.Name == name {
			return l
		}
	}
	t.Fatalf("no line %q in %+v", name, p.Lines)
	return Line{}
}
