package result

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// sampled returns samples of one process with one row of figures per time.
func sampled(at []float64, figures map[string][]float64) []Sample {
	var samples []Sample
	for i := range at {
		values := make(map[string]float64)
		for name, row := range figures {
			if !math.IsNaN(row[i]) {
				values[name] = row[i]
			}
		}
		samples = append(samples, Sample{At: at[i], Sampler: SamplerProcess, Subject: "app", Values: values})
	}
	return samples
}

// drawTimes draws ascending times of samples and a span that holds at least two of them.
func drawTimes(t *rapid.T) (at []float64, from, to float64) {
	gaps := rapid.SliceOfN(rapid.Float64Range(0.1, 2), 3, 40).Draw(t, "gaps")
	now := rapid.Float64Range(-5, 5).Draw(t, "first")
	for _, gap := range gaps {
		at = append(at, now)
		now += gap
	}
	first := rapid.IntRange(0, len(at)-2).Draw(t, "from")
	last := rapid.IntRange(first+1, len(at)-1).Draw(t, "to")
	from = at[first] - rapid.Float64Range(0, 0.05).Draw(t, "before")
	to = at[last] + rapid.Float64Range(0, 0.05).Draw(t, "behind")
	return at, from, to
}

// TestGrowthOfSteadyCounter: the growth of a steady counter is rate times length, wherever its samples lie.
func TestGrowthOfSteadyCounter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at, from, to := drawTimes(t)
		hz, start := rapid.Float64Range(0, 1e6).Draw(t, "hz"), rapid.Float64Range(0, 1e9).Draw(t, "start")
		row := make([]float64, len(at))
		for i := range at {
			row[i] = start + hz*(at[i]-at[0])
		}
		track := SeriesOf(sampled(at, map[string][]float64{"x_total": row}))[0]
		got, want := track.Growth("x_total", from, to), hz*(to-from)
		if math.Abs(got-want) > 1e-6*(want+start+1)*1e-3+1e-9*start+1e-6 {
			t.Fatalf("grew by %g, want %g", got, want)
		}
	})
}

// TestGrowthAgainstModel compares with a model that adds up every segment between two samples.
func TestGrowthAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at, from, to := drawTimes(t)
		row := make([]float64, len(at))
		for i, step := range rapid.SliceOfN(rapid.Float64Range(0, 100), len(at), len(at)).Draw(t, "steps") {
			row[i] = step
			if i > 0 {
				row[i] += row[i-1]
			}
		}
		want, covered := 0.0, 0.0
		for i := 1; i < len(at); i++ {
			share := max(0, min(to, at[i])-max(from, at[i-1])) / (at[i] - at[i-1])
			want += share * (row[i] - row[i-1])
			covered += share * (at[i] - at[i-1])
		}
		want *= (to - from) / covered
		track := SeriesOf(sampled(at, map[string][]float64{"x_total": row}))[0]
		if got := track.Growth("x_total", from, to); math.Abs(got-want) > 1e-6 {
			t.Fatalf("grew by %g, the model says %g", got, want)
		}
	})
}

// TestGrowthIsAbsent: unknown growth is NaN.
func TestGrowthIsAbsent(t *testing.T) {
	nan := math.NaN()
	for name, c := range map[string]struct {
		at, row  []float64
		from, to float64
		want     float64
	}{
		"two samples":               {[]float64{0, 10}, []float64{5, 25}, 0, 10, 20},
		"between two samples":       {[]float64{0, 10}, []float64{5, 25}, 4, 6, 4},
		"a sample early, one late":  {[]float64{-1, 11}, []float64{0, 12}, 0, 10, 10},
		"no sample before the end":  {[]float64{1, 9}, []float64{0, 8}, 0, 10, 10},
		"covered for a third":       {[]float64{0, 3}, []float64{0, 3}, 0, 10, nan},
		"one sample":                {[]float64{5}, []float64{5}, 0, 10, nan},
		"none":                      {nil, nil, 0, 10, nan},
		"no time":                   {[]float64{0, 10}, []float64{5, 25}, 4, 4, nan},
		"backwards within":          {[]float64{0, 4, 6, 10}, []float64{50, 60, 1, 5}, 0, 10, nan},
		"backwards before the span": {[]float64{0, 1, 2, 10}, []float64{50, 1, 2, 10}, 2, 10, 8},
		"all before":                {[]float64{0, 1}, []float64{0, 1}, 5, 10, nan},
		"all behind":                {[]float64{11, 12}, []float64{0, 1}, 5, 10, nan},
		"a figure that comes late":  {[]float64{0, 1, 2, 3}, []float64{nan, 1, 2, nan}, 1, 2, 1},
	} {
		got := math.NaN()
		if tracks := SeriesOf(sampled(c.at, map[string][]float64{"x_total": c.row})); len(tracks) > 0 {
			got = tracks[0].Growth("x_total", c.from, c.to)
		}
		if got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%s: grew by %g, want %g", name, got, c.want)
		}
	}
}

func TestUsagePerRequest(t *testing.T) {
	at := []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	row := func(each float64) (values []float64) {
		for _, x := range at {
			values = append(values, 100+each*x)
		}
		return values
	}
	rss := row(1 << 20)
	samples := sampled(at, map[string][]float64{
		"cpu_user_seconds_total": row(0.3), "cpu_system_seconds_total": row(0.1), "run_queue_wait_seconds_total": row(0.02),
		"rss_bytes": rss, "fds": row(2), "fds_limit": row(0),
	})
	u := UsageOf(SeriesOf(samples), 0, 10, 4000)
	p := u.Subjects[0]
	expect(t, p, map[Figure]float64{
		CPUUser: 3, CPUSystem: 1, CPUCores: 0.4, CPUPerRequest: 1e-3, CPUUserPerRequest: 750e-6, CPUSystemPerRequest: 250e-6,
		RunQueueWait: 0.02, "run_queue_wait_seconds_per_request": 50e-6,
		RSSMax: rss[10], FDsMax: 120, FDsLimit: 100, ThreadsMax: math.NaN(),
	})
	expect(t, UsageOf(SeriesOf(samples), 0, 10, 0).Subjects[0], map[Figure]float64{CPUPerRequest: math.NaN(), CPUUser: 3})
	if short := UsageOf(SeriesOf(samples), 4.5, 5.5, 400).Subjects[0]; len(short.Figures) > 0 {
		t.Error("one sample in the span carries no figure")
	}
	if UsageOf(nil, 0, 10, 1) != nil {
		t.Error("nothing was watched")
	}
}

