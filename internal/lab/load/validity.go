package load

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/aclements/go-moremath/stats"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// Limits of a valid step.
const (
	busyMax      = 0.90                  // share of a thread's time on a CPU
	waitMax      = 0.10                  // share of a thread's time runnable but not running
	stealMax     = 0.02                  // share of the time of all CPUs that the hypervisor took
	stealMin     = 30 * time.Millisecond // stolen time that is always accepted: three ticks
	sendRateMin  = 0.99                  // arrivals started over arrivals due
	lagMin       = time.Millisecond      // pacer lag that is always accepted
	lagShare     = 0.10                  // pacer lag over the response time, at the same percentile
	unreadShare  = 0.20                  // time that answers were unread over the mean time in flight
	unreadMin    = 5 * time.Microsecond  // unread time that is always accepted
	littleMax    = 0.10                  // deviation of N / (X R) from 1
	idleMax      = 0.10                  // share of the connections of a closed loop without a request
	ownErrorsMax = 0.001                 // share of requests that failed for lack of local ports or open files
	samplesMin   = 100                   // minimum number of requests

	foreignMax      = 0.05 // what programs of no host used of a host's cores, as a share of them
	foreignCoresMax = 0.25 // the same in cores; a busy loop is little of many
)

// problem is a verdict and its reason.
type problem struct {
	validity result.Validity
	reason   string
}

// because returns the problem as a reason of a step, under the code of the check that found it.
func (p *problem) because(code result.ReasonCode) result.Reason {
	return result.Reason{Code: code, Verdict: p.validity, Text: p.reason}
}

// judge decides whether the step measured the target. The most severe problem is
// the verdict. Every problem is a reason, the most severe first.
func (s *stepRun) judge(t *result.Total, sums *threadReport) {
	type check struct {
		code result.ReasonCode
		find func(*result.Total, *threadReport) *problem
	}
	var reasons []result.Reason
	for _, c := range []check{
		{result.NotTogether, s.judgeBegin},
		{result.OwnErrors, s.judgeOwnErrors},
		{result.UsersShort, s.judgeUsers},
		{result.SendRate, s.judgeSendRate},
		{result.PacerLag, s.judgeLag},
		{result.ThreadBusy, s.judgeBusy},
		{result.CPUWait, s.judgeWait},
		{result.Unread, s.judgeUnread},
		{result.LittlesLaw, s.judgeLittle},
		{result.IdleSlots, s.judgeIdle},
		{result.Stolen, s.judgeSteal},
		{result.Backlog, s.judgeBacklog},
		{result.Drift, s.judgeDrift},
		{result.Silence, s.judgeSilence},
		{result.TooFewAnswers, s.judgeSamples},
	} {
		if p := c.find(t, sums); p != nil {
			reasons = append(reasons, p.because(c.code))
		}
	}
	slices.SortStableFunc(reasons, func(a, b result.Reason) int { return b.Verdict.Severity() - a.Verdict.Severity() })
	if p := s.judgeForeign(); p != nil { // may have caused the others
		reasons = slices.Insert(reasons, 0, p.because(result.ForeignUse))
	}
	t.Validity, t.Reasons = result.Valid, reasons
	if len(reasons) > 0 {
		t.Validity = reasons[0].Verdict
	}
	if t.Validity.Severity() > result.NotStationary.Severity() {
		t.Overloaded = false // the cause may be this host
	}
	t.Reasons = append(t.Reasons, s.notes(t, sums)...)
}

func (s *stepRun) judgeOwnErrors(t *result.Total, _ *threadReport) *problem {
	own := t.Errors.Own()
	if share := float64(own) / float64(max(t.Requests(), 1)); share > ownErrorsMax {
		return &problem{result.GeneratorLimited, fmt.Sprintf(
			"%s (%s) failed because this host ran out of local ports or open files; see --source and ulimit -n",
			sheet.Plural(own, "request"), sheet.Share(share))}
	}
	return nil
}

// judgeSendRate compares the arrivals started in time with those that were due.
func (s *stepRun) judgeSendRate(t *result.Total, sums *threadReport) *problem {
	if !s.step.Open() || t.Due == 0 {
		return nil
	}
	if rate := float64(t.Due-sums.late) / float64(t.Due); rate < sendRateMin {
		return &problem{result.GeneratorLimited, fmt.Sprintf("only %s of the arrivals were started before the end of the step",
			sheet.Share(rate))}
	}
	return nil
}

