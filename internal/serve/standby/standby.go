// Package standby decides between a read replica and its primary: reads go to
// the replica while it answers, and to the primary while it does not.
//
// What a replica says about a statement (it divides by zero, it takes too long) is
// the answer; only a replica that cannot be reached, ends, or says nothing at all
// is down. Then the primary answers alone, and after a pause one read at a time finds
// out whether the replica is back.
package standby

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Pause is how long the primary answers alone before the replica is asked again.
	Pause = 5 * time.Second
	// Share is the part of a caller's time that the replica has: the rest is
	// the primary's.
	Share = 2.0 / 3
	// confirmation is how long a replica whose time is over has to say that it has
	// ended the statement. One that does is slow; one that does not may hang.
	confirmation = 100 * time.Millisecond
	// lagEvery is how often Watch reads the lag, lagTimeout how long that takes at most.
	lagEvery   = 2 * time.Second
	lagTimeout = time.Second
)

// Judge says what an error of the replica means: whether it is down, and, if it is
// not, whether the primary may do better. Errors that are neither are the
// statement's own.
type Judge func(error) (down, elsewhere bool)

// Switch is one replica with its primary. Use New. Its methods may be called
// concurrently.
type Switch struct {
	name  string
	judge Judge
	log   *slog.Logger

	downUntil atomic.Int64 // Unix ns, 0: it is up
	probing   atomic.Bool  // a read finds out whether it is back
	fallbacks atomic.Uint64
	lag       atomic.Int64 // ns, negative: unknown
	calls     sync.WaitGroup
}

// New returns a switch; name tells the replica in the log and must not hold a
// password. The owner calls Close.
func New(name string, judge Judge, log *slog.Logger) *Switch {
	s := &Switch{name: name, judge: judge, log: log}
	s.lag.Store(-1)
	return s
}

// Close waits for reads of the replica that their callers have left. No other
// call may follow.
func (s *Switch) Close() { s.calls.Wait() }

// Bounds says how one kind of read treats the replica.
type Bounds struct {
	// Timeout is the time that the caller has where the context sets no end, as that of
	// a shared call does not; 0: none is known.
	Timeout time.Duration
	// Own reports errors that are the request's own, whatever the judge says; may be nil.
	Own func(error) bool
}

// Read returns what replica returns, and what primary returns when the replica
// fails now, does not answer within its Share of the caller's time, or is down. The
// replica's function may run on for a while after Read has returned: the two
// must share nothing that they change.
func Read[T any](ctx context.Context, s *Switch, b Bounds, replica, primary func(context.Context) (T, error)) (T, error) {
	probe, up := s.begin(time.Now())
	if !up {
		s.fallbacks.Add(1)
		return primary(ctx)
	}
	within, cancel := b.within(ctx)
	defer cancel()
	outcome := make(chan result[T], 1)
	s.calls.Go(func() {
		value, err := replica(within)
		outcome <- result[T]{value: value, err: err, next: s.settle(time.Now(), probe, b.Own, err)}
	})
	var r result[T]
	select {
	case r = <-outcome:
	case <-within.Done():
		if ctx.Err() != nil {
			return r.value, ctx.Err() // what the replica says to that is settled all the same
		}
		r = awaitEnd(outcome)
	}
	if !r.next || ctx.Err() != nil {
		return r.value, r.err
	}
	s.fallbacks.Add(1)
	return primary(ctx)
}

// result is what became of a read of the replica.
type result[T any] struct {
	value T
	err   error
	next  bool // the primary is asked
}

// awaitEnd waits for the end of a read that was cancelled, not for long.
func awaitEnd[T any](outcome <-chan result[T]) result[T] {
	timer := time.NewTimer(confirmation)
	defer timer.Stop()
	select {
	case r := <-outcome:
		return r
	case <-timer.C:
		return result[T]{next: true}
	}
}

// within returns ctx with the replica's share of the time.
func (b Bounds) within(ctx context.Context) (context.Context, context.CancelFunc) {
	left := b.Timeout
	if end, ok := ctx.Deadline(); ok {
		left = max(time.Until(end), 1)
	}
	if left == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(Share*float64(left)))
}

// begin reports whether a read that starts now asks the replica, and whether it is
// the one that finds out if that is back.
func (s *Switch) begin(now time.Time) (probe, up bool) {
	switch until := s.downUntil.Load(); {
	case until == 0:
		return false, true
	case now.UnixNano() < until:
		return false, false
	}
	up = s.probing.CompareAndSwap(false, true)
	return up, up
}

// settle takes what the replica answered and reports whether the primary is asked.
func (s *Switch) settle(now time.Time, probe bool, own func(error) bool, err error) bool {
	var down, elsewhere bool
	if err != nil && (own == nil || !own(err)) {
		down, elsewhere = s.judge(err)
	}
	switch {
	case down:
		if s.downUntil.Swap(now.Add(Pause).UnixNano()) == 0 {
			s.lag.Store(-1)
			s.log.Warn("the read replica fails: the primary answers", "database", s.name, "pause", Pause, "error", err)
		}
	case elsewhere: // that says nothing of the replica, good or bad
	case probe && s.downUntil.Swap(0) != 0:
		s.log.Info("the read replica answers again", "database", s.name)
	}
	if probe {
		s.probing.Store(false)
	}
	return down || elsewhere
}

// Watch reads the replica's lag every few seconds until ctx ends. read reports
// false when the database does not tell.
func (s *Switch) Watch(ctx context.Context, read func(context.Context) (lag time.Duration, known bool, err error)) {
	ticker := time.NewTicker(lagEvery)
	defer ticker.Stop()
	for {
		s.look(ctx, read)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *Switch) look(ctx context.Context, read func(context.Context) (time.Duration, bool, error)) {
	limited, cancel := context.WithTimeout(ctx, lagTimeout)
	defer cancel()
	lag, known, err := read(limited)
	if err != nil {
		s.log.Debug("the replica's lag cannot be read", "database", s.name, "error", err)
	}
	if err != nil || !known {
		lag = -1
	}
	s.lag.Store(int64(lag))
}

// Lag returns how far the replica is behind its primary, and false when that is not
// known: the database does not tell, or it does not answer.
func (s *Switch) Lag() (time.Duration, bool) {
	lag := time.Duration(s.lag.Load())
	return max(lag, 0), lag >= 0
}

// Fallbacks returns how many reads went to the primary instead.
func (s *Switch) Fallbacks() uint64 { return s.fallbacks.Load() }

// Down reports whether the primary answers alone, but for reads that find out
// whether the replica is back.
func (s *Switch) Down() bool { return s.downUntil.Load() != 0 }
