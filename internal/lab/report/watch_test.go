package report

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway/internal/lab/result"
)

// A watchedHost plays what samplers tell while a run loads a host: each request costs CPU, opens a connection and
// commits half a time; ports pile up for a minute.
type watchedHost struct {
	name   string
	values map[string]map[string]float64 // by sampler and subject, what was last told
}

// played adds the samples of a host and its watch record to the run. cores bound the CPU.
func played(run *result.Run, host string) {
	h := &watchedHost{name: host, values: make(map[string]map[string]float64)}
	end := 10.0
	if n := len(run.Steps); n > 0 {
		end = run.Steps[n-1].Start + run.Steps[n-1].Total.Elapsed
	}
	const every = 0.5
	opened := 0.0
	for at := 0.0; at <= end+every; at += every {
		hz := rateAt(run, at-every/2)
		opened += every * hz
		h.advance(every, hz, min(opened, 28232))
		for _, of := range slices.Sorted(mapKeys(h.values)) {
			sampler, subject, _ := strings.Cut(of, " ")
			values := make(map[string]float64)
			for name, v := range h.values[of] {
				values[name] = math.Round(v*1e6) / 1e6
			}
			run.Samples = append(run.Samples, result.Sample{At: at, Host: host, Sampler: sampler, Subject: subject, Values: values})
		}
	}
	run.Watches = append(run.Watches, result.Watch{
		Host: host, Machine: run.Header.Machine, ClockOffset: -0.0312 * float64(min(1, len(host))), ClockError: 0.0004,
		Subjects: []result.Subject{{Sampler: "process", Name: "app", Detail: "process 4711, listens on :8080"}, {Sampler: "tcp"}, {Sampler: "host"}},
	})
}

func mapKeys(m map[string]map[string]float64) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// rateAt is the answered rate at a time.
func rateAt(run *result.Run, at float64) float64 {
	for i := range run.Steps {
		if s := &run.Steps[i]; at >= s.Start && at < s.Start+s.Total.Elapsed {
			return float64(s.Total.Done) / s.Total.Elapsed
		}
	}
	return 0
}

func (h *watchedHost) advance(dt, hz, ports float64) {
	add := func(of string, figures map[string]float64) {
		if h.values[of] == nil {
			h.values[of] = map[string]float64{}
		}
		for name, v := range figures {
			if result.Counter(name) {
				v = h.values[of][name] + v*dt
			}
			h.values[of][name] = v
		}
	}
	busy := min(1, hz/3000)
	add("process app", map[string]float64{
		"cpu_user_seconds_total": hz * 250e-6, "cpu_system_seconds_total": hz * 150e-6, "run_queue_wait_seconds_total": busy * busy,
		"rss_bytes": 30<<20 + hz*1024, "fds": 40 + hz/20, "fds_limit": 1024, "threads": 9, "processes": 1,
	})
	add("process db", map[string]float64{
		"cpu_user_seconds_total": hz * 320e-6, "cpu_system_seconds_total": hz * 90e-6, "run_queue_wait_seconds_total": busy / 2,
		"rss_bytes": 400 << 20, "fds": 310, "fds_limit": 65536, "threads": 22, "processes": 22,
	})
	add("host", map[string]float64{
		"cpu_user_seconds_total": hz * 570e-6, "cpu_system_seconds_total": hz * 240e-6, "cpu_softirq_seconds_total": hz * 30e-6,
		"cpu_iowait_seconds_total": 0.01, "cpu_steal_seconds_total": 0.2 * busy, "cpu_idle_seconds_total": 4 - hz*840e-6 - 0.2*busy - 0.01,
		"cores": 4, "load1": 4 * busy, "psi_cpu_some_seconds_total": busy / 2, "memory_available_bytes": 5 << 30,
	})
	add("tcp", map[string]float64{
		"time_wait": ports * 0.95, "ports_in_use": ports, "ports_range": 28232, "established": 100, "in_use": 140,
		"active_opens_total": hz, "passive_opens_total": hz, "segments_out_total": hz * 6, "retransmits_total": hz * 6 * 0.002 * busy,
		"listen_drops_total": max(0, hz-2000) / 50, "listen_overflows_total": max(0, hz-2000) / 50,
	})
	add("listener 127.0.0.1:8080", map[string]float64{"accept_queue": math.Floor(511 * busy * busy), "accept_queue_limit": 511})
	add("postgres db", map[string]float64{
		"connections": 12 + 50*busy, "connections_limit": 100, "connections_active": 2 + 40*busy,
		"wait_lock": 20 * busy * busy, "wait_io": 4 * busy, "wait_client": 1, "wait_lwlock": 0,
		"commits_total": hz / 2, "rollbacks_total": 0, "statements_total": hz, "fsyncs_total": hz / 10, "wal_bytes_total": hz * 700,
	})
	add("redis cache", map[string]float64{
		"connections": 30, "connections_limit": 10000, "commands_total": hz * 2, "memory_bytes": 64 << 20,
		"cpu_user_seconds_total": hz * 12e-6, "cpu_system_seconds_total": hz * 20e-6,
	})
	add("watch tcp", map[string]float64{"reads_total": 5, "failures_total": 0, "cpu_seconds_total": 0.004, "read_seconds": 0.0007})
}

