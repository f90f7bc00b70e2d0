package stream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/tables"
)

// Database answers the questions that a stream asks beside its batches.
type Database interface {
	// Ping returns nil if the database answers.
	Ping(ctx context.Context) error
	// Check returns nil if the database accepts the stream's statements.
	Check(ctx context.Context) error
}

// Start checks that the database, which must answer, accepts the stream's statements, and
// reads its durability settings. Then it deletes what expires, and probes the database, until
// Close: Ready so learns that it is down before a request does, and that it is back although
// no request comes.
func (s *Stream) Start(ctx context.Context, database Database) error {
	if err := database.Check(ctx); err != nil {
		return err
	}
	d, err := s.sink.Durability(ctx)
	if err != nil {
		return fmt.Errorf("stream %s: read the durability settings: %w", s.schema.def.Name, err)
	}
	s.setDurability(d)
	s.workers.Go(func() { s.maintain(s.background) })
	s.workers.Go(func() {
		for range queue.Ticks(s.background, probeEvery) {
			s.setProbe(s.probeDatabase(database))
		}
	})
	return nil
}

const (
	probeEvery   = time.Second
	probeTimeout = 2 * time.Second
	refusedFor   = 30 * time.Second // after a batch was refused, until requests may try again
)

// probe is what the database answered last between batches.
type probe struct {
	err       error  // it does not answer, or accepts no batch
	recovered bool   // nothing is known that keeps records from being stored
	finished  uint64 // batches that had been tried by then
}

// setProbe keeps what a probe found, and logs a change.
func (s *Stream) setProbe(now *probe) {
	before := s.probe.Swap(now)
	down, wasDown := now.err != nil, before != nil && before.err != nil
	switch {
	case down && !wasDown && s.background.Err() == nil:
		s.cfg.Log.Warn("database does not accept records", "stream", s.schema.def.Name, "error", now.err)
	case wasDown && !down:
		s.cfg.Log.Info("database accepts records again", "stream", s.schema.def.Name)
	}
}

// probeDatabase pings the database. If the last batch was not stored, it also checks the
// stream's statements and commits an empty batch, unless a COMMIT is waiting for its answer
// already.
//
// If the database was away, that shows that it is back. If it refused the batch, it may
// refuse the next one for the same reason, such as a trigger, which an empty batch does not
// show. Then only a request can tell, and may try when none has failed for a while. Whether the
// table can be used is checked.
func (s *Stream) probeDatabase(database Database) *probe {
	ctx, cancel := context.WithTimeout(s.background, probeTimeout)
	defer cancel()
	s.mu.Lock()
	now := &probe{finished: s.finished}
	failing, tried := s.failing, s.tried
	s.mu.Unlock()
	switch {
	case failing == nil:
		now.err = database.Ping(ctx)
		return now
	case s.hanging.Load() > 0:
		now.err = errNoAnswer
		return now
	}
	now.err = database.Check(ctx)
	if now.err == nil {
		now.err = s.probeCommit(now.finished)
	}
	away := errors.Is(failing, ErrUnavailable) && !errors.Is(failing, ErrRefused) ||
		errors.Is(failing, queue.ErrUnknown) || errors.Is(failing, tables.ErrUnusable)
	now.recovered = now.err == nil && (away || time.Since(tried) > refusedFor)
	return now
}

// probeCommit commits an empty batch. It waits for the answer, however long that takes.
func (s *Stream) probeCommit(finished uint64) error {
	empty := &Batch{}
	_, _ = rand.Read(empty.ID[:]) // never fails
	return new(attempts).commit(s.background, probeTimeout, s.sink, empty, func() {
		s.setProbe(&probe{err: errNoAnswer, finished: finished})
	})
}

// Ready returns nil while the stream accepts records and is not close to refusing them. The
// database answers then, the last batch was stored, and less than half of the queue's limits
// and of Config.WaitMax is used. A probe outweighs the last batch only while no other was tried.
// If the error wraps queue.ErrNearlyFull, records are still accepted.
func (s *Stream) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, crowded := s.probe.Load(), s.crowded()
	current := last != nil && last.finished == s.finished
	switch {
	case s.closed:
		return queue.ErrClosed
	case last != nil && last.err != nil && (current || s.failing != nil || crowded != nil):
		return &queue.Unready{Why: errors.New("the database does not accept records"), Cause: last.err}
	case s.failing != nil && !(current && last.recovered):
		return &queue.Unready{Why: errors.New("the last batch was not stored"), Cause: s.failing}
	}
	return crowded
}

// crowded returns an error if more than half of the queue's limits is used. It wraps
// queue.ErrNearlyFull if one more record would be accepted. The caller holds mu.
func (s *Stream) crowded() error {
	wait := s.predict(0, 1, 0)
	var why string
	switch {
	case s.queue.rows > s.cfg.QueueRows/2:
		why = fmt.Sprintf("%d records wait (queue_rows %d)", s.queue.rows, s.cfg.QueueRows)
	case s.queue.bytes > s.cfg.QueueBytes/2:
		why = fmt.Sprintf("%d bytes wait (queue_bytes %d)", s.queue.bytes, s.cfg.QueueBytes)
	case (s.queue.rows > 0 || !s.load.free()) && wait > s.cfg.WaitMax/2:
		why = fmt.Sprintf("a record would wait for %v (wait_max %v)", wait.Round(time.Millisecond), s.cfg.WaitMax)
	default:
		return nil
	}
	if s.queue.rows >= s.cfg.QueueRows || s.queue.bytes >= s.cfg.QueueBytes || wait > s.cfg.WaitMax {
		return &queue.Unready{Why: errors.New(why)}
	}
	return &queue.Unready{Why: fmt.Errorf("%w: %s", queue.ErrNearlyFull, why)}
}