// judgeLag checks the lag of the pacer at p99 and at every percentile of the SLO. A lower bound of the response time is short enough to be
// compared with.
func (s *stepRun) judgeLag(t *result.Total, _ *threadReport) *problem {
	reason := s.lateness(s.collector.latency.lag, func(label string) histogram.Censored { return s.responses(t, label) })
	if reason == "" {
		return nil
	}
	return s.late(reason)
}

// lateness says at which percentile requests were sent late, "" if at none. responses are the response times of the requests with a name.
func (s *stepRun) lateness(lags *histogram.Histogram, responses func(label string) histogram.Censored) string {
	if !s.step.Open() {
		return ""
	}
	for _, p := range append([]result.Percentile{{Q: 0.99}}, s.config.SLO.Percentiles()...) {
		lag := lags.Quantile(p.Q)
		if !lags.Carries(p.Q) || lag <= lagMin {
			continue
		}
		response, _ := responses(p.Label).Quantile(p.Q)
		if lag > time.Duration(lagShare*float64(response)) {
			return fmt.Sprintf("requests were sent late: p%g of the pacer lag is %s, p%g of the response time %s", p.Q*100, round(lag), p.Q*100,
				round(response))
		}
	}
	return ""
}

// late is the problem of a generator that was late. Other programs are the cause if it waited for a CPU that it shares.
func (s *stepRun) late(reason string) *problem {
	if s.quotaShare() >= waitMax/2 {
		return &problem{result.GeneratorLimited, reason + ", because its own CPU quota stopped it; raise that of its control group"}
	}
	if s.config.Hosts == nil && s.waitShare() >= waitMax/2 {
		return &problem{result.HostContended, reason + ", because other programs used this host's CPUs"}
	}
	return &problem{result.GeneratorLimited, reason + "; " + s.moreCPU()}
}

// responses are the response times of the requests with that name, of all for "".
func (s *stepRun) responses(t *result.Total, label string) histogram.Censored {
	if label != "" {
		if times, err := requestsNamed(t, label).Latency.Responses(); err == nil {
			return times
		}
	}
	return s.collector.latency.responses()
}

// requestsNamed returns the figures of the requests with that name, of all for "".
func requestsNamed(t *result.Total, label string) *result.LabelTotal {
	for i := range t.Labels {
		if label != "" && t.Labels[i].Name == label {
			return &t.Labels[i]
		}
	}
	return &result.LabelTotal{Counters: t.Counters, Latency: t.Latency}
}

// judgeBusy does not apply if the target fails most requests at once: the generator is then as fast as the failures.
func (s *stepRun) judgeBusy(t *result.Total, _ *threadReport) *problem {
	if t.Cost.ThreadBusyMax < busyMax || 2*failedByTarget(&t.Errors) > t.Requests() {
		return nil
	}
	what := "a generator thread was"
	if !s.config.Target.EventLoop() {
		what = "the generator was"
	}
	return &problem{result.GeneratorLimited, fmt.Sprintf("%s busy %s of the time; %s", what, sheet.Share(t.Cost.ThreadBusyMax), s.moreCPU())}
}

// failedByTarget is the number of requests to which the target, or the way to it, gave no answer.
func failedByTarget(e *result.Errors) int64 {
	return e.Unanswered() - e.Own() - e[result.Unsent] - e[result.Unfinished]
}

func (s *stepRun) judgeWait(*result.Total, *threadReport) *problem {
	if err := s.host.unreadable; err != nil {
		return &problem{result.HostContended, fmt.Sprintf("whether other programs used this host's CPUs cannot be judged: %s", err)}
	}
	if stopped := s.quotaShare(); stopped >= waitMax {
		return &problem{result.GeneratorLimited, fmt.Sprintf("the generator's own CPU quota of %s stopped it %s of the time; raise that of its "+
			"control group", sheet.Plural(s.host.quota, "core"), sheet.Share(min(stopped, 1)))}
	}
	share := s.waitShare()
	if share < waitMax {
		return nil
	}
	if s.config.Hosts != nil {
		return &problem{result.GeneratorLimited, fmt.Sprintf("the generator waited %s of the time for its own share of CPU; give it more cores",
			sheet.Share(share))}
	}
	reason := fmt.Sprintf("the generator waited %s of the time for a CPU that other programs used", sheet.Share(share))
	if s.pressure > 0 && s.collector.latency.response.Count() > 0 {
		reason += fmt.Sprintf(" (at least one task of this host waited for %s in total)", round(s.pressure))
	}
	return &problem{result.HostContended, reason}
}

