// Package stream stores records that thousands of small writers send, each of them
// answered only when its records are safe.
//
// A Schema turns a request's body into Records (typed, checked, one arena) and says
// for each record that it refuses why. A Stream commits requests in groups: what
// queued while a transaction ran goes into the next one. Nothing waits for a timer:
// a client that is alone sees the time of one commit. A Sink, one per database, runs
// the transactions.
//
//	schema, err := stream.NewSchema(definition)
//	s, err := stream.Open(config, schema, sink)
//	records, refused, err := schema.Parse(body, stream.FormOf(contentType), now, limits)
//	outcome, err := s.Commit(ctx, stream.Request{Records: records, Refused: refused, Key: key, Fingerprint: stream.FingerprintOf(body)})
//
// What holds at all times, and what the tests hold it to:
//
//   - The table contains every record that was acknowledged, and what it holds beyond
//     those is within the requests whose outcome was ErrUnknown.
//   - A request's records that the database takes, its idempotency key and its outcome
//     are committed in one transaction.
//   - No batch is committed twice: its 128-bit id is inserted in the same transaction,
//     and a batch whose COMMIT was not answered is run again under the same id.
//   - Records of one lane (equal values of Definition.OrderBy) are stored in the order
//     in which their requests were accepted, and a request that begins after another
//     was acknowledged is stored after it. There is no other order.
//   - One record that the database refuses fails alone: its neighbours are stored.
//   - No more than Config.QueueRows rows and Config.QueueBytes bytes wait; a request
//     that would wait for longer than Config.WaitMax is refused at once.
//   - Close stores what was accepted.
//
// What fails and what then:
//
//   - The database is down, or breaks a transaction off: the batch is run again, with
//     growing pauses, for Config.RetryFor and while anybody waits for it. Then its
//     requests get ErrUnavailable (nothing was stored), or ErrUnknown when a COMMIT
//     went unanswered.
//   - A record waits for a lock that another session holds: the requests of its batch
//     are stored without it, in smaller batches, and it is tried again for
//     Config.RetryFor. With an order what is behind it in its lane waits for it.
//   - An attempt takes long: it goes on as long as the database answers a part of it
//     within Config.CommitTimeout.
//   - The caller's context ends: it gets ErrUnknown; its records stay queued and may
//     be stored. With an idempotency key it may safely send them again.
//   - Too much is queued: ErrOverloaded, with the time after which to come again.
//
// The package holds no SQL and no HTTP, and writes no file.
package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Config bounds a stream. All fields are needed but the last one; package config
// holds the defaults.
type Config struct {
	Committers    int           // commits under way at once, at most: connections taken from the pool
	BatchRows     int           // records of one transaction, at most, unless one request has more
	BatchBytes    int           // and their bytes
	QueueRows     int           // records that wait, at most
	QueueBytes    int           // and their bytes
	WaitMax       time.Duration // a request that would wait longer is refused at once
	CommitTimeout time.Duration // the database answers a part of a batch within it
	RetryFor      time.Duration // a batch is tried again for so long
	KeyTTL        time.Duration // an idempotency key is remembered for so long
	Log           *slog.Logger

	// Committed, if set, is told of each batch that was stored: its records, those
	// of them that the database refused, and how long it took with all attempts.
	Committed func(rows, refused int, took time.Duration)
}

// Validate returns an error that names the first field that cannot work.
func (c Config) Validate() error {
	checks := []struct {
		name string
		ok   bool
	}{
		{"committers must be 1 to 64", c.Committers >= 1 && c.Committers <= lanesMax},
		{"batch_rows must be at least 1", c.BatchRows >= 1},
		{"batch_bytes must be at least 1", c.BatchBytes >= 1},
		{"queue_rows must be at least batch_rows", c.QueueRows >= c.BatchRows},
		{"queue_bytes must be at least batch_bytes", c.QueueBytes >= c.BatchBytes},
		{"wait_max must be positive", c.WaitMax > 0},
		{"commit_timeout must be positive", c.CommitTimeout > 0},
		{"retry_for must not be negative", c.RetryFor >= 0},
		{"key_ttl must be positive", c.KeyTTL > 0},
		{"a log is needed", c.Log != nil},
	}
	for _, check := range checks {
		if !check.ok {
			return errors.New(check.name)
		}
	}
	return nil
}

// Errors of Commit and Accept. Others are the database's: nothing was stored, and
// trying again does not help until somebody mends what they name.
var (
	// ErrOverloaded: nothing was stored, too much waits. The error is an *Overload.
	ErrOverloaded = errors.New("too many records wait for the database")
	// ErrUnavailable: nothing was stored, the database does not take it now.
	ErrUnavailable = errors.New("the database is not available")
	// ErrUnknown: the records may or may not be stored, now or later.
	ErrUnknown = errors.New("the outcome is unknown")
	// ErrKeyReused: nothing was stored, the idempotency key belongs to another body.
	ErrKeyReused = errors.New("the idempotency key was used for another body")
	// ErrTooLarge: nothing was stored, the request alone is over the queue's bounds.
	ErrTooLarge = errors.New("the request is larger than the queue")
	// ErrClosed: nothing was stored, the stream is closing.
	ErrClosed = errors.New("the stream is closing")
)

