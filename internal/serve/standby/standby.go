// Package standby chooses between a read replica and its primary.
//
// Reads go to the replica while its rows are known to be young enough, and else to the
// primary. If the primary is away, older rows of the replica are served up to a bound, with
// their age. How old they are at most comes from positions in the primary's log: the primary
// is asked for its position at a known time, and the replica for what it has replayed.
//
// An error of the replica about a statement (a division by zero, a timeout) is the answer.
// The replica is down only if it cannot be reached, stops, or does not answer at all. The
// primary then answers alone; after a pause one read at a time tries the replica again.
package standby

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Pause is how long the primary answers alone before the replica is tried again.
	Pause = 5 * time.Second
	// Share is the share of a caller's time for the database that is asked first. The rest
	// is for the other.
	Share = 2.0 / 3
	// confirmation is how long a database whose time is over has to confirm the end of the
	// statement. One that confirms is slow; one that does not may hang.
	confirmation = 100 * time.Millisecond
)

// Judge interprets an error of a database: whether it is down, and otherwise whether its
// counterpart may succeed. Any other error belongs to the statement.
type Judge func(error) (down, elsewhere bool)

// Switch is one replica with its primary. Use New. Its methods can be called concurrently.
type Switch struct {
	name   string
	lagMax time.Duration
	judge  Judge
	log    *slog.Logger

	downUntil   atomic.Int64 // Unix ns, 0: the replica is up
	probing     atomic.Bool  // a read tries the replica
	primaryAway atomic.Bool  // at the last sample or read
	fallbacks   atomic.Uint64
	calls       sync.WaitGroup

	asked  atomic.Int64  // Unix ns of the last read or question about the lag
	wake   chan struct{} // one token: somebody has asked
	lag    atomic.Int64  // ns, negative: unknown
	late   atomic.Bool
	readAt atomic.Pointer[time.Time] // the replica's rows are no older; nil: not known

	mu      sync.Mutex // guards history
	history history
}

// New returns a switch that uses the replica while its rows are at most lagMax old. name
// identifies the replica in the log and must not contain a password. The owner calls Close.
func New(name string, lagMax time.Duration, judge Judge, log *slog.Logger) *Switch {
	s := &Switch{name: name, lagMax: lagMax, judge: judge, log: log, wake: make(chan struct{}, 1)}
	s.lag.Store(-1)
	return s
}

// Close waits for reads whose callers have left. No other call may follow.
func (s *Switch) Close() { s.calls.Wait() }

// Bounds says how one kind of read uses the replica.
type Bounds struct {
	// Timeout is the caller's time if the context has no deadline, as that of a shared
	// call; 0 means unknown.
	Timeout time.Duration
	// StaleMax is the age of the oldest rows of the replica that are served while the
	// primary is away. While it answers, the replica's rows are at most half as old.
	StaleMax time.Duration
	// Own reports errors that the request caused, which the judge does not see; can be nil.
	Own func(error) bool
}

// Read returns the result of replica or of primary, and a time: rows are no older than this.
//
// It asks the replica if its rows are young enough. If the replica is down, fails, or does
// not answer within its Share of the caller's time, it asks the primary. If the replica's
// rows are too old or of unknown age, it asks the primary, and the replica only if the
// primary is away and the rows are no older than StaleMax. Either function can still run
// after Read has returned: they must not change shared data.
func Read[T any](ctx context.Context, s *Switch, b Bounds, replica, primary func(context.Context) (T, error)) (T, time.Time, error) {
	now := time.Now()
	s.ask(now)
	readAt, young, usable := s.age(now, b.StaleMax)
	if young || usable && s.primaryAway.Load() {
		if probe, up := s.begin(now); up {
			r := attempt(ctx, s, b, replica, func(err error) bool { return s.settle(time.Now(), probe, b.Own, err) })
			if !r.next || ctx.Err() != nil {
				return r.value, readAt, r.err
			}
		}
		usable = false
	}
	s.fallbacks.Add(1)
	now = time.Now()
	if !usable || s.Down() {
		value, err := primary(ctx)
		s.primaryFailed(b.Own, err)
		return value, now, err
	}
	r := attempt(ctx, s, b, primary, func(err error) bool { return s.primaryFailed(b.Own, err) })
	if !r.next || ctx.Err() != nil {
		return r.value, now, r.err
	}
	value, err := replica(ctx)
	s.settle(time.Now(), false, b.Own, err)
	return value, readAt, err
}

// age returns a time that the replica's rows are no older than, whether the replica answers
// while the primary does, and whether it answers while the primary is away.
func (s *Switch) age(now time.Time, staleMax time.Duration) (readAt time.Time, young, usable bool) {
	at := s.readAt.Load()
	if at == nil {
		return now, false, false
	}
	age := now.Sub(*at)
	return *at, age <= min(s.lagMax, staleMax/2), age <= staleMax
}

// errSilent is the error of a read whose caller has left before the other database was asked.
var errSilent = fmt.Errorf("the database does not confirm the end of the statement: %w", context.DeadlineExceeded)

// result is the outcome of a read of the database that is asked first.
type result[T any] struct {
	value T
	err   error
	next  bool // ask the other
}

// attempt asks a database for at most its Share of the caller's time. settle records the
// answer and reports whether to ask the other.
func attempt[T any](ctx context.Context, s *Switch, b Bounds, ask func(context.Context) (T, error), settle func(error) bool) result[T] {
	within, cancel := b.within(ctx)
	outcome := make(chan result[T], 1)
	s.calls.Go(func() {
		value, err := ask(within)
		outcome <- result[T]{value: value, err: err, next: settle(err)}
	})
	defer cancel()
	select {
	case r := <-outcome:
		return r
	case <-within.Done():
		if err := ctx.Err(); err != nil {
			return result[T]{err: err} // the goroutine still records the answer
		}
		return awaitEnd(outcome)
	}
}

// awaitEnd waits briefly for the end of a read that was cancelled.
func awaitEnd[T any](outcome <-chan result[T]) result[T] {
	select {
	case r := <-outcome:
		return r
	case <-time.After(confirmation):
		return result[T]{err: errSilent, next: true}
	}
}

// within returns ctx limited to the first database's share of the time.
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
		first := s.downUntil.Swap(now.Add(Pause).UnixNano()) == 0
		s.forget()
		if first {
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

// primaryFailed records the primary's answer and reports whether the primary is away.
func (s *Switch) primaryFailed(own func(error) bool, err error) bool {
	if err == nil || own != nil && own(err) {
		return false
	}
	down, _ := s.judge(err)
	if down {
		s.primaryAway.Store(true)
	}
	return down
}

// Fallbacks returns how many reads went to the primary instead.
func (s *Switch) Fallbacks() uint64 { return s.fallbacks.Load() }

// Down reports whether the primary answers alone, except for reads that try the replica.
func (s *Switch) Down() bool { return s.downUntil.Load() != 0 }
