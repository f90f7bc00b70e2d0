package experiment

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// A studyModel plays a run: a stack of app and db behind a proxy, whose variants cost more or less CPU for a request.
type studyModel struct {
	manifest Manifest
	cost     map[string]studyCost // by variant
	random   *rand.Rand

	broken   map[string]result.ErrorClass // variants that fail every request, and how
	peak     map[string]PeakRun           // variants with this search in every block
	ended    map[string]string            // variants whose loads ended early, and why
	validity func(block int, variant string) result.Validity
}

// studyCost is what one request costs, in seconds, and the most that a variant answers a second.
type studyCost struct{ app, db, capacity float64 }

func newStudyModel(blocks int) *studyModel {
	m := &studyModel{
		random:   rand.New(rand.NewPCG(7, 11)),
		validity: func(int, string) result.Validity { return result.Valid },
		cost: map[string]studyCost{
			"php": {900e-6, 2400e-6, 310}, "php-again": {900e-6, 2400e-6, 310}, "pooled": {880e-6, 400e-6, 330}, "go": {120e-6, 380e-6, 2900},
		},
	}
	level := func(rate string) LevelFacts {
		return LevelFacts{Name: "rate-" + rate, Flags: map[string]string{"rate": rate, "per_connection": "1"}}
	}
	variant := func(name, baseline, pool, app string) VariantFacts {
		v := VariantFacts{Name: name, Baseline: baseline, Values: map[string]string{"pool": pool, "app": app}}
		v.Services = []string{"db", app, "nginx"}
		v.Settings = map[string]string{"database": "{{.service." + map[string]string{"none": "db", "pgbouncer": "pgbouncer", "own": "db"}[pool] + ".addr.sql}}"}
		return v
	}
	m.manifest = Manifest{
		Format: Format, Version: Version, Name: "stacks", Title: "One request, three stacks", Question: "What do a pooler and a compiled app gain?",
		Tool: "v1.0.0", Go: "go1.26.0", StartedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Seed: 7, Sum: "0f",
		Command: []string{"spillway", "experiment", "stacks.yaml"}, Baseline: "php", SLO: "p99<70ms errors<0.5%", Watched: []string{"app", "db"},
		Machine:  result.Machine{Host: "lab-1", OS: "Debian GNU/Linux 12", Kernel: "6.1.0", Arch: "amd64", CPU: "Example CPU", Cores: 4, Memory: 8 << 30},
		Programs: []Program{{Name: "nginx", Path: "/usr/sbin/nginx", Package: "nginx", Version: "nginx version: nginx/1.22.1"}},
		Hosts:    []HostFacts{{Name: "client", Address: "10.213.0.2", Ports: "32768-60999"}},
		Levels:   []LevelFacts{level("100"), level("200"), level("300")},
		Peak:     &PeakFacts{SLO: "p99<70ms errors<0.5%", Start: 100, Max: 5000, Step: 0.05},
		Charts:   []Chart{{Metric: MetricPeak, Title: "Peak per stack"}, {Metric: "cpu_percent.db", Level: "rate-300", Title: "Database CPU at 300/s"}},
	}
	again := variant("php-again", "php", "none", "php")
	again.Again = true
	pooled := variant("pooled", "php", "pgbouncer", "php")
	pooled.Differs = []string{"pool"}
	compiled := variant("go", "pooled", "own", "go")
	compiled.Differs = []string{"app", "pool"}
	m.manifest.Variants = []VariantFacts{variant("php", "", "none", "php"), again, pooled, compiled}
	for range blocks {
		var trials []TrialPlan
		for _, i := range m.random.Perm(len(m.manifest.Variants)) {
			trials = append(trials, TrialPlan{Variant: m.manifest.Variants[i].Name, Levels: []string{"rate-100", "rate-200", "rate-300"}})
		}
		m.manifest.Plan = append(m.manifest.Plan, trials)
	}
	return m
}

// only leaves out all other levels than these. They take most of the time to write.
func (m *studyModel) only(levels ...string) {
	m.manifest.Levels = slices.DeleteFunc(m.manifest.Levels, func(l LevelFacts) bool { return !slices.Contains(levels, l.Name) })
	for _, trials := range m.manifest.Plan {
		for i := range trials {
			trials[i].Levels = levels
		}
	}
}

// write leaves the directory of a whole run.
func (m *studyModel) write(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	writeJSON(t, filepath.Join(dir, ManifestFile), m.manifest)
	writeJSON(t, filepath.Join(dir, StateFile), State{Ended: "finished"})
	for block, trials := range m.manifest.Plan {
		drift := math.Exp(0.2 * m.random.NormFloat64()) // that all variants of the block share
		for _, trial := range trials {
			m.trial(t, filepath.Join(dir, BlocksDir, fmt.Sprintf("%03d", block+1), trial.Variant), block+1, trial, drift)
		}
	}
	return dir
}

