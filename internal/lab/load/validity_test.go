package load

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/exit"
	"spillway/internal/histogram"
	"spillway/internal/lab/cores"
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
		step:      &Step{Rate: 1000, Connections: 100, Duration: 10 * time.Second},
		collector: newCollector(1),
		reports:   []threadReport{{usage: usage{user: time.Second, system: 2 * time.Second, wait: 100 * time.Millisecond}, wall: int64(10 * time.Second)}},
	}
	for range 10000 {
		s.collector.latency.response.Record(2 * time.Millisecond)
		s.collector.latency.service.Record(2 * time.Millisecond)
		s.collector.latency.lag.Record(50 * time.Microsecond)
	}
	s.phase = newPhase(0, s.step, 0, 1)
	s.trend = trend{period: pointsPeriod}
	for range 40 {
		s.trend.points = append(s.trend.points, point{ended: 250, waited: 250 * int64(2*time.Millisecond)})
	}
	total := &result.Total{Elapsed: 10, Little: result.Little{InFlightMean: 2, Rate: 1000, ServiceMean: 0.002, Ratio: 1}}
	total.Due, total.Done, total.Sent, total.Completed = 10000, 10000, 10000, 10000
	total.Cost = s.cost()
	sums := &threadReport{wall: int64(10 * time.Second), counters: target.Counters{Reads: 10000, Unread: 10000 * 1000}}
	return s, total, sums
}

// TestOwnThreadsAreNoOtherPrograms: threads of a load of sessions wait for each other on a core on which hardly anything else ran.
func TestOwnThreadsAreNoOtherPrograms(t *testing.T) {
	sessions, err := target.Open(t.Context(), target.Config{URL: "https://127.0.0.1/", Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for foreign, want := range map[float64]result.Validity{0.3: result.Valid, 2.5: result.HostContended} {
		s, total, sums := sound(t)
		s.config.Target, s.reports[0].usage.wait = sessions, 2*time.Second
		s.host.foreign, s.host.foreignKnown = foreign, true
		if s.judge(total, sums); total.Validity != want {
			t.Errorf("other programs used %g s of 10 s: %s %q, want %s", foreign, total.Validity, total.Sentences(), want)
		}
	}
}

// judgeTest spoils a step in one way.
type judgeTest struct {
	spoil  func(*stepRun, *result.Total, *threadReport)
	want   result.Validity
	reason string
}

func checkJudge(t *testing.T, tests map[string]judgeTest) {
	t.Helper()
	for name, test := range tests {
		s, total, sums := sound(t)
		test.spoil(s, total, sums)
		s.judge(total, sums)
		got, reasons := total.Validity, total.Sentences()
		if got != test.want || !strings.Contains(strings.Join(reasons, "\n"), test.reason) || test.reason == "" && len(reasons) > 0 {
			t.Errorf("%s: %s %q, want %s and %q", name, got, reasons, test.want, test.reason)
		}
	}
}

func TestJudge(t *testing.T) {
	checkJudge(t, map[string]judgeTest{
		"sound":     {func(*stepRun, *result.Total, *threadReport) {}, result.Valid, ""},
		"no ports":  {func(_ *stepRun, t *result.Total, _ *threadReport) { t.Errors[result.NoLocalPort] = 20 }, result.GeneratorLimited, "local ports"},
		"few ports": {func(_ *stepRun, t *result.Total, _ *threadReport) { t.Errors[result.NoLocalPort] = 5 }, result.Valid, ""},
		"late":      {func(_ *stepRun, _ *result.Total, b *threadReport) { b.late = 200 }, result.GeneratorLimited, "98 %"},
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
			s.step.Rate = 0
		}, result.GeneratorLimited, "of 100 connections only 2"},
		"drift": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			for i := range s.trend.points {
				s.trend.points[i].waited += s.trend.points[i].ended * int64(i) * int64(time.Millisecond) / 4
			}
		}, result.NotStationary, "changed from"},
		"noise": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			for i := range s.trend.points {
				s.trend.points[i].waited += s.trend.points[i].ended * int64(i%3) * int64(time.Millisecond)
			}
		}, result.Valid, ""},
		"too few": {func(s *stepRun, t *result.Total, _ *threadReport) {
			t.Done, t.Completed = 20, 20
		}, result.TooFewSamples, "20 answers are fewer than 100; use -d 60s"},
		"too few requests of a name": {func(s *stepRun, t *result.Total, _ *threadReport) {
			s.config.SLO, _ = result.ParseSLO("errors{login}<1%")
			t.Labels = []result.LabelTotal{{Name: "login", Counters: result.Counters{Done: 50}}}
		}, result.TooFewSamples, "50 requests with the name login are fewer than 100; use -d"},
		"too few for the SLO": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			s.config.SLO, _ = result.ParseSLO("p99.99<1s")
		}, result.TooFewSamples, "10000 answers are too few for p99.99: 10 of them must lie beyond it; use -d 110s"},
		"unsent": {func(_ *stepRun, t *result.Total, _ *threadReport) { t.Errors[result.Unsent] = 500 }, result.Valid, "did not keep up: 500 arrivals"},
		"most severe": {func(s *stepRun, t *result.Total, _ *threadReport) {
			s.reports[0].usage.wait, t.Cost.ThreadBusyMax = 2*time.Second, 0.95
		}, result.GeneratorLimited, "waited 20 %"},
	})
}