// unwatchedRun is watchedRun without its samples.
func unwatchedRun(t testing.TB) *result.Run {
	return synthetic{capacity: 900, base: 2 * time.Millisecond, seconds: 12, slo: true, seed: 1}.open(t, 500, 3000)
}

func watchedRun(t testing.TB) *result.Run {
	run := unwatchedRun(t)
	played(run, "")
	said := result.Sample{At: 3.02, Sampler: "postgres", Subject: "db", Error: "pg_stat_wal: permission denied; GRANT pg_monitor TO app"}
	run.Samples = append(run.Samples, said, said)
	return run
}

func watchedPair(t testing.TB) *result.Run {
	run := synthetic{capacity: 900, base: 2 * time.Millisecond, seconds: 12, seed: 1}.open(t, 500)
	played(run, "")
	played(run, "db-1")
	return run
}

// watchedAlone is a file of spillway watch, without steps.
func watchedAlone(t testing.TB) *result.Run {
	run := synthetic{capacity: 900, base: 2 * time.Millisecond, seconds: 20, seed: 1}.open(t, 400)
	played(run, "")
	run.Steps, run.Header.Target, run.Header.Seed, run.Header.Command = nil, "", 0, []string{"spillway", "watch", "--watch", "app=:8080"}
	return run
}

func TestGoldenWatch(t *testing.T) {
	t.Parallel()
	staged, pair, alone := watchedRun(t), watchedPair(t), watchedAlone(t)
	golden(t, "watch.txt", written(t, Text, staged))
	golden(t, "watch.md", written(t, Markdown, staged))
	golden(t, "watch.json", written(t, JSON, staged))
	golden(t, "watch-pair.txt", written(t, Text, pair))
	golden(t, "watch-alone.txt", written(t, Text, alone))
	golden(t, "watch-alone.md", written(t, Markdown, alone))
}

// TestWatchFigures checks the usage per request in the document.
func TestWatchFigures(t *testing.T) {
	t.Parallel()
	var d Document
	if err := json.Unmarshal([]byte(written(t, JSON, watchedRun(t))), &d); err != nil {
		t.Fatal(err)
	}
	u := d.Steps[0].Watch // 500/s: nothing is scarce
	for _, c := range []struct {
		sampler, subject string
		figure           result.Figure
		want             float64
	}{
		{result.SamplerProcess, "app", result.CPUUserPerRequest, 250e-6},
		{result.SamplerProcess, "app", result.CPUSystemPerRequest, 150e-6},
		{result.SamplerProcess, "db", result.CPUPerRequest, 410e-6},
		{result.SamplerPostgres, "db", result.CommitsPerRequest, 0.5},
		{result.SamplerTCP, "", result.ActiveOpensPerRequest, 1},
		{result.SamplerRedis, "cache", "commands_per_request", 2},
		{result.SamplerWatch, "", result.CPUCores, 0.004},
	} {
		if got := u.Find(c.sampler, "", c.subject).Value(c.figure); !(math.Abs(got-c.want) <= 0.05*c.want) {
			t.Errorf("%s of %s %s: %g, want %g within 5 %%", c.figure, c.sampler, c.subject, got, c.want)
		}
	}
	if len(d.WatchErrors) != 1 || d.WatchErrors[0].Subject != "db" {
		t.Errorf("errors %+v", d.WatchErrors)
	}
	if d.Watch != nil {
		t.Error("a run with steps has no sum over the whole time")
	}
}

// TestCSVWithoutWatch: samples do not change the other formats.
func TestCSVWithoutWatch(t *testing.T) {
	t.Parallel()
	for _, format := range []Format{CSV, CSVSeconds, Bench} {
		if written(t, format, watchedRun(t)) != written(t, format, unwatchedRun(t)) {
			t.Errorf("%s differs", format)
		}
	}
}

// TestWatchPanels checks which charts each run has. Charts without data are left out.
func TestWatchPanels(t *testing.T) {
	t.Parallel()
	titles := func(run *result.Run) string {
		shown, err := decode([]*result.Run{run})
		if err != nil {
			t.Fatal(err)
		}
		line, err := newTimeline(shown[0], 100)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, c := range append(line.loadCharts(nil), line.watchCharts()...) {
			all = append(all, c.Title)
		}
		return strings.Join(all, "\n")
	}
	all := titles(watchedRun(t))
	for _, want := range []string{"requests/s", "CPU by process", "wait for a CPU", "host CPU", "ports in use of 28,232", "new connections/s", "accept queue", "listen drops/s", "db: connections", "db: per second", "cache: per second"} {
		if !strings.Contains(all, want) {
			t.Errorf("no panel %q in\n%s", want, all)
		}
	}
	if pair := titles(watchedPair(t)); !strings.Contains(pair, "db-1: host CPU") || !strings.Contains(pair, "lab-1: host CPU") || strings.Contains(pair, "listen drops") {
		t.Errorf("charts of two hosts:\n%s", pair)
	}
	if alone := titles(watchedAlone(t)); strings.Contains(alone, "requests/s") || !strings.Contains(alone, "CPU by process") {
		t.Errorf("charts of a watch alone:\n%s", alone)
	}
	few := stagedRun(t)
	few.Samples = []result.Sample{{At: 1, Sampler: "tcp", Error: "no"}, {At: 2, Sampler: "process", Subject: "a", Values: map[string]float64{"fds": 1}}}
	if got := titles(few); strings.Contains(got, "CPU") || strings.Contains(got, "TIME_WAIT") {
		t.Errorf("charts without data:\n%s", got)
	}
	for _, format := range Formats() {
		written(t, format, few)
		if !slices.Contains(OneRunFormats(), format) {
			written(t, format, few, watchedAlone(t))
		}
	}
}

