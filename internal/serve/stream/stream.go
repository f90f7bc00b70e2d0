// Package stream stores the records of thousands of small writers. A request is answered
// when its records are safe at the level that the stream acknowledges.
//
// A Schema turns the body of a request into Records, and gives a reason for each record
// that it refuses. A Stream commits requests in groups: what arrived while a transaction
// ran goes into the next one. A client alone waits for one commit. If several clients wait
// for their answers, the next transaction waits a little for those that send again. A Sink
// runs the transactions on one database. A Spooled stores records in a local Spool, from
// which they are drained into the Sink.
//
//	schema, err := stream.NewSchema(definition)
//	s := stream.Open(config, schema, sink)
//	records, refused, err := schema.Parse(body, stream.FormOf(contentType), now, limits)
//	r := stream.Request{Records: records, Refused: refused, Key: key, Fingerprint: stream.FingerprintOf(body)}
//	receipt, w, err := s.Begin(ctx, r, nil)
//	if w != nil {
//		receipt, err = w.Receipt(ctx)
//	}
//
// What a Stream promises:
//
//   - The table contains every record that was acknowledged. Beyond those it contains only
//     records of requests whose outcome was unknown.
//   - The records of a request, its idempotency key and its outcome commit together.
//   - No batch is committed twice. Its 128-bit id is inserted in the same transaction, and
//     an unconfirmed COMMIT is retried with the same id.
//   - Records of one lane (equal values of Definition.OrderBy) are stored in the order in
//     which their requests were accepted. A request that begins after another was
//     acknowledged is stored after it. There is no other order.
//   - A record that the database refuses fails alone. So does a request that makes the
//     whole transaction fail, if other requests of its batch can be stored without it.
//   - At most Config.QueueRows records and Config.QueueBytes bytes wait. A request that
//     would wait longer than Config.WaitMax is refused at once.
//   - Close stores what was accepted.
//
// How it fails:
//
//   - The database is down, or ends a transaction: the batch is retried with growing pauses
//     for Config.RetryFor, as long as a client waits for it. Then its requests get
//     ErrUnavailable, or queue.ErrUnknown if a COMMIT was not answered.
//   - A record waits for a lock of another session: the other requests of its batch are
//     stored without it. It is deferred, and retried for Config.RetryFor. With an order, the
//     requests behind it in its lane wait for it.
//   - An attempt takes long: it continues as long as the database answers a statement of it
//     within Config.CommitTimeout.
//   - A COMMIT takes longer than Config.CommitTimeout: its requests get queue.ErrUnknown. The
//     COMMIT is not cancelled. Its committer waits for the answer and takes no other batch.
//   - The caller's context ends: it gets queue.ErrUnknown. Its records stay queued and may
//     be stored; with an idempotency key it can safely send them again.
//   - Too much waits: a *queue.Overload says when to retry.
//
// The package contains no SQL and no HTTP, and writes no file.
package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// The ack levels of the configuration.
const (
	AckDatabase = "database" // the records are committed
	AckSpool    = "spool"    // the records are in a local file, fsynced
	AckMemory   = "memory"   // the records are queued in this process
)

// Config bounds a stream. All fields are required but the last four. The configuration has
// checked them: QueueRows is at least BatchRows, QueueBytes at least BatchBytes, and Committers
// at most 64.
type Config struct {
	Committers    int           // concurrent commits, each on a connection of the pool
	BatchRows     int           // records of one transaction, unless one request has more
	BatchBytes    int           // bytes of these records
	QueueRows     int           // records that wait
	QueueBytes    int           // bytes that wait
	WaitMax       time.Duration // a request that would wait longer is refused at once
	CommitTimeout time.Duration // the database must answer a statement of a batch within it
	RetryFor      time.Duration // how long a batch is retried
	KeyTTL        time.Duration // how long an idempotency key is remembered
	Log           *slog.Logger

	// KeyTTLMost is the longest KeyTTL of all streams that share the database's tables.
	KeyTTLMost time.Duration
	// SpoolMaxAge is how long after its acceptance a request with an idempotency key may be
	// drained from any spool into the database. Keys are kept for that much longer than
	// KeyTTL. 0: DefaultSpoolMaxAge.
	SpoolMaxAge time.Duration
	// Memory makes the receipt of a request known as soon as it is queued: AckMemory.
	Memory bool
	// Committed, if set, is called after each batch that was stored with its records, those
	// of them that the database refused, and the time of all attempts.
	Committed func(rows, refused int, took time.Duration)
}

