package load

import (
	"math"
	"slices"
	"time"

	"github.com/aclements/go-moremath/stats"
)

// A trend describes how a step developed: one point per period. The period doubles
// when there are pointsMax points, so that memory is bounded.
type trend struct {
	period int64 // nanoseconds
	start  int64 // of the current point, on the run's clock
	next   int64 // its end; math.MaxInt64 in the warm-up
	owed   int64 // requests that were due and have not ended, also those that were never sent
	before int64 // owed at the start of the first point
	now    point
	points []point
}

// point is one period of a trend.
type point struct {
	ended  int64 // requests that were due in the step and ended in the period
	waited int64 // sum of their response times, or of what they waited without an answer, in nanoseconds
	good   int64 // of those that ended, answered as expected
	owed   int64 // at its end
}

const (
	pointsMax    = 1024
	pointsPeriod = second / 4
)

func newTrend() trend {
	return trend{period: pointsPeriod, next: math.MaxInt64, points: make([]point, 0, pointsMax)}
}

// begin starts the first point.
func (t *trend) begin(from int64) {
	t.start, t.next, t.before = from, from+t.period, t.owed
}

// add counts a request that ended.
func (t *trend) add(waited int64, good bool) {
	t.now.ended++
	if good {
		t.now.good++
	}
	t.now.waited += waited
}

// roll ends every point whose period has ended and returns the end of the next.
func (t *trend) roll(now int64) (next int64) {
	for now >= t.next {
		t.now.owed = t.owed
		t.points = append(t.points, t.now)
		t.now = point{}
		if len(t.points) == pointsMax {
			t.points = joined(t.points, 2)
			t.period *= 2
		}
		t.start = t.next
		t.next += t.period
	}
	return t.next
}

// joined returns the points in groups of n. Points that do not fill a group are
// dropped.
func joined(points []point, n int) []point {
	groups := points[:0:0]
	for group := range slices.Chunk(points, n) {
		if len(group) < n {
			break
		}
		sum := point{owed: group[n-1].owed}
		for _, p := range group {
			sum.ended += p.ended
			sum.waited += p.waited
			sum.good += p.good
		}
		groups = append(groups, sum)
	}
	return groups
}

// sumOf adds up the trends of all threads as far as every one of them reaches.
func sumOf(trends []*trend) trend {
	sum := trend{period: pointsPeriod}
	for _, t := range trends {
		sum.period = max(sum.period, t.period)
	}
	for i, t := range trends {
		points := joined(t.points, int(sum.period/t.period))
		if i == 0 {
			sum.points = make([]point, len(points))
		}
		sum.points = sum.points[:min(len(sum.points), len(points))]
		for k := range sum.points {
			sum.points[k].ended += points[k].ended
			sum.points[k].waited += points[k].waited
			sum.points[k].good += points[k].good
			sum.points[k].owed += points[k].owed
		}
		sum.before += t.before
	}
	return sum
}

// Limits of a steady trend.
const (
	trendMin    = 4 * time.Second // minimum length of a step for a verdict
	driftGroups = 12              // minimum number of means that are compared, a third of them at each end
	driftShare  = 0.25            // change of the mean response time between the first and the last third
	driftNoise  = 7               // the same, in standard errors of independent means; neighbors in time are alike
	growthShare = 0.01            // growth of the backlog over the arrivals
	silenceMin  = time.Second     // minimum time without a good answer, in a row
	silenceMax  = 0.10            // the same, as a share of the step
	answersMin  = 0.90            // share of the other periods that have good answers
	growthSigma = 4               // growth of the backlog in standard deviations of a random walk
)

// judged reports whether the trend is long enough for a verdict.
func (t *trend) judged() bool { return int64(len(t.points))*t.period >= int64(trendMin) }

// drift compares the mean response times of the first and the last third. changed is
// true if the difference is large and clear. The noise of the means, each over up to a
// twelfth of the time, is that of their second differences, which a slow change does not
// affect. See von Neumann, "Distribution of the ratio of the mean square successive
// difference to the variance", 1941.
func (t *trend) drift() (first, last time.Duration, changed bool) {
	var means []float64
	for _, p := range joined(t.points, max(1, len(t.points)/driftGroups)) {
		if p.ended > 0 {
			means = append(means, float64(p.waited)/float64(p.ended))
		}
	}
	if !t.judged() || len(means) < driftGroups {
		return 0, 0, false
	}
	third := len(means) / 3
	before, after := stats.Mean(means[:third]), stats.Mean(means[len(means)-third:])
	squares := 0.0
	for i := 2; i < len(means); i++ {
		d := means[i-2] - 2*means[i-1] + means[i]
		squares += d * d
	}
	variance := squares / 6 / float64(len(means)-2)
	change := math.Abs(after - before)
	changed = change >= driftShare*before && change > driftNoise*math.Sqrt(2*variance/float64(third))
	return time.Duration(before), time.Duration(after), changed
}

// silence is the longest time in a row without a good answer. It is clear if it is a
// large part of a step that otherwise has answers all the time. That of requests which
// take longer than a period is not.
func (t *trend) silence() (from, length time.Duration, clear bool) {
	longest, end, answered, row := 0, 0, 0, 0
	for i, p := range t.points {
		if row++; p.good > 0 {
			answered++
			row = 0
		}
		if row > longest {
			longest, end = row, i+1
		}
	}
	length = time.Duration(int64(longest) * t.period)
	others := len(t.points) - longest
	clear = t.judged() && length >= silenceMin && float64(longest) >= silenceMax*float64(len(t.points)) &&
		others > 0 && float64(answered) >= answersMin*float64(others)
	return time.Duration(int64(end-longest) * t.period), length, clear
}

// growth is the growth of the backlog per second. It is clear if it exceeds what a
// random walk without drift, with steps that vary like those of the backlog, reaches in
// the same time. A backlog that fluctuates around a mean reaches less.
func (t *trend) growth(arrivalsHz float64) (perSecond float64, clear bool) {
	if !t.judged() {
		return 0, false
	}
	var steps moments
	before := t.before
	for _, p := range t.points {
		steps.add(float64(p.owed - before))
		before = p.owed
	}
	total, n := float64(before-t.before), steps.n
	perSecond = total / (n * time.Duration(t.period).Seconds())
	return perSecond, perSecond > growthShare*arrivalsHz && total > growthSigma*steps.stdDev()*math.Sqrt(n) && total >= growthMin
}

// growthMin is the smallest growth of the backlog in a step that is a trend, in
// requests.
const growthMin = 10
