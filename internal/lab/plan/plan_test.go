package plan

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"spillway/internal/exit"
	"spillway/internal/lab/peak"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

var update = flag.Bool("update", false, "write the golden files anew")

func modelOf(t *rapid.T) model {
	m := model{
		app:   rapid.Float64Range(50e-6, 3e-3).Draw(t, "CPU per request"),
		cores: rapid.SampledFrom([]float64{0.5, 1, 2, 4}).Draw(t, "cores"),
		share: rapid.Bool().Draw(t, "share"),
		short: rapid.Bool().Draw(t, "short"),
		opens: rapid.SampledFrom([]float64{0, 1}).Draw(t, "opens"),
	}
	used := rapid.Float64Range(0.5, 0.95).Draw(t, "utilization at the peak")
	m.limit = time.Duration(math.Log(100) / (m.capacity() * (1 - used)) * float64(time.Second))
	return m
}

func mustMake(t failer, settings Settings, sources ...Source) *Plan {
	t.Helper()
	p, err := Make(sources, settings)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// checkNear allows for the grid, and for the three digits of the histograms.
func checkNear(t *rapid.T, what string, got, want float64) {
	t.Helper()
	if !(got >= want*0.985 && got <= want*1.001) {
		t.Errorf("%s: %g, want %g to within 1.5 %%", what, got, want)
	}
}

func TestHostsOfAKnownQueue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := modelOf(t)
		source := m.source(t)
		hosts := rapid.IntRange(1, 50).Draw(t, "hosts")
		headroom := rapid.Float64Range(0, 1).Draw(t, "headroom")
		p, err := Make([]Source{source}, Settings{Hosts: hosts, Headroom: headroom})
		if err != nil {
			t.Fatal(err)
		}
		checkNear(t, "rate of the hosts", p.Capacity.RateHz.Value, float64(hosts)*m.peak())
		if peak := float64(hosts) * m.peak(); p.Capacity.RateHz.Low > peak*1.005 || p.Capacity.RateHz.High < peak*0.995 {
			t.Errorf("the interval %+v does not have %g", p.Capacity.RateHz, peak)
		}
		p, err = Make([]Source{source}, Settings{RateHz: p.Capacity.WithHeadroomHz, Headroom: headroom})
		if err != nil {
			t.Fatal(err)
		}
		if got := line(t, p, "application hosts").Need; int(got.Value) != hosts || got.Low > got.Value || got.High < got.Value {
			t.Errorf("%d hosts take %g/s, which needs %+v hosts", hosts, p.RateHz, got)
		}
		if got := line(t, p, "network").Need.Value; math.Abs(got/(p.RateHz*(1+headroom)*1600)-1) > 1e-6 {
			t.Errorf("network: %g bytes/s", got)
		}
	})
}

// TestMoreNeedsMore: no need shrinks with the rate or the headroom.
func TestMoreNeedsMore(t *testing.T) {
	t.Parallel()
	m := model{app: 1e-3, cores: 2, db: 3e-4, redis: 2e-5, opens: 1, limit: 20 * time.Millisecond, short: true}
	source := m.source(t)
	rapid.Check(t, func(t *rapid.T) {
		hz, headroom := rapid.Float64Range(1, 1e5).Draw(t, "rate"), rapid.Float64Range(0, 2).Draw(t, "headroom")
		plans := []*Plan{}
		for _, s := range []Settings{
			{RateHz: hz, Headroom: headroom},
			{RateHz: hz * rapid.Float64Range(1, 3).Draw(t, "more"), Headroom: headroom},
			{RateHz: hz, Headroom: headroom + rapid.Float64Range(0, 1).Draw(t, "more headroom")},
		} {
			p, err := Make([]Source{source}, s)
			if err != nil {
				t.Fatal(err)
			}
			plans = append(plans, p)
		}
		for _, more := range plans[1:] {
			for i, l := range plans[0].Lines {
				if other := more.Lines[i]; other.Name != l.Name || other.Need.Value < l.Need.Value || other.Need.Low < l.Need.Low || other.Need.High < l.Need.High {
					t.Errorf("%s needs %+v, and %s %+v for more", l.Name, l.Need, other.Name, other.Need)
				}
			}
		}
	})
}

