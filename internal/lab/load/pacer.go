package load

import (
	"math"
	"math/rand/v2"
	"time"

	"spillway/internal/lab/target"
)

// endOfTime is later than the end of any run.
const endOfTime = 100 * 365 * 24 * time.Hour

// Arrivals generates the intended starts of an open loop in order. They depend only
// on the rate and the random numbers, not on the clock, so a late arrival never
// delays the next one.
type Arrivals struct {
	rate   float64    // arrivals per second
	random *rand.Rand // nil: evenly spaced
	hits   float64    // expected arrivals before the next one
	number int64
	part   target.Part
}

// Even returns evenly spaced arrivals. The first is at time 0.
func Even(rateHz float64) *Arrivals { return &Arrivals{rate: rateHz} }

// Poisson returns the arrivals of many independent users: the expected number of
// arrivals between two follows the exponential distribution.
func Poisson(rateHz float64, random *rand.Rand) *Arrivals {
	return &Arrivals{rate: rateHz, random: random, hits: random.ExpFloat64()}
}

// Part makes a the arrivals of a part of the load; it is called before Next. Of
// evenly spaced arrivals each part takes every n-th, so that together they are evenly
// spaced. Of Poisson arrivals each has an n-th of the rate. Together they are Poisson
// arrivals of the whole rate if the random numbers of each differ.
func (a *Arrivals) Part(p target.Part) *Arrivals {
	a.part = p
	if a.random == nil {
		a.hits = float64(p.Number)
	} else {
		a.hits *= float64(p.Count())
	}
	return a
}

// Next returns the next intended start, counted from the beginning of the warm-up.
// It continues without end.
func (a *Arrivals) Next() time.Duration {
	t := a.time()
	a.number++
	if a.random == nil {
		a.hits = float64(a.part.Nth(a.number)) // counted, not summed, so that errors do not accumulate
	} else {
		a.hits += a.random.ExpFloat64() * float64(a.part.Count())
	}
	return t
}

// time is when the next arrival is expected, the largest duration if never.
func (a *Arrivals) time() time.Duration {
	seconds := a.hits / a.rate
	if !(seconds < endOfTime.Seconds()) {
		return math.MaxInt64
	}
	return time.Duration(math.Round(seconds * 1e9))
}

// backlog is a bounded queue of the intended starts of arrivals that wait for a
// connection.
type backlog struct {
	times []int64 // a ring
	first int
	count int
	limit int
}

func newBacklog(limit int) *backlog { return &backlog{limit: limit} }

// push adds an arrival. It returns false if the backlog is full.
func (b *backlog) push(intended int64) bool {
	if b.count >= b.limit {
		return false
	}
	if b.count == len(b.times) {
		b.grow()
	}
	b.times[(b.first+b.count)%len(b.times)] = intended
	b.count++
	return true
}

// oldest is the arrival that has waited longest. The backlog must not be empty.
func (b *backlog) oldest() int64 { return b.times[b.first] }

// pop removes the arrival that has waited longest.
func (b *backlog) pop() (intended int64, ok bool) {
	if b.count == 0 {
		return 0, false
	}
	intended = b.times[b.first]
	b.first = (b.first + 1) % len(b.times)
	b.count--
	return intended, true
}

func (b *backlog) grow() {
	times := make([]int64, min(max(2*len(b.times), 1024), b.limit))
	n := copy(times, b.times[b.first:])
	copy(times[n:], b.times[:b.first])
	b.times, b.first = times, 0
}
