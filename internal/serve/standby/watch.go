package standby

import (
	"context"
	"errors"
	"time"

	"spillway/internal/serve/queue"
)

const (
	// SampleEvery is the time from one sample to the next, each a statement on both.
	SampleEvery = time.Second
	// IdleAfter is the time without reads and questions about the lag after which sampling
	// stops.
	IdleAfter = 30 * time.Second
	// replayTime is how much later the replica is asked, so that it can replay what the
	// primary has just written.
	replayTime = 50 * time.Millisecond
	// sampleTimeout bounds one statement of a sample.
	sampleTimeout = time.Second
)

// Primary tells which changes it has. The error names what is missing, such as a privilege.
type Primary interface {
	Written(context.Context) (Position, error)
}

// Replica tells which changes of the primary it has replayed. The error names what is
// missing.
type Replica interface {
	Replayed(context.Context) (Position, error)
}

// Watch samples both databases every SampleEvery while somebody asks, until ctx ends. Without
// it, the age of the replica's rows is unknown.
func (s *Switch) Watch(ctx context.Context, primary Primary, replica Replica) {
	for s.awaitAsked(ctx) {
		begin := time.Now()
		s.sample(ctx, primary, replica)
		queue.Sleep(ctx, time.Until(begin.Add(SampleEvery)))
	}
}

// ask starts sampling, or keeps it running.
func (s *Switch) ask(now time.Time) {
	s.asked.Store(now.UnixNano())
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// awaitAsked waits until somebody asks, unless somebody has within IdleAfter. It reports
// false when ctx ends.
func (s *Switch) awaitAsked(ctx context.Context) bool {
	select {
	case <-s.wake: // an ask before this is seen below
	default:
	}
	if time.Now().UnixNano()-s.asked.Load() < int64(IdleAfter) {
		return ctx.Err() == nil
	}
	s.lag.Store(-1)
	s.primaryAway.Store(false) // it may be back when somebody asks
	select {
	case <-s.wake:
		return true
	case <-ctx.Done():
		return false
	}
}

// sample asks the primary, then the replica, for their positions.
func (s *Switch) sample(ctx context.Context, primary Primary, replica Replica) {
	at := time.Now()
	written, writtenErr := limited(ctx, primary.Written)
	switch {
	case errors.Is(writtenErr, context.DeadlineExceeded): // reads judge a slow server
	case !s.primaryFailed(nil, writtenErr):
		s.primaryAway.Store(false)
	}
	if queue.Sleep(ctx, replayTime); ctx.Err() != nil {
		return
	}
	replayed, replayedErr := limited(ctx, replica.Replayed)
	if ctx.Err() != nil {
		return
	}
	slow := errors.Is(replayedErr, context.DeadlineExceeded)
	useless := replayedErr != nil && !slow && !s.settle(time.Now(), false, nil, replayedErr)

	s.mu.Lock()
	defer s.mu.Unlock()
	if writtenErr == nil {
		s.history.written(at, written)
	}
	switch {
	case replayedErr == nil:
		s.history.replayedTo(replayed)
	case useless: // it is no replica, or cannot tell
		s.history.forget()
	}
	if replayedErr == nil && s.history.confirmed && s.lateLocked(time.Now()) && s.downUntil.Swap(0) != 0 {
		s.log.Info("the read replica answers again, but is late", "database", s.name) // no read would find out
	}
	s.publishLocked(time.Now(), errors.Join(writtenErr, replayedErr))
}

// lateLocked reports whether the replica's rows are too old or of unknown age.
func (s *Switch) lateLocked(now time.Time) bool {
	at := s.history.readAt()
	return at.IsZero() || now.Sub(at) > s.lagMax
}

func limited(ctx context.Context, ask func(context.Context) (Position, error)) (Position, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	return ask(ctx)
}

// publishLocked publishes what the history says after a sample, and logs a change.
func (s *Switch) publishLocked(now time.Time, err error) {
	lag, known := s.history.lag(now)
	if err != nil || !known || s.Down() {
		lag = -1
	}
	s.lag.Store(int64(lag))
	if readAt := s.history.readAt(); readAt.IsZero() {
		s.readAt.Store(nil)
	} else {
		s.readAt.Store(&readAt)
	}
	late := s.lateLocked(now)
	if s.Down() || late && err == nil && !s.history.confirmed {
		return // nothing to add, or the next sample tells
	}
	switch was := s.late.Swap(late); {
	case late && !was && err != nil:
		s.log.Warn("the read replica's lag is unknown; the primary answers", "database", s.name, "error", err)
	case late && !was:
		s.log.Warn("the read replica is late; the primary answers", "database", s.name, "replica_lag_max", s.lagMax)
	case was && !late:
		s.log.Info("the read replica has caught up", "database", s.name)
	}
}

// forget makes the age of the replica's rows unknown until it is sampled again.
func (s *Switch) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history.forget()
	s.lag.Store(-1)
	s.readAt.Store(nil)
}

// Lag returns the age of the oldest change of the primary that the replica has not replayed,
// 0 if there is none, at the last sample. It reports false if that is not known. It asks for
// samples.
func (s *Switch) Lag() (time.Duration, bool) {
	s.ask(time.Now())
	lag := time.Duration(s.lag.Load())
	return max(lag, 0), lag >= 0
}

// Late reports whether the last sample showed that the replica's rows were too old or of
// unknown age. The primary then answers, unless it is away.
func (s *Switch) Late() bool { return s.late.Load() }

// Why reads ask the primary and not the replica.
var (
	ErrLate    = errors.New("late: its rows are older than replica_lag_max")
	ErrUnknown = errors.New("unknown: the age of its rows cannot be told")
	ErrAway    = errors.New("away: reads have failed")
)

// State returns why the replica is not asked, as reads and samples have found, or nil. Without
// samples, which stop when nobody asks, it is that of the last one.
func (s *Switch) State() error {
	switch {
	case s.Down():
		return ErrAway
	case !s.late.Load():
		return nil
	case s.readAt.Load() == nil:
		return ErrUnknown
	}
	return ErrLate
}

// Usable reports whether reads use the replica while the primary is away: its rows are at most
// staleMax old, and it does not fail. It asks for samples.
func (s *Switch) Usable(now time.Time, staleMax time.Duration) bool {
	s.ask(now)
	_, _, usable := s.age(now, staleMax)
	return usable && !s.Down()
}