// TestWatchIsEscaped puts markup into every text of a watch.
func TestWatchIsEscaped(t *testing.T) {
	t.Parallel()
	const evil = `"><script>alert(1)</script>` + "%s\x1b[31m\n| a | b |"
	run := watchedPair(t)
	for i := range run.Samples {
		s := &run.Samples[i]
		s.Subject += evil
		if s.Host != "" {
			s.Host = evil
		}
	}
	run.Samples = append(run.Samples, result.Sample{At: 1, Sampler: "tcp", Error: evil})
	run.Watches[0].Subjects[0].Detail = evil
	page := written(t, HTML, run)
	if strings.Contains(page, "<script>alert") || strings.Contains(page, "NaN") || strings.Contains(page, "%!") {
		t.Error("the page holds markup or a broken figure")
	}
	if text := written(t, Text, run); strings.Contains(text, "\x1b") || strings.Contains(text, "%!") {
		t.Error("the terminal gets a control character or a broken figure")
	}
	if md := written(t, Markdown, run); strings.Contains(md, "<script") || strings.Contains(md, "\n| a | b |") {
		t.Error("markup in Markdown")
	}
}

// TestBoundedCPU: a figure below the resolution of its counter is printed as a bound.
func TestBoundedCPU(t *testing.T) {
	samples := func(user, system, resolution float64) []*result.Series {
		var all []result.Sample
		for i := range 3 {
			all = append(all, result.Sample{At: float64(i), Sampler: result.SamplerProcess, Subject: "app", Values: map[string]float64{
				"cpu_user_seconds_total": user / 2 * float64(i), "cpu_system_seconds_total": system / 2 * float64(i),
				"cpu_resolution_seconds": resolution, "cpu_split_resolution_seconds": 0.01,
			}})
		}
		return result.SeriesOf(all)
	}
	for _, c := range []struct {
		user, system, resolution float64
		answered                 int64
		want, percent            string
	}{
		{0.01, 0, 0.01, 410_000, "CPU < 244 ns/request, < 0.05 cores", "< 5 %"},
		{0.01, 0, 0.01, 0, "CPU < 0.05", "< 5 %"},
		{0.01, 0.01, 1e-9, 1000, "CPU 20 µs/request, 0.01 cores", "1 %"},
		{0, 0, 1e-9, 1000, "CPU < 1 ns/request, < 0.001 cores", "< 0.1 %"},
		{0.2, 0.05, 1e-9, 1000, "CPU 250 µs/request (200 µs user + < 100 µs sys), 0.125 cores", "10 + < 5 = 12.5 %"},
	} {
		u := result.UsageOf(samples(c.user, c.system, c.resolution), 0, 2, c.answered)
		if got := strings.Join(usageParts(u.Subjects[0], c.answered > 0), ", "); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
		if got := corePercent(u.Subjects[0]); got != c.percent {
			t.Errorf("%q, want %q", got, c.percent)
		}
	}
}

// TestGapRemark says from when until when a restarted process was not read.
func TestGapRemark(t *testing.T) {
	values := map[string]float64{"cpu_user_seconds_total": 1}
	r := run{Run: &result.Run{Samples: []result.Sample{
		{At: 2.0, Sampler: result.SamplerProcess, Subject: "app", Values: values},
		{At: 3.0, Sampler: result.SamplerProcess, Subject: "app", Error: "process 7 (:80) ended: nothing listens on port 80"},
		{
			At: 5.04, Sampler: result.SamplerProcess, Subject: "app", Values: values,
			Gap: &result.Gap{From: 2, Reason: "process 7 (:80) ended; process 9 (nginx) took its place"},
		},
	}}}
	r.watch()
	want := "process app was not read from 2 s to 5.04 s: process 7 (:80) ended; process 9 (nginx) took its place"
	if got := r.watchRemarks(); len(got) != 1 || got[0] != want {
		t.Errorf("%q, want %q", got, want)
	}
	if e := r.watchErrors()[0]; *e.UnreadFrom != 2 || *e.UnreadUntil != 5.04 {
		t.Errorf("%+v", e)
	}
}