func (s *stepRun) judgeSteal(*result.Total, *threadReport) *problem {
	if s.host.steal < stealMax || s.host.stolen <= stealMin {
		return nil
	}
	reason := fmt.Sprintf("the hypervisor took %s of the time of this host's CPUs", sheet.Share(s.host.steal))
	if !s.config.Awake {
		reason += "; --awake keeps idle CPUs from sleeping, which may help"
	}
	return &problem{result.HostContended, reason}
}

// quotaShare is how long the quota of its own control group stopped the generator, as a share of the wall time. A generator that has a
// share of the CPU as a host of the run has none.
func (s *stepRun) quotaShare() float64 {
	wall := int64(0)
	for i := range s.reports {
		wall = max(wall, s.reports[i].wall)
	}
	if s.config.Hosts != nil || wall == 0 {
		return 0
	}
	return float64(s.host.throttled) / float64(wall)
}

// waitShare is the share of the wall time in which the worst thread was runnable
// but not running. For sessions it is the mean of all threads, and at most the share
// in which other programs ran on these CPUs: their threads also wait for each other.
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
			if s.host.foreignKnown {
				share = min(share, s.host.foreign*float64(time.Second)/float64(r.wall))
			}
		}
		worst = max(worst, share)
	}
	return worst
}

func (s *stepRun) judgeUnread(t *result.Total, sums *threadReport) *problem {
	if sums.counters.Reads == 0 || t.Done == 0 {
		return nil // without answers, only the ends of connections were read
	}
	unread := time.Duration(sums.counters.Unread / sums.counters.Reads)
	inFlight := time.Duration(t.Little.ServiceMean * float64(time.Second))
	if unread < unreadMin || float64(unread) < unreadShare*float64(inFlight) {
		return nil
	}
	return s.late(fmt.Sprintf("answers were unread for %s on average, with a mean time in flight of %s", round(unread), round(inFlight)))
}

// judgeLittle checks Little's law, N = X R. It holds unless the generator miscounts or its goroutines run late.
func (s *stepRun) judgeLittle(t *result.Total, _ *threadReport) *problem {
	if t.Little.Ratio == 0 || math.Abs(t.Little.Ratio-1) <= littleMax {
		return nil
	}
	return s.late(fmt.Sprintf("Little's law does not hold: %s requests were in flight, but %s times %s is %s",
		sheet.Number(t.Little.InFlightMean), sheet.Rate(t.Little.Rate), sheet.Duration(t.Little.ServiceMean),
		sheet.Number(t.Little.InFlightMean/t.Little.Ratio)))
}

// judgeIdle checks that a closed loop kept its connections busy. A pause after a failed attempt to connect is not the
// generator's fault, nor is the time after the last request of a step that is limited by requests.
func (s *stepRun) judgeIdle(t *result.Total, sums *threadReport) *problem {
	if s.step.Open() || sums.wall == 0 || t.Requests() == 0 || s.config.Flow != nil && s.config.Flow.Thinks() {
		return nil
	}
	slots := float64(s.config.Target.Slots(s.step.Connections))
	paused := float64(sums.paused) / float64(sums.wall)
	if spent := s.phase.spent.Load(); spent > 0 {
		tail := s.phase.from + sums.wall - spent
		paused += slots * float64(min(max(tail, 0), sums.wall)) / float64(sums.wall)
	}
	if busy := t.Little.InFlightMean; busy+paused < (1-idleMax)*slots {
		return s.late(fmt.Sprintf("of %s connections only %s had a request in flight on average", sheet.Number(slots), sheet.Number(busy)))
	}
	return nil
}

