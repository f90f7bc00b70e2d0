package experiment

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"spillway/internal/lab/peak"
	"spillway/internal/lab/result"
)

func TestPlanOrder(t *testing.T) {
	f := engineRead(t, engineSmall+"aa: true\nshuffle_levels: true\n")
	rapid.Check(t, func(t *rapid.T) {
		o := Options{Seed: rapid.Uint64().Draw(t, "seed")}
		plan, err := f.Plan(".", o)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := f.Plan(".", o)
		if diff := cmp.Diff(plan.Trials, again.Trials); diff != "" {
			t.Fatalf("the same seed, another order: %s", diff)
		}
		for _, trials := range plan.Trials {
			var names []string
			for _, trial := range trials {
				names = append(names, trial.Variant)
				levels := slices.Sorted(slices.Values(trial.Levels))
				if diff := cmp.Diff([]string{"rate-100", "rate-200-connections-8"}, levels); diff != "" {
					t.Fatal(diff)
				}
			}
			slices.Sort(names)
			if diff := cmp.Diff([]string{"base", "base-again", "proxied", "second"}, names); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

func TestPlanTime(t *testing.T) {
	f := engineRead(t, engineSmall+"blocks: 3\ncooldown: {timeout: 10s}\n")
	plan, err := f.Plan(".", Options{})
	if err != nil {
		t.Fatal(err)
	}
	// 3 blocks of 3 variants of 2 levels of 2 s, a second each for starting it, and a cool-down of at most 10 s.
	if plan.Least != 54*time.Second || plan.Most != 18*13*time.Second {
		t.Errorf("takes %v to %v", plan.Least, plan.Most)
	}
	now := time.Date(2026, 1, 2, 23, 59, 30, 0, time.UTC)
	if got, want := plan.Time(now, 3), "takes 54s to 3m54s, and the start of services: ends between 2026-01-03 00:00 and 2026-01-03 00:03"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestQuickAndOnly(t *testing.T) {
	f := engineRead(t, engineSmall+"blocks: 20\nquick: {blocks: 1, load: {duration: 1s}, levels: [{rate: 5}]}\n")
	applied, err := f.Apply(Options{Quick: true, Only: []string{"proxied"}})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := applied.Plan(".", Options{Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Trials) != 1 || len(plan.Variants) != 2 || plan.Levels[0].Flags["duration"] != "1s" || plan.Levels[0].Name != "rate-5" {
		t.Errorf("%+v", plan)
	}
	if f.Blocks != 20 || len(f.Variants) != 3 || len(f.Levels) != 2 {
		t.Error("the file itself has changed")
	}
	if _, err := f.Apply(Options{Only: []string{"none"}}); err == nil || !strings.Contains(err.Error(), "--only none") {
		t.Errorf("unknown variant: %v", err)
	}
	slow := engineRead(t, engineSmall+"quick: {load: {duration: 10m}}\n")
	applied, _ = slow.Apply(Options{Quick: true})
	if _, err := applied.Plan(".", Options{Quick: true}); err == nil || !strings.Contains(err.Error(), "a quick run stays below 10m") {
		t.Errorf("a quick run of an hour: %v", err)
	}
}

// TestSettingsOfFixedServices wants services that serve all variants to see only what does not vary.
func TestSettingsOfFixedServices(t *testing.T) {
	text := strings.Replace(engineSmall, "{workers: 1}", `{workers: 1, indirect: "{{.setting.entry}}", plain: "{{.setting.workers}}"}`, 1)
	f := engineRead(t, strings.Replace(text, "services:\n", "services:\n  db: {scope: experiment, command: [db]}\n", 1))
	data, err := f.fixedData(f.placeholders("."))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"workers": "1", "plain": "1"}, data.settings()); diff != "" {
		t.Errorf("settings seen (-want +got):\n%s", diff)
	}
}

// TestPeakProof wants only VALID attempts to prove a bound.
func TestPeakProof(t *testing.T) {
	type try struct {
		rate     float64
		validity result.Validity
	}
	for _, c := range []struct {
		feasible, infeasible, unproved float64
		tries                          []try
		want                           result.Validity
		why                            string
	}{
		{100, 200, 0, []try{{100, result.Valid}, {200, result.Valid}}, result.Valid, ""},
		{100, 200, 0, []try{{100, result.HostContended}, {100, result.Valid}, {200, result.Valid}}, result.Valid, ""},
		{1000, 0, 0, []try{{1000, result.Valid}}, result.Valid, ""},
		{0, 50, 0, []try{{50, result.Valid}}, result.Valid, ""},
		{
			100, 200, 150,
			[]try{{100, result.Valid}, {200, result.Valid}, {150, result.NotStationary}, {150, result.HostContended}},
			result.HostContended,
			"not proved: no attempt at 150/s was VALID, the last was HOST_CONTENDED; proved are 100/s as met and 200/s as missed",
		},
		{
			100, 200, 0,
			[]try{{100, result.Valid}, {200, result.HostContended}},
			result.HostContended,
			"not proved: no attempt at 200/s was VALID, the last was HOST_CONTENDED; proved are 100/s as met",
		},
		{100, 0, 0, []try{{100, result.Valid}}, result.Unjudged, "not proved: the search did not end; proved are 100/s as met"},
		{0, 0, 100, []try{{100, result.TooFewSamples}}, result.TooFewSamples, "not proved: no attempt at 100/s was VALID, the last was TOO_FEW_SAMPLES; proved are no bounds"},
	} {
		p := PeakRun{Feasible: c.feasible, Infeasible: c.infeasible, Unproved: c.unproved}
		for _, a := range c.tries {
			p.Attempts = append(p.Attempts, LevelRun{Peak: &PeakAttempt{Rate: a.rate, Validity: a.validity}})
		}
		if got, why := p.proof(1000); got != c.want || why != c.why {
			t.Errorf("%+v: %s, %q, want %s, %q", c, got, why, c.want, c.why)
		}
	}
}

// TestPeakLonger wants an attempt with too few samples repeated for as long as the SLO needs.
func TestPeakLonger(t *testing.T) {
	f := engineRead(t, engineSmall)
	data, err := f.variantData(f.placeholders("."), &VariantFacts{Services: []string{"web"}, Settings: map[string]string{"mode": "1", "entry": "x"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		duration, slo string
		rate          float64
		want          string
	}{
		{"2s", "p50<1s", 1000, "4s"}, {"2s", "p50<1s", 10, "13s"}, {"", "rate>=1", 1000, "20s"}, {"2s", "p99.99<1s", 1, "10m0s"},
	} {
		if got, err := data.longer(Load{Duration: c.duration, SLO: c.slo}, c.rate); err != nil || got != c.want {
			t.Errorf("%+v: %s, %v", c, got, err)
		}
	}
}

// TestSockets wants connections counted that no process has accepted.
func TestSockets(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for range 3 {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if n, err := acceptQueues(t.Context()); err != nil || n < 3 {
		t.Errorf("%d in accept queues, want 3: %v", n, err)
	}
	if n, err := timeWait(); err != nil || n < 0 {
		t.Errorf("%d in TIME_WAIT: %v", n, err)
	}
}

func TestMissing(t *testing.T) {
	f := engineRead(t, engineSmall+"needs: {sh: {package: dash}, nosuch_a: {package: pkg-b, find: [nosuch-a, /nosuch/*/a]}, nosuch_b: {package: pkg-a}}\n")
	_, err := f.Programs(t.Context())
	if want := "not installed: nosuch_a, nosuch_b; run: apt-get install -y pkg-a pkg-b"; err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestPeakConclude wants a search that ended without a proof to name a rate that no VALID attempt decided.
func TestPeakConclude(t *testing.T) {
	attempt := func(rate float64, v result.Validity) LevelRun {
		return LevelRun{Peak: &PeakAttempt{Rate: rate, Validity: v}}
	}
	visit := func(rate float64) peak.Visit { return peak.Visit{Probe: peak.Probe{Rate: rate}} }
	for _, c := range []struct {
		stopped string
		want    PeakRun
	}{
		{peak.StoppedPrecision, PeakRun{Feasible: 100}},
		{peak.StoppedMaximum, PeakRun{Feasible: 100, Note: "400/s, the limit of the search, met the SLO"}},
		{peak.StoppedNothingMet, PeakRun{Feasible: 100, Note: "no rate that was tried met the SLO"}},
		{peak.StoppedInvalid, PeakRun{Feasible: 100, Unproved: 200, Note: "no probe at 200/s was VALID"}},
	} {
		p := PeakRun{Attempts: []LevelRun{attempt(100, result.Valid), attempt(200, result.HostContended), attempt(300, result.Valid)}}
		p.conclude(peak.Answer{
			Feasible: 100, Stopped: c.stopped, Warnings: []string{"no probe at 200/s was VALID"}, Path: []peak.Visit{visit(100), visit(200), visit(300)},
		}, 400)
		p.Attempts = nil
		c.want.Stopped = c.stopped
		if diff := cmp.Diff(c.want, p); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.stopped, diff)
		}
	}
}

// TestUnstablePeakIsNoProof: a search that gave up because probes contradicted each other, or after ProbesMax with a wide interval,
// does not support a verdict.
func TestUnstablePeakIsNoProof(t *testing.T) {
	for _, stopped := range []string{peak.StoppedUnstable, peak.StoppedProbes} {
		p := PeakRun{}
		var path []peak.Visit
		for _, rate := range []float64{100, 800} {
			p.Attempts = append(p.Attempts, LevelRun{Peak: &PeakAttempt{Rate: rate, Validity: result.Valid}})
			path = append(path, peak.Visit{Probe: peak.Probe{Rate: rate}})
		}
		p.conclude(peak.Answer{Feasible: 100, Infeasible: 800, Stopped: stopped, Path: path}, 1000)
		if v, why := p.proof(1000); v == result.Valid {
			t.Errorf("stopped %q, 100 to 800/s: %s, %q, note %q", stopped, v, why, p.Note)
		}
	}
}