// TestJudgeRequests has a step with a time and a number of requests, whose requests end first.
func TestJudgeRequests(t *testing.T) {
	checkJudge(t, map[string]judgeTest{
		"too few requests, before the time is over": {func(s *stepRun, t *result.Total, _ *threadReport) {
			s.step.Requests = 50
			t.Elapsed, t.Done, t.Completed = 0.9*s.step.Duration.Seconds(), 50, 50
		}, result.TooFewSamples, "use --requests 100"},
	})
}

// TestJudgeQuota: what the generator's own control group takes from it was not used by other programs.
func TestJudgeQuota(t *testing.T) {
	checkJudge(t, map[string]judgeTest{
		"stopped by its own quota": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			s.host.quota, s.host.throttled = 0.5, 4*time.Second
			s.reports[0].usage.wait = 4 * time.Second
		}, result.GeneratorLimited, "the generator's own CPU quota of 0.5 cores stopped it 40 % of the time"},
	})
}

// TestTimeoutBelowTheSLO: a limit that no answer can reach is named.
func TestTimeoutBelowTheSLO(t *testing.T) {
	s, total, sums := sound(t)
	s.config.Timeout = time.Second
	total.SLO = []result.Criterion{{Text: "p90<5s", Metric: "response_p90_seconds", Limit: 5, Observed: 1, AtLeast: true}}
	s.judge(total, sums)
	if said := strings.Join(total.Sentences(), "; "); !strings.Contains(said, "the timeout of 1 s is shorter than the limit of p90<5s") {
		t.Errorf("the step says %q", said)
	}
}