// judgeBacklog checks whether the target keeps up with the arrivals. If it does not, the latencies depend on the length of
// the step. That the SLO is missed does not: a longer step misses it too.
func (s *stepRun) judgeBacklog(t *result.Total, _ *threadReport) *problem {
	if !s.step.Open() {
		return nil
	}
	growth, clear := s.trend.growth(s.step.Rate / float64(s.config.Part.Count()))
	if t.Overloaded = clear; !clear {
		return nil
	}
	reason := fmt.Sprintf("the backlog grew by %s: the target answers %s", sheet.Rate(growth), sheet.Rate(t.Rate()))
	if !s.config.Part.Whole() || slices.ContainsFunc(t.SLO, func(c result.Criterion) bool { return !c.Met }) {
		return &problem{result.Valid, reason} // judgeSum judges a part
	}
	return &problem{result.NotStationary, reason + ", and latencies depend on the length of the step; use a lower --rate"}
}

// judgeDrift compares the response times at both ends of the step. If too many requests fail, it has failed at any length: failures take
// another time than answers, and may begin within the step.
func (s *stepRun) judgeDrift(t *result.Total, _ *threadReport) *problem {
	if t.Overloaded {
		return nil
	}
	first, last, changed := s.trend.drift()
	if !changed {
		return nil
	}
	reason := fmt.Sprintf("the mean response time changed from %s in the first third to %s in the last", round(first), round(last))
	if t.ErrorShare() > result.ErrorShareMax {
		return &problem{result.Valid, reason}
	}
	return &problem{result.NotStationary, fmt.Sprintf("%s; use a longer warm-up, as in --warmup %s",
		reason, longer(s.step.Warmup+time.Duration(t.Elapsed*float64(time.Second))/3))}
}

// judgeSilence checks that a closed loop was answered all the time. A target that stops answering gets no more requests, so that
// neither the percentiles nor the share of errors show it. If they do, the step is VALID.
func (s *stepRun) judgeSilence(t *result.Total, _ *threadReport) *problem {
	if s.step.Open() {
		return nil
	}
	from, length, clear := s.trend.silence()
	if !clear {
		return nil
	}
	reason := fmt.Sprintf("there was no good answer for %s, from %s on", length, from)
	if t.ErrorShare() > result.ErrorShareMax || slices.ContainsFunc(t.SLO, func(c result.Criterion) bool { return !c.Met }) {
		return &problem{result.Valid, reason}
	}
	return &problem{result.NotStationary, reason + ", which the figures of a closed loop do not show; find out why, or use --rate"}
}

// judgeSamples leaves a part of a load to judgeSum.
func (s *stepRun) judgeSamples(t *result.Total, _ *threadReport) *problem {
	if !s.config.Part.Whole() {
		return nil
	}
	return s.tooFew(t)
}

// tooFew checks that there are enough requests for every percentile of the SLO. If the target certainly fails more
// requests than a percentile leaves out, the percentile needs no more.
func (s *stepRun) tooFew(t *result.Total) *problem {
	for _, p := range s.config.SLO.Percentiles() {
		c := requestsNamed(t, p.Label).Counters
		if n := c.Requests(); !histogram.Carries(n, p.Q) && !failsSurely(failedByTarget(&c.Errors), n, 1-p.Q) {
			return &problem{result.TooFewSamples, fmt.Sprintf("%d answers are too few for p%g: %d of them must lie beyond it%s",
				n, p.Q*100, histogram.TailSamples, s.moreTime(t, n, math.Ceil(histogram.TailSamples/(1-p.Q)-1e-6)))}
		}
	}
	if n := t.Requests(); n < samplesMin && !failsSurely(failedByTarget(&t.Errors)+t.Done-t.Good(), n, result.ErrorShareMax) {
		return &problem{result.TooFewSamples, fmt.Sprintf("%d answers are fewer than %d%s", n, samplesMin, s.moreTime(t, n, samplesMin))}
	}
	for _, label := range s.config.SLO.Labels() { // a mean, a maximum or a share of errors
		c := requestsNamed(t, label).Counters
		if n := c.Requests(); n < samplesMin && !failsSurely(failedByTarget(&c.Errors)+c.Done-c.Good(), n, result.ErrorShareMax) {
			return &problem{result.TooFewSamples, fmt.Sprintf("%d requests with the name %s are fewer than %d%s", n, label, samplesMin,
				s.moreTime(t, n, samplesMin))}
		}
	}
	return nil
}

