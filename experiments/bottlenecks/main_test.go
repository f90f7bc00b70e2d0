//go:build linux

package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/lab/diagnose"
	"spillway/internal/lab/result"
)

// TestMain is also the planted server that a test starts.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args[1:], "-serve") {
		main()
		return
	}
	os.Exit(apptest.Closing(m, &program).Run())
}

var program apptest.Binary

var known = []string{
	diagnose.Generator, diagnose.UserCPU, diagnose.SystemCPU, diagnose.Lock, diagnose.WorkerPool, diagnose.DatabasePool,
	diagnose.DatabaseCPU, diagnose.DatabaseLock, diagnose.Commit, diagnose.RedisThread, diagnose.AcceptQueue, diagnose.Descriptors,
	diagnose.Ports, diagnose.Memory, diagnose.NetworkDelay, diagnose.Bandwidth, diagnose.RateLimit, diagnose.Neighbour,
}

// Every verdict has one fault that is to be named so.
func TestFaults(t *testing.T) {
	all := faults()
	if len(all) != faultCount {
		t.Errorf("%d faults, want %d", len(all), faultCount)
	}
	planted := map[string]int{}
	names := map[string]bool{}
	for _, s := range slices.Concat(all, healthy(), programs()) {
		if s.name == "" || names[s.name] || s.plants == "" || s.start == nil {
			t.Errorf("%q: no name, a second one of this name, or not complete", s.name)
		}
		names[s.name] = true
		for _, verdict := range s.expect {
			if !slices.Contains(known, verdict) {
				t.Errorf("%s expects %q, which is no verdict", s.name, verdict)
			}
		}
	}
	for _, s := range all {
		if len(s.expect) != 1 || s.limit == "" {
			t.Errorf("%s: want one verdict and the arithmetic of the limit", s.name)
			continue
		}
		planted[s.expect[0]]++
	}
	for _, verdict := range known {
		if planted[verdict] != 1 {
			t.Errorf("%d faults are to be named %s, want 1", planted[verdict], verdict)
		}
	}
}

func TestChoose(t *testing.T) {
	chosen, err := choose(faults(), []string{"row-lock", "user-cpu"})
	if err != nil || len(chosen) != 2 || chosen[0].name != "row-lock" || chosen[1].name != "user-cpu" {
		t.Errorf("chosen %v, %v", chosen, err)
	}
	if _, err := choose(faults(), []string{"none"}); err == nil {
		t.Error("a name that does not exist was accepted")
	}
}

// At the analytic rate, a bucket refuses the share that is allowed, and a little above it more.
func TestBucketMeetsItsFormula(t *testing.T) {
	t.Parallel()
	for _, rate := range defaultRates(serverBucket) {
		one, err := newTarget(serverBucket, rate)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			factor    float64
			low, high float64 // share of errors
		}{{0.9, 0, 0}, {1, 0.85 * errorsAllowed, 1.001 * errorsAllowed}, {1.05, 4 * errorsAllowed, 1}} {
			share := refusedShare(newBucket(rate, bucketBurst(rate)), c.factor*one.analytic())
			if share < c.low || share > c.high {
				t.Errorf("capacity %g/s, %.2f of the analytic rate: %.4f refused, want %.4f to %.4f", rate, c.factor, share, c.low, c.high)
			}
		}
	}
}

// refusedShare sends evenly spaced requests to a bucket.
func refusedShare(b *bucket, rate float64) float64 {
	requests := max(2000, int(20*rate)) // of 20 s, in which the supply of a full bucket is little
	refused := 0
	for i := range requests {
		if !b.take(time.Unix(0, int64(float64(i)/rate*1e9))) {
			refused++
		}
	}
	return float64(refused) / float64(requests)
}

// k sleepers let no queue grow below their capacity, and above it answer exactly that many.
func TestSleepersMeetTheirFormula(t *testing.T) {
	t.Parallel()
	for _, capacity := range defaultRates(serverSleepers) {
		k, work := sleepersOf(capacity)
		if got := float64(k) / work.Seconds(); math.Abs(got/capacity-1) > 1e-6 {
			t.Errorf("%d sleepers of %v are %g/s, want %g", k, work, got, capacity)
		}
		for _, factor := range []float64{0.99, 1.02} {
			s := newVirtualSleepers(k, work)
			begin := time.Unix(1, 0)
			var wait, done time.Duration
			const requests = 50_000
			for i := range requests {
				at := time.Duration(float64(i) / (factor * capacity) * 1e9)
				done = s.take(begin.Add(at)).Sub(begin)
				wait = max(wait, done-at-work)
			}
			rate := requests / done.Seconds()
			switch {
			case factor < 1 && wait > 0:
				t.Errorf("%d sleepers of %v: a wait of %v at %.2f of the capacity", k, work, wait, factor)
			case factor > 1 && math.Abs(rate/capacity-1) > 0.002:
				t.Errorf("%d sleepers of %v: %g/s when overloaded, want %g", k, work, rate, capacity)
			}
		}
	}
}