func writeJSON(t testing.TB, path string, v any) {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func (m *studyModel) noise() float64 { return math.Exp(0.02 * m.random.NormFloat64()) }

func (m *studyModel) trial(t testing.TB, dir string, block int, plan TrialPlan, drift float64) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cost := m.cost[plan.Variant]
	trial := Trial{Block: block, Variant: plan.Variant, Complete: true}
	for _, level := range m.manifest.Levels {
		rate, err := strconv.ParseFloat(level.Flags["rate"], 64)
		if err != nil {
			t.Fatal(err)
		}
		name := level.Name + ResultSuffix
		m.level(t, filepath.Join(dir, name), block, plan.Variant, rate, studyCost{cost.app * drift * m.noise(), cost.db * drift * m.noise(), 2 * cost.capacity / drift})
		trial.Levels = append(trial.Levels, LevelRun{Name: level.Name, File: name, Cooldown: CooldownRun{Reached: true}})
	}
	peak := math.Round(cost.capacity / drift * m.noise())
	trial.Peak = &PeakRun{Feasible: peak, Infeasible: peak * 1.05, Validity: result.Valid}
	if _, broken := m.broken[plan.Variant]; broken {
		trial.Peak.Feasible, trial.Peak.Infeasible = 0, 100
	}
	if peak, given := m.peak[plan.Variant]; given {
		trial.Peak = &peak
	}
	writeJSON(t, filepath.Join(dir, TrialFile), trial)
}

// level writes the result file of one level: two seconds of load with a sample each half a second.
func (m *studyModel) level(t testing.TB, path string, block int, variant string, rate float64, cost studyCost) {
	t.Helper()
	const seconds = 2.0
	n := int64(rate * seconds)
	failed := int64(math.Max(0, rate-cost.capacity) * seconds)
	step := result.StepRun{
		Step: result.Step{Loop: result.LoopOpen, Arrival: "poisson", OfferedHz: rate, Connections: 1000, PerConnection: 1, Duration: seconds, Start: 0.5},
		Total: result.Total{
			Elapsed: seconds, Counters: result.Counters{Due: n, Sent: n, Done: n, Completed: n - failed, Connects: n, Statuses: map[int]int64{200: n - failed}},
			Validity: m.validity(block, variant), Cost: result.Cost{CPUUser: 12e-6 * float64(n), CPUSystem: 30e-6 * float64(n)},
		},
	}
	if failed > 0 {
		step.Total.Statuses[502] = failed
		step.Total.Errors[result.StatusError] = failed
	}
	step.Total.Latency = m.latency(t, n, 2e-3/max(0.1, 1-rate/(1.3*cost.capacity)))
	if class, broken := m.broken[variant]; broken {
		m.fail(t, &step.Total, class)
	}
	each := result.Latency{Response: m.times(t, histogram.NewSlice(), n/2, 2e-3)}
	for range 5 * n / 2 { // the golden files need these numbers to be used up
		m.random.ExpFloat64()
	}
	for second := range int(seconds) {
		slice := result.Slice{Second: second, Length: 1, Latency: each, Connections: 10, InFlight: 3}
		slice.Due, slice.Sent, slice.Done, slice.Completed, slice.Connects = n/2, n/2, n/2, (n-failed)/2, n/2
		step.Slices = append(step.Slices, slice)
	}
	run := &result.Run{
		Header: result.Header{Label: variant, StartedAt: m.manifest.StartedAt, Target: "http://10.213.0.3:6001/goodslist", Machine: m.manifest.Machine, SLO: m.manifest.SLO},
		Steps:  []result.StepRun{step}, End: result.End{Reason: result.Finished, Elapsed: seconds + 1},
		Watches: []result.Watch{{Machine: m.manifest.Machine}},
	}
	run.End.Reason = cmp.Or(m.ended[variant], run.End.Reason)
	run.End.Aborted = m.ended[variant] != ""
	for at := 0.0; at <= seconds+1; at += 0.5 {
		run.Samples = append(run.Samples, studySamples(at, rate, cost)...)
	}
	if err := result.WriteFile(path, run); err != nil {
		t.Fatal(err)
	}
}

// fail makes every request of a step fail at once, with an answer or without.
func (m *studyModel) fail(t testing.TB, total *result.Total, class result.ErrorClass) {
	n := total.Due
	total.Statuses, total.Errors, total.Completed, total.Done = nil, result.Errors{}, 0, 0
	total.Errors[class] = n
	quick := m.latency(t, n, 50e-6)
	total.Latency = result.Latency{ResponseUnanswered: quick.Response}
	if class.Answered() {
		total.Done, total.Statuses = n, map[int]int64{500: n}
		total.Latency = quick
	}
}

func studySamples(at, rate float64, cost studyCost) []result.Sample {
	process := func(name string, each float64) result.Sample {
		return result.Sample{At: at, Sampler: result.SamplerProcess, Subject: name, Values: map[string]float64{
			"cpu_user_seconds_total": at * rate * each * 0.7, "cpu_system_seconds_total": at * rate * each * 0.3,
		}}
	}
	return []result.Sample{
		process("app", cost.app), process("db", cost.db),
		{At: at, Sampler: result.SamplerTCP, Values: map[string]float64{"time_wait": at * rate, "ports_in_use": at*rate + 12, "ports_range": 28232}},
		{At: at, Sampler: result.SamplerHost, Values: map[string]float64{"load1": rate * (cost.app + cost.db), "cores": 4}},
	}
}

// latency is n answers around a mean, in seconds.
func (m *studyModel) latency(t testing.TB, n int64, mean float64) result.Latency {
	t.Helper()
	full := func(mean float64) result.HDR { return m.times(t, histogram.New(), n, mean) }
	return result.Latency{Response: full(mean), Connect: full(mean / 20), FirstByte: full(mean * 0.9)}
}

// times records n times around a mean, in seconds, in an empty histogram.
func (m *studyModel) times(t testing.TB, h *histogram.Histogram, n int64, mean float64) result.HDR {
	t.Helper()
	for range n {
		h.Record(time.Duration(mean * (0.5 + m.random.ExpFloat64()/2) * float64(time.Second)))
	}
	payload, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return result.HDR(payload)
}
