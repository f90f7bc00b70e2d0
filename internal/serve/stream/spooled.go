package stream

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Spooled is a stream whose records are safe when they are in a Spool, from where
// they are drained into a Sink. Use OpenSpooled. Its methods may be called
// concurrently.
//
//   - A record is acknowledged when its group is on disk, and is in the sink once,
//     later: a batch stores the groups that it takes (Mark) in its transaction.
//   - All of the stream's records are stored in the order in which they were accepted.
//   - A record that the database refuses becomes a dead letter in the spool, and so does
//     one that the stream's columns have no place for since a change. Any other error
//     of the database stops nothing: the drain tries again.
//   - An idempotency key is known to the spool until its request is drained, and to the
//     database afterwards. A key that comes again after that with another body is
//     acknowledged, and its records become dead letters.
type Spooled struct {
	cfg    Config
	schema *Schema
	spool  *Spool
	sink   Sink

	workers sync.WaitGroup
	drains  context.Context // ends the drain between two batches
	endWork context.CancelFunc
	base    context.Context // ends a batch that is under way
	abort   context.CancelFunc

	exact    uint64 // the drain's: the last group of a batch that an earlier run has stored; 0: none
	careful  bool   // the drain's: the last attempt took too long
	keeper   *keeper
	counters counters
}

// SpoolAck is the name of the ack level.
const SpoolAck = "spool"

// OpenSpooled starts to drain a stream. Of Config it needs BatchRows, BatchBytes,
// CommitTimeout, KeyTTL, Log and, if wanted, Committed. The owner must call Close,
// and then that of the spool.
func OpenSpooled(cfg Config, schema *Schema, spool *Spool, sink Sink) (*Spooled, error) {
	if cfg.BatchRows < 1 || cfg.BatchBytes < 1 || cfg.CommitTimeout <= 0 || cfg.KeyTTL <= 0 || cfg.Log == nil {
		return nil, fmt.Errorf("stream %s: batch_rows, batch_bytes, commit_timeout, key_ttl and a log are needed", schema.def.Name)
	}
	s := &Spooled{cfg: cfg, schema: schema, spool: spool, sink: sink}
	s.base, s.abort = context.WithCancel(context.Background())
	s.drains, s.endWork = context.WithCancel(s.base)
	s.keeper = newKeeper(cfg, schema.def.Name, sink, &s.counters.swept)
	s.workers.Go(func() {
		// The spool logs, counts and reports why it stopped.
		_ = spool.Drain(s.drains, schema.def.Name, cfg.BatchBytes, s.apply)
	})
	s.workers.Go(func() { s.keeper.keep(s.drains) })
	return s, nil
}

// Close ends the drain: a batch that is under way is finished, for as long as ctx
// lasts. What is in the spool stays there for the next start. It is called once, when
// no request comes any more.
func (s *Spooled) Close(ctx context.Context) {
	s.endWork()
	stop := context.AfterFunc(ctx, s.abort)
	s.workers.Wait()
	stop()
	s.abort()
}

// Commit keeps a request's records in the spool and returns when they are on disk. In
// the Outcome, Stored are the records that the spool keeps; what the database refuses
// later is in none. For errors see Spool.Append.
func (s *Spooled) Commit(ctx context.Context, r Request) (Outcome, error) {
	n := r.Records.Len()
	if r.Key == "" && n == 0 {
		s.counters.refusedSchema.Add(uint64(len(r.Refused)))
		return Outcome{Refused: r.Refused}, nil
	}
	now := time.Now()
	e := SpoolEntry{Rows: n, At: now, Key: r.Key, Fingerprint: r.Fingerprint}
	var kept []Refusal
	if r.Key != "" {
		e.Expires = now.Add(s.cfg.KeyTTL)
		kept = r.Refused // they are part of what the database remembers of the key
	}
	var err error
	if e.Payload, err = appendRecords(make([]byte, 0, r.Records.Size()+64), r.Records, allRows(n), kept); err != nil {
		return Outcome{}, err
	}
	replayed, err := s.spool.Append(ctx, s.schema.def.Name, e)
	switch {
	case err != nil:
		s.counters.rejected(err)
		return Outcome{}, err
	case replayed:
		s.counters.replayed.Add(1)
	default:
		s.counters.refusedSchema.Add(uint64(len(r.Refused)))
	}
	return Outcome{Stored: n, Refused: r.Refused, Replayed: replayed}, nil
}

// Schema returns the stream's schema.
func (s *Spooled) Schema() *Schema { return s.schema }

// Durability returns what the database makes of what is drained into it, as its
// settings were read last. It is false until it has answered for the first time.
func (s *Spooled) Durability() (Durability, bool) { return s.keeper.last() }

// Ack returns what an acknowledgement is worth, in words: "spool", or "spool, then a
// database not fsynced: innodb_flush_log_at_trx_commit=2" where a record that was drained,
// and is in the spool no more, can be lost by the database's server.
func (s *Spooled) Ack() string {
	if d, ok := s.Durability(); ok && len(d.Unsafe) > 0 {
		return SpoolAck + ", then a database not fsynced: " + strings.Join(d.Unsafe, ", ")
	}
	return SpoolAck
}

// Ready is that of the spool.
func (s *Spooled) Ready() error { return s.spool.Ready() }

// Stats returns the figures of the drain: Stored are records in the table, Batches
// what was drained. What waits is in the spool's.
func (s *Spooled) Stats() Stats {
	c := &s.counters
	return Stats{
		Name: s.schema.def.Name, Stored: c.stored.Load(), RefusedSchema: c.refusedSchema.Load(), RefusedDatabase: c.refusedDatabase.Load(),
		Overloaded: c.overloads.read(), KeyReused: c.keyReused.Load(), TooLarge: c.tooLarge.Load(), Replayed: c.replayed.Load(), Batches: c.batches.Load(), BatchRows: c.batchRows.Load(),
		CommitSeconds: time.Duration(c.commitNanos.Load()).Seconds(), Retries: c.retries.Load(), Swept: c.swept.Load(),
	}
}