func TestTargets(t *testing.T) {
	o := options{servers: "bucket,sleepers,burner"}
	all, err := o.targets()
	if err != nil || len(all) != 60 {
		t.Errorf("%d targets, want 20 for each server: %v", len(all), err)
	}
	for _, wrong := range []options{{servers: "none"}, {servers: "bucket", rates: "0"}, {servers: "bucket", rates: "x"}} {
		if _, err := wrong.targets(); err == nil {
			t.Errorf("%+v was accepted", wrong)
		}
	}
}

func TestOutcome(t *testing.T) {
	one, err := newTarget(serverSleepers, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		peak         float64
		close, above bool
	}{{100, true, false}, {96, true, false}, {94, false, false}, {104, true, false}, {106, false, true}} {
		o := outcome{target: one, peak: c.peak}
		if o.close() != c.close || o.above() != c.above {
			t.Errorf("peak %g of 100: close %v, above %v", c.peak, o.close(), o.above())
		}
	}
}

// A check fails if fewer than 16 of 18 faults are named, or if a healthy server is once called anything else.
func TestPassed(t *testing.T) {
	check := func(wrong int, healthyVerdicts ...string) bool {
		tab := &table{out: new(strings.Builder), rounds: 1}
		for i, s := range faults() {
			verdict := s.expect[0]
			if i < wrong {
				verdict = diagnose.Unknown
			}
			tab.add(s, report{verdict: verdict})
		}
		for _, verdict := range healthyVerdicts {
			tab.add(healthy()[0], report{verdict: verdict})
		}
		return tab.passed()
	}
	if !check(2, diagnose.UserCPU, diagnose.SystemCPU) {
		t.Error("16 of 18 did not pass")
	}
	if check(3, diagnose.UserCPU) {
		t.Error("15 of 18 passed")
	}
	if check(0, diagnose.UserCPU, diagnose.UserCPU, diagnose.Lock) {
		t.Error("a healthy server that was called a lock passed")
	}
}

func TestReadPeak(t *testing.T) {
	r, err := readPeak([]byte(`{"feasible_max_hz": 400, "infeasible_min_hz": 420, "bottleneck": {"name": "lock", "sentence": "It waits.", "advice": "Split it."}, "other_verdicts": [{"name": "worker-pool"}]}`))
	want := report{verdict: "lock", evidence: "It waits.", advice: "Split it.", second: "worker-pool", feasible: 400, missed: 420}
	if err != nil || fmt.Sprint(r) != fmt.Sprint(want) {
		t.Errorf("read %+v, %v; want %+v", r, err, want)
	}
	for _, document := range []string{"", "{}", `{"bottleneck": null}`} {
		if _, err := readPeak([]byte(document)); err == nil {
			t.Errorf("%q was accepted", document)
		}
	}
}

// One fault from its start to its verdict: the real server, the built program, a load and a diagnosis. The verdict itself is not
// checked, because on a busy machine it is rightly another one.
func TestRateLimitFromStartToVerdict(t *testing.T) {
	t.Parallel()
	st, err := newStage(t.Context(), program.Path(t))
	if err != nil {
		t.Fatal(err)
	}
	defer st.close()
	set, err := startRateLimit(st)
	if err != nil {
		t.Fatal(err)
	}
	set.rates = []int{150, 3000}
	set.slo = "p90<1s errors<1%"
	file := filepath.Join(st.dir, "run.ndjson")
	if err := sweep(t.Context(), st, set, time.Second, 0, file); err != nil {
		t.Fatal(err)
	}
	run, err := result.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Steps) != 2 || run.Steps[1].Total.Statuses[429] == 0 {
		t.Errorf("%d steps, want 2, and answers with 429 in the second: %+v", len(run.Steps), run.Steps)
	}
	r, err := diagnoseFile(t.Context(), st, file)
	if err != nil || r.evidence == "" || !slices.Contains(append(known, diagnose.Unknown), r.verdict) {
		t.Errorf("verdict %q (%s), %v", r.verdict, r.evidence, err)
	}
}
