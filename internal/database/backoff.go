package database

import "time"

// Backoff is the delay between attempts: Base after the first, twice as long each time, at
// most Max. Jitter, 0 to 1, is the random share of a delay, so that many clients do not
// retry at once.
type Backoff struct {
	Base   time.Duration
	Max    time.Duration
	Jitter float64
}

// DefaultBackoff returns the backoff while a database is away. It asks about once a second and
// finds a database that is back within about two seconds.
func DefaultBackoff() Backoff {
	return Backoff{Base: 100 * time.Millisecond, Max: 2 * time.Second, Jitter: 0.5}
}

// Delay returns how long to wait after a number of failed attempts in a row (1 is the
// first). random returns a number in [0, 1), as rand.Float64 does. The delay is at most
// Max, and at least 1-Jitter of its full length.
func (b Backoff) Delay(attempts int, random func() float64) time.Duration {
	full := min(b.Base, b.Max)
	for i := 1; i < attempts && full < b.Max; i++ {
		full += min(full, b.Max-full)
	}
	return full - time.Duration(b.Jitter*random()*float64(full))
}
