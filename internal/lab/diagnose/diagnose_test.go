package diagnose

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"spillway/internal/lab/result"
)

var update = flag.Bool("update", false, "write the golden files")

func TestVerdicts(t *testing.T) {
	for name, c := range cases() {
		t.Run(name, func(t *testing.T) {
			run := runOf(t, c.levels...)
			passing, failing := Steps(run)
			if passing != 0 || failing != 1 {
				t.Fatalf("steps %d and %d are compared, want 0 and 1", passing, failing)
			}
			verdicts := Diagnose(run, passing, failing)
			if verdicts[0].Name != c.want {
				t.Errorf("the first verdict is %s, want %s\n%s", verdicts[0].Name, c.want, text(t, verdicts))
			}
			for _, v := range verdicts {
				if v.Sentence == "" || v.Advice == "" || v.Name != Unknown && len(v.Evidence) == 0 || strings.Contains(v.Sentence+v.Advice, "NaN") ||
					strings.Contains(v.Sentence, "%!") {
					t.Errorf("%s is incomplete: %+v", v.Name, v)
				}
			}
		})
	}
}

// text is the document of verdicts.
func text(t *testing.T, verdicts []Verdict) string {
	t.Helper()
	var out strings.Builder
	if err := (&Document{Passing: "100/s", Failing: "failing", Verdicts: verdicts}).WriteText(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestHealthyServers: a server that only runs out of CPU is called user-cpu or system-cpu, whatever else moves within what is normal
// under load, and also if every queue in front of it is full.
func TestHealthyServers(t *testing.T) {
	t.Parallel()
	servers := 1000
	if testing.Short() {
		servers = 150
	}
	for seed := range uint64(servers) {
		r := rand.New(rand.NewPCG(seed, 1))
		between := func(low, high float64) float64 { return low + (high-low)*r.Float64() }
		limit := float64(1 + r.IntN(4))
		userShare := between(0.2, 0.98)
		perRequest := between(50e-6, 5e-3)
		use := func(share float64) figures {
			cores := share * limit
			f := idle().and(busy("app", cores*userShare, cores*(1-userShare), between(0, 4)*share*share)).and(figures{"process app": {
				"cpu_limit": limit, "busiest_thread_cores": between(0.3, 1) * min(1, cores), "threads": between(4, 40),
				"fds": between(20, 900), "fds_limit": 1024 * float64(1+r.IntN(60)), "rss_bytes": between(10, 500) * (1 << 20), "memory_limit_bytes": 2 << 30,
				"major_faults_total": between(0, 3), "throttled_seconds_total": between(0, 0.04), "cpu_allowed": limit, "cpu_allowed_busy_seconds_total": min(limit, cores*between(1, 1.05)),
			}, "tcp": {
				"passive_opens_total": between(0, 2000), "time_wait": between(0, 20000), "ports_in_use": between(100, 20000),
				"send_queue_bytes": between(0, 60000) * share, "receive_queue_bytes": between(0, 60000), "retransmits_total": between(0, 20),
			}, "host": {"psi_io_some_seconds_total": between(0, 0.2), "psi_memory_some_seconds_total": between(0, 0.03), "cpu_steal_seconds_total": between(0, 0.05)}})
			if r.IntN(2) == 0 {
				f = f.and(postgres()).and(figures{"postgres shop": {
					"connections_active": between(0, 9.9), "wait_lock": between(0, 4), "wait_io": between(0, 3), "wait_wal": between(0, 3), "wait_cpu": between(0, 3),
				}})
			}
			if share > 0.8 && r.IntN(2) == 0 {
				f = f.and(fullQueues())
			}
			return f
		}
		peak := limit / perRequest
		top := between(0.93, 1)
		if r.IntN(3) == 0 {
			top = between(0.68, 0.9) // it misses the SLO before it is full
		}
		alone := perRequest * between(1, 3)
		passing := level{offered: 0.3 * peak, rate: 0.3 * peak, alone: alone, mean: alone * between(1, 1.3), size: between(50, 20000), figures: use(between(0.25, 0.35))}
		failing := level{
			offered: between(1.05, 2) * peak, rate: top * peak, alone: alone * between(1, 10), mean: alone * between(11, 300), size: passing.size,
			failed: true, figures: use(top),
		}
		if top < 0.93 {
			failing.offered, failing.mean = failing.rate, alone*between(1.2, 6)
			failing.alone = alone * between(1, 1.15)
		}
		passing.first, failing.first = between(0, 0.3)*passing.mean, between(0, 0.5)*failing.mean
		passing.connect, failing.connect = between(20e-6, 1e-3), between(20e-6, 0.1)
		run := runOf(t, passing, failing)
		verdicts := Diagnose(run, 0, 1)
		if name := verdicts[0].Name; name != UserCPU && name != SystemCPU {
			t.Fatalf("server %d is called %s\n%s", seed, name, text(t, verdicts))
		}
	}
}

func TestWatched(t *testing.T) {
	run := runOf(t, light(idle()), heavy(1000, idle().and(busy("app", 1.7, 0.25, 3))))
	run.Steps, run.End.Elapsed = nil, 25
	verdicts, quietest, busiest, ok := watched(run)
	if !ok || quietest.usage.To > 15 || busiest.usage.From < 10 {
		t.Fatalf("compared %s with %s (%v), want one of the first 10 s with one of the last 10 s", quietest.span(), busiest.span(), ok)
	}
	if verdicts[0].Name != UserCPU || !strings.Contains(verdicts[0].Sentence, "in the busiest interval") {
		t.Errorf("got %s", text(t, verdicts))
	}
	run.Samples = run.Samples[:3]
	run.End.Elapsed = 3
	if _, _, _, ok := watched(run); ok {
		t.Error("3 s are enough for two intervals")
	}
}

func TestSteps(t *testing.T) {
	at := func(offered float64, failed bool, v result.Validity) level {
		return level{offered: offered, rate: offered, alone: 0.001, mean: 0.001, failed: failed, validity: v}
	}
	for name, c := range map[string]struct {
		levels           []level
		passing, failing int
	}{
		"ascending":    {[]level{at(10, false, ""), at(20, false, ""), at(30, true, ""), at(40, true, "")}, 1, 2},
		"bisection":    {[]level{at(10, false, ""), at(40, true, ""), at(20, false, ""), at(30, true, "")}, 2, 3},
		"none passed":  {[]level{at(10, true, "")}, -1, 0},
		"none failed":  {[]level{at(10, false, ""), at(20, false, "")}, 1, -1},
		"not valid":    {[]level{at(10, false, ""), at(20, false, result.NotStationary), at(30, true, "")}, 0, 2},
		"no generator": {[]level{at(10, false, ""), at(20, false, result.GeneratorLimited)}, 0, 1},
		"disturbed":    {[]level{at(10, false, ""), at(20, true, result.HostContended), at(30, false, ""), at(40, true, "")}, 2, 3},
	} {
		if passing, failing := Steps(runOf(t, c.levels...)); passing != c.passing || failing != c.failing {
			t.Errorf("%s: steps %d and %d, want %d and %d", name, passing, failing, c.passing, c.failing)
		}
	}
}

// TestTooFewSamples compares with a light step that has too few answers for the SLO's percentile, which shows what a request takes.
func TestTooFewSamples(t *testing.T) {
	passing := light(idle())
	passing.validity = result.TooFewSamples
	run := runOf(t, passing, heavy(1600, idle()))
	document, err := (&Options{}).diagnose(run)
	if err != nil {
		t.Fatal(err)
	}
	if document.Passing != "100/s" || !strings.Contains(document.Note, "are those of 100/s") || document.Verdicts[0].Name != WorkerPool {
		t.Errorf("passing %s, %s: %s", document.Passing, document.Note, document.Verdicts[0].Name)
	}
	run.Steps[0].Total.Done = 99
	if document, err = (&Options{}).diagnose(run); err != nil || document.Passing != "" || document.Verdicts[0].Name != Unknown {
		t.Errorf("%v, passing %s: %s", err, document.Passing, document.Verdicts[0].Name)
	}
}

// TestText compares the text of a few cases with testdata/verdicts.txt.
func TestText(t *testing.T) {
	var out strings.Builder
	all := cases()
	for _, name := range []string{"user CPU, full accept queue", "database lock", "pool of workers", "generator", "nothing watched"} {
		run := runOf(t, all[name].levels...)
		document, err := (&Options{}).diagnose(run)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "== %s ==\n", name)
		if err := document.WriteText(&out); err != nil {
			t.Fatal(err)
		}
	}
	const path = "testdata/verdicts.txt"
	if *update {
		if err := os.WriteFile(path, []byte(out.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("the text differs from %s (go test -update writes it):\n%s", path, out.String())
	}
}
