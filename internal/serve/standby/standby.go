// Package standby chooses between a read replica and its primary. Reads go to the replica
// while it answers, and to the primary while it does not.
//
// An error of the replica about a statement (a division by zero, a timeout) is the answer.
// The replica is down only if it cannot be reached, stops, or does not answer at all. The
// primary then answers alone; after a pause one read at a time tries the replica again.
package standby

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Pause is how long the primary answers alone before the replica is tried again.
	Pause = 5 * time.Second
	// Share is the replica's share of a caller's time. The rest is for the primary.
	Share = 2.0 / 3
	// confirmation is how long a replica whose time is over has to confirm the end of the
	// statement. A replica that confirms is slow; one that does not may hang.
	confirmation = 100 * time.Millisecond
	// Watch reads the lag every lagEvery, for at most lagTimeout.
	lagEvery   = 2 * time.Second
	lagTimeout = time.Second
)

// Judge interprets an error of the replica: whether it is down, and otherwise whether the
// primary may succeed. Any other error belongs to the statement.
type Judge func(error) (down, elsewhere bool)

// Switch is one replica with its primary. Use New. Its methods can be called concurrently.
type Switch struct {
	name  string
	judge Judge
	log   *slog.Logger

	downUntil atomic.Int64 // Unix ns, 0: it is up
	probing   atomic.Bool  // a read tries the replica
	fallbacks atomic.Uint64
	lag       atomic.Int64 // ns, negative: unknown
	calls     sync.WaitGroup
}

// New returns a switch. name identifies the replica in the log and must not contain a
// password. The owner calls Close.
func New(name string, judge Judge, log *slog.Logger) *Switch {
	s := &Switch{name: name, judge: judge, log: log}
	s.lag.Store(-1)
	return s
}

// Close waits for reads of the replica whose callers have left. No other call may follow.
func (s *Switch) Close() { s.calls.Wait() }

// Bounds says how one kind of read uses the replica.
type Bounds struct {
	// Timeout is the caller's time if the context has no deadline, as that of a shared
	// call; 0 means unknown.
	Timeout time.Duration
	// Own reports errors that the request caused, which the judge does not see; can be nil.
	Own func(error) bool
}

// Read returns the result of replica, or of primary if the replica is down, fails, or does
// not answer within its Share of the caller's time. replica can still run after Read has
// returned: the two functions must not change shared data.
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
			return r.value, ctx.Err() // the goroutine still records the replica's answer
		}
		r = awaitEnd(outcome)
	}
	if !r.next || ctx.Err() != nil {
		return r.value, r.err
	}
	s.fallbacks.Add(1)
	return primary(ctx)
}

// result is the outcome of a read of the replica.
type result[T any] struct {
	value T
	err   error
	next  bool // ask the primary
}

// awaitEnd waits briefly for the end of a read that was cancelled.
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

// within returns ctx limited to the replica's share of the time.
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

// begin reports whether a read that starts now asks the replica, and whether it is the one
// that tries a replica that was down.
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

// settle records the replica's answer and reports whether to ask the primary.
func (s *Switch) settle(now time.Time, probe bool, own func(error) bool, err error) bool {
	var down, elsewhere bool
	if err != nil && (own == nil || !own(err)) {
		down, elsewhere = s.judge(err)
	}
	switch {
	case down:
		if s.downUntil.Swap(now.Add(Pause).UnixNano()) == 0 {
			s.lag.Store(-1)
			s.log.Warn("the read replica fails; the primary answers", "database", s.name, "pause", Pause, "error", err)
		}
	case elsewhere: // says nothing about the replica
	case probe && s.downUntil.Swap(0) != 0:
		s.log.Info("the read replica answers again", "database", s.name)
	}
	if probe {
		s.probing.Store(false)
	}
	return down || elsewhere
}

// Watch reads the replica's lag every few seconds until ctx ends. read reports false if
// the database cannot tell.
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

// Lag returns how far the replica is behind its primary. It reports false if that is not
// known.
func (s *Switch) Lag() (time.Duration, bool) {
	lag := time.Duration(s.lag.Load())
	return max(lag, 0), lag >= 0
}

// Fallbacks returns how many reads went to the primary instead.
func (s *Switch) Fallbacks() uint64 { return s.fallbacks.Load() }

// Down reports whether the primary answers alone, except for reads that try the replica.
func (s *Switch) Down() bool { return s.downUntil.Load() != 0 }
