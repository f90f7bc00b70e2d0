package doctor

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestPredict(t *testing.T) {
	for _, c := range []struct {
		workload string
		change   func(*Facts)
		runOut   float64 // seconds; 0: never
		maxRate  float64
		used     int
		says     string
	}{
		{"rate=5000 short-connections", func(f *Facts) { f.TWReuse = 2 }, 5.6464, 470.5, 28232, "fix, up to 55"},
		{"rate=5000 short-connections", func(f *Facts) { f.TWReuse, f.Timestamps = 1, 0 }, 5.6464, 470.5, 28232, "28,232 / 5,000 = 5.65 s"},
		{"rate=5000 loopback", func(f *Facts) { f.TWReuse = 2 }, 0, 28091.5, 5025, "loopback hides a problem"},
		{"rate=5000", func(f *Facts) { f.TWReuse = 1 }, 0, 28091.5, 5025, "takes a port whose TIME_WAIT is older"},
		{"rate=5000", func(f *Facts) { f.TWReuse, f.TWReuseDelay = 1, 2000 }, 0, 14080.8, 10025, "held 2"},
		{"rate=40000", func(f *Facts) { f.TWReuse = 1 }, 0.7058, 28091.5, 28232, "cannot assign requested address"},
		{"rate=5000 closes=server", func(f *Facts) { f.TWReuse = 0 }, 0, 5646400, 25, "the server closes first"},
		{"rate=5000 addresses=3 targets=2", func(f *Facts) { f.TWReuse, f.MaxTWBuckets = 0, 262144 }, 33.8784, 2823, 169392, "3 source addresses x 2 targets"},
		{"rate=5000 per-connection=100", func(f *Facts) { f.TWReuse = 0 }, 0, 46664.5, 3025, "50 new connections/s"},
		{"rate=5000 keep-alive", func(f *Facts) { f.TWReuse = 0 }, 0, 5646400, 25, "25 connections kept open"},
		{"rate=100000 keep-alive service=1s", func(f *Facts) { f.TWReuse = 0 }, -1, 28232, 28232, "100,000 connections"},
		{"rate=5000", func(f *Facts) { f.TWReuse, f.MaxTWBuckets = 0, 6000 }, 0, 4446400, 6025, "tcp_max_tw_buckets ends TIME_WAIT early"},
		{"rate=5000 duration=5s", func(f *Facts) { f.TWReuse = 0 }, 5.6464, 470.5, 28232, "after the end of this run"},
	} {
		f := goodHost()
		c.change(f)
		w, err := ParseWorkload(c.workload, false)
		if err != nil {
			t.Fatal(err)
		}
		p := Predict(f, w)
		got := 0.0
		if p.RunOutSeconds != nil {
			got = *p.RunOutSeconds
		}
		if c.runOut < 0 && p.PortsRunOut { // at once
			got = c.runOut
		}
		if math.Abs(got-c.runOut) > 0.001 || p.MaxRateHz == nil || math.Abs(*p.MaxRateHz-c.maxRate) > c.maxRate/1000 || p.PortsUsed != c.used {
			t.Errorf("%s: runs out after %v s (want %v), max %v (want %v), uses %d (want %d)", c.workload, got, c.runOut, *p.MaxRateHz, c.maxRate, p.PortsUsed, c.used)
		}
		var text strings.Builder
		r := &Report{Prediction: p}
		r.Add(predicted(t, p, f, w)...)
		if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), c.says) {
			t.Errorf("%s: %v, want %q in\n%s", c.workload, err, c.says, text.String())
		}
		if wants := p.PortsRunOut && w.Duration == 0; r.Failed() != wants {
			t.Errorf("%s: failed is %t", c.workload, r.Failed())
		}
	}
}