func TestCeilingsOfKnownDemands(t *testing.T) {
	t.Parallel()
	m := model{app: 1e-3, cores: 2, db: 3e-4, redis: 2e-5, opens: 1, limit: 20 * time.Millisecond, short: true}
	run := m.run(t, 500)
	got := map[Resource]float64{}
	for _, c := range Ceilings(run, 0) {
		if c.Resource == ProcessCPU && c.Subject == "db" {
			c.Resource = "db"
		}
		got[c.Resource] = math.Round(c.RateHz)
		if math.Abs(c.Utilization*c.RateHz-500) > 1e-6 || c.Sentence() == "" {
			t.Errorf("%+v", c)
		}
	}
	want := map[Resource]float64{ProcessCPU: 2000, "db": 6667, RedisThread: 50000, Sessions: 33333, Ports: 471, Descriptors: 4267}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ceilings (-want +got):\n%s", diff)
	}
	if !slices.IsSortedFunc(Ceilings(run, 0), func(a, b *Ceiling) int { return int(math.Copysign(1, a.RateHz-b.RateHz)) }) {
		t.Error("the lowest ceiling is not first")
	}
	for i := range run.Samples {
		if run.Samples[i].Sampler == result.SamplerTCP {
			run.Samples[i].Values["ports_in_use"] = 100 // the other side closes first
		}
	}
	if slices.ContainsFunc(Ceilings(run, 0), func(c *Ceiling) bool { return c.Resource == Ports }) {
		t.Error("ports that are not held have a ceiling")
	}
	o := &peak.Outcome{Run: run, Passing: 0}
	for i := range run.Samples {
		if run.Samples[i].Sampler == result.SamplerTCP {
			run.Samples[i].Values["ports_in_use"] = 28000
		}
	}
	if Beside(o); slices.ContainsFunc(o.Ceilings, func(c peak.Ceiling) bool { return strings.Contains(c.Sentence, "ports") }) {
		t.Errorf("%+v: with one rate, other programs may have opened the connections", o.Ceilings)
	}
	run, o.Ceilings = m.run(t, 500, 100), nil
	o.Run = run
	if Beside(o); len(o.Ceilings) != len(Ceilings(run, 0)) || !strings.HasPrefix(o.Ceilings[1].Sentence, "app: 1 ms CPU per request; 2 cores last for ") {
		t.Errorf("%+v", o.Ceilings)
	}
	for _, none := range []*peak.Outcome{{Run: run, Passing: -1}, {Run: run, Flow: true}} {
		if Beside(none); none.Ceilings != nil {
			t.Errorf("%+v", none.Ceilings)
		}
	}
	run.Samples = nil
	if c := Ceilings(run, 0); len(c) > 0 {
		t.Errorf("without samples: %+v", c)
	}
}

// TestSharedLimits: more application hosts do not help beyond the database.
func TestSharedLimits(t *testing.T) {
	t.Parallel()
	m := model{app: 1e-3, cores: 2, db: 3e-4, limit: 20 * time.Millisecond}
	few, many := mustMake(t, Settings{Hosts: 2}, m.source(t)), mustMake(t, Settings{Hosts: 20}, m.source(t))
	if few.Capacity.Binding != "CPU of app" || math.Abs(few.Capacity.RateHz.Value/(2*m.peak())-1) > 0.03 {
		t.Errorf("2 hosts: %+v", few.Capacity)
	}
	if want := 2 / m.db; math.Abs(many.Capacity.RateHz.Value/want-1) > 1e-3 || !strings.HasPrefix(many.Capacity.Binding, "db: ") {
		t.Errorf("20 hosts: %+v, want %g", many.Capacity, want)
	}
	if first := many.Breaks[0].What; !strings.HasPrefix(first, "db: 300 µs CPU per request") {
		t.Errorf("first: %s", first)
	}
}

