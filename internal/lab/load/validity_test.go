package load

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// sound is a step of 10 s at 1,000/s without problems.
func sound(t *testing.T) (*stepRun, *result.Total, *threadReport) {
	t.Helper()
	tg, err := target.Open(t.Context(), target.Config{URL: "http://127.0.0.1/", Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	s := &stepRun{
		config:    &Config{Target: tg},
		step:      &Step{Profile: Constant(1000, 10*time.Second), Connections: 100, Duration: 10 * time.Second},
		collector: newCollector(1),
		reports:   []threadReport{{usage: usage{user: time.Second, system: 2 * time.Second, wait: 100 * time.Millisecond}, wall: int64(10 * time.Second)}},
	}
	for range 10000 {
		s.collector.latency.response.Record(2 * time.Millisecond)
		s.collector.latency.service.Record(2 * time.Millisecond)
		s.collector.latency.lag.Record(50 * time.Microsecond)
	}
	for range 10 {
		s.collector.means = append(s.collector.means, windowMean{1, 1000, 2 * time.Millisecond, 2})
	}
	total := &result.Total{Elapsed: 10, Little: result.Little{InFlightMean: 2, Rate: 1000, ServiceMean: 0.002, Ratio: 1}}
	total.Due, total.Done, total.Sent = 10000, 10000, 10000
	total.Cost = s.cost()
	sums := &threadReport{wall: int64(10 * time.Second), counters: target.Counters{Reads: 10000, Unread: 10000 * 1000}}
	return s, total, sums
}

func TestJudge(t *testing.T) {
	for name, test := range map[string]struct {
		spoil  func(*stepRun, *result.Total, *threadReport)
		want   result.Validity
		reason string
	}{
		"sound":     {func(*stepRun, *result.Total, *threadReport) {}, result.Valid, ""},
		"no ports":  {func(_ *stepRun, t *result.Total, _ *threadReport) { t.Errors[result.NoLocalPort] = 20 }, result.GeneratorLimited, "local ports"},
		"few ports": {func(_ *stepRun, t *result.Total, _ *threadReport) { t.Errors[result.NoLocalPort] = 5 }, result.Valid, ""},
		"late":      {func(_ *stepRun, _ *result.Total, b *threadReport) { b.late = 200 }, result.GeneratorLimited, "98.0 %"},
		"lag": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			for range 1000 {
				s.collector.latency.lag.Record(5 * time.Millisecond)
			}
		}, result.GeneratorLimited, "pacer lag is 5"},
		"lag on a contended host": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			for range 1000 {
				s.collector.latency.lag.Record(5 * time.Millisecond)
			}
			s.reports[0].usage.wait = 600 * time.Millisecond
		}, result.HostContended, "used this host's CPUs"},
		"busy":      {func(_ *stepRun, t *result.Total, _ *threadReport) { t.Cost.ThreadBusyMax = 0.95 }, result.GeneratorLimited, "busy 95 %"},
		"contended": {func(s *stepRun, _ *result.Total, _ *threadReport) { s.reports[0].usage.wait = 2 * time.Second }, result.HostContended, "waited 20 %"},
		"unread":    {func(_ *stepRun, _ *result.Total, b *threadReport) { b.counters.Unread = 10000 * 500_000 }, result.GeneratorLimited, "were unread for 500"},
		"sums":      {func(_ *stepRun, t *result.Total, _ *threadReport) { t.Little.Ratio = 1.3 }, result.GeneratorLimited, "Little's law does not hold"},
		"idle connections": {func(s *stepRun, t *result.Total, _ *threadReport) {
			s.step.Profile = Profile{}
		}, result.GeneratorLimited, "of 100 connections only 2.0"},
		"drift": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			for i := range s.collector.means {
				s.collector.means[i].response += time.Duration(i) * time.Millisecond
			}
		}, result.NotStationary, "changed from"},
		"noise": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			for i := range s.collector.means {
				s.collector.means[i].response += time.Duration(i%3) * time.Millisecond
			}
		}, result.Valid, ""},
		"too few": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			s.collector.latency = newLatencies(histogram.New)
		}, result.TooFewSamples, "0 answers are fewer"},
		"too few for the SLO": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			s.config.SLO, _ = result.ParseSLO("p99.99<1s")
		}, result.TooFewSamples, "are too few for p99.99"},
		"overload": {func(_ *stepRun, t *result.Total, _ *threadReport) { t.Errors[result.Unsent] = 500 }, result.Valid, "did not keep up: 500 arrivals"},
		"most severe": {func(s *stepRun, t *result.Total, _ *threadReport) {
			s.reports[0].usage.wait, t.Cost.ThreadBusyMax = 2*time.Second, 0.95
		}, result.GeneratorLimited, "waited 20 %"},
	} {
		s, total, sums := sound(t)
		test.spoil(s, total, sums)
		got, reasons := s.judge(total, sums)
		if got != test.want || !strings.Contains(strings.Join(reasons, "\n"), test.reason) || test.reason == "" && len(reasons) > 0 {
			t.Errorf("%s: %s %q, want %s and %q", name, got, reasons, test.want, test.reason)
		}
	}
}

func TestMoments(t *testing.T) {
	var m moments
	for _, x := range []float64{2, 4, 4, 4, 5, 5, 7, 9} {
		m.add(x)
	}
	if m.mean() != 5 || m.stdDev() != 2 || m.min != 2 || m.max != 9 {
		t.Errorf("%+v", m)
	}
}

// threadCPU returns the CPU time of the current thread.
func threadCPU(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

func TestUsage(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := processUsage()
	for start := threadCPU(t); threadCPU(t)-start < 50*time.Millisecond; {
	}
	used := processUsage().since(before)
	if used.cpu() < 45*time.Millisecond || used.cpu() > 10*time.Second || used.memoryMax == 0 {
		t.Errorf("50 ms of work are %+v", used)
	}
	if _, known := cpuPressure(); !known {
		t.Log("this kernel does not report pressure")
	}
}

// TestSelfTestParts runs what depends least on how busy the machine is; other
// programs can only make it worse, so the best of three counts. A part may only fail if
// the generator says that they did.
func TestSelfTestParts(t *testing.T) {
	for _, part := range []func() (Finding, error){
		func() (Finding, error) { return testCeiling(t.Context(), 1) },
		func() (Finding, error) { return testStall(t.Context(), 1) },
	} {
		var findings []Finding
		for len(findings) < 3 && (len(findings) == 0 || !findings[len(findings)-1].Passed) {
			finding, err := part()
			if err != nil {
				t.Fatal(err)
			}
			findings = append(findings, finding)
		}
		if last := findings[len(findings)-1]; !last.Passed && !last.contended {
			t.Errorf("%+v", findings)
		}
	}
}