// The limits that an Overload names: of a Stream's queue, of a Spool's and of its disk.
const (
	LimitWait  = "wait_max"
	LimitRows  = "queue_rows"
	LimitBytes = "queue_bytes"
	LimitSpool = "spool_bytes"
	LimitDisk  = "disk"
)

// Overload is the error of a request that was refused because of what waits.
type Overload struct {
	Limit      string        // the limit that was met: one of the constants
	Wait       time.Duration // the predicted wait
	RetryAfter time.Duration // when the queue will have room again
}

// Error names the limit and when to try again.
func (o *Overload) Error() string {
	return fmt.Sprintf("%v (%s): try again in %v", ErrOverloaded, o.Limit, o.RetryAfter.Round(time.Millisecond))
}

// Is makes an Overload an ErrOverloaded.
func (o *Overload) Is(target error) bool { return target == ErrOverloaded }

// Stream is one stream. Use Open. Its methods may be called concurrently.
type Stream struct {
	cfg    Config
	schema *Schema
	sink   Sink

	base    context.Context // ends the work when Close gives up
	stop    context.CancelFunc
	workers sync.WaitGroup  // committers and the keeper
	keeping context.Context // ends the keeper's statements when the stream closes
	endKeep context.CancelFunc

	mu      sync.Mutex
	wake    sync.Cond // there may be work, or the stream closes
	queue   queue
	load    load
	closed  bool
	keys    map[string]*ticket // idempotency keys that are queued or under way
	forget  [][16]byte         // batches whose ids the table may forget
	failing error              // why the last batch failed; nil after one that did not

	aside                 []*aside // requests that wait for a lock in the database
	asideRows, asideBytes int      // in them

	keeper   *keeper
	logged   atomic.Int64 // when the last error was logged, in nanoseconds
	counters counters
}

// Open starts a stream that stores in sink. It asks the database nothing that
// could fail: a server that is down is found out by Commit. The owner must call
// Close, and close the sink afterwards where that needs it.
func Open(cfg Config, schema *Schema, sink Sink) (*Stream, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("stream %s: %w", schema.def.Name, err)
	}
	s := &Stream{cfg: cfg, schema: schema, sink: sink, keys: make(map[string]*ticket)}
	s.wake.L = &s.mu
	s.queue = newQueue(cfg.Committers, schema.orderBy >= 0)
	s.load = newLoad(cfg.Committers)
	s.base, s.stop = context.WithCancel(context.Background())
	s.keeping, s.endKeep = context.WithCancel(s.base)
	s.keeper = newKeeper(cfg, schema.def.Name, sink, &s.counters.swept)
	for n := range cfg.Committers {
		s.workers.Go(func() { s.committer(n) })
	}
	s.workers.Go(func() { s.keeper.keep(s.keeping) })
	return s, nil
}

// Close refuses new requests, stores what was accepted and returns when that is
// done. When ctx ends first, what is left is given up: its requests get
// ErrUnknown where a COMMIT went unanswered, else ErrUnavailable, and Close
// returns an error that says how many records those are. It is called once.
func (s *Stream) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.wake.Broadcast()
	s.mu.Unlock()
	s.endKeep()
	done := make(chan struct{})
	go func() {
		s.workers.Wait()
		close(done)
	}()
	before := s.counters.failed.Load()
	select {
	case <-done:
	case <-ctx.Done():
		s.mu.Lock()
		s.stop() // ends attempts and pauses; the queue then fails fast
		s.wake.Broadcast()
		s.mu.Unlock()
		<-done
	}
	s.stop()
	if lost := s.counters.failed.Load() - before; lost > 0 {
		return fmt.Errorf("close stream %s: %d accepted records were not stored", s.schema.def.Name, lost)
	}
	return nil
}

// Schema returns the stream's schema.
func (s *Stream) Schema() *Schema { return s.schema }

// Durability returns what an acknowledgement is worth, as the database's settings
// were read last: at start, every minute, and within a second of a batch that failed or
// was the first of a new session. It is false until the database has answered for the
// first time.
func (s *Stream) Durability() (Durability, bool) { return s.keeper.last() }

// Ready returns nil while the stream takes records and is not close to refusing
// them: the last batch was stored, and less than half of the queue's bounds and of
// Config.WaitMax is used up.
func (s *Stream) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := s.predict(0, 1, 0)
	switch {
	case s.closed:
		return ErrClosed
	case s.failing != nil:
		return fmt.Errorf("the last batch was not stored: %w", s.failing)
	case s.queue.rows > s.cfg.QueueRows/2:
		return fmt.Errorf("%d records wait (queue_rows %d)", s.queue.rows, s.cfg.QueueRows)
	case s.queue.bytes > s.cfg.QueueBytes/2:
		return fmt.Errorf("%d bytes wait (queue_bytes %d)", s.queue.bytes, s.cfg.QueueBytes)
	case (s.queue.rows > 0 || !s.load.free()) && wait > s.cfg.WaitMax/2:
		return fmt.Errorf("a record would wait for %v (wait_max %v)", wait.Round(time.Millisecond), s.cfg.WaitMax)
	}
	return nil
}
