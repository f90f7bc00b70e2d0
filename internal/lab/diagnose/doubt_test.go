package diagnose

import (
	"strings"
	"testing"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

func diagnoseLevels(t *testing.T, levels ...level) []Verdict {
	t.Helper()
	run := runOf(t, levels...)
	passing, failing := Steps(run)
	return Diagnose(run, passing, failing)
}

func without(f figures, subject ...string) figures {
	all := figures{}.and(f)
	for _, s := range subject {
		delete(all, s)
	}
	return all
}

// A remote database on 2 cores, on which 10 statements run and none waits. Its host and process are not watched. The load
// generator's host has 16 idle cores.
func TestPoolOfADatabaseOfUnknownCPU(t *testing.T) {
	base := without(idle().and(postgres()), "process db")
	base = base.and(figures{"host": {"cores": 16, "cpu_idle_seconds_total": 15.6}})
	got := diagnoseLevels(t, light(base), heavy(500, base.and(figures{"postgres shop": {"connections_active": 9.9, "wait_cpu": 9.8, "connections_idle": 0.1}})))
	if got[0].Name == DatabasePool && strings.Contains(got[0].Sentence, "the database has CPU to spare") && got[0].Score >= supported {
		t.Errorf("the CPU of the database is not known, and all its sessions run on a CPU:\n%s", text(t, got))
	}
}

func TestPoolOfADatabaseWithoutHost(t *testing.T) {
	base := without(idle().and(postgres()), "process db", "host")
	got := diagnoseLevels(t, light(base), heavy(500, base.and(figures{"postgres shop": {"connections_active": 9.9, "wait_cpu": 9.8, "connections_idle": 0.1}})))
	if got[0].Name == DatabasePool && strings.Contains(got[0].Sentence, "the database has CPU to spare") && got[0].Score >= supported {
		t.Errorf("the CPU of the database is not known, and all its sessions run on a CPU:\n%s", text(t, got))
	}
}

// A service that sheds load with 503 because something else is full: the 503 are a symptom.
func TestSheddingIsASymptom(t *testing.T) {
	base, both := idle(), idle().and(postgres())
	taken := figures{"postgres shop": {"connections_active": 9.8, "connections_idle": 0.2}}
	for name, c := range map[string]evidence{
		"database lock, 3 % 503": pair(DatabaseLock, light(both), func() level {
			l := heavy(300, both.and(taken).and(figures{"postgres shop": {"wait_lock": 8.9}}))
			l.statuses = map[int]float64{503: 0.03}
			return l
		}()),
		"commit, 3 % 503": pair(Commit, light(both), func() level {
			l := heavy(800, both.and(taken).and(figures{"postgres shop": {"wait_io": 1, "wait_lwlock": 8, "wait_wal": 9, "fsyncs_total": 50}}))
			l.statuses = map[int]float64{503: 0.03}
			return l
		}()),
		"database pool, 3 % 503": pair(DatabasePool, light(both), func() level {
			l := heavy(2000, both.and(taken).and(figures{"postgres shop": {"wait_timeout": 9}}))
			l.statuses = map[int]float64{503: 0.03}
			return l
		}()),
		"descriptors": pair(Descriptors, light(base), func() level {
			l := heavy(1600, base.and(figures{"process app": {"fds": 1024, "fds_limit": 1024}}))
			l.statuses = map[int]float64{503: 0.03}
			return l
		}()),
	} {
		if got := diagnoseLevels(t, c.levels...); got[0].Name != c.want {
			t.Errorf("%s: %s, %q", name, got[0].Name, got[0].Sentence)
		}
	}
}

// A worker pool that is full, on a host on which a backup reads a disk all the time, also in the passing step.
func TestConstantDiskIsNoCommit(t *testing.T) {
	base := idle().and(figures{"host": {"psi_io_some_seconds_total": 0.9}})
	if got := diagnoseLevels(t, light(base), heavy(1600, base)); got[0].Name == Commit {
		t.Errorf("the disk waits were the same when the SLO was met: %s, %q", got[0].Name, got[0].Sentence)
	}
}

// A database that reads tables from a disk (wait_io is also DataFileRead) and neither writes nor syncs.
func TestReadsAreNoCommits(t *testing.T) {
	both := idle().and(postgres()).and(figures{"postgres shop": {"fsyncs_total": 0, "wait_wal": 0, "wal_bytes_total": 0, "connections_active": 0.1}})
	got := diagnoseLevels(t, light(both), heavy(300, both.and(figures{"postgres shop": {"connections_active": 9.8, "connections_idle": 0.2, "wait_io": 9.5, "wait_wal": 0}})))
	if got[0].Name == Commit {
		t.Errorf("no commit waits, no fsync: %q\nTry: %s", got[0].Sentence, got[0].Advice)
	}
}

// A CPU-bound server on its own 4 cores whose sockets cost softirq, in proportion to its traffic.
func TestSoftirqIsNoNeighbour(t *testing.T) {
	base := idle().and(figures{"process app": {"cpu_limit": 4}})
	use := func(rate float64) figures {
		app := rate * 0.62e-3
		soft := rate * 0.17e-3
		return base.and(busy("app", app/2, app/2, 4*rate/5000)).and(figures{"host": {
			"cpu_user_seconds_total": app / 2, "cpu_system_seconds_total": app / 2, "cpu_softirq_seconds_total": soft, "cpu_idle_seconds_total": max(0.02, 4-app-soft),
		}})
	}
	passing := level{offered: 50, rate: 50, alone: 0.002, mean: 0.0021, size: 300, figures: use(50)}
	failing := level{offered: 10000, rate: 5000, alone: 0.02, mean: 0.2, size: 300, failed: true, figures: use(5000)}
	for name, levels := range map[string][]level{"with a light step": {passing, failing}, "one step": {failing}} {
		if got := diagnoseLevels(t, levels...); got[0].Name != UserCPU && got[0].Name != SystemCPU {
			t.Errorf("%s: %s: %q", name, got[0].Name, got[0].Sentence)
		}
	}
}

// A JVM with -Xms = -Xmx (resident from the start), CPU-bound. It answers half of what it computes too late, so that these answers
// are not good ones: CPU per good answer doubles.
func TestFullHeapIsNoMemory(t *testing.T) {
	heap := figures{"process app": {"rss_bytes": 500 << 20, "memory_limit_bytes": 512 << 20}}
	base := idle().and(heap)
	passing := level{offered: 500, rate: 500, alone: 0.002, mean: 0.0021, size: 300, figures: base.and(busy("app", 0.5*0.9, 0.05, 0.3)).and(heap)}
	failing := level{offered: 4000, rate: 1000, alone: 0.02, mean: 0.2, size: 300, failed: true, errors: map[result.ErrorClass]int64{result.Timeout: 9800}, figures: base.and(busy("app", 1.8, 0.18, 3)).and(heap)}
	// 1.98 cores: 1 ms per answer, as before, but only half of the answers are good
	if got := diagnoseLevels(t, passing, failing); got[0].Name != UserCPU && got[0].Name != SystemCPU {
		t.Errorf("%s: %q", got[0].Name, got[0].Sentence)
	}
	// The same heap, all answers good; a busy core is 1.45 times slower than an idle one with its hyper-thread idle.
	failing = level{offered: 2500, rate: 1320, alone: 0.02, mean: 0.2, size: 300, failed: true, figures: base.and(busy("app", 1.8, 0.18, 3)).and(heap)}
	if got := diagnoseLevels(t, passing, failing); got[0].Name != UserCPU && got[0].Name != SystemCPU {
		t.Errorf("hyper-threads: %s: %q", got[0].Name, got[0].Sentence)
	}
}

func TestNeighbourNamesTheVictim(t *testing.T) {
	base := idle().and(figures{"process app": {"cpu_limit": 4}})
	l := heavy(200, base.and(figures{
		"process app": {"run_queue_wait_seconds_total": 0.0, "cpu_user_seconds_total": 0.1},
		"host":        {"cpu_user_seconds_total": 3.8, "cpu_system_seconds_total": 0.1, "cpu_idle_seconds_total": 0.05},
	}))
	l.validity, l.reasons = result.HostContended, []result.Reason{{Text: "the generator waited 90 % of the time for a CPU that other programs used"}}
	got := diagnoseLevels(t, light(base), l)
	if got[0].Name == Neighbour && strings.Contains(got[0].Sentence, "app has no CPU left") {
		t.Errorf("app uses 0.15 of 4 cores and never waits for one: %q", got[0].Sentence)
	}
}

func TestRedisWithoutCommands(t *testing.T) {
	base := idle()
	got := diagnoseLevels(t, light(base), heavy(500, base.and(figures{
		"redis cache": {"main_thread_user_seconds_total": 0.9, "main_thread_system_seconds_total": 0.07, "commands_total": 0, "connections": 4},
	})))
	if strings.Contains(got[0].Sentence, "Inf") {
		t.Error(got[0].Sentence)
	}
}

// One step only, of a server that streams an answer of 20 KiB over 0.3 s, row by row.
func TestStreamIsNoFullLink(t *testing.T) {
	l := level{offered: 100, rate: 100, alone: 0.3, mean: 0.35, first: 0.3, size: 20_000, failed: true, figures: idle()}
	if got := diagnoseLevels(t, l); got[0].Name == Bandwidth && got[0].Score >= supported {
		t.Errorf("one step, 2 MB/s, no byte waits to be sent: %s: %q", got[0].Name, got[0].Sentence)
	}
}

func TestEscapes(t *testing.T) {
	run := runOf(t, light(idle()), heavy(1000, idle().and(busy("app", 1.7, 0.25, 3))))
	for i := range run.Samples {
		if run.Samples[i].Subject == "app" {
			run.Samples[i].Subject = "app\x1b]0;owned\x07"
		}
	}
	d, err := (&Options{}).diagnose(run)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	_ = d.WriteText(&out)
	if strings.ContainsRune(out.String(), 0x1b) {
		t.Errorf("terminal escapes of the file reach the terminal: %q", out.String()[:60])
	}
}

// Chosen by hand: a step that met everything, and one above it as the passing one.
func TestChosenSteps(t *testing.T) {
	run := runOf(t, light(idle()), heavy(1600, idle().and(busy("app", 0.2, 0.1, 0.1))))
	d, err := (&Options{Failing: "0", Passing: "1"}).diagnose(run)
	if err != nil {
		t.Fatal(err)
	}
	if d.Note == "" {
		t.Errorf("passing %q (it failed) and failing %q (it passed) are compared without a word: %s %q", d.Passing, d.Failing, d.Verdicts[0].Name, d.Verdicts[0].Sentence)
	}
}

// A failing step that is not VALID for the drift of its rate: no word of it.
func TestFailingNotValid(t *testing.T) {
	l := heavy(1600, idle().and(busy("app", 0.2, 0.1, 0.1)))
	l.validity, l.reasons = result.NotStationary, []result.Reason{{Text: "the rate drifted by 40 %"}}
	run := runOf(t, light(idle()), l)
	d, err := (&Options{}).diagnose(run)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	_ = d.WriteText(&out)
	if !strings.Contains(out.String(), "NOT_STATIONARY") && !strings.Contains(out.String(), "drifted") {
		t.Errorf("the failing step is NOT_STATIONARY, and %s (%g) says nothing of it; note %q", d.Verdicts[0].Name, d.Verdicts[0].Score, d.Note)
	}
}

// pinned is a step whose target has a core of its own, with other programs on some of the cores.
func pinned(used, foreign, generatorForeign float64) level {
	l := heavy(1000, idle().and(busy("app", 0.9*used, 0.1*used, 3)).and(figures{"process app": {"cpu_limit": 1}}))
	l.validity, l.reasons = result.HostContended, []result.Reason{{Text: "programs of no host used 6 % of the generator's cores"}}
	l.hosts = []result.HostShare{
		{Name: "generator", CPUs: 1, CoreCount: 1, Elapsed: 10, Used: 5, Foreign: 10 * generatorForeign},
		{Name: "target", CPUs: 1, CoreCount: 1, Elapsed: 10, Used: 10 * used, Foreign: 10 * foreign},
	}
	return l
}

// TestFullTargetOfADisturbedGenerator: a service that uses its own core up is stopped by it, whatever runs on the generator's core.
func TestFullTargetOfADisturbedGenerator(t *testing.T) {
	for name, c := range map[string]struct {
		failing level
		want    string
	}{
		"the target is full":      {pinned(0.97, 0.01, 0.06), UserCPU},
		"the target is disturbed": {pinned(0.6, 0.38, 0.06), Neighbour},
		"the target has room":     {pinned(0.5, 0.01, 0.06), Neighbour},
		"nobody uses other cores": {pinned(0.5, 0.01, 0.01), Generator},
	} {
		if got := diagnoseLevels(t, light(idle()), c.failing); got[0].Name != c.want {
			t.Errorf("%s: %s (%g): %q, want %s", name, got[0].Name, got[0].Score, got[0].Sentence, c.want)
		}
	}
}

// TestFullProcessOfADisturbedGenerator: a closed loop whose generator waits for CPU beside a database that uses up its quota, or does not.
func TestFullProcessOfADisturbedGenerator(t *testing.T) {
	for used, want := range map[float64]string{0.5: DatabaseCPU, 0.3: Generator} {
		l := heavy(1000, idle().and(postgres()).and(busy("db", used/2, used/2, 3)).and(figures{"process db": {"cpu_limit": 0.5}}))
		l.offered, l.validity = 0, result.HostContended
		l.reasons = []result.Reason{{Code: result.CPUWait, Verdict: result.HostContended, Text: "the generator waited 35 % of the time"}}
		if got := diagnoseLevels(t, light(idle().and(postgres())), l); got[0].Name != want {
			t.Errorf("%g of 0.5 cores, want %s:\n%s", used, want, text(t, got))
		}
	}
}

// TestProxyOfASingleHost: a proxy that is not watched uses a third of the CPU, in proportion to the answers, at any light load.
func TestProxyOfASingleHost(t *testing.T) {
	use := func(share float64) figures {
		return idle().and(busy("app", 2.4*share, 0.2*share, 6*share*share)).and(figures{"process app": {"cpu_limit": 4}, "host": {
			"cpu_user_seconds_total": 3.7 * share, "cpu_system_seconds_total": 0.2 * share, "cpu_idle_seconds_total": max(0.05, 4-3.9*share),
		}})
	}
	for _, share := range []float64{0.05, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9} {
		for _, overload := range []float64{1.05, 1.5, 3, 10} {
			passing := level{offered: 1000 * share, rate: 1000 * share, alone: 0.005, mean: 0.006, size: 300, figures: use(share)}
			failing := level{offered: 1000 * overload, rate: 1000, alone: 0.02, mean: 0.3, size: 300, failed: true, figures: use(1)}
			if got := diagnoseLevels(t, passing, failing); got[0].Name != UserCPU {
				t.Errorf("light step of %g, %g times the peak: %s (%g): %q", share, overload, got[0].Name, got[0].Score, got[0].Sentence)
			}
		}
	}
}

// stolen makes a step one that the hypervisor disturbed by so many of the host's 4 cores. lag is the pacer's.
func stolen(l level, cores float64, lag time.Duration) level {
	l.validity = result.HostContended
	l.reasons = []result.Reason{
		{Code: result.Stolen, Verdict: result.HostContended, Text: "the hypervisor took 7.5 % of the time of this host's CPUs; --awake …"},
		{Code: result.Backlog, Verdict: result.NotStationary, Text: "the backlog grew by 300/s: the target answers 300/s"},
	}
	l.figures = l.figures.and(figures{"host": {"cpu_steal_seconds_total": cores, "cpu_idle_seconds_total": l.figures["host"]["cpu_idle_seconds_total"] - cores}})
	l.lag = lag
	return l
}

// TestDespiteSteal takes CPU time from the host in the failing step: what does not explain the answers that are missing leaves the
// cause as it is, and anything else is the load generator's.
func TestDespiteSteal(t *testing.T) {
	base, both := idle(), idle().and(postgres())
	const in, late = 100 * time.Microsecond, 500 * time.Millisecond
	locked := heavy(300, both.and(figures{"postgres shop": {"connections_active": 9.8, "connections_idle": 0.2, "wait_lock": 8.9}}))
	full := heavy(1000, base.and(figures{"process app": {
		"cpu_user_seconds_total": 0.9, "cpu_system_seconds_total": 0.05, "cpu_limit": 1, "cpu_allowed": 1, "cpu_allowed_busy_seconds_total": 0.99,
	}}))
	slow := level{offered: 200, rate: 200, alone: 0.05, mean: 0.05, failed: true, figures: base}
	for name, c := range map[string]evidence{
		"lock of the database":               pair(DatabaseLock, light(both), stolen(locked, 0.3, in)),
		"lock, late generator":               pair(Generator, light(both), stolen(locked, 0.3, late)),
		"lock, half of the host":             pair(Generator, light(both), stolen(locked, 2.2, in)),
		"full core":                          pair(UserCPU, light(base), stolen(full, 0.08, in)),
		"full core, more elsewhere":          pair(UserCPU, light(base), stolen(full, 0.35, in)),
		"slow answers, which steal explains": pair(Generator, light(base), stolen(slow, 0.3, in)),
	} {
		if got := diagnoseLevels(t, c.levels...); got[0].Name != c.want {
			t.Errorf("%s: want %s\n%s", name, c.want, text(t, got))
		}
	}
	for want, disturbance := range map[string]result.Reason{
		DatabaseLock: {Code: result.CPUWait, Text: "the generator waited 12 % of the time for a CPU that other programs used"},
		Generator:    {Code: result.PacerLag, Text: "requests were sent late, because other programs used this host's CPUs"},
	} {
		disturbance.Verdict = result.HostContended
		waited := stolen(locked, 0.3, in)
		waited.reasons = append([]result.Reason{disturbance}, waited.reasons...)
		if got := diagnoseLevels(t, light(both), waited); got[0].Name != want {
			t.Errorf("another disturbance, want %s:\n%s", want, text(t, got))
		}
	}
	other := stolen(locked, 0.3, in)
	other.hosts = crowded(base).hosts
	if got := diagnoseLevels(t, light(both), other); got[0].Name == DatabaseLock {
		t.Errorf("other programs:\n%s", text(t, got))
	}
}

// TestFullCPU has servers whose CPUs are full, with what follows from that or only looks like it.
func TestFullCPU(t *testing.T) {
	base := idle()
	cores := func(limit, allowed, used, waiting, allFilled, busiest float64) figures {
		return busy("app", 0.9*used, 0.1*used, waiting).and(figures{"process app": {
			"cpu_limit": limit, "cpu_allowed": allowed, "cpu_allowed_busy_seconds_total": allFilled, "busiest_thread_cores": busiest,
		}})
	}
	files := func(open float64) figures { return figures{"process app": {"fds": open, "fds_limit": 1024}} }
	full := heavy(500, base.and(cores(2, 4, 1.98, 3, 2.1, 0.5)))
	with := func(l level, f figures) level { l.figures = l.figures.and(f); return l }
	crowdedBefore := with(light(base), cores(2, 4, 0.2, 0.3, 3.2, 0.1))
	for name, c := range map[string]evidence{
		"nearly out of files":           pair(UserCPU, light(base), with(full, files(1012))),
		"out of files, full before":     pair(UserCPU, with(light(base), cores(2, 4, 1.4, 1, 1.5, 0.5)), with(full, files(1024))),
		"out of files, then in circles": pair(Descriptors, light(base), with(full, files(1024))),
		"a quota that others do not leave it": pair(Neighbour, crowdedBefore,
			level{offered: 1000, rate: 250, alone: 0.006, mean: 0.2, size: 300, failed: true, figures: base.and(cores(2, 4, 0.5, 6, 3.99, 0.2))}),
		"a quota, and others that leave room": pair(UserCPU, crowdedBefore,
			level{offered: 1000, rate: 250, alone: 0.006, mean: 0.2, size: 300, failed: true, figures: base.and(cores(0.5, 4, 0.5, 6, 3.4, 0.2))}),
		"a main thread and those that collect garbage": pair(UserCPU, light(base),
			level{offered: 200, rate: 108, alone: 0.0095, mean: 0.2, size: 300, failed: true, figures: base.and(cores(4, 4, 1.12, 0.1, 1.2, 0.97))}),
		"a quota that stops many threads once": pair(WorkerPool, light(base), with(heavy(1600, base.and(cores(8, 64, 2.4, 0.1, 2.6, 0.1))),
			figures{"process app": {"threads": 64, "throttled_seconds_total": 3.2}, "host": {"cores": 64, "cpu_idle_seconds_total": 61}})),
	} {
		if got := diagnoseLevels(t, c.levels...); got[0].Name != c.want || got[0].Score < supported {
			t.Errorf("%s: want %s\n%s", name, c.want, text(t, got))
		}
	}
	others := with(heavy(300, base.and(postgres()).and(busy("db", 0.28, 0.02, 0.5))), figures{"host": {
		"cpu_user_seconds_total": 3.8, "cpu_system_seconds_total": 0.15, "cpu_idle_seconds_total": 0.02,
	}, "process db": {"cpu_limit": 4}})
	before := light(base.and(postgres()).and(figures{"process db": {"cpu_limit": 4}}))
	for _, l := range []*level{&before, &others} {
		delete(l.figures, "process app")
		delete(l.figures, "postgres shop")
	}
	if got := diagnoseLevels(t, before, others); got[0].Name == DatabaseCPU && got[0].Score >= supported {
		t.Errorf("a database on a host that others fill:\n%s", text(t, got))
	}
}

// TestFlowsCountIterations compares iterations that were due with those that ended, not with their requests.
func TestFlowsCountIterations(t *testing.T) {
	took := histogram.New()
	took.RecordN(200*time.Millisecond, 100)
	text, err := took.Encode()
	if err != nil {
		t.Fatal(err)
	}
	flow := func(completed int64, warmup float64) *step {
		run := &result.StepRun{
			Step:  result.Step{Loop: result.LoopOpen, OfferedHz: 100, Warmup: warmup},
			Total: result.Total{Elapsed: 10, Iterations: &result.Iterations{Completed: completed, Duration: result.HDR(text)}},
		}
		return &step{load: run, offered: 100, rate: 3 * float64(completed) / 10} // 3 requests each
	}
	for _, c := range []struct {
		completed int64
		warmup    float64
		saturated bool
	}{{1000, 1, false}, {600, 1, true}, {600, 0.1, false}} {
		if got := flow(c.completed, c.warmup).saturated(); got != c.saturated {
			t.Errorf("%d of 1000 iterations after %g s: saturated %v", c.completed, c.warmup, got)
		}
	}
}
