package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/server"
	"spillway/internal/stream"
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
	err  error // it does not answer, or takes no batch
	well bool  // it took a batch, after one was not stored
}

const (
	pulseEvery   = time.Second     // between two pulses
	pulseTimeout = 2 * time.Second // of one
)

// keepPulse asks the database every second, so that readiness knows that it is down
// before a request finds out, and that it is back although no request comes.
func (d *directStream) keepPulse(ctx context.Context) {
	ticker := time.NewTicker(pulseEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := d.feelPulse(ctx)
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

// feelPulse asks whether the database answers. After a batch was not stored, that it
// takes the stream's statements and an empty batch says that it is well again.
func (d *directStream) feelPulse(ctx context.Context) *pulse {
	ctx, cancel := context.WithTimeout(ctx, pulseTimeout)
	defer cancel()
	if !failing(d.stream.Ready()) {
		return &pulse{err: d.part.ping(ctx)}
	}
	err := d.part.sink.check(ctx)
	if err == nil {
		err = d.part.sink.Commit(ctx, emptyBatch())
	}
	return &pulse{err: err, well: err == nil}
}

// failing reports whether a stream is not ready because of its last batch: that alone
// gives it an error with a cause.
func failing(ready error) bool { return errors.Unwrap(ready) != nil }

// ready returns why requests should go elsewhere.
func (d *directStream) ready() error {
	err, now := d.stream.Ready(), d.pulse.Load()
	switch {
	case now == nil:
		return err
	case now.err != nil:
		return fmt.Errorf("the database takes no records: %w", now.err)
	case now.well && failing(err):
		return nil
	}
	return err
}

// emptyBatch is a transaction that writes its id and nothing else.
func emptyBatch() *stream.Batch {
	b := &stream.Batch{}
	_, _ = rand.Read(b.ID[:]) // it does not fail
	return b
}
