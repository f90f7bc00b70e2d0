package feed

import (
	"math"
	"time"
)

// admission decides which values of the parameters have a window, while there are more
// values than windows. Like TinyLFU (Einziger, Friedman, Manes, 2017), it lets a value in
// only if it is asked for more often than the value that would have to leave. A policy that
// lets every value in at once, such as LRU or S3-FIFO, would read a whole window for most
// requests as soon as more values than windows are asked for in turn. A value that is not
// let in costs one small statement, so a wrong refusal is cheap.
//
// The requests of a value with a window are counted exactly. Those of the others are counted
// in a Misra-Gries summary: it has a fixed number of counters and never counts too much, so
// that requests for many different values displace no window, which TinyLFU's own sketch
// would allow. All counts are halved once per period.
//
// admission is pure: time is an argument. The feed's lock guards it.
type admission struct {
	period time.Duration
	most   int               // counters at most
	counts map[uint64]uint64 // requests of values without a window, by the hash of the value
	aged   time.Time         // when the counts were last halved
	floor  uint64            // no window is asked for less often, since aged
}

// countersMin is the smallest number of counters of a feed.
const countersMin = 1024

// hysteresis is how many times as often as the window that leaves a value is asked for.
// Values that are asked for about equally often do not take turns.
const hysteresis = 2

// resident is a value with a window.
type resident struct {
	requests uint64 // halved once per period
	asked    int64  // the last request; orders those with equal requests
	busy     bool   // it is needed and may not leave
	bytes    int64  // of its window
}

func newAdmission(windows int, period time.Duration) admission {
	return admission{period: period, most: max(countersMin, windows), counts: make(map[uint64]uint64)}
}

// age halves the counts as often as periods have passed, and returns how often. The caller
// halves those of the residents as often.
func (a *admission) age(now time.Time) (halvings uint) {
	if a.aged.IsZero() {
		a.aged = now
	}
	for ; now.Sub(a.aged) >= a.period && halvings < 64; halvings++ {
		a.aged = a.aged.Add(a.period)
	}
	if halvings == 0 {
		return 0
	}
	if halvings == 64 {
		a.aged = now
	}
	a.floor = 0
	for value, n := range a.counts {
		if n >>= halvings; n == 0 {
			delete(a.counts, value)
		} else {
			a.counts[value] = n
		}
	}
	return halvings
}

// count counts a request for a value without a window.
func (a *admission) count(value uint64) {
	if _, ok := a.counts[value]; ok || len(a.counts) < a.most {
		a.counts[value]++
		return
	}
	// Each counter pays for this with a request of its own, so it is cheap on average.
	for other, n := range a.counts {
		if n == 1 {
			delete(a.counts, other)
		} else {
			a.counts[other] = n - 1
		}
	}
}

// created notes that a window was created without another leaving.
func (a *admission) created() { a.floor = 0 }

// wants reports whether a value may be let in. The caller then calls replace.
func (a *admission) wants(value uint64) bool { return a.exceeds(value, a.floor) }

// exceeds reports whether a value is asked for more often than a window with that many
// requests. A value that was not answered yet never is.
func (a *admission) exceeds(value, requests uint64) bool {
	return a.counts[value] > hysteresis*requests
}

// replace returns the position of the resident that leaves for a value; false if the value
// is not let in. With must, it is let in however rarely it is asked for.
func (a *admission) replace(value uint64, residents []resident, must bool) (int, bool) {
	least, floor := -1, uint64(math.MaxUint64)
	for i, r := range residents {
		floor = min(floor, r.requests) // a busy one may leave later
		if !r.busy && (least < 0 || r.less(residents[least])) {
			least = i
		}
	}
	if least < 0 {
		a.floor = floor
		return 0, false
	}
	if !must && !a.exceeds(value, residents[least].requests) {
		a.floor = floor
		return 0, false
	}
	delete(a.counts, value)
	return least, true
}

// poorer reports whether the memory of r is asked for less than that of other.
func (r resident) poorer(other resident) bool {
	mine, others := float64(r.requests)*float64(other.bytes), float64(other.requests)*float64(r.bytes)
	if mine != others {
		return mine < others
	}
	return r.asked < other.asked
}

func (r resident) less(other resident) bool {
	if r.requests != other.requests {
		return r.requests < other.requests
	}
	return r.asked < other.asked
}
