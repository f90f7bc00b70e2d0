package load

import (
	"math"
	"math/rand/v2"
	"time"

	"spillway/internal/lab/target"
)

// Profile is an arrival rate over time: From during Lead, then a linear change to
// To over Over. A constant rate has From equal to To.
type Profile struct {
	From, To float64 // arrivals per second
	Over     time.Duration
	Lead     time.Duration // the warm-up
}

// Constant returns the profile of a constant rate.
func Constant(rateHz float64, over time.Duration) Profile {
	return Profile{From: rateHz, To: rateHz, Over: over}
}

// slope is the change of the rate per second, in arrivals per second.
func (p Profile) slope() float64 {
	if p.Over <= 0 {
		return 0
	}
	return (p.To - p.From) / p.Over.Seconds()
}

// Time returns the time at which that many arrivals are expected, the largest
// duration if never. It inverts the integral of the rate,
//
//	From t + (To - From) (t - Lead)² / (2 Over)
func (p Profile) Time(hits float64) time.Duration {
	lead := p.From * p.Lead.Seconds()
	if hits < lead {
		return time.Duration(math.Round(hits / p.From * 1e9))
	}
	hits -= lead
	// The smaller root of slope/2 t² + From t - hits, in a form that is accurate
	// for a slope near zero.
	under := p.From*p.From + 2*p.slope()*hits
	if under < 0 {
		return math.MaxInt64
	}
	seconds := 0.0
	if hits > 0 {
		seconds = 2 * hits / (p.From + math.Sqrt(under))
	}
	if !(seconds < endOfTime.Seconds()) {
		return math.MaxInt64
	}
	return p.Lead + time.Duration(math.Round(seconds*1e9))
}

// endOfTime is later than the end of any run.
const endOfTime = 100 * 365 * 24 * time.Hour

// Arrivals generates the intended starts of a profile in order. They depend only
// on the profile and the random numbers, not on the clock, so a late arrival
// never delays the next one.
type Arrivals struct {
	profile Profile
	random  *rand.Rand // nil: evenly spaced
	hits    float64    // expected arrivals before the next one
	number  int64
	share   target.Share
}

// Even returns evenly spaced arrivals. The first is at time 0.
func Even(p Profile) *Arrivals { return &Arrivals{profile: p} }

// Poisson returns the arrivals of many independent users: the expected number of
// arrivals between two follows the exponential distribution.
func Poisson(p Profile, random *rand.Rand) *Arrivals {
	return &Arrivals{profile: p, random: random, hits: random.ExpFloat64()}
}

// Share makes a the arrivals of one of several generators; it is called before
// Next. Of evenly spaced arrivals each takes every n-th, so that together they are
// evenly spaced. Of Poisson arrivals each has an n-th of the rate. Together they are
// Poisson arrivals of the whole rate if the random numbers of each differ.
func (a *Arrivals) Share(s target.Share) *Arrivals {
	a.share = s
	if a.random == nil {
		a.hits = float64(s.Number)
	} else {
		a.hits *= float64(s.Count())
	}
	return a
}

// Next returns the next intended start, counted from the start of the profile. It
// continues after the profile's end.
func (a *Arrivals) Next() time.Duration {
	t := a.profile.Time(a.hits)
	a.number++
	if a.random == nil {
		a.hits = float64(a.number*int64(a.share.Count()) + int64(a.share.Number)) // counted, not summed, so that errors do not accumulate
	} else {
		a.hits += a.random.ExpFloat64() * float64(a.share.Count())
	}
	return t
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
