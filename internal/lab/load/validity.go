package load

import (
	"fmt"
	"math"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// Limits of a valid step.
const (
	busyMax        = 0.90                 // share of a thread's time on a CPU
	waitMax        = 0.10                 // share of a thread's time runnable but not running
	sendRateMin    = 0.99                 // arrivals started over arrivals due
	lagMin         = time.Millisecond     // p99 of the pacer lag that is always accepted
	lagShare       = 0.10                 // p99 of the pacer lag over p99 of the response time
	unreadShare    = 0.20                 // time that answers were unread over the mean service time
	unreadMin      = 5 * time.Microsecond // unread time that is always accepted
	littleMax      = 0.10                 // deviation of N / (X R) from 1
	ownErrorsMax   = 0.001                // share of requests that failed for lack of local ports or open files
	driftShare     = 0.25                 // change of the mean response time between the first and the last third
	driftErrors    = 4                    // the same, in standard errors
	driftSecondsOf = 9                    // minimum length of a step for a verdict on drift
	samplesMin     = 100                  // minimum number of answers
)

// problem is a verdict other than VALID and its reason.
type problem struct {
	validity result.Validity
	reason   string
}

// judge decides whether the step measured the target. The most severe problem is
// the verdict. Every problem is a reason.
func (s *stepRun) judge(t *result.Total, sums *threadReport) (result.Validity, []string) {
	verdict, rank := result.Valid, 0
	var reasons []string
	for _, check := range []func(*result.Total, *threadReport) *problem{
		s.judgeOwnErrors, s.judgeSendRate, s.judgeLag, s.judgeBusy, s.judgeWait, s.judgeUnread, s.judgeLittle, s.judgeDrift, s.judgeSamples,
	} {
		d := check(t, sums)
		if d == nil {
			continue
		}
		reasons = append(reasons, d.reason)
		if r := severity(d.validity); r > rank {
			verdict, rank = d.validity, r
		}
	}
	return verdict, append(reasons, s.notes(t, sums)...)
}

func severity(v result.Validity) int {
	switch v {
	case result.GeneratorLimited:
		return 4
	case result.HostContended:
		return 3
	case result.NotStationary:
		return 2
	case result.TooFewSamples:
		return 1
	}
	return 0
}

func (s *stepRun) judgeOwnErrors(t *result.Total, _ *threadReport) *problem {
	own := t.Errors.Own()
	if share := float64(own) / float64(max(t.Requests(), 1)); share > ownErrorsMax {
		return &problem{result.GeneratorLimited, fmt.Sprintf(
			"%d requests (%.1f %%) failed because this host ran out of local ports or open files; see --source and ulimit -n", own, 100*share)}
	}
	return nil
}

// judgeSendRate compares the arrivals started in time with those that were due.
func (s *stepRun) judgeSendRate(t *result.Total, sums *threadReport) *problem {
	if !s.step.Open() || t.Due == 0 {
		return nil
	}
	if rate := float64(t.Due-sums.late) / float64(t.Due); rate < sendRateMin {
		return &problem{result.GeneratorLimited, fmt.Sprintf("only %.1f %% of the arrivals were started before the end of the step", 100*rate)}
	}
	return nil
}

// judgeLag checks the lag of the pacer. Other programs are the cause if the generator waited for a CPU.
func (s *stepRun) judgeLag(*result.Total, *threadReport) *problem {
	l := &s.collector.latency
	if !s.step.Open() || !l.lag.Carries(0.99) {
		return nil
	}
	lag, response := l.lag.Quantile(0.99), l.response.Quantile(0.99)
	if lag <= max(lagMin, time.Duration(lagShare*float64(response))) {
		return nil
	}
	reason := fmt.Sprintf("requests were sent late: p99 of the pacer lag is %s, p99 of the response time %s", round(lag), round(response))
	if s.waitShare() >= waitMax/2 {
		return &problem{result.HostContended, reason + ", because other programs used this host's CPUs"}
	}
	return &problem{result.GeneratorLimited, reason}
}

func (s *stepRun) judgeBusy(t *result.Total, _ *threadReport) *problem {
	if t.Cost.ThreadBusyMax < busyMax {
		return nil
	}
	what := "a generator thread was"
	if !s.config.Target.EventLoop() {
		what = "the generator was"
	}
	return &problem{result.GeneratorLimited, fmt.Sprintf("%s busy %.0f %% of the time; use more --workers or another machine", what, 100*t.Cost.ThreadBusyMax)}
}

func (s *stepRun) judgeWait(*result.Total, *threadReport) *problem {
	share := s.waitShare()
	if share < waitMax {
		return nil
	}
	reason := fmt.Sprintf("the generator waited %.0f %% of the time for a CPU that other programs used", 100*share)
	if s.pressure > 0 && s.collector.latency.response.Count() > 0 {
		reason += fmt.Sprintf(" (at least one task of this host waited for %s in total)", round(s.pressure))
	}
	return &problem{result.HostContended, reason}
}

// waitShare is the share of the wall time in which the worst thread was runnable
// but not running. For sessions it is the mean of all threads.
func (s *stepRun) waitShare() float64 {
	worst := 0.0
	for i := range s.reports {
		r := &s.reports[i]
		if r.wall == 0 {
			continue
		}
		share := float64(r.usage.wait) / float64(r.wall)
		if !s.config.Target.EventLoop() {
			share /= float64(max(min(s.step.Connections, s.cost().Threads), 1))
		}
		worst = max(worst, share)
	}
	return worst
}

func (s *stepRun) judgeUnread(t *result.Total, sums *threadReport) *problem {
	if sums.counters.Reads == 0 {
		return nil
	}
	unread := time.Duration(sums.counters.Unread / sums.counters.Reads)
	service := s.collector.latency.service.Mean()
	if unread < unreadMin || float64(unread) < unreadShare*float64(service) {
		return nil
	}
	return &problem{result.GeneratorLimited, fmt.Sprintf("answers were unread for %s on average, with a mean service time of %s", round(unread), round(service))}
}

// judgeLittle checks Little's law, N = X R. Failed requests count only in N, so
// there is no verdict if there are many.
func (s *stepRun) judgeLittle(t *result.Total, _ *threadReport) *problem {
	if t.Little.Ratio == 0 || t.Done < samplesMin || t.ErrorShare() > 0.01 || s.config.Warmup > 0 && s.step.Ramp() {
		return nil
	}
	if math.Abs(t.Little.Ratio-1) > littleMax {
		return &problem{result.GeneratorLimited, fmt.Sprintf("Little's law does not hold: %.2f requests were in flight, but %.1f/s times %s is %.2f",
			t.Little.InFlightMean, t.Little.Rate, round(time.Duration(t.Little.ServiceMean*1e9)), t.Little.InFlightMean/t.Little.Ratio)}
	}
	busy := t.Little.InFlightMean / float64(s.config.Target.Slots(s.step.Connections))
	if !s.step.Open() && busy < 1-littleMax {
		return &problem{result.GeneratorLimited, fmt.Sprintf("of %d connections only %.1f had a request in flight on average", s.step.Connections, t.Little.InFlightMean)}
	}
	return nil
}

// judgeDrift compares the first third of the step with the last.
func (s *stepRun) judgeDrift(*result.Total, *threadReport) *problem {
	windows := s.collector.means
	if n := len(windows); n > 0 && windows[n-1].length < 0.5 {
		windows = windows[:n-1]
	}
	if len(windows) < driftSecondsOf || s.step.Ramp() {
		return nil
	}
	third := len(windows) / 3
	first, last := meanOf(windows[:third]), meanOf(windows[len(windows)-third:])
	change := last.mean() - first.mean()
	spread := math.Sqrt((first.stdDev()*first.stdDev() + last.stdDev()*last.stdDev()) / float64(max(third-1, 1)))
	if first.mean() == 0 || math.Abs(change) < driftShare*first.mean() || math.Abs(change) < driftErrors*spread {
		return nil
	}
	return &problem{result.NotStationary, fmt.Sprintf("the mean response time changed from %s in the first third to %s in the last",
		round(time.Duration(first.mean()*1e9)), round(time.Duration(last.mean()*1e9)))}
}

func meanOf(windows []windowMean) moments {
	var m moments
	for _, w := range windows {
		m.add(w.response.Seconds())
	}
	return m
}

// judgeSamples leaves a share of a load to JudgeSamples of the sum.
func (s *stepRun) judgeSamples(t *result.Total, _ *threadReport) *problem {
	if s.config.Share.Count() > 1 {
		return nil
	}
	return tooFew(s.collector.latency.responses().Count(), s.config.SLO)
}

// JudgeSamples returns why the step is TOO_FEW_SAMPLES, or "".
func JudgeSamples(t *result.Total, slo result.SLO) (string, error) {
	responses, err := t.Latency.Responses()
	if err != nil {
		return "", err
	}
	if p := tooFew(responses.Count(), slo); p != nil {
		return p.reason, nil
	}
	return "", nil
}

func tooFew(answers int64, slo result.SLO) *problem {
	for _, p := range slo.Percentiles() {
		if !histogram.Carries(answers, p.Q) {
			return &problem{result.TooFewSamples, fmt.Sprintf("%d answers are too few for p%g: %d of them must lie beyond it", answers, p.Q*100, histogram.TailSamples)}
		}
	}
	if answers < samplesMin {
		return &problem{result.TooFewSamples, fmt.Sprintf("%d answers are fewer than %d", answers, samplesMin)}
	}
	return nil
}

// notes are remarks that do not affect the verdict.
func (s *stepRun) notes(t *result.Total, sums *threadReport) []string {
	var notes []string
	if unsent := t.Errors[result.Unsent]; unsent > sums.late {
		notes = append(notes, fmt.Sprintf("the target did not keep up: %d arrivals found all %d connections busy and were never sent; see --connections and --backlog",
			unsent-sums.late, s.step.Connections))
	}
	if sums.abandoned > 0 {
		notes = append(notes, fmt.Sprintf("%d requests were still in flight when the wait for them ended; they are not counted", sums.abandoned))
	}
	return notes
}

// round rounds a duration to about three digits.
func round(d time.Duration) time.Duration {
	for unit := time.Duration(1); unit < time.Minute; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
	return d.Round(time.Second)
}
