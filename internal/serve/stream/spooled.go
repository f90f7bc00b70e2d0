package stream

import (
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
	// Append stores an entry and returns when it is on disk. replayed reports that an entry
	// with the same key waits already. Errors are those of package queue, or the disk's.
	Append(ctx context.Context, name string, e queue.Entry) (replayed bool, err error)
	// Drain hands the groups of a name to a destination, at most bytes at once, until ctx
	// ends or a group is damaged.
	Drain(ctx context.Context, name string, bytes int, to queue.Destination) error
	// Ready returns nil while the spool accepts entries.
	Ready() error
}

// Spooled is a stream whose records are safe when they are in a Spool, from which they are
// drained into a Sink. Use OpenSpooled. Its methods may be called concurrently.
//
//   - A record is acknowledged when its group is on disk, and reaches the sink once, later:
//     a batch commits its queue.Mark in the same transaction.
//   - All records of the stream are stored in the order in which they were accepted.
//   - A record that the database refuses becomes a dead letter in the spool. So does one
//     that no longer fits the stream's columns after they changed. After any other error of
//     the database the drain retries.
//   - The spool knows an idempotency key until its request is drained; then the database
//     does. If the key comes again after that with another body, the request is
//     acknowledged and its records become dead letters.
type Spooled struct {
	cfg    Config
	schema *Schema
	spool  Spool
	sink   Sink

	workers   sync.WaitGroup
	draining  context.Context // ends the drain between two batches
	stopDrain context.CancelFunc
	base      context.Context // ends a batch that is being committed
	abort     context.CancelFunc

	// Of the drain's goroutine:
	storedUpto uint64 // the last group of a batch that an earlier run has stored; 0: none
	rowByRow   bool   // the last attempt took too long

	maintenance *maintenance
	counters    counters
}

// OpenSpooled starts to drain a stream. Of Config it requires BatchRows, BatchBytes,
// CommitTimeout, KeyTTL and Log. The owner must call Close before it closes the spool.
func OpenSpooled(cfg Config, schema *Schema, spool Spool, sink Sink) (*Spooled, error) {
	if cfg.BatchRows < 1 || cfg.BatchBytes < 1 || cfg.CommitTimeout <= 0 || cfg.KeyTTL <= 0 || cfg.Log == nil {
		return nil, fmt.Errorf("stream %s: batch_rows, batch_bytes, commit_timeout, key_ttl and a log are required", schema.def.Name)
	}
	s := &Spooled{cfg: cfg, schema: schema, spool: spool, sink: sink}
	s.base, s.abort = context.WithCancel(context.Background())
	s.draining, s.stopDrain = context.WithCancel(s.base)
	s.maintenance = newMaintenance(cfg, schema.def.Name, sink, &s.counters.swept)
	s.workers.Go(func() {
		_ = spool.Drain(s.draining, schema.def.Name, cfg.BatchBytes, s) // the spool logs and reports the error
	})
	s.workers.Go(func() { s.maintenance.run(s.draining) })
	return s, nil
}

// Close ends the drain. It finishes a batch that is being committed unless ctx ends first.
// What is in the spool stays there for the next start. It is called once, after the last
// request. It returns nil.
func (s *Spooled) Close(ctx context.Context) error {
	s.stopDrain()
	stop := context.AfterFunc(ctx, s.abort)
	s.workers.Wait()
	stop()
	s.abort()
	return nil
}

// Store stores a request's records in the spool and returns when they are on disk.
// Outcome.Stored counts the records that are in the spool; it does not say what the
// database refuses later. For errors see Spool.Append.
func (s *Spooled) Store(ctx context.Context, r Request) (Receipt, error) {
	receipt := Receipt{Outcome: Outcome{Stored: r.Records.Len(), Refused: r.Refused}, Ack: s.Ack(), Pending: true}
	if r.Key == "" && r.Records.Len() == 0 {
		s.counters.refusedSchema.Add(uint64(len(r.Refused)))
		return receipt, nil
	}
	now := time.Now()
	e := queue.Entry{Rows: r.Records.Len(), At: now, Key: r.Key, Fingerprint: r.Fingerprint}
	var refused []Refusal
	if r.Key != "" {
		e.Expires = now.Add(s.cfg.KeyTTL)
		refused = r.Refused // part of the outcome that the database keeps with the key
	}
	var err error
	if e.Payload, err = appendRecords(make([]byte, 0, r.Records.Size()+64), r.Records, allRows(e.Rows), refused); err != nil {
		return Receipt{}, err
	}
	receipt.Replayed, err = s.spool.Append(ctx, s.schema.def.Name, e)
	switch {
	case err != nil:
		s.counters.rejected(err)
		return Receipt{}, err
	case receipt.Replayed:
		s.counters.replayed.Add(1)
	default:
		s.counters.refusedSchema.Add(uint64(len(r.Refused)))
	}
	return receipt, nil
}

