package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/serve/queue"
)

// unanswered is a Sink whose COMMIT is answered when it is released, or fails when the
// process stops.
type unanswered struct {
	*memory
	released chan struct{}
	ended    error // cause of the end of a context during a COMMIT
}

func newUnanswered() *unanswered {
	return &unanswered{memory: newMemory(time.Millisecond), released: make(chan struct{})}
}

func (u *unanswered) Commit(ctx context.Context, b *Batch) error {
	b.Committing()
	u.mu.Lock()
	u.parallel++
	u.most = max(u.most, u.parallel)
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		u.parallel--
		u.mu.Unlock()
	}()
	select {
	case <-u.released:
		return u.memory.Commit(ctx, b)
	case <-ctx.Done():
		u.ended = context.Cause(ctx)
		return fmt.Errorf("%w: %w", ErrUnconfirmed, context.Cause(ctx))
	}
}

// A COMMIT that is not answered is not ended. Its client learns at commit_timeout that the
// outcome is unknown. No more connections wait than there are committers, and a request with
// the same key waits for the COMMIT.
func TestCommitUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newUnanswered()
		s := openTest(t, sink, func(c *Config, _ *Definition) { c.Committers, c.WaitMax = 2, time.Hour })
		if err := s.Start(t.Context(), &testDatabase{}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err := s.Commit(t.Context(), testRequest(t, s, "key", number(1)))
		if took := time.Since(start); !errors.Is(err, queue.ErrUnknown) || took != s.cfg.CommitTimeout {
			t.Errorf("answered after %v: %v", took, err)
		}
		var group sync.WaitGroup
		group.Go(func() {
			o, err := s.Commit(t.Context(), testRequest(t, s, "key", number(1)))
			if err != nil || !o.Replayed || o.Stored != 1 {
				t.Errorf("the same key again: %+v, %v", o, err)
			}
		})
		for n := range 20 {
			if err := s.Accept(testRequest(t, s, "", number(2+n))); err != nil {
				t.Error(err)
			}
		}
		<-time.After(10 * time.Minute)
		sink.mu.Lock()
		most := sink.most
		sink.mu.Unlock()
		if s.Ready() == nil || most != 2 || s.Stats().Committing != 2 {
			t.Errorf("ready: %v, %d commits at once, stats %+v", s.Ready(), most, s.Stats())
		}
		close(sink.released)
		group.Wait()
		<-time.After(probes)
		expectReady(t, s, 0, "")
		closeTest(t, s)
		if len(sink.rows) != 21 || sink.ended != nil {
			t.Errorf("%d rows, ended by %v", len(sink.rows), sink.ended)
		}
	})
}

// Close ends the wait for a COMMIT when its context ends.
func TestCommitUnansweredAtClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newUnanswered()
		s := openTest(t, sink, nil)
		if err := s.Accept(testRequest(t, s, "key", number(1))); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if err := s.Close(ctx); err == nil || time.Since(start) != time.Minute || sink.ended == nil {
			t.Errorf("closed after %v: %v, ended by %v", time.Since(start), err, sink.ended)
		}
	})
}

// A probe whose COMMIT is not answered is not repeated.
func TestProbeUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newUnanswered()
		s := openTest(t, sink, func(c *Config, _ *Definition) { c.RetryFor = 0 })
		if err := s.Start(t.Context(), &testDatabase{}); err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		s.failing = ErrUnavailable
		s.mu.Unlock()
		<-time.After(10 * time.Minute)
		expectReady(t, s, 0, "did not answer in time")
		sink.mu.Lock()
		most := sink.most
		sink.mu.Unlock()
		close(sink.released)
		expectReady(t, s, probes, "")
		closeTest(t, s)
		if most != 1 || sink.ended != nil {
			t.Errorf("%d commits at once, ended by %v", most, sink.ended)
		}
	})
}

