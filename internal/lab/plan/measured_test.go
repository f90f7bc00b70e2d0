package plan

import (
	"bytes"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
)

func textOf(t *testing.T, p *Plan) string {
	t.Helper()
	var out bytes.Buffer
	if err := p.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// queue is an application of two cores that takes up to 2000/s.
var queue = model{app: 1e-3, cores: 2, limit: 20 * time.Millisecond}

// TestEachMissBoundsTheInterval: a rate that missed the SLO counts, though a higher one met it, or it was not watched.
func TestEachMissBoundsTheInterval(t *testing.T) {
	t.Parallel()
	run := queue.run(t, 500, 800, 1000, 1700)
	run.Steps[1].Total.Latency = queue.run(t, 1990).Steps[0].Total.Latency
	run.Steps[2].Total.Latency = run.Steps[1].Total.Latency
	p := mustMake(t, Settings{Hosts: 1}, Source{File: "run", Run: run})
	if got := p.Capacity.RateHz; got.Value != 1700 || got.Low != 500 {
		t.Errorf("%+v, want 1700 from 500 on", got)
	}
	if text := textOf(t, p); !strings.Contains(text, "800/s of run missed the SLO") {
		t.Errorf("the plan does not say that 800/s missed the SLO:\n%s", text)
	}
	unwatched := queue.run(t, 400, 1500)
	unwatched.Samples = nil
	unwatched.Steps[1].Total.Latency = run.Steps[1].Total.Latency
	p = mustMake(t, Settings{Hosts: 1}, Source{File: "watched", Run: queue.run(t, 1700, 1990)}, Source{File: "unwatched", Run: unwatched})
	if got := p.Capacity.RateHz; got.Low != 400 || !strings.Contains(strings.Join(p.Notes, " "), "1,500/s of unwatched") {
		t.Errorf("%+v, %q", got, p.Notes)
	}
	p = mustMake(t, Settings{Hosts: 1}, Source{File: "run", Run: queue.run(t, 1000, 1700, 1990)})
	if len(p.Notes) > 0 || p.Capacity.RateHz.Low != 1700 {
		t.Errorf("all misses are above: %+v, %q", p.Capacity.RateHz, p.Notes)
	}
}

// TestFlowsOfferIterations: the steps of a flow of 4 requests offer iterations. The one that missed the SLO is overloaded.
func TestFlowsOfferIterations(t *testing.T) {
	t.Parallel()
	run := queue.run(t, 1000, 1700, 2400)
	for i := range run.Steps {
		run.Steps[i].OfferedHz /= 4
		run.Steps[i].Total.Iterations = &result.Iterations{Completed: run.Steps[i].Total.Completed / 4}
	}
	run.Steps[2].Total.Completed = 1650 * modelSeconds
	run.Steps[2].Total.Iterations.Completed = 400 * modelSeconds
	p := mustMake(t, Settings{Hosts: 1}, Source{File: "run", Run: run})
	if got := p.Capacity.RateHz; got.Value != 1700 || math.Abs(got.High-2400) > 1 || strings.Contains(p.NotMeasured[0], "misses the SLO") {
		t.Errorf("600 iterations/s, 2400/s, missed the SLO: %+v, %q", got, p.NotMeasured[0])
	}
}

// TestSeveralApplicationHostsAreRefused: a plan would count what two hosts took as that of one.
func TestSeveralApplicationHostsAreRefused(t *testing.T) {
	t.Parallel()
	run := queue.run(t, 1000, 1700)
	for i := range run.Samples {
		if s := run.Samples[i]; s.Host == "app-1" {
			s.Host, s.Values = "app-2", maps.Clone(s.Values)
			run.Samples = append(run.Samples, s)
		}
	}
	run.Watches = append(run.Watches, result.Watch{Host: "app-2"})
	sources := []Source{{File: "run", Run: run}}
	if _, err := Make(sources, Settings{Hosts: 2}); exit.Code(err) != exit.Usage || !strings.Contains(err.Error(), "app on app-1 and on app-2") {
		t.Errorf("%v", err)
	}
}

// TestDatabaseOnTheApplicationsHost: the host takes what it took, not what it might take without the database.
func TestDatabaseOnTheApplicationsHost(t *testing.T) {
	t.Parallel()
	run := model{app: 1e-3, cores: 2, db: 1e-3, limit: 20 * time.Millisecond}.run(t, 500, 900, 1990)
	for i := range run.Samples {
		if run.Samples[i].Host == "db-1" {
			run.Samples[i].Host = "app-1"
		}
	}
	p := mustMake(t, Settings{Hosts: 1}, Source{File: "run", Run: run})
	if got := p.Capacity.RateHz.Value; math.Abs(got-900) > 1 {
		t.Errorf("1 host met the SLO up to 900/s, and the plan says %g/s", got)
	}
	if note := p.Lines[0].Note; !strings.Contains(note, "Other watched processes used 45 % of the same cores") {
		t.Errorf("%q", note)
	}
}

// TestLimitOfAProcess: a quota or affinity in the file, a single busy thread, and the user's word, which goes before.
func TestLimitOfAProcess(t *testing.T) {
	t.Parallel()
	f := func(want string, cpus map[string]float64, figures map[string]float64) {
		t.Helper()
		run := model{app: 1e-3, cores: 1, limit: 100 * time.Millisecond}.run(t, 800, 990)
		for i := range run.Samples {
			switch s := &run.Samples[i]; s.Sampler {
			case result.SamplerHost:
				s.Values["cores"] = 16
			case result.SamplerProcess:
				maps.Copy(s.Values, figures)
			}
		}
		p := mustMake(t, Settings{RateHz: 10000, CPUs: cpus}, Source{File: "run", Run: run})
		if got := p.Lines[0].Formula; !strings.HasSuffix(got, " of "+want) {
			t.Errorf("%s, want hosts of %s", got, want)
		}
	}
	quota := map[string]float64{"cpu_limit": 1.5, "cpu_allowed": 16, "threads": 40}
	f("12 cores", nil, map[string]float64{})
	f("1.5 cores", nil, quota)
	f("2 cores", map[string]float64{"app": 2}, quota)
	f("1 core", nil, map[string]float64{"busiest_thread_cores": 0.82, "threads": 11})
	f("12 cores", nil, map[string]float64{"busiest_thread_cores": 0.3, "threads": 12})
}

// TestGivenCoresAreEnough: a process cannot have used more cores than it could.
func TestGivenCoresAreEnough(t *testing.T) {
	t.Parallel()
	sources := []Source{{File: "run", Run: queue.run(t, 1700, 1990)}}
	if _, err := Make(sources, Settings{RateHz: 10000, CPUs: map[string]float64{"app": 0.5}}); exit.Code(err) != exit.Usage || !strings.Contains(err.Error(), "--cpus app=0.5: it used 1.7 cores in 1700/s of run") {
		t.Errorf("%v", err)
	}
}

// TestCapacityEndsAtWhatIsShared: neither the rate of many hosts nor its interval is above what the database lasts for.
func TestCapacityEndsAtWhatIsShared(t *testing.T) {
	t.Parallel()
	f := func(db float64, hosts int, want Estimate, binding string) {
		t.Helper()
		m := model{app: 1e-3, cores: 2, db: db, limit: 20 * time.Millisecond}
		got := mustMake(t, Settings{Hosts: hosts}, Source{File: "run", Run: m.run(t, 1700, 1990)}).Capacity
		for _, pair := range [][2]float64{{got.RateHz.Value, want.Value}, {got.RateHz.Low, want.Low}, {got.RateHz.High, want.High}} {
			if math.Abs(pair[0]-pair[1]) > 1 {
				t.Errorf("%+v, want %+v", got.RateHz, want)
			}
		}
		if !strings.Contains(got.Binding, binding) {
			t.Errorf("%q, want %q", got.Binding, binding)
		}
	}
	f(2/3500.0, 2, Estimate{3400, 3400, 3500}, "CPU of app")
	f(2/3000.0, 2, Estimate{3000, 1700, 3000}, "all busy; latencies rise before that, and the SLO was measured only up to 1,700/s")
	f(1e-5, 20, Estimate{8 * 1700, 8 * 1700, 8 * 1700}, "96 of 100 connections")
	f(1e-5, 8, Estimate{8 * 1700, 8 * 1700, 8 * 1990}, "CPU of app")
}

// TestRatesWithoutSense: a rate of no sense has no plan.
func TestRatesWithoutSense(t *testing.T) {
	t.Parallel()
	for _, hz := range []float64{5e-324, 1e-300, 1e300, math.MaxFloat64} {
		if _, err := Make([]Source{{File: "run", Run: queue.run(t, 1700)}}, Settings{RateHz: hz, Headroom: 0.3}); exit.Code(err) != exit.Usage {
			t.Errorf("--rate %g: %v", hz, err)
		}
	}
	for _, hz := range []float64{rateMin, rateMax} {
		p := mustMake(t, Settings{RateHz: hz, Headroom: 10}, Source{File: "run", Run: queue.run(t, 1700)})
		if text := textOf(t, p); strings.Contains(text, "NaN") || strings.Contains(text, "Inf") || p.WriteJSON(&bytes.Buffer{}) != nil || p.hosts < 1 {
			t.Errorf("--rate %g: %g hosts\n%s", hz, p.hosts, text)
		}
	}
}

// TestRunsUnderOtherConditions: what was measured on other hosts or with other connections is left out, and other addresses are named.
func TestRunsUnderOtherConditions(t *testing.T) {
	t.Parallel()
	f := func(want string, rates Estimate, sources ...Source) {
		t.Helper()
		p := mustMake(t, Settings{Hosts: 1}, sources...)
		if got := p.Capacity.RateHz; math.Abs(got.Value-rates.Value) > 1 || math.Abs(got.Low-rates.Low) > 1 || math.Abs(got.High-rates.High) > 1 {
			t.Errorf("%+v, want %+v", got, rates)
		}
		if !slices.ContainsFunc(p.Notes, func(note string) bool { return strings.Contains(note, want) }) {
			t.Errorf("%q, want %q", p.Notes, want)
		}
	}
	kept := Source{File: "kept", Run: queue.run(t, 1500, 1700, 1990)}
	large, short := queue, queue
	large.cores = 8
	short.short, short.app = true, 2e-3
	f("large are left out, because app had 8 cores there and 2 cores in kept", Estimate{1700, 1700, 1990}, kept, Source{File: "large", Run: large.run(t, 7000, 7990)})
	f("kept with keep-alive connections are left out", Estimate{700, 700, 990}, kept, Source{File: "short", Run: short.run(t, 600, 700, 990)})
	other := queue.run(t, 1600, 1980)
	other.Header.Target = "http://app-2/list"
	f("kept loads http://app-1/list and other loads http://app-2/list", Estimate{1600, 1600, 1990}, kept, Source{File: "other", Run: other})
}

// TestExtrapolationIsNamed: far from what was measured, and from one step alone.
func TestExtrapolationIsNamed(t *testing.T) {
	t.Parallel()
	f := func(hz float64, want string, rates ...float64) {
		t.Helper()
		notes := strings.Join(mustMake(t, Settings{RateHz: hz, Headroom: 0.3}, Source{File: "run", Run: queue.run(t, rates...)}).Notes, " ")
		if !strings.Contains(notes, want) || (want == "") != (notes == "") {
			t.Errorf("%g/s: %q, want %q", hz, notes, want)
		}
	}
	f(12000, "", 1500, 1700)
	f(14000, "11 times the rate that was measured, 1,700/s", 1500, 1700)
	f(1000, "one step alone", 1700)
}

// TestFiguresThatAreNoNumbers: a line of them is left out, so that the plan can be written.
func TestFiguresThatAreNoNumbers(t *testing.T) {
	t.Parallel()
	run := queue.run(t, 1500, 1700)
	run.Steps[1].Total.Little.ServiceMean = math.MaxFloat64
	p := mustMake(t, Settings{RateHz: 1e4, Headroom: 0.3}, Source{File: "run", Run: run})
	if err := p.WriteJSON(&bytes.Buffer{}); err != nil {
		t.Error(err)
	}
	if slices.ContainsFunc(p.Lines, func(l Line) bool { return l.Name == "requests in flight" }) {
		t.Error("an infinite number of requests is in flight")
	}
}
