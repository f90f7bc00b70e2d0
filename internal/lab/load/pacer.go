package load

import (
	"math"
	"math/rand/v2"
	"time"
)

// Profile is an arrival rate over time: From during Lead, then on a straight
// line to To over Over. A constant rate has From equal To.
type Profile struct {
	From, To float64 // arrivals a second
	Over     time.Duration
	Lead     time.Duration // the warm-up
}

// Constant returns the profile of one rate.
func Constant(rateHz float64, over time.Duration) Profile {
	return Profile{From: rateHz, To: rateHz, Over: over}
}

// slope is the change of the rate, in arrivals a second, each second.
func (p Profile) slope() float64 {
	if p.Over <= 0 {
		return 0
	}
	return (p.To - p.From) / p.Over.Seconds()
}

// Rate returns the arrivals a second at t.
func (p Profile) Rate(t time.Duration) float64 {
	return p.From + p.slope()*max(t-p.Lead, 0).Seconds()
}

// Hits returns the arrivals expected in [0, t): the integral of the rate,
//
//	From t + (To - From) (t - Lead)² / (2 Over)
func (p Profile) Hits(t time.Duration) float64 {
	ramped := max(t-p.Lead, 0).Seconds()
	return p.From*t.Seconds() + p.slope()*ramped*ramped/2
}

// Time is the inverse of Hits: when so many arrivals are expected. Hits that
// the profile never reaches come at the end of time.
func (p Profile) Time(hits float64) time.Duration {
	lead := p.From * p.Lead.Seconds()
	if hits < lead {
		return time.Duration(math.Round(hits / p.From * 1e9))
	}
	hits -= lead
	// The smaller root of slope/2 t² + From t - hits, in the form that stays
	// exact when the slope goes to zero.
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

// endOfTime is later than any run ends.
const endOfTime = 100 * 365 * 24 * time.Hour

// Arrivals gives the intended starts of a profile in order. It is pure: the
// same profile and the same randomness give the same times, whatever the clock
// does meanwhile, so a late arrival never moves the next one.
type Arrivals struct {
	profile Profile
	random  *rand.Rand // nil: evenly spaced
	hits    float64    // expected arrivals before the next one
	number  int64
}

// Even returns evenly spaced arrivals; the first is at once.
func Even(p Profile) *Arrivals { return &Arrivals{profile: p} }

// Poisson returns arrivals that know nothing of each other, as those of many
// independent users: the expected arrivals between two follow the exponential
// distribution.
func Poisson(p Profile, random *rand.Rand) *Arrivals {
	return &Arrivals{profile: p, random: random, hits: random.ExpFloat64()}
}

// Next returns the next intended start, from the start of the profile. It goes
// on behind the profile's end; the caller stops.
func (a *Arrivals) Next() time.Duration {
	t := a.profile.Time(a.hits)
	a.number++
	if a.random == nil {
		a.hits = float64(a.number) // counted, not summed: no error adds up
	} else {
		a.hits += a.random.ExpFloat64()
	}
	return t
}
