package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Sink runs the transactions of one stream on one database. Its methods may be
// called concurrently. It creates its tables (BatchTable, RequestTable) where they
// are missing.
type Sink interface {
	// Commit stores a batch in one transaction: the batch's id, the records that
	// the database takes, and the requests' keys with their outcomes. It sets the
	// Result of every request. Where the id is there already, an earlier attempt has
	// been committed, and the Results are that one's. With a Mark it goes by that one; an
	// error may then wrap a *Moved: nothing was stored.
	//
	// An error wraps ErrTransient when nothing was stored and the same batch may
	// succeed later, ErrUnconfirmed when a COMMIT was sent and not answered. Any
	// other error means that nothing was stored and that trying again does not help.
	// ctx ends when the sink has not told of any Batch.Progress for some time.
	Commit(ctx context.Context, b *Batch) error
	// Durability reads what the database's settings make of a commit.
	Durability(ctx context.Context) (Durability, error)
	// Sweep deletes up to limit batch ids from before batches and up to limit keys
	// that have expired at now, and returns how many rows it deleted.
	Sweep(ctx context.Context, now, batches time.Time, limit int) (int, error)
}

// Errors that a Sink's Commit wraps.
var (
	ErrTransient   = errors.New("the batch was not stored this time")
	ErrUnconfirmed = errors.New("the commit was not answered")
	// ErrBlocked, which comes with ErrTransient: one of the requests waits for a lock
	// that somebody else holds. Others of the batch may be stored without it.
	ErrBlocked = errors.New("a lock was not free in time")
)

// The tables that a Sink keeps. An adapter documents their definitions.
const (
	BatchTable   = "spillway_batches"  // id, created_at, results: Batch.Results as it was committed
	RequestTable = "spillway_requests" // stream, key, fingerprint, outcome, expires_at
)

// KeyMax is the longest idempotency key, in bytes.
const KeyMax = 255

// CheckKey returns what is wrong with an idempotency key: it must be at most KeyMax
// bytes of UTF-8 without NUL, as databases take a text. The error wraps ErrBody.
func CheckKey(key string) error {
	switch {
	case len(key) > KeyMax:
		return fmt.Errorf("%w: the idempotency key is longer than %d bytes", ErrBody, KeyMax)
	case !utf8.ValidString(key) || strings.IndexByte(key, 0) >= 0:
		return fmt.Errorf("%w: the idempotency key is not UTF-8, or holds NUL", ErrBody)
	}
	return nil
}

// Batch is what one transaction stores.
type Batch struct {
	ID       [16]byte
	Requests []*Entry
	// Forget are ids of earlier batches that nobody will ask for again. The
	// transaction may delete them.
	Forget [][16]byte
	// Mark, of a batch that is drained from a spool, takes the place of the ID: where
	// the table has it already, an earlier attempt has been committed. nil: none.
	Mark *Mark
	// LockWait is how long a request may wait for a lock before the batch fails with
	// ErrBlocked, about: a Sink rounds it to what its database knows. 0: as the server
	// is set.
	LockWait time.Duration
	// Careful asks for small steps: an attempt at all of it took too long.
	Careful bool
	// Session is set by the Sink to the server's number of the session that took the
	// batch: where a new one comes, the server may be another. 0: not known.
	Session uint64

	drained *drainBatch   // what is drained, of a batch with a Mark; nil: not known
	timer   *time.Timer   // ends the attempt
	limit   time.Duration // what Progress gives it again
}

// Progress says that the database has answered a part of the batch: the time within
// which it must answer begins anew. A Sink calls it after each statement of a batch
// whose statements are bounded in number by its rows, so that the work always ends.
func (b *Batch) Progress() {
	if b.timer != nil {
		b.timer.Reset(b.limit)
	}
}

// errNoAnswer is the cause of an attempt's end.
var errNoAnswer = errors.New("the database did not answer in time (commit_timeout)")

