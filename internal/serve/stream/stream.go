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
// The document about durability says how it fails.
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
	core

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

	probe  atomic.Pointer[probe] // the last one; nil: none
	logged atomic.Int64          // when an error was logged last, in nanoseconds
}

// core is what a Stream and a Spooled have in common.
type core struct {
	cfg    Config
	schema *Schema
	name   string // of what is stored
	sink   Sink

	base       context.Context // ends all work when Close gives up
	stop       context.CancelFunc
	background context.Context // ends what need not be finished when Close is called
	endAll     context.CancelFunc
	workers    sync.WaitGroup

	attempts    attempts
	maintenance maintenance
	counters    counters
}

func (c *core) open(cfg Config, schema *Schema, name string, sink Sink) {
	c.cfg, c.schema, c.name, c.sink = cfg, schema, name, sink
	c.cfg.SpoolMaxAge = cmp.Or(cfg.SpoolMaxAge, DefaultSpoolMaxAge)
	c.base, c.stop = context.WithCancel(context.Background())
	c.background, c.endAll = context.WithCancel(c.base)
	c.maintenance.read, c.maintenance.sessions = make(chan struct{}, 1), make(map[uint64]bool)
}

// Schema returns the stream's schema.
func (c *core) Schema() *Schema { return c.schema }

// Durability returns what a commit of the database is worth, by the settings that
// were read last. They are read at start, every minute, and within a second of a batch that
// failed or was the first of a new session. It is false until the database has answered once.
func (c *core) Durability() (Durability, bool) {
	if d := c.maintenance.settings.Load(); d != nil {
		return *d, true
	}
	return Durability{}, false
}

// Open starts a stream that stores in sink. It does not need the database to answer. The
// owner must call Close, and close the sink afterwards if the sink requires it.
func Open(cfg Config, schema *Schema, sink Sink) *Stream {
	s := &Stream{keys: make(map[string]*ticket)}
	s.open(cfg, schema, schema.def.Name, sink)
	s.wake.L, s.more.L = &s.mu, &s.mu
	s.queue = newLaneQueue(cfg.Committers, schema.orderBy >= 0)
	s.load = load{running: make([]time.Time, cfg.Committers), held: make([]uint64, cfg.Committers)}
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
