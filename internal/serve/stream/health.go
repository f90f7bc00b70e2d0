package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/server"
	"spillway/internal/serve/stream"
)

// directStream is a stream whose records go from this process's memory into the
// database: those of ack: database are answered when they are there, those of ack:
// memory at once.
type directStream struct {
	part     *streamPart
	stream   *stream.Stream
	worth    stream.Durability // as the database's settings were at start
	pulse    atomic.Pointer[pulse]
	endPulse context.CancelFunc
	pulsing  sync.WaitGroup
}

func (d *directStream) commit(ctx context.Context, r stream.Request) (server.Receipt, error) {
	outcome, err := d.stream.Commit(ctx, r)
	return server.Receipt{Outcome: outcome, Ack: d.level()}, err
}

func (d *directStream) accept(_ context.Context, r stream.Request) (server.Receipt, error) {
	err := d.stream.Accept(r)
	return server.Receipt{Outcome: stream.Outcome{Stored: r.Records.Len(), Refused: r.Refused}, Ack: "memory", Pending: true}, err
}

// level returns the word for what the database makes of a commit.
func (d *directStream) level() string {
	if now, ok := d.stream.Durability(); ok {
		return now.String()
	}
	return d.worth.String()
}

// close stores what was accepted, for as long as ctx lasts.
func (d *directStream) close(ctx context.Context) error {
	d.endPulse()
	d.pulsing.Wait()
	return d.stream.Close(ctx)
}

// pulse is what a stream's database last said between requests.
type pulse struct {
	err     error  // it does not answer, or takes no batch
	well    bool   // nothing is known any more that keeps records from being stored
	batches uint64 // that had been tried by then
}

const (
	pulseEvery   = time.Second      // between two pulses
	pulseTimeout = 2 * time.Second  // of one
	refusedFor   = 30 * time.Second // since a batch was refused, until a request may try what no pulse can
)

// keepPulse asks the database every second, so that readiness knows that it is down
// before a request finds out, and that it is back although no request comes.
func (d *directStream) keepPulse(ctx context.Context) {
	ticker := time.NewTicker(pulseEvery)
	defer ticker.Stop()
	last := lastBatch{at: time.Now()}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		last = last.seen(d.stream.Stats().Batches, time.Now())
		now := d.feelPulse(ctx, last)
		before := d.pulse.Swap(now)
		down, wasDown := now.err != nil, before != nil && before.err != nil
		if down && !wasDown && ctx.Err() == nil {
			d.part.log.Warn("the database takes no records", "stream", d.part.name(), "error", now.err)
		}
		if wasDown && !down {
			d.part.log.Info("the database takes records again", "stream", d.part.name())
		}
	}
}

// lastBatch is when the newest of so many batches ended, as far as a pulse sees it.
type lastBatch struct {
	batches uint64
	at      time.Time
}

func (l lastBatch) seen(batches uint64, now time.Time) lastBatch {
	if batches != l.batches {
		return lastBatch{batches, now}
	}
	return l
}

// feelPulse asks whether the database answers, and after a batch was not stored, whether
// it takes the stream's statements and an empty batch. Where the database was away
// that is all there is to know. Where it refused the batch for good, it may refuse
// the next one for the same reason, which an empty one need not show (a trigger, say):
// then only a request can tell, and none has failed for a while.
func (d *directStream) feelPulse(ctx context.Context, last lastBatch) *pulse {
	ctx, cancel := context.WithTimeout(ctx, pulseTimeout)
	defer cancel()
	now := &pulse{batches: last.batches}
	cause := d.stream.Ready()
	if !failing(cause) {
		now.err = d.part.ping(ctx)
		return now
	}
	if now.err = d.part.sink.check(ctx); now.err == nil {
		now.err = d.part.sink.Commit(ctx, emptyBatch())
	}
	away := errors.Is(cause, stream.ErrUnavailable) || errors.Is(cause, stream.ErrUnknown)
	now.well = now.err == nil && (away || time.Since(last.at) > refusedFor)
	return now
}

// failing reports whether a stream is not ready because of its last batch: that alone
// gives it an error with a cause.
func failing(ready error) bool { return errors.Unwrap(ready) != nil }

// ready returns why requests should go elsewhere. A pulse outweighs the last batch only
// while none was tried since, and says that all is well only while little waits.
func (d *directStream) ready() error {
	err, now := d.stream.Ready(), d.pulse.Load()
	if now == nil {
		return err
	}
	stats := d.stream.Stats()
	tried := stats.Batches != now.batches
	switch {
	case now.err != nil && (err != nil || !tried):
		return fmt.Errorf("the database takes no records: %w", now.err)
	case failing(err) && now.well && !tried && !d.crowded(stats):
		return nil
	}
	return err
}

// crowded reports whether more than half of a queue's bounds is used up. Stream.Ready
// does not get to that while its last batch was not stored.
func (d *directStream) crowded(s stream.Stats) bool {
	c := d.part.cfg
	return s.QueueRows > c.QueueRows/2 || s.QueueBytes > c.QueueBytes/2 || s.Committing == c.Committers && s.PredictedWait > c.WaitMax/2
}

// emptyBatch is a transaction that writes its id and nothing else.
func emptyBatch() *stream.Batch {
	b := &stream.Batch{}
	_, _ = rand.Read(b.ID[:]) // it does not fail
	return b
}