// Predictions other than ports: backlog, files and connection tracking.
func TestPredictOther(t *testing.T) {
	f := goodHost()
	f.Somaxconn, f.FilesSoft, f.ConntrackMx, f.Conntracks, f.ConntrackTW = 128, 1024, 1000, 5, 120
	w, err := ParseWorkload("rate=2000 service=100ms stall=500ms closes=server", false)
	if err != nil {
		t.Fatal(err)
	}
	p := Predict(f, w)
	if p.BacklogNeeded != 1000 || p.BacklogLimit != 128 || p.OpenConnections != 200 || p.ClientFiles != 1200 || p.ConntrackEntries != 240200 || p.ServerTimeWait != 28232 {
		t.Errorf("%+v", p)
	}
	warned := 0
	for _, finding := range predicted(t, p, f, w) {
		if finding.Status == Warn {
			warned++
		}
	}
	if warned != 3 {
		t.Errorf("%d warnings, want backlog, files and tracking", warned)
	}
	f.FilesSoft, f.FilesOfLoad = 1<<20, 1024
	if files := named(t, predicted(t, p, f, w), "open files"); files.Status != Warn || !strings.Contains(files.Fix, "for the load: ulimit -n 1024 is the most") {
		t.Errorf("the load may have 1,024 files: %+v", files)
	}
	f.Listener = &Listener{Backlog: 64}
	if p := Predict(f, w); p.BacklogLimit != 64 {
		t.Errorf("backlog limit %d", p.BacklogLimit)
	}
}

// Ports last at the highest rate, and run out slightly above it.
func TestPredictMaxRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := goodHost()
		f.TWReuse = rapid.Int64Range(0, 2).Draw(t, "reuse")
		f.MaxTWBuckets = rapid.SampledFrom([]int64{6000, 20_000, 262_144}).Draw(t, "buckets")
		w := &Workload{
			Rate: 1, PerConnection: rapid.IntRange(0, 5).Draw(t, "per connection"), Addresses: rapid.IntRange(1, 4).Draw(t, "addresses"), Targets: rapid.IntRange(1, 3).Draw(t, "targets"),
			Closes: rapid.SampledFrom([]Side{Client, ServerSide}).Draw(t, "closes"), Loopback: rapid.Bool().Draw(t, "loopback"), Service: 1 + 1e6*1e3/2, Stall: 1,
		}
		limit := *Predict(f, w).MaxRateHz
		w.Rate = limit * 0.999
		if Predict(f, w).PortsRunOut {
			t.Fatalf("runs out below the limit %v", limit)
		}
		w.Rate = limit * 1.001
		if p := Predict(f, w); !p.PortsRunOut || p.PortsLeft != 0 {
			t.Fatalf("does not run out above the limit %v: %+v", limit, p)
		}
	})
}

func TestParseWorkloadErrors(t *testing.T) {
	for text, says := range map[string]string{
		"":                                   "rate is missing",
		"short-connections":                  "rate is missing",
		"rate=":                              "must be a number of requests per second",
		"rate=-1":                            "must be a number",
		"rate=NaN":                           "must be a number",
		"rate=1e10":                          "must be a number",
		"rate=5 rate=6":                      `"rate=6": repeats`,
		"rate=5 keep-alive per-connection=2": "repeats or contradicts another word",
		"rate=5 loopback remote":             "repeats or contradicts",
		"rate=5 loopback=yes":                "takes no value",
		"rate=5 addresses=0":                 "whole number from 1",
		"rate=5 per-connection=x":            "whole number from 1",
		"rate=5 closes=me":                   "closes=client or closes=server",
		"rate=5 service=5":                   "5ms or 60s",
		"rate=5 duration=-1s":                "5ms or 60s",
		"rate=5 fast":                        `"fast": write rate=N`,
	} {
		if w, err := ParseWorkload(text, false); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %+v, %v; want %q", text, w, err, says)
		}
	}
}

// Every valid workload has a prediction, with finite numbers.
func FuzzParseWorkload(f *testing.F) {
	f.Add("rate=5000 short-connections addresses=2 closes=server loopback service=5ms duration=60s stall=1s")
	f.Add("rate=0.001 keep-alive targets=1000000 service=720h")
	f.Add("rate=1e9 per-connection=1000000 addresses=1000000")
	f.Fuzz(func(t *testing.T, text string) {
		w, err := ParseWorkload(text, false)
		if err != nil {
			return
		}
		host := goodHost()
		p := Predict(host, w)
		if p.PortsUsed < 0 || p.PortsLeft < 0 || p.PortsUsed > p.LocalPorts || p.ClientFiles < 0 || p.BacklogNeeded < 0 {
			t.Errorf("%q: %+v", text, p)
		}
		if p.RunOutSeconds != nil && (math.IsNaN(*p.RunOutSeconds) || *p.RunOutSeconds < 0) {
			t.Errorf("%q: runs out after %v", text, *p.RunOutSeconds)
		}
		r := &Report{Prediction: p}
		r.Add(predicted(t, p, host, w)...)
		if err := r.WriteJSON(&strings.Builder{}); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}