// The acknowledgement names what the COMMIT was worth.
func TestAckLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &leveled{memory: newMemory(0), level: LevelRemoteApply}
		s := openTest(t, sink, nil)
		for _, key := range []string{"", "key", "key"} {
			r, err := s.Store(t.Context(), testRequest(t, s, key, number(1)))
			if err != nil || r.Ack != "database, remote_apply" {
				t.Errorf("key %q: %+v, %v", key, r, err)
			}
		}
		sink.level = LevelLocal
		if r, err := s.Store(t.Context(), testRequest(t, s, "key", number(1))); err != nil || r.Ack != "database, local" {
			t.Errorf("%+v, %v", r, err)
		}
		closeTest(t, s)
	})
	for want, d := range map[string]Durability{
		"database":                           {},
		"database, on":                       {Level: LevelOn},
		"database, semi_sync":                {Level: LevelSemiSync},
		"database, not fsynced: fsync=off":   {Level: LevelOn, Unsafe: []string{"fsync=off"}},
		"database, " + LevelRemoteWrite + "": {Level: LevelRemoteWrite},
	} {
		if got := d.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// leveled is a Sink whose commits have a level.
type leveled struct {
	*memory
	level string
}

func (l *leveled) Commit(ctx context.Context, b *Batch) error {
	b.Committing()
	b.Level = l.level
	return l.memory.Commit(ctx, b)
}

// slowAfterCommit is a Sink that asks the database for more after a COMMIT was answered, for a time.
type slowAfterCommit struct {
	*memory
	asks time.Duration
}

func (s *slowAfterCommit) Commit(ctx context.Context, b *Batch) error {
	b.Committing()
	b.Committed()
	<-time.After(s.asks)
	return s.memory.Commit(ctx, b)
}

// A COMMIT that was answered is not reported as unknown, whatever the sink does afterwards.
func TestCommitAnsweredThenSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &slowAfterCommit{memory: newMemory(time.Millisecond)}
		s := openTest(t, sink, func(c *Config, _ *Definition) { c.WaitMax = time.Hour })
		sink.asks = 2 * s.cfg.CommitTimeout
		if _, err := s.Commit(t.Context(), testRequest(t, s, "key", number(1))); err != nil {
			t.Error(err)
		}
		closeTest(t, s)
	})
}

// A timer that has fired before the limit began anew ends nothing.
func TestAttemptFiredBefore(t *testing.T) {
	late := false
	ctx, cancel := context.WithCancelCause(t.Context())
	a := &attempt{limit: time.Hour, cancel: cancel, late: func() { late = true }}
	for _, committing := range []bool{false, true} {
		a.restart(committing)
		a.expire()
		if ctx.Err() != nil || late || a.over {
			t.Errorf("committing %v: ended %v, late %v", committing, ctx.Err(), late)
		}
	}
	a.end()
}

// failover is a Sink whose first COMMIT is not answered for a time, and then fails.
type failover struct {
	*memory
	hangs    time.Duration
	attempts int
}

func (f *failover) Commit(ctx context.Context, b *Batch) error {
	if f.attempts++; f.attempts > 1 {
		return f.memory.Commit(ctx, b)
	}
	b.Committing()
	<-time.After(f.hangs)
	return ErrUnconfirmed
}

// A batch whose COMMIT was not answered for longer than RetryFor is retried when its
// connection breaks.
func TestRetryAfterHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &failover{memory: newMemory(time.Millisecond), hangs: time.Minute}
		s := openTest(t, sink, nil)
		if _, err := s.Commit(t.Context(), testRequest(t, s, "key", number(1))); !errors.Is(err, queue.ErrUnknown) {
			t.Errorf("unanswered: %v", err)
		}
		if o, err := s.Commit(t.Context(), testRequest(t, s, "key", number(1))); err != nil || !o.Replayed || len(sink.rows) != 1 {
			t.Errorf("after the failover: %+v, %v, %d rows", o, err, len(sink.rows))
		}
		closeTest(t, s)
	})
}