// commitWithin has the sink commit a batch, and gives up once the database has answered
// nothing for the limit.
func commitWithin(base context.Context, limit time.Duration, sink Sink, b *Batch) error {
	ctx, cancel := context.WithCancelCause(base)
	b.limit, b.timer = limit, time.AfterFunc(limit, func() { cancel(errNoAnswer) })
	err := sink.Commit(ctx, b)
	b.timer.Stop()
	b.timer = nil
	if err != nil && errors.Is(context.Cause(ctx), errNoAnswer) {
		err = fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	cancel(nil)
	return err
}

// Entry is one request of a batch.
type Entry struct {
	Records     *Records
	Key         string // the idempotency key; empty: none
	Fingerprint [32]byte
	Expires     time.Time // of the key
	Result      Result    // set by the Sink

	refused []Refusal // by the schema
}

// Result is what became of a request in a batch.
type Result struct {
	Refused []RowRefusal `json:"refused,omitempty"` // by the database
	Stored  []byte       `json:"stored,omitempty"`  // the outcome that the key had already; nothing was stored now
	Reused  bool         `json:"reused,omitempty"`  // the key had another body; nothing was stored
}

// RowRefusal is a row of Records that the database refused. Reason is what the
// database says, without other rows' data.
type RowRefusal struct {
	Row    int    `json:"row"`
	Reason string `json:"reason"`
}

// Row is one record of a batch.
type Row struct {
	*Records
	Row   int
	Entry *Entry
}

// Rows appends to dst the records that are to be inserted, in order: those of all
// requests but the ones whose key was there before. Results must be set for those.
func (b *Batch) Rows(dst []Row) []Row {
	for _, e := range b.Requests {
		if e.Result.Stored != nil || e.Result.Reused {
			continue
		}
		for row := range e.Records.Len() {
			dst = append(dst, Row{Records: e.Records, Row: row, Entry: e})
		}
	}
	return dst
}

// Keyed appends to dst the requests with a key that is not there yet.
func (b *Batch) Keyed(dst []*Entry) []*Entry {
	for _, e := range b.Requests {
		if e.Key != "" && e.Result.Stored == nil && !e.Result.Reused {
			dst = append(dst, e)
		}
	}
	return dst
}

// Reset forgets the Results of an attempt that was not committed.
func (b *Batch) Reset() {
	for _, e := range b.Requests {
		e.Result = Result{}
	}
}

// Found sets the Result of a request whose key is there already.
func (e *Entry) Found(fingerprint, outcome []byte) {
	if string(fingerprint) != string(e.Fingerprint[:]) {
		e.Result = Result{Reused: true}
		return
	}
	e.Result = Result{Stored: slices.Clone(outcome)}
}

// Results returns the Results for BatchTable, or for SpoolTable with a Mark: nil when
// every record was stored.
func (b *Batch) Results() ([]byte, error) {
	if b.drained != nil {
		return b.drained.results()
	}
	clean := true
	results := make([]Result, len(b.Requests))
	for i, e := range b.Requests {
		results[i] = e.Result
		clean = clean && len(e.Result.Refused) == 0 && e.Result.Stored == nil && !e.Result.Reused
	}
	if clean {
		return nil, nil
	}
	return json.Marshal(results)
}

// SetResults sets the Results from what Results returned in an earlier attempt.
func (b *Batch) SetResults(data []byte) error {
	b.Reset()
	if b.drained != nil {
		b.drained.setResults(data)
		return nil
	}
	if len(data) == 0 {
		return nil
	}
	var results []Result
	if err := json.Unmarshal(data, &results); err != nil {
		return fmt.Errorf("read the results of batch %x: %w", b.ID, err)
	}
	if len(results) != len(b.Requests) {
		return fmt.Errorf("batch %x has %d requests, and results for %d", b.ID, len(b.Requests), len(results))
	}
	for i, e := range b.Requests {
		e.Result = results[i]
	}
	return nil
}

// Durability is what an acknowledgement of a database is worth.
type Durability struct {
	// Unsafe are the settings that let acknowledged commits be lost in a crash, as
	// "name=value"; none when the commit is on disk.
	Unsafe []string
}

// String returns the ack level's name: "database", or "database, not fsynced:
// synchronous_commit=off".
func (d Durability) String() string {
	if len(d.Unsafe) == 0 {
		return "database"
	}
	return "database, not fsynced: " + strings.Join(d.Unsafe, ", ")
}
