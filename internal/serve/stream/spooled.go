package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"spillway/internal/serve/queue"
)

// Spool is the local queue of a Spooled.
type Spool interface {
	// Begin queues an entry and does not wait until it is on disk. ctx and ready are as in
	// Stream.Begin. Errors are those of package queue, or the disk's.
	Begin(ctx context.Context, name string, e queue.Entry, ready func() (wake func())) (queue.Appending, error)
	// Drain hands the groups of a name to a destination, at most bytes at once, until ctx
	// ends or a group is damaged.
	Drain(ctx context.Context, name string, bytes int, to queue.Destination) error
	// Ready returns nil while the spool accepts entries of a name. An error that wraps
	// queue.ErrNearlyFull says that it still does.
	Ready(name string) error
	// SetClock notes how far the clock of a name's database is ahead of this process's.
	SetClock(name string, ahead time.Duration)
}

// Spooled is a stream whose records are safe when they are in a Spool, from which they are
// drained into a Sink. Use OpenSpooled. Its methods may be called concurrently.
//
//   - A record is acknowledged when its group is on disk, and reaches the sink once, later:
//     a batch commits its queue.Mark in the same transaction. Two copies of the spool's file
//     are told apart by their epochs.
//   - All records of the stream are stored in the order in which they were accepted.
//   - A record that the database refuses becomes a dead letter in the spool. So does one
//     that no longer fits the stream's columns after they changed. If the reason may be the
//     database's, the drain holds the record until a later one is stored, and Ready says so.
//     After any other error of the database the drain retries.
//   - The spool knows an idempotency key until its request is drained; then the database
//     does. If the key comes again after that with another body, the request is
//     acknowledged and its records become dead letters.
//   - A record becomes a dead letter in doubt if it cannot be told whether the database has
//     it. Its group's number belongs to another group in the database then, or its
//     idempotency key was accepted longer than Config.SpoolMaxAge ago and may be forgotten.
type Spooled struct {
	core
	spool Spool

	// Of the drain's goroutine:
	rowByRow bool      // the last attempt took too long
	least    int       // groups of a batch, beyond the limits, because the first has a record that is held
	asked    [16]byte  // the epoch of which checkPrevious has asked last
	deadAt   time.Time // dead letters were logged

	mu      sync.Mutex
	trouble error // why the drain does not go on; nil: it does, or the database is away
	older   error // the spool's file is older than what the database has of it
}

// OpenSpooled starts to drain a stream. Of Config it requires BatchRows, BatchBytes,
// CommitTimeout, KeyTTL and Log. The owner must call Close before it closes the spool.
func OpenSpooled(cfg Config, schema *Schema, spool Spool, sink Sink) *Spooled {
	return OpenDrain(cfg, schema, spool, schema.def.Name, sink)
}

// OpenDrain is OpenSpooled for what a spool has under another name: that of a stream which is no
// longer configured, or was given another ack. Its Begin must not be called.
func OpenDrain(cfg Config, schema *Schema, spool Spool, name string, sink Sink) *Spooled {
	s := &Spooled{spool: spool}
	s.open(cfg, schema, name, sink)
	s.maintenance.measured = func(d Durability) { spool.SetClock(name, d.Clock) }
	s.workers.Go(func() {
		_ = spool.Drain(s.background, name, cfg.BatchBytes, s) // the spool logs and reports the error
	})
	s.workers.Go(func() { s.maintain(s.background) })
	return s
}

// Close ends the drain. It finishes a batch that is being committed unless ctx ends first.
// What is in the spool stays there for the next start. It is called once, after the last
// request. It returns nil.
func (s *Spooled) Close(ctx context.Context) error {
	s.endAll()
	waits := context.AfterFunc(ctx, s.stop)
	s.workers.Wait()
	waits()
	s.stop()
	return nil
}

// Begin is Stream.Begin. The receipt is known when the records are in the spool. Outcome.Stored
// counts them; it does not say what the database refuses later.
func (s *Spooled) Begin(ctx context.Context, r Request, ready func() (wake func())) (receipt Receipt, w Waiting, err error) {
	receipt = Receipt{Outcome: Outcome{Stored: r.Records.Len(), Refused: r.Refused}, Ack: s.Ack(), Pending: true}
	if r.Key == "" && r.Records.Len() == 0 {
		s.counters.refusedSchema.Add(uint64(len(r.Refused)))
		return receipt, nil, nil
	}
	now := time.Now()
	e := queue.Entry{Rows: r.Records.Len(), At: now, Key: r.Key, Fingerprint: r.Fingerprint}
	var refused []Refusal
	if r.Key != "" {
		e.At = now.Add(s.clock()) // keys are compared by the time of the database
		e.Expires = e.At.Add(s.cfg.KeyTTL)
		refused = r.Refused // part of the outcome that the database keeps with the key
	}
	if e.Payload, err = appendRecords(make([]byte, 0, r.Records.Size()+64), r.Records, 0, e.Rows, refused); err != nil {
		return Receipt{}, nil, err
	}
	a, err := s.spool.Begin(ctx, s.name, e, ready)
	if err != nil {
		s.counters.rejected(err)
		return Receipt{}, nil, err
	}
	return Receipt{}, &spooling{a, s, receipt}, nil
}

// spooling is a request whose group is being written.
type spooling struct {
	queue.Appending
	stream  *Spooled
	receipt Receipt
}

