package database

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
)

// logEvery is the minimum time between two log lines about a database that is down.
const logEvery = 5 * time.Second

// Backoff is the delay between attempts: Base after the first, twice as long each time, at
// most Max. Jitter, 0 to 1, is the random share of a delay, so that many clients do not
// retry at once.
type Backoff struct {
	Base   time.Duration
	Max    time.Duration
	Jitter float64
}

// DefaultBackoff returns the backoff of Wait. It asks about once a second and finds a
// database that is back within about two seconds.
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

// Wait calls ping until it returns nil, with DefaultBackoff between the calls. It logs the
// first error, then at most one every 5 seconds, and once that the database answers again.
// It returns an error only when ctx ends: ctx's cause and ping's last error. ping bounds
// its own time.
func Wait(ctx context.Context, log *slog.Logger, what string, ping func(context.Context) error) error {
	backoff := DefaultBackoff()
	start := time.Now()
	var logged time.Time
	for attempts := 1; ; attempts++ {
		err := ping(ctx)
		if err == nil {
			if attempts > 1 {
				log.Info("the database answers", "database", what, "attempts", attempts, "waited", time.Since(start))
			}
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for %s: %w (last attempt: %w)", what, context.Cause(ctx), err)
		}
		if logged.IsZero() || time.Since(logged) >= logEvery {
			log.Warn("the database does not answer; waiting for it", "database", what, "attempts", attempts, "err", err)
			logged = time.Now()
		}
		pause := time.NewTimer(backoff.Delay(attempts, rand.Float64))
		select {
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("wait for %s: %w (last attempt: %w)", what, context.Cause(ctx), err)
		case <-pause.C:
		}
	}
}