// TestOnlyValidSteps: a step that is not VALID changes nothing, however good it looks.
func TestOnlyValidSteps(t *testing.T) {
	t.Parallel()
	m := model{app: 1e-3, cores: 2, limit: 20 * time.Millisecond}
	want := mustMake(t, Settings{RateHz: 1e4}, Source{File: "a", Run: m.run(t, 1000, 1500, 1990)})
	run := m.run(t, 1000, 1500, 1990, 1700)
	run.Steps[3].Total.Validity = result.HostContended
	got := mustMake(t, Settings{RateHz: 1e4}, Source{File: "a", Run: run})
	if diff := cmp.Diff(want.Lines, got.Lines); diff != "" {
		t.Errorf("lines (-without +with):\n%s", diff)
	}
	if u := got.Sources[0]; u.Steps != 4 || u.Valid != 3 || u.Met != 2 {
		t.Errorf("%+v", u)
	}
}

// TestMedianSearchDecides: of three runs that found their peak, the middle one counts, and the others are its interval. A run that
// never missed the SLO does not count.
func TestMedianSearchDecides(t *testing.T) {
	t.Parallel()
	m := model{app: 1e-3, cores: 2, limit: 20 * time.Millisecond}
	sources := []Source{
		{File: "lucky", Run: m.run(t, 1750, 1990)},
		{File: "low", Run: m.run(t, 1000, 1100)},
		{File: "middle", Run: m.run(t, 1700, 1980)},
		{File: "slow", Run: m.run(t, 1600, 1985)},
	}
	p := mustMake(t, Settings{Hosts: 1}, sources...)
	if got, want := p.Capacity.RateHz, (Estimate{1700, 1600, 1990}); math.Abs(got.Value-want.Value) > 1 || math.Abs(got.Low-want.Low) > 1 || math.Abs(got.High-want.High) > 1 {
		t.Errorf("%+v, want %+v", got, want)
	}
	p = mustMake(t, Settings{Hosts: 1}, sources[1])
	if got := p.Capacity.RateHz; math.Abs(got.Value-1100) > 1 || got.High > got.Value || !strings.HasPrefix(p.NotMeasured[0], "a rate that misses the SLO") {
		t.Errorf("%+v, %q", got, p.NotMeasured)
	}
}

// TestLightLoad: the note says whether CPU can have missed the SLO.
func TestLightLoad(t *testing.T) {
	t.Parallel()
	m := model{app: 1e-3, cores: 2, limit: 20 * time.Millisecond}
	slow := m.run(t, 500, 600)
	slow.Steps[1].Total.Latency = m.run(t, 1990).Steps[0].Total.Latency
	for want, run := range map[string]*result.Run{
		"add runs at higher rates":                    m.run(t, 500, 600),
		"At the next rate, 1,990/s, app used 99.5 % ": m.run(t, 500, 1990),
		"Something else missed the SLO":               slow,
		"":                                            m.run(t, 1500, 1990),
	} {
		note := mustMake(t, Settings{RateHz: 5000}, Source{File: "run", Run: run}).Lines[0].Note
		if !strings.Contains(note, want) || (want == "") != (note == "") {
			t.Errorf("%q, want %q", note, want)
		}
	}
}

