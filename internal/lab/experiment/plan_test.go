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
	if got, want := plan.Time(now, 3), "takes 54 s to 3.9 min, and the start of services: ends between 2026-01-03 00:00 and 2026-01-03 00:03"; got != want {
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

// TestPeakConclude wants a peak proved only by a search that came to its end. One that gave up because probes contradicted each other,
// or were not VALID, or because no time was left, supports no verdict.
func TestPeakConclude(t *testing.T) {
	t.Parallel()
	valid, contended := result.Valid, result.HostContended
	for _, c := range []struct {
		stopped              string
		feasible, infeasible float64
		last                 result.Validity // of the last probe
		want                 result.Validity
		note                 string
	}{
		{peak.StoppedPrecision, 100, 104, valid, valid, ""},
		{peak.StoppedPrecision, 100, 104, contended, valid, ""},
		{peak.StoppedMaximum, 400, 0, valid, valid, "400/s, the limit of the search, met the SLO"},
		{peak.StoppedNothingMet, 0, 50, valid, valid, ""},
		{peak.StoppedInvalid, 100, 200, contended, contended, `not proved, because the search ended for the reason "nothing-valid". As it says.`},
		{peak.StoppedUnstable, 100, 800, valid, result.Unjudged, `not proved, because the search ended for the reason "unstable". As it says.`},
		{peak.StoppedProbes, 100, 800, valid, result.Unjudged, `not proved, because the search ended for the reason "probes". As it says.`},
		{peak.StoppedDeadline, 100, 0, valid, result.Unjudged, `not proved, because the search ended for the reason "deadline". As it says.`},
		{peak.StoppedTargetDown, 0, 0, valid, result.Unjudged, `not proved, because the search ended for the reason "target-down". As it says.`},
	} {
		p := PeakRun{}
		path := []peak.Visit{{Observation: peak.Observation{Validity: contended}}, {Observation: peak.Observation{Validity: c.last}}}
		p.conclude(&peak.Answer{Feasible: c.feasible, Infeasible: c.infeasible, Stopped: c.stopped, Path: path}, "As it says.")
		if diff := cmp.Diff(PeakRun{Feasible: c.feasible, Infeasible: c.infeasible, Validity: c.want, Note: c.note}, p); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.stopped, diff)
		}
	}
}
