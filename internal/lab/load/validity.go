package load

import (
	"fmt"
	"math"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// The bounds of a valid step.
const (
	busyMax        = 0.90                 // of one thread's time on a CPU
	waitMax        = 0.10                 // of one thread's time runnable but not running
	sendRateMin    = 0.99                 // arrivals taken up over arrivals due
	lagMin         = time.Millisecond     // p99 of the pacer lag below which nothing is said
	lagShare       = 0.10                 // p99 of the pacer lag over p99 of the response time
	unreadShare    = 0.20                 // time that answers lay unread over the mean service time
	unreadMin      = 5 * time.Microsecond // below which nothing is said of it
	littleMax      = 0.10                 // how far N / (X R) may be from 1
	ownErrorsMax   = 0.001                // of the requests, failed for want of the generator's own ports or files
	driftShare     = 0.25                 // change of the mean response time from the first to the last third
	driftErrors    = 4                    // the same in standard errors
	driftSecondsOf = 9                    // seconds that it takes to see a drift
	samplesMin     = 100                  // answers
)

// doubt is a verdict other than VALID and its reason.
type doubt struct {
	validity result.Validity
	reason   string
}

// judge says whether the step measured the target. The gravest doubt is the
// verdict; every doubt is a reason.
func (s *stepRun) judge(t *result.Total, books *threadReport) (result.Validity, []string) {
	verdict, rank := result.Valid, 0
	var reasons []string
	for _, check := range []func(*result.Total, *threadReport) *doubt{
		s.judgeOwnErrors, s.judgeSendRate, s.judgeLag, s.judgeBusy, s.judgeWait, s.judgeUnread, s.judgeLittle, s.judgeDrift, s.judgeSamples,
	} {
		d := check(t, books)
		if d == nil {
			continue
		}
		reasons = append(reasons, d.reason)
		if r := gravity(d.validity); r > rank {
			verdict, rank = d.validity, r
		}
	}
	return verdict, append(reasons, s.notes(t, books)...)
}

func gravity(v result.Validity) int {
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

func (s *stepRun) judgeOwnErrors(t *result.Total, _ *threadReport) *doubt {
	own := t.Errors.Own()
	if share := float64(own) / float64(max(t.Requests(), 1)); share > ownErrorsMax {
		return &doubt{result.GeneratorLimited, fmt.Sprintf(
			"%d requests (%.1f %%) failed for want of this host's own local ports or open files, not at the target; see --source and ulimit -n", own, 100*share)}
	}
	return nil
}

// judgeSendRate compares the arrivals taken up in time with those that were due.
func (s *stepRun) judgeSendRate(t *result.Total, books *threadReport) *doubt {
	if !s.step.Open() || t.Due == 0 {
		return nil
	}
	if rate := float64(t.Due-books.late) / float64(t.Due); rate < sendRateMin {
		return &doubt{result.GeneratorLimited, fmt.Sprintf("only %.1f %% of the arrivals were taken up before the step was over", 100*rate)}
	}
	return nil
}

// judgeLag blames a late pacer on whoever held the CPU.
func (s *stepRun) judgeLag(*result.Total, *threadReport) *doubt {
	l := &s.collector.latency
	if !s.step.Open() || !l.lag.Carries(0.99) {
		return nil
	}
	lag, response := l.lag.Quantile(0.99), l.response.Quantile(0.99)
	if lag <= max(lagMin, time.Duration(lagShare*float64(response))) {
		return nil
	}
	reason := fmt.Sprintf("requests were sent late: p99 of the pacer lag is %s, of the response time %s", round(lag), round(response))
	if s.waitShare() >= waitMax/2 {
		return &doubt{result.HostContended, reason + ", while other programs held this host's CPUs"}
	}
	return &doubt{result.GeneratorLimited, reason}
}

func (s *stepRun) judgeBusy(t *result.Total, _ *threadReport) *doubt {
	if t.Cost.ThreadBusyMax < busyMax {
		return nil
	}
	what := "a generator thread was"
	if !s.config.Target.Lean() {
		what = "the generator was"
	}
	return &doubt{result.GeneratorLimited, fmt.Sprintf("%s busy %.0f %% of the time; use --workers or another machine", what, 100*t.Cost.ThreadBusyMax)}
}

func (s *stepRun) judgeWait(*result.Total, *threadReport) *doubt {
	share := s.waitShare()
	if share < waitMax {
		return nil
	}
	reason := fmt.Sprintf("the generator waited %.0f %% of the time for a CPU that others held", 100*share)
	if s.pressure > 0 && s.collector.latency.response.Count() > 0 {
		reason += fmt.Sprintf(" (some task of this host waited %s in all)", round(s.pressure))
	}
	return &doubt{result.HostContended, reason}
}

// waitShare is the time that the worst thread was runnable and not running, over
// the wall time; for sessions, that of all threads over all CPUs.
func (s *stepRun) waitShare() float64 {
	worst := 0.0
	for i := range s.reports {
		r := &s.reports[i]
		if r.wall == 0 {
			continue
		}
		share := float64(r.usage.wait) / float64(r.wall)
		if !s.config.Target.Lean() {
			share /= float64(max(min(s.step.Connections, s.cost().Threads), 1))
		}
		worst = max(worst, share)
	}
	return worst
}

func (s *stepRun) judgeUnread(t *result.Total, books *threadReport) *doubt {
	if books.counters.Reads == 0 {
		return nil
	}
	unread := time.Duration(books.counters.Unread / books.counters.Reads)
	service := s.collector.latency.service.Mean()
	if unread < unreadMin || float64(unread) < unreadShare*float64(service) {
		return nil
	}
	return &doubt{result.GeneratorLimited, fmt.Sprintf("answers lay unread for %s in the mean, of a service time of %s", round(unread), round(service))}
}

// judgeLittle checks the books: N = X R. Requests that failed are in N only, so
// it is left out when there are many.
func (s *stepRun) judgeLittle(t *result.Total, _ *threadReport) *doubt {
	if t.Little.Ratio == 0 || t.Done < samplesMin || t.ErrorShare() > 0.01 || s.config.Warmup > 0 && s.step.Ramp() {
		return nil
	}
	if math.Abs(t.Little.Ratio-1) > littleMax {
		return &doubt{result.GeneratorLimited, fmt.Sprintf("the books do not balance: %.2f requests were in flight, but %.1f/s times %s is %.2f",
			t.Little.InFlightMean, t.Little.Rate, round(time.Duration(t.Little.ServiceMean*1e9)), t.Little.InFlightMean/t.Little.Ratio)}
	}
	busy := t.Little.InFlightMean / float64(s.step.Connections)
	if !s.step.Open() && busy < 1-littleMax {
		return &doubt{result.GeneratorLimited, fmt.Sprintf("of %d connections only %.1f had a request in flight in the mean", s.step.Connections, t.Little.InFlightMean)}
	}
	return nil
}

// judgeDrift compares the first third of the step with the last.
func (s *stepRun) judgeDrift(*result.Total, *threadReport) *doubt {
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
	return &doubt{result.NotStationary, fmt.Sprintf("the mean response time went from %s in the first third to %s in the last",
		round(time.Duration(first.mean()*1e9)), round(time.Duration(last.mean()*1e9)))}
}

func meanOf(windows []windowMean) moments {
	var m moments
	for _, w := range windows {
		m.add(w.response.Seconds())
	}
	return m
}

func (s *stepRun) judgeSamples(t *result.Total, _ *threadReport) *doubt {
	answers := s.collector.latency.response.Count()
	if q, ok := s.config.SLO.carried(answers); !ok {
		return &doubt{result.TooFewSamples, fmt.Sprintf("%d answers do not carry a p%g: %d of them must lie beyond it", answers, q*100, histogram.TailSamples)}
	}
	if answers < samplesMin {
		return &doubt{result.TooFewSamples, fmt.Sprintf("%d answers are fewer than %d", answers, samplesMin)}
	}
	return nil
}

// notes are what else a reader must know.
func (s *stepRun) notes(t *result.Total, books *threadReport) []string {
	var notes []string
	if unsent := t.Errors[result.Unsent]; unsent > books.late {
		notes = append(notes, fmt.Sprintf("the target did not keep up: %d arrivals found all of %d connections busy and were never sent; see --connections and --backlog",
			unsent-books.late, s.step.Connections))
	}
	if books.abandon > 0 {
		notes = append(notes, fmt.Sprintf("%d requests were still in flight when the wait for them ended; they are counted nowhere", books.abandon))
	}
	return notes
}

// round shortens a duration to three digits or so.
func round(d time.Duration) time.Duration {
	for unit := time.Duration(1); unit < time.Minute; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
	return d.Round(time.Second)
}