// DefaultSpoolMaxAge is the default of Config.SpoolMaxAge.
const DefaultSpoolMaxAge = 7 * 24 * time.Hour

// ErrUnavailable: nothing was stored, because the database does not accept it now.
//
// The other errors of Begin and Receipt are those of package queue, and errors of
// the database: nothing was stored, and a retry does not help until their cause is fixed.
var ErrUnavailable = errors.New("the database is not available")

// Stream is one stream whose records go from this process's memory into the database. Use
// Open. Its methods may be called concurrently.
type Stream struct {
	cfg    Config
	schema *Schema
	sink   Sink

	attempts attempts

	base       context.Context // ends all work when Close gives up
	stop       context.CancelFunc
	workers    sync.WaitGroup  // committers, maintenance and probes
	background context.Context // ends maintenance and probes when the stream closes
	endAll     context.CancelFunc

	mu       sync.Mutex
	wake     sync.Cond // there may be work, or the stream is closing
	more     sync.Cond // pace.want requests may wait, or the wait for them is over
	queue    laneQueue
	load     load
	pace     pace
	closed   bool
	keys     map[string]*ticket // idempotency keys that are queued or being committed
	forget   [][16]byte         // batches whose ids the table may forget
	failing  error              // of the last batch; nil if it was stored
	hanging  atomic.Int64       // batches whose COMMIT is not answered in time
	finished uint64             // batches that were tried
	tried    time.Time          // when the last of them ended

	deferred                    []*deferred // requests that wait for a lock in the database
	deferredRows, deferredBytes int         // in them

	probe       atomic.Pointer[probe] // the last one; nil: none
	maintenance *maintenance
	logged      atomic.Int64 // when an error was logged last, in nanoseconds
	counters    counters
}

// Open starts a stream that stores in sink. It does not need the database to answer. The
// owner must call Close, and close the sink afterwards if the sink requires it.
func Open(cfg Config, schema *Schema, sink Sink) *Stream {
	cfg.SpoolMaxAge = cmp.Or(cfg.SpoolMaxAge, DefaultSpoolMaxAge)
	s := &Stream{cfg: cfg, schema: schema, sink: sink, keys: make(map[string]*ticket)}
	s.wake.L, s.more.L = &s.mu, &s.mu
	s.queue = newLaneQueue(cfg.Committers, schema.orderBy >= 0)
	s.load = newLoad(cfg.Committers)
	s.base, s.stop = context.WithCancel(context.Background())
	s.background, s.endAll = context.WithCancel(s.base)
	s.maintenance = newMaintenance(cfg, schema.def.Name, sink, &s.counters.swept)
	for n := range cfg.Committers {
		s.workers.Go(func() { s.committer(n) })
	}
	return s
}

// Close refuses new requests, stores what was accepted and returns when that is done. If
// ctx ends first, Close gives up what is left: these requests get queue.ErrUnknown if a
// COMMIT was not answered, else ErrUnavailable, and Close returns an error with the number
// of their records. It is called once.
func (s *Stream) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.wake.Broadcast()
	s.more.Signal()
	s.mu.Unlock()
	s.endAll()
	before := s.counters.failed.Load()
	waits := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stop() // ends attempts and pauses; the rest of the queue then fails fast
		s.wake.Broadcast()
	})
	s.workers.Wait()
	waits()
	s.stop()
	if lost := s.counters.failed.Load() - before; lost > 0 {
		return fmt.Errorf("close stream %s: %d accepted records were not stored", s.schema.def.Name, lost)
	}
	return nil
}

// Schema returns the stream's schema.
func (s *Stream) Schema() *Schema { return s.schema }

// Durability returns what an acknowledgement of the database is worth, by the settings that
// were read last. They are read at start, every minute, and within a second of a batch that
// failed or was the first of a new session. It is false until the database has answered once.
func (s *Stream) Durability() (Durability, bool) { return s.maintenance.durability() }

// Ack returns what an acknowledgement is worth, in words: the level, and what weakens it.
func (s *Stream) Ack() string {
	if s.cfg.Memory {
		return AckMemory
	}
	d, _ := s.Durability()
	return d.String()
}

// Receipt is what a client learns of a request that was accepted.
type Receipt struct {
	Outcome
	Ack     string // what the acknowledgement is worth, in words
	Pending bool   // the records are not in the table yet
}

// receipt returns the receipt of a request that was committed.
func (s *Stream) receipt(o Outcome) Receipt {
	d, _ := s.Durability()
	d.Level = cmp.Or(o.Level, d.Level)
	return Receipt{Outcome: o, Ack: d.String()}
}