// StoreGroups stores as many groups as fit into one batch. It implements queue.Destination.
func (s *Spooled) StoreGroups(_ context.Context, groups []queue.Group) (queue.Stored, error) {
	b := s.newBatch(groups)
	b.RowByRow = s.rowByRow
	start := time.Now()
	// Not the drain's context: that ends between batches, and this one may be finished.
	err := commitWithin(s.base, s.cfg.CommitTimeout, s.sink, &b.Batch)
	took := time.Since(start)
	s.maintenance.observe(b.Session, err)
	var moved *queue.Moved
	if errors.As(err, &moved) {
		return s.skipStored(groups, moved)
	}
	s.storedUpto = 0
	if err != nil {
		s.counters.retries.Add(1)
		s.rowByRow = s.rowByRow || took > s.cfg.CommitTimeout/2
		return queue.Stored{}, err
	}
	s.rowByRow = false
	if b.Mark.Found != nil {
		s.cfg.Log.Error("database lacks groups that were stored: it is an older copy, or it lost an acknowledged commit",
			"stream", s.schema.def.Name, "database", *b.Mark.Found, "spool", b.Mark.After)
	}
	dead := s.deadLetters(b)
	s.count(b, len(dead), took)
	return queue.Stored{Groups: len(b.groups), Dead: dead}, nil
}

// skipStored continues after a crash between the commit of a batch and its deletion from
// the spool. If the batch begins with these groups, the error makes the spool hand over
// exactly its groups, to learn what the database refused of them. Else that is not known.
func (s *Spooled) skipStored(groups []queue.Group, moved *queue.Moved) (queue.Stored, error) {
	first, last, found := groups[0].Sequence, moved.Last, "groups were stored by an earlier run together with others"
	switch {
	case moved.After+1 == first:
		s.storedUpto = moved.Last
		return queue.Stored{}, moved
	case moved.After >= first:
		last, found = moved.After, "groups were stored by an earlier run, and the spool is an older copy"
	}
	n := min(last-first+1, uint64(len(groups)))
	s.cfg.Log.Warn(found+": records that the database refused are unknown", "stream", s.schema.def.Name, "from", first, "to", first+n-1)
	return queue.Stored{Groups: int(n)}, nil
}

// Schema returns the stream's schema.
func (s *Spooled) Schema() *Schema { return s.schema }

// Durability returns what the database makes of what is drained into it, as in
// Stream.Durability.
func (s *Spooled) Durability() (Durability, bool) { return s.maintenance.durability() }

// Ack returns what an acknowledgement is worth, in words: "spool", or "spool, then a
// database not fsynced: innodb_flush_log_at_trx_commit=2" if a crash of the database can
// lose records that were drained and are no longer in the spool.
func (s *Spooled) Ack() string {
	if d, ok := s.Durability(); ok && len(d.Unsafe) > 0 {
		return AckSpool + ", then a database not fsynced: " + strings.Join(d.Unsafe, ", ")
	}
	return AckSpool
}

// Ready returns the readiness of the spool. It does not depend on the database.
func (s *Spooled) Ready() error { return s.spool.Ready() }

// Stats returns a snapshot of the drain: Stored are records in the table, Batches what was
// drained. What waits is in the spool's Stats.
func (s *Spooled) Stats() Stats {
	c := &s.counters
	return Stats{
		Name: s.schema.def.Name, Stored: c.stored.Load(), RefusedSchema: c.refusedSchema.Load(), RefusedDatabase: c.refusedDatabase.Load(),
		Overloaded: c.overloads.Read(), KeyReused: c.keyReused.Load(), TooLarge: c.tooLarge.Load(), Replayed: c.replayed.Load(), Batches: c.batches.Load(), BatchRows: c.batchRows.Load(),
		CommitSeconds: time.Duration(c.commitNanos.Load()).Seconds(), Retries: c.retries.Load(), Swept: c.swept.Load(),
	}
}

// count counts a batch that was stored.
func (s *Spooled) count(b *drainBatch, dead int, took time.Duration) {
	rows, refused := 0, 0
	for _, e := range b.Requests {
		if e.Result.Stored != nil || e.Result.Reused {
			continue
		}
		rows += e.Records.Len()
		refused += len(e.Result.Refused)
	}
	if b.before != nil {
		refused = min(rows, dead)
	}
	c := &s.counters
	c.batches.Add(1)
	c.batchRows.Add(uint64(rows))
	c.commitNanos.Add(int64(took))
	c.stored.Add(uint64(rows - refused))
	c.refusedDatabase.Add(uint64(dead))
	if s.cfg.Committed != nil {
		s.cfg.Committed(rows, refused, took)
	}
}