// TestJudgeTarget has steps that are spoiled by the target, or by the choice of the step.
func TestJudgeTarget(t *testing.T) {
	checkJudge(t, map[string]judgeTest{
		"certainly too slow for the SLO": {func(s *stepRun, t *result.Total, _ *threadReport) {
			s.config.SLO, _ = result.ParseSLO("p99<1s")
			t.Done, t.Completed, t.Errors[result.Timeout] = 10, 10, 40
		}, result.Valid, ""},
		"perhaps too slow for the SLO": {func(s *stepRun, t *result.Total, _ *threadReport) {
			s.config.SLO, _ = result.ParseSLO("p99<1s")
			t.Done, t.Completed, t.Errors[result.Timeout] = 499, 499, 1
		}, result.TooFewSamples, "500 answers are too few for p99: 10 of them must lie beyond it; use -d 30s"},
		"too few for a named request": {func(s *stepRun, t *result.Total, _ *threadReport) {
			s.config.SLO, _ = result.ParseSLO("p99{login}<1s")
			t.Labels = []result.LabelTotal{{Name: "login", Counters: result.Counters{Done: 500}}}
		}, result.TooFewSamples, "500 answers are too few for p99: 10 of them must lie beyond it; use -d 30s"},
		"too few requests": {func(s *stepRun, t *result.Total, _ *threadReport) {
			s.step.Duration, s.step.Requests = 0, 50
			t.Done, t.Completed = 50, 50
		}, result.TooFewSamples, "use --requests 100"},
		"lag beyond p99": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			s.config.SLO, _ = result.ParseSLO("p99.9<1s")
			s.collector.latency.lag.RecordN(5*time.Millisecond, 50)
		}, result.GeneratorLimited, "p99.9 of the pacer lag is 5"},
		"lag beyond the SLO": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			s.config.SLO, _ = result.ParseSLO("p99<1s")
			s.collector.latency.lag.RecordN(5*time.Millisecond, 50)
		}, result.Valid, ""},
		"lag among requests without an answer": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			s.collector.latency.lag.RecordN(5*time.Millisecond, 500)
			s.collector.latency.responseUnanswered.RecordN(2*time.Second, 500)
		}, result.Valid, ""},
		"stolen": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			s.host.steal, s.host.stolen = 0.03, time.Second
		}, result.HostContended, "the hypervisor took 3 % of the time of this host's CPUs; --awake"},
		"stolen, below the resolution": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			s.host.steal, s.host.stolen = 0.03, 20*time.Millisecond
		}, result.Valid, ""},
		"no schedstat": {func(s *stepRun, _ *result.Total, _ *threadReport) {
			s.host.unreadable = errors.New("no such file")
		}, result.HostContended, "cannot be judged: no such file"},
		"busy with failures": {func(_ *stepRun, t *result.Total, b *threadReport) {
			t.Cost.ThreadBusyMax, t.Done, t.Completed, t.Errors[result.Reset] = 0.99, 0, 0, 10000
			b.counters.Unread = 10000 * 10_000
		}, result.Valid, ""},
		"busy with some failures": {func(_ *stepRun, t *result.Total, _ *threadReport) {
			t.Cost.ThreadBusyMax, t.Errors[result.Reset] = 0.99, 5000
		}, result.GeneratorLimited, "busy 99 %"},
		"paused connections": {func(s *stepRun, _ *result.Total, b *threadReport) {
			s.step.Rate = 0
			b.paused = 95 * int64(10*time.Second)
		}, result.Valid, ""},
		"the last of the requests": {func(s *stepRun, t *result.Total, _ *threadReport) {
			s.step.Rate = 0
			t.Little.InFlightMean = 55
			s.phase.spent.Store(int64(6 * time.Second))
		}, result.Valid, ""},
		"a backlog that grows": {func(s *stepRun, t *result.Total, _ *threadReport) {
			grow(s)
			t.Completed = 9000
		}, result.NotStationary, "the backlog grew by 100/s: the target answers 900/s, and latencies depend on the length of the step; use a lower --rate"},
		"a backlog that grows, with an SLO": {func(s *stepRun, t *result.Total, _ *threadReport) {
			grow(s)
			t.SLO = []result.Criterion{{Met: true}}
		}, result.NotStationary, "the backlog grew"},
		"a backlog that grows, and a missed SLO": {func(s *stepRun, t *result.Total, _ *threadReport) {
			grow(s)
			t.SLO = []result.Criterion{{Met: true}, {Met: false}}
		}, result.Valid, "the backlog grew by 100/s"},
	})
}

// TestJudgeSilence checks that a closed loop whose target stops answering is not VALID, unless the errors show it.
func TestJudgeSilence(t *testing.T) {
	stop := func(s *stepRun) {
		s.step = &Step{Connections: 2, Duration: 10 * time.Second}
		for i := range s.trend.points {
			p := &s.trend.points[i]
			if p.good = p.ended; i >= 20 {
				*p = point{}
			}
		}
	}
	checkJudge(t, map[string]judgeTest{
		"hidden": {func(s *stepRun, total *result.Total, _ *threadReport) {
			stop(s)
		}, result.NotStationary, "there was no good answer for 5s, from 5s on"},
		"seen by the SLO": {func(s *stepRun, total *result.Total, _ *threadReport) {
			stop(s)
			total.SLO = []result.Criterion{{Met: false}}
		}, result.Valid, "there was no good answer for 5s"},
		"seen in the errors": {func(s *stepRun, total *result.Total, _ *threadReport) {
			stop(s)
			total.Errors[result.Timeout] = 200
		}, result.Valid, "there was no good answer for 5s"},
		"an open loop": {func(s *stepRun, total *result.Total, _ *threadReport) {
			rate := s.step.Rate
			stop(s)
			s.step.Rate = rate
		}, result.Valid, ""},
	})
}