// notes are remarks that do not affect the verdict.
func (s *stepRun) notes(t *result.Total, sums *threadReport) []result.Reason {
	var notes []result.Reason
	if unsent := t.Errors[result.Unsent]; unsent > sums.late && !s.usersShort() {
		notes = append(notes, result.Reason{Code: result.NeverSent, Text: fmt.Sprintf(
			"the target did not keep up: %d arrivals found all %d connections busy and were never sent; see --connections and --backlog",
			unsent-sums.late, s.step.Connections)})
	}
	for _, c := range t.SLO {
		if limit := s.config.Timeout.Seconds(); !c.Met && limit > 0 && strings.HasPrefix(c.Metric, "response_") && c.Limit > limit {
			notes = append(notes, result.Reason{Code: result.TimeoutShort, Text: fmt.Sprintf(
				"the timeout of %s is shorter than the limit of %s: no answer can take longer and still count; use --timeout",
				round(s.config.Timeout), c.Text)})
			break
		}
	}
	if f := s.config.Flow; f != nil && f.UsedUp() != "" {
		notes = append(notes, result.Reason{
			Code: result.DataUsedUp, Text: fmt.Sprintf("the rows of %s are used up, so the run ended", f.UsedUp()),
		})
	}
	return notes
}

// round writes a duration with three digits.
func round(d time.Duration) string { return sheet.Duration(d.Seconds()) }

// judgeForeign checks that nobody else used the cores of the hosts. A host that waits for its own threads, or because it has used
// up its share, is at its capacity, and not contended.
func (s *stepRun) judgeForeign() *problem {
	if s.config.Hosts == nil {
		return nil
	}
	if s.hosts.err != nil {
		return &problem{result.HostContended, fmt.Sprintf("it is unknown who used the cores: %v", s.hosts.err)}
	}
	for i := range s.hosts.shares {
		h := &s.hosts.shares[i]
		if share := h.ForeignShare(); share >= min(foreignMax, foreignCoresMax/float64(h.CoreCount)) {
			return &problem{result.HostContended, fmt.Sprintf(
				"programs that belong to no host used %s of the cores of host %s (%s); "+
					"stop them, or name those of the target with --watch", sheet.Share(share), h.Name, h.Cores)}
		}
	}
	return nil
}

// moreCPU says what gives the generator more CPU time.
func (s *stepRun) moreCPU() string {
	cores := runtime.GOMAXPROCS(0)
	workers := min(s.config.Workers, s.step.Connections)
	switch {
	case s.config.Target.EventLoop() && s.config.Workers < cores && workers < s.step.Connections:
		return fmt.Sprintf("use --workers %d, or more machines", min(2*max(workers, 1), cores, s.step.Connections))
	case s.config.Target.EventLoop() && workers < cores:
		return "use more --connections, or more machines"
	case cores > 1:
		return "use --pin if the target is on this machine, or more machines"
	}
	return "use more machines"
}

// moreTime says how long the step must be to have enough requests at the measured rate. Its length is limited by time or
// by requests.
func (s *stepRun) moreTime(t *result.Total, have int64, want float64) string {
	switch {
	case s.config.Flow != nil && s.config.Flow.UsedUp() != "":
		return "" // more time gives no more rows
	case s.step.Requests > 0 && (s.step.Duration == 0 || t.Elapsed < s.step.Duration.Seconds()):
		return fmt.Sprintf("; use --requests %d", int64(math.Ceil(want*float64(s.step.Requests)/float64(max(have, 1)))))
	case have == 0 || t.Elapsed == 0:
		return "; use a longer step (-d)"
	}
	return "; use -d " + longer(time.Duration(1.1*want/float64(have)*t.Elapsed*float64(time.Second)))
}

// longer rounds a duration up to one that reads well: 7s, 50s, 4m, 2h.
func longer(d time.Duration) string {
	unit, name := time.Second, "s"
	switch {
	case d > time.Hour:
		unit, name = time.Hour, "h"
	case d > 3*time.Minute:
		unit, name = time.Minute, "m"
	case d > 20*time.Second:
		return fmt.Sprintf("%ds", 10*int64(math.Ceil(d.Seconds()/10)))
	}
	return fmt.Sprintf("%d%s", int64(math.Ceil(float64(d)/float64(unit))), name)
}

// failsSurely reports whether more than the limit, a share, of the requests fail, with 95 % confidence: with fewer, so many
// failures would be rare (the one-sided exact test of Clopper and Pearson, 1934).
func failsSurely(failed, requests int64, limit float64) bool {
	return failed > 0 && 1-stats.BinomialDist{N: int(requests), P: limit}.CDF(float64(failed-1)) < 0.05
}