// expect compares figures; NaN is an unknown one.
func expect(t *testing.T, u *SubjectUsage, figures map[Figure]float64) {
	t.Helper()
	for name, want := range figures {
		if got := u.Value(name); math.IsNaN(got) != math.IsNaN(want) || math.Abs(got-want) > 1e-9 {
			t.Errorf("%s of %s %s: %g, want %g", name, u.Sampler, u.Name, got, want)
		}
	}
}

// tcpSamples has ports that grow by hz from so many, until a plateau.
func tcpSamples(first, hz, plateau float64) []Sample {
	var samples []Sample
	for at := 0.0; at <= 20; at += 0.2 {
		samples = append(samples, Sample{At: at, Sampler: SamplerTCP, Values: map[string]float64{
			"ports_in_use": min(first+hz*at, plateau), "ports_range": 1000, "time_wait": min(first+hz*at, plateau),
			"active_opens_total": 7 + 30*at, "segments_out_total": 1000 * at, "retransmits_total": 10 * at,
		}})
	}
	return samples
}

func TestUsagePorts(t *testing.T) {
	for name, c := range map[string]struct {
		samples    []Sample
		left, gone float64 // gone NaN: they do not grow
	}{
		"growing":        {tcpSamples(100, 20, 1e9), 500, 25},
		"steady":         {tcpSamples(100, 0, 1e9), 900, math.NaN()},
		"hardly growing": {tcpSamples(100, 0.5, 1e9), 890, math.NaN()},
		"grown, no more": {tcpSamples(100, 100, 700), 300, math.NaN()},
		"gone":           {tcpSamples(100, 100, 1000), 0, 0},
	} {
		u := UsageOf(SeriesOf(c.samples), 0, 20, 600).Subjects[0]
		if left := u.Value(PortsLeft); !(math.Abs(left-c.left) <= 1e-6) {
			t.Errorf("%s: %g left, want %g", name, left, c.left)
		}
		if gone := u.Value(PortsGone); math.IsNaN(gone) != math.IsNaN(c.gone) || math.Abs(gone-c.gone) > 1e-6 {
			t.Errorf("%s: gone in %g, want %g", name, gone, c.gone)
		}
		expect(t, u, map[Figure]float64{ActiveOpensPerRequest: 1, RetransmitShare: 0.01, "listen_drops": math.NaN()})
	}
}

func TestUsageOfTheRest(t *testing.T) {
	var samples []Sample
	for i := range 6 {
		at := float64(i)
		samples = append(
			samples,
			Sample{At: at, Sampler: SamplerHost, Values: map[string]float64{
				"cpu_user_seconds_total": at, "cpu_system_seconds_total": at / 2, "cpu_idle_seconds_total": at / 4, "cpu_softirq_seconds_total": 0,
				"cpu_steal_seconds_total": at / 4, "cpu_iowait_seconds_total": 0, "cores": 2, "load1": at, "psi_cpu_some_seconds_total": at / 10,
			}},
			Sample{At: at, Sampler: SamplerListener, Subject: "127.0.0.1:80", Values: map[string]float64{"accept_queue": at, "accept_queue_limit": 511}},
			Sample{At: at, Sampler: SamplerPostgres, Subject: "db", Values: map[string]float64{
				"commits_total": 100 * at, "fsyncs_total": 50 * at, "connections": 12 - at, "connections_limit": 100,
				"wait_lock": 2, "wait_io": at, "wait_client": 0,
			}},
			Sample{At: at, Sampler: SamplerWatch, Subject: "tcp", Values: map[string]float64{"cpu_seconds_total": at / 1000, "failures_total": 0}},
			Sample{At: at, Sampler: SamplerWatch, Subject: "host", Values: map[string]float64{"cpu_seconds_total": at / 500, "failures_total": 1}},
			Sample{At: at, Sampler: "weather", Values: map[string]float64{"rain": 1}},
		)
	}
	u := UsageOf(SeriesOf(samples), 0, 5, 1000)
	db := u.Find(SamplerPostgres, "", "db")
	expect(t, u.Find(SamplerHost, "", ""), map[Figure]float64{UserShare: 0.5, StealShare: 0.125, LoadMean: 2.5, "psi_cpu_some_share": 0.1})
	expect(t, u.Find(SamplerListener, "", "127.0.0.1:80"), map[Figure]float64{AcceptQueueMax: 5, AcceptQueueLimit: 511})
	expect(t, u.Find(SamplerWatch, "", ""), map[Figure]float64{CPUCores: 0.003, "failures": 0})
	expect(t, db, map[Figure]float64{
		CommitsPerRequest: 0.5, Fsyncs: 50, ConnectionsMax: 12, BusiestWaitMean: 2.5, "statements_per_request": math.NaN(),
	})
	if db.BusiestWait != "io" || len(u.Of(SamplerWatch)) != 1 || len(u.Subjects) != 4 {
		t.Errorf("%d subjects, busiest wait %q", len(u.Subjects), db.BusiestWait)
	}
}