// TestJudgeSumLag judges the lag at a percentile that the sum of the parts carries and none of them does.
func TestJudgeSumLag(t *testing.T) {
	slo, err := result.ParseSLO("p99<5s")
	if err != nil {
		t.Fatal(err)
	}
	open := result.Step{Loop: result.LoopOpen, OfferedHz: 500, Connections: 100, Duration: 3}
	for _, c := range []struct {
		step          result.Step
		lag, response time.Duration
		parts, want   result.Validity
	}{
		{open, 200 * time.Millisecond, 200 * time.Millisecond, result.Valid, result.GeneratorLimited},
		{open, 200 * time.Millisecond, 200 * time.Millisecond, result.HostContended, result.HostContended},
		{open, 200 * time.Millisecond, 3 * time.Second, result.Valid, result.Valid},
		{open, 100 * time.Microsecond, 200 * time.Microsecond, result.Valid, result.Valid},
		{result.Step{Loop: result.LoopClosed, Connections: 100, Duration: 3}, 200 * time.Millisecond, 200 * time.Millisecond, result.Valid, result.Valid},
	} {
		lag, response := histogram.New(), histogram.New()
		for i := range 1500 {
			if i < 30 {
				lag.Record(c.lag)
				response.Record(c.response)
				continue
			}
			lag.Record(20 * time.Microsecond)
			response.Record(200 * time.Microsecond)
		}
		sum := &result.StepRun{Step: c.step, Total: result.Total{Elapsed: 3, Validity: c.parts}}
		total := &sum.Total
		total.Due, total.Done = 1500, 1500
		total.Latency = result.Latency{Lag: payload(t, lag), Response: payload(t, response)}
		if err := judgeSum(slo, sum); err != nil {
			t.Fatal(err)
		}
		if total.Validity != c.want {
			t.Errorf("lag %v, response %v, parts %s: %s %q, want %s", c.lag, c.response, c.parts, total.Validity, total.Reasons, c.want)
		}
	}
}

func payload(t *testing.T, h *histogram.Histogram) result.HDR {
	t.Helper()
	text, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return result.HDR(text)
}

// grow makes the backlog grow by 100/s, and the response times with it.
func grow(s *stepRun) {
	for i := range s.trend.points {
		s.trend.points[i].owed = int64(25 * (i + 1))
		s.trend.points[i].waited *= int64(i + 1)
	}
}

func TestRemedies(t *testing.T) {
	for d, want := range map[time.Duration]string{
		200 * time.Millisecond: "1s", 6100 * time.Millisecond: "7s", 41 * time.Second: "50s", 3 * time.Minute: "180s", 200 * time.Second: "4m", 61 * time.Minute: "2h",
	} {
		if got := longer(d); got != want {
			t.Errorf("%s is %s, want %s", d, got, want)
		}
	}
	for _, c := range []struct {
		failed, requests int64
		want             bool
	}{{0, 10, false}, {1, 10, false}, {10, 10, true}, {2, 2, true}, {1, 100, false}, {4, 100, true}, {9, 1000, false}} {
		if got := failsSurely(c.failed, c.requests, 0.01); got != c.want {
			t.Errorf("%d of %d fail more than 1 %%: %v", c.failed, c.requests, got)
		}
	}
}