// TestRunsWithoutSamplesAreLeftOut, if another has samples.
func TestRunsWithoutSamplesAreLeftOut(t *testing.T) {
	t.Parallel()
	m := model{app: 1e-3, cores: 2, limit: 20 * time.Millisecond}
	unwatched := m.run(t, 1750, 1990)
	unwatched.Samples = nil
	p := mustMake(t, Settings{Hosts: 1}, Source{File: "unwatched", Run: unwatched}, Source{File: "watched", Run: m.run(t, 1500, 1990)})
	if got := p.Capacity.RateHz.Value; math.Abs(got-1500) > 1 || p.Lines[0].Figures[0].File != "watched" {
		t.Errorf("%+v", p.Capacity)
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	m := model{app: 1e-3, cores: 2, limit: 20 * time.Millisecond}
	good := m.run(t, 1000, 1500)
	unwatched, invalid, closed, other, unnamed := m.run(t, 1000), m.run(t, 1000), m.run(t, 1000), m.run(t, 1000), m.run(t, 1000)
	unwatched.Samples = nil
	invalid.Steps[0].Total.Validity = result.GeneratorLimited
	closed.Steps[0].Loop = result.LoopClosed
	other.Header.Target, unnamed.Header.SLO = "http://app-2/item", ""
	f := func(code int, want string, s Settings, runs ...*result.Run) {
		t.Helper()
		var sources []Source
		for _, r := range runs {
			sources = append(sources, Source{File: "run", Run: r})
		}
		if _, err := Make(sources, s); exit.Code(err) != code || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("exit %d, %v, want %d, %q", exit.Code(err), err, code, want)
		}
	}
	f(exit.Usage, "--rate R", Settings{}, good)
	f(exit.Usage, "--rate R", Settings{RateHz: 10, Hosts: 1}, good)
	f(exit.Usage, "--rate R", Settings{RateHz: math.NaN()}, good)
	f(exit.Usage, "--headroom", Settings{RateHz: 10, Headroom: -1}, good)
	f(exit.Usage, "--connections long", Settings{RateHz: 10, Connections: "long"}, good)
	f(exit.Usage, "--from", Settings{RateHz: 10})
	f(exit.Usage, "different SLOs", Settings{RateHz: 10}, good, unnamed)
	f(exit.Usage, "no SLO", Settings{RateHz: 10}, unnamed)
	f(exit.Usage, "write it without blanks", Settings{RateHz: 10, SLO: "p99"}, good)
	f(exit.Usage, "no request has the name", Settings{RateHz: 10, SLO: "p99{login}<1s"}, good)
	f(exit.Usage, "plan each workload alone", Settings{RateHz: 10}, good, other)
	f(exit.NothingValid, "no step is VALID", Settings{RateHz: 10}, invalid)
	f(exit.NothingValid, "--per-connection 1", Settings{RateHz: 10, Connections: Short}, good)
	f(exit.NothingValid, "open loop", Settings{RateHz: 10}, closed)
	f(exit.NothingValid, "--watch app=", Settings{RateHz: 10}, unwatched)
	f(exit.Failed, "no VALID step met p99<1ms: 1000/s", Settings{RateHz: 10, SLO: "p99<1ms"}, good)
	f(exit.Failed, "too few requests for p99.999", Settings{RateHz: 10, SLO: "p99.999<1s"}, good)
}

// TestCoresOfAProcess: the run's shares, the user's word and the number of threads, in this order of force.
func TestCoresOfAProcess(t *testing.T) {
	t.Parallel()
	m := model{app: 1e-3, cores: 0.5, share: true, limit: 100 * time.Millisecond}
	f := func(want float64, cpus map[string]float64, change func(*result.Run)) {
		t.Helper()
		run := m.run(t, 400)
		change(run)
		p, err := Make([]Source{{File: "run", Run: run}}, Settings{RateHz: 1000, CPUs: cpus})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(p.Lines[0].Formula, " of "+sheet.Plural(want, "core")) {
			t.Errorf("%s, want hosts of %g cores", p.Lines[0].Formula, want)
		}
	}
	f(0.5, nil, func(*result.Run) {})
	f(0.75, map[string]float64{"app": 0.75}, func(*result.Run) {})
	f(1, nil, func(run *result.Run) {
		run.Header.Hosts[1].CPUs = 4
		for i := range run.Samples {
			if run.Samples[i].Sampler == result.SamplerProcess {
				run.Samples[i].Values["threads"] = 1
			}
		}
	})
}

func goldenPlan(t failer) *Plan {
	t.Helper()
	m := model{app: 1e-3, cores: 2, db: 3e-4, redis: 2e-5, opens: 1, limit: 20 * time.Millisecond, short: true}
	return mustMake(t, Settings{RateHz: 12000, Headroom: 0.3}, Source{File: "run.ndjson", Run: m.run(t, 500, 1000, 1500, 1700, 1900)})
}

func TestGolden(t *testing.T) {
	t.Parallel()
	p := goldenPlan(t)
	var text, document bytes.Buffer
	if err := p.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if err := p.WriteJSON(&document); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][]byte{"plan.txt": text.Bytes(), "plan.json": document.Bytes()} {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	var back Plan
	if err := json.Unmarshal(document.Bytes(), &back); err != nil || back.Format != Format || len(back.Lines) != len(p.Lines) {
		t.Errorf("%v: %+v", err, back)
	}
}