// Receipt implements Waiting.
func (w *spooling) Receipt(ctx context.Context) (receipt Receipt, err error) {
	receipt = w.receipt
	receipt.Replayed, err = w.Appended(ctx)
	switch c := &w.stream.counters; {
	case err != nil:
		c.rejected(err)
		return Receipt{}, err
	case receipt.Replayed:
		c.replayed.Add(1)
	default:
		c.refusedSchema.Add(uint64(len(receipt.Refused)))
	}
	return receipt, nil
}

// StoreGroups stores as many groups as fit into one batch. It implements queue.Destination.
func (s *Spooled) StoreGroups(_ context.Context, groups []queue.Group) (queue.Stored, error) {
	for {
		b := s.newBatch(groups)
		b.RowByRow = s.rowByRow || s.least > 1 // one of the rows may show that the table takes new ones
		start := time.Now()
		err := s.checkPrevious(&groups[0])
		if err == nil {
			err = s.commit(&b.Batch)
		}
		took := time.Since(start)
		if err == nil {
			return s.stored(b, took), nil
		}
		s.counters.retries.Add(1)
		if held, ok := errors.AsType[*Held](err); ok {
			if before := b.groupOf(held); before > 0 {
				groups = b.groups[:before]
				continue
			}
		}
		s.failed(b, err, took)
		return queue.Stored{}, err
	}
}

// commit has the sink commit a batch. Its context is not the drain's, which ends between
// batches: this one may be finished.
func (s *Spooled) commit(b *Batch) error {
	err := s.attempts.commit(s.base, s.cfg.CommitTimeout, s.sink, b, func() {
		s.cfg.Log.Warn("COMMIT not answered within commit_timeout: the drain waits for it", "stream", s.name)
	})
	s.observe(b.Session, err)
	return err
}

// clock returns how far the database's clock is ahead of this process's, as measured last; 0 before.
func (s *Spooled) clock() time.Duration {
	d, _ := s.Durability()
	return d.Clock
}

// stored notes that a batch was committed, now or earlier, and returns what became of it.
func (s *Spooled) stored(b *drainBatch, took time.Duration) queue.Stored {
	s.rowByRow, s.least = false, 1
	s.setTrouble(nil)
	if b.Mark.Known != nil {
		return s.known(b, took)
	}
	if behind := b.Mark.Behind; behind != nil {
		s.cfg.Log.Error("database lacks groups that were stored: it is another one or an older copy, "+
			"it lost an acknowledged commit, or the mark has expired",
			"stream", s.name, "epoch", fmt.Sprintf("%x", b.Mark.Epoch), "database", *behind, "spool", b.Mark.First-1)
	}
	dead := s.deadLetters(b, b.dead())
	s.countStored(b, len(dead), took)
	return queue.Stored{Groups: len(b.groups), Dead: dead}
}

// failed notes that a batch was not stored. If the database is only away, that is not
// trouble.
func (s *Spooled) failed(b *drainBatch, err error, took time.Duration) {
	s.rowByRow = s.rowByRow || took > s.cfg.CommitTimeout/2
	s.least = 1
	if errors.Is(err, ErrHeld) {
		s.least = 2 * len(b.groups)
	}
	if !errors.Is(err, ErrTransient) && !errors.Is(err, ErrUnconfirmed) {
		why := fmt.Errorf("the drain of %s is held up at group %d", s.name, b.groups[0].Sequence)
		s.setTrouble(&queue.Unready{Why: why, Cause: err})
	}
}

// setTrouble sets why the drain does not go on.
func (s *Spooled) setTrouble(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = err
}

// Ack returns what an acknowledgement is worth, in words. It is "spool", or "spool, then a
// database not fsynced: innodb_flush_log_at_trx_commit=2". A crash of that database can lose
// records that were drained and are no longer in the spool.
func (s *Spooled) Ack() string {
	if d, ok := s.Durability(); ok && len(d.Unsafe) > 0 {
		return AckSpool + ", then a database not fsynced: " + strings.Join(d.Unsafe, ", ")
	}
	return AckSpool
}

// Ready returns nil while the spool accepts records of the stream and they are drained, or
// wait for a database that is away. After an older copy of the spool's file was found, Ready
// says so until the process ends. If the error wraps queue.ErrNearlyFull, records are still
// accepted.
func (s *Spooled) Ready() error {
	err := s.spool.Ready(s.name)
	if err != nil && !errors.Is(err, queue.ErrNearlyFull) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.trouble, s.older, err)
}

// countStored counts a batch whose records were stored now.
func (s *Spooled) countStored(b *drainBatch, dead int, took time.Duration) {
	rows, refused := 0, 0
	for _, e := range b.Requests {
		if e.Result.Stored != nil || e.Result.Reused {
			continue
		}
		rows += e.Records.Len()
		refused += len(e.Result.Refused)
	}
	s.counters.skipped.Add(uint64(b.Skipped))
	s.count(rows, refused, dead, took)
}

// count counts rows of a batch, those of them that were refused, and dead letters.
func (s *Spooled) count(rows, refused, dead int, took time.Duration) {
	c := &s.counters
	c.batches.Add(1)
	c.batchRows.Add(uint64(rows))
	c.stored.Add(uint64(rows - refused))
	c.refusedDatabase.Add(uint64(dead))
	if s.cfg.Committed != nil {
		s.cfg.Committed(rows, refused, took)
	}
}