func TestExitCodes(t *testing.T) {
	met, missed := result.Criterion{Text: "rate>1", Met: true}, result.Criterion{Text: "p99<1s"}
	step := func(v result.Validity, criteria ...result.Criterion) result.StepRun {
		return result.StepRun{Step: result.Step{Name: "100/s"}, Total: result.Total{Validity: v, SLO: criteria, Reasons: []result.Reason{{Text: "too few; use -d 50s"}}}}
	}
	for name, c := range map[string]struct {
		steps []result.StepRun
		code  int
		want  string
	}{
		"no step":                 {nil, exit.NothingValid, "nothing valid was measured: no step was run"},
		"met":                     {[]result.StepRun{step(result.Valid, met)}, exit.OK, ""},
		"missed":                  {[]result.StepRun{step(result.Valid, met, missed)}, exit.Failed, "SLO missed: p99<1s at 100/s"},
		"not valid":               {[]result.StepRun{step(result.TooFewSamples, met)}, exit.NothingValid, "nothing valid was measured: 100/s is TOO_FEW_SAMPLES (too few; use -d 50s)"},
		"not valid, missed":       {[]result.StepRun{step(result.HostContended, missed)}, exit.NothingValid, "100/s is HOST_CONTENDED (too few"},
		"one valid and met":       {[]result.StepRun{step(result.TooFewSamples, met), step(result.Valid, met)}, exit.OK, ""},
		"one valid, another miss": {[]result.StepRun{step(result.Valid, met), step(result.GeneratorLimited, missed)}, exit.NothingValid, "100/s is GENERATOR_LIMITED"},
		"a valid miss wins":       {[]result.StepRun{step(result.GeneratorLimited, missed), step(result.Valid, missed)}, exit.Failed, "SLO missed: p99<1s at 100/s"},
	} {
		err := Judge(&result.Run{Header: result.Header{SLO: "p99<1s"}, Steps: c.steps})
		if exit.Code(err) != c.code || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: exit %d, %v, want %d and %q", name, exit.Code(err), err, c.code, c.want)
		}
	}
	if err := Judge(&result.Run{Steps: []result.StepRun{step(result.TooFewSamples)}}); err != nil {
		t.Errorf("without an SLO: %v", err)
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

// threadCPU returns the CPU time of the current thread, and processCPU that of this process.
func threadCPU(t *testing.T) time.Duration { return cpuClock(t, unix.CLOCK_THREAD_CPUTIME_ID) }

func processCPU(t *testing.T) time.Duration { return cpuClock(t, unix.CLOCK_PROCESS_CPUTIME_ID) }

func cpuClock(t *testing.T, clock int32) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(clock, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

func TestUsage(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	earliest := processCPU(t)
	before := processUsage()
	latest := processCPU(t)
	for start := threadCPU(t); threadCPU(t)-start < 50*time.Millisecond; {
	}
	least := processCPU(t) - latest
	used := processUsage().since(before)
	const rounding = time.Millisecond
	if most := processCPU(t) - earliest; used.cpu() < least-rounding || used.cpu() > most+rounding || used.memoryMax == 0 {
		t.Errorf("want %s to %s of CPU time, got %+v", least, most, used)
	}
}

// TestJudgeHosts judges steps on hosts with cores of their own: only programs of no host contend.
func TestJudgeHosts(t *testing.T) {
	for name, test := range map[string]struct {
		spoil  func(*stepRun, *result.Total, *hostReading)
		want   result.Validity
		reason string
	}{
		"alone":                 {func(*stepRun, *result.Total, *hostReading) {}, result.Valid, ""},
		"a saturated target":    {func(_ *stepRun, _ *result.Total, h *hostReading) { h.shares[1].Used = 9.99 }, result.Valid, ""},
		"stopped by its quota":  {func(_ *stepRun, _ *result.Total, h *hostReading) { h.shares[1].Throttled = 9 }, result.Valid, ""},
		"threads of the kernel": {func(_ *stepRun, _ *result.Total, h *hostReading) { h.shares[1].Kernel = 3 }, result.Valid, ""},
		"a little disturbed":    {func(_ *stepRun, _ *result.Total, h *hostReading) { h.shares[1].Foreign = 0.9 }, result.Valid, ""},
		"disturbed target":      {func(_ *stepRun, _ *result.Total, h *hostReading) { h.shares[1].Foreign = 1 }, result.HostContended, "5 % of the cores of host target (1-2)"},
		"disturbed generator":   {func(_ *stepRun, _ *result.Total, h *hostReading) { h.shares[0].Foreign = 5 }, result.HostContended, "50 % of the cores of host generator (0)"},
		"one of many cores": {func(_ *stepRun, _ *result.Total, h *hostReading) {
			h.shares[1].CoreCount, h.shares[1].Foreign = 32, 3
		}, result.HostContended, "0.938 % of the cores of host target"},
		"disturbed and busy": {func(_ *stepRun, t *result.Total, h *hostReading) {
			h.shares[0].Foreign, t.Cost.ThreadBusyMax = 5, 0.95
		}, result.HostContended, "busy 95 %"},
		"its own share is too small": {func(s *stepRun, _ *result.Total, _ *hostReading) {
			s.reports[0].usage.wait = 2 * time.Second
		}, result.GeneratorLimited, "waited 20 % of the time for its own share"},
		"late on its own": {func(s *stepRun, _ *result.Total, _ *hostReading) {
			for range 1000 {
				s.collector.latency.lag.Record(5 * time.Millisecond)
			}
			s.reports[0].usage.wait = 600 * time.Millisecond
		}, result.GeneratorLimited, "pacer lag is 5"},
		"unknown": {func(_ *stepRun, _ *result.Total, h *hostReading) { h.err = errors.New("no such file") }, result.HostContended, "unknown who used the cores: no such file"},
	} {
		s, total, sums := sound(t)
		s.config.Hosts = new(cores.Meter)
		s.hosts.shares = []result.HostShare{
			{Name: "generator", CPUs: 1, Cores: "0", CoreCount: 1, Elapsed: 10, Used: 3},
			{Name: "target", CPUs: 2, Cores: "1-2", CoreCount: 2, Elapsed: 10, Used: 6},
		}
		test.spoil(s, total, &s.hosts)
		s.judge(total, sums)
		got, reasons := total.Validity, total.Sentences()
		if got != test.want || !strings.Contains(strings.Join(reasons, "\n"), test.reason) || test.reason == "" && len(reasons) > 0 {
			t.Errorf("%s: %s %q, want %s and %q", name, got, reasons, test.want, test.reason)
		}
	}
}
