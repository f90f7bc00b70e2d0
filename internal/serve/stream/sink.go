package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"spillway/internal/serve/queue"
)

// Sink runs the transactions of one stream on one database. Its methods may be called
// concurrently. It creates its tables if they are missing.
type Sink interface {
	// Commit stores a batch in one transaction: the batch's id, the records that the
	// database accepts, and the requests' keys with their outcomes. It sets the Result of
	// every request. If the id is there already, an earlier attempt was committed: the
	// Results are those of that attempt. With a Mark, that decides instead of the id; the
	// error may then wrap a *queue.Moved: nothing was stored.
	//
	// An error wraps ErrTransient if nothing was stored and the same batch may succeed
	// later, and ErrUnconfirmed if a COMMIT was sent and not answered. After any other error
	// nothing was stored and a retry does not help. ctx ends if Commit has not called
	// Batch.Progress for some time.
	Commit(ctx context.Context, b *Batch) error
	// Durability returns what the database's settings make of a commit.
	Durability(ctx context.Context) (Durability, error)
	// Sweep deletes up to limit batch ids from before batches and up to limit keys that
	// have expired at now, and returns how many rows it deleted.
	Sweep(ctx context.Context, now, batches time.Time, limit int) (int, error)
}

// Errors that a Sink's Commit wraps.
var (
	ErrTransient   = errors.New("the batch was not stored this time")
	ErrUnconfirmed = errors.New("the commit was not answered")
	// ErrBlocked comes with ErrTransient: a request waits for a lock of another session.
	// The other requests of the batch may be stored without it.
	ErrBlocked = errors.New("a lock was not free in time")
)

// The tables that a Sink keeps. Each adapter documents their definitions.
const (
	BatchTable   = "spillway_batches"  // id, created_at, results: Batch.Results as committed
	RequestTable = "spillway_requests" // stream, key, fingerprint, outcome, expires_at
	// SpoolTable holds the mark of each name of a spool: the last drained batch has the
	// groups behind after, up to sequence.
	SpoolTable = "spillway_spools" // id (Mark.Spool), stream, after, sequence, results (Batch.Results)
)

// Batch is what one transaction stores.
type Batch struct {
	ID       [16]byte
	Requests []*Entry
	// Forget are ids of earlier batches that are no longer needed. The transaction may
	// delete them.
	Forget [][16]byte
	// Mark replaces the ID of a batch that is drained from a spool: if SpoolTable has it
	// already, an earlier attempt was committed. nil: none.
	Mark *queue.Mark
	// LockWait is about how long a request may wait for a lock before the batch fails with
	// ErrBlocked. 0: as the server is configured.
	LockWait time.Duration
	// RowByRow asks for small steps, because an attempt with large statements took too long.
	RowByRow bool
	// Session is set by the Sink to the server's number of the session that ran the batch.
	// With a new session, the server may be another one. 0: unknown.
	Session uint64

	drained *drainBatch   // of a batch with a Mark; nil: unknown
	timer   *time.Timer   // ends the attempt
	limit   time.Duration // what Progress sets the timer to
}

// Progress notes that the database has answered a statement of the batch, and restarts
// Config.CommitTimeout. The number of statements must be bounded by the batch's rows, so
// that the work always ends.
func (b *Batch) Progress() {
	if b.timer != nil {
		b.timer.Reset(b.limit)
	}
}

// errNoAnswer is the cause of an attempt that ended without an answer.
var errNoAnswer = errors.New("the database did not answer in time (commit_timeout)")

// commitWithin has the sink commit a batch, and gives up if the database answers nothing
// for the limit.
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
	Key         string // idempotency key; "": none
	Fingerprint [32]byte
	Expires     time.Time // of the key
	Result      Result    // set by the Sink

	refused []Refusal // by the schema
}

// Result is what became of a request in a batch.
type Result struct {
	Refused []RowRefusal `json:"refused,omitempty"` // by the database
	Stored  []byte       `json:"stored,omitempty"`  // outcome of an earlier request with the key; nothing was stored now
	Reused  bool         `json:"reused,omitempty"`  // the key belongs to another body; nothing was stored
}

// RowRefusal is a row of Records that the database refused. Reason is the database's
// message, without data of other rows.
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

// Rows appends to dst the records to insert, in order. Requests whose key was found are
// left out; their Results must be set before.
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

// Keyed appends to dst the requests with a key that was not found.
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

// Found sets the Result of a request whose key is in RequestTable.
func (e *Entry) Found(fingerprint, outcome []byte) {
	if string(fingerprint) != string(e.Fingerprint[:]) {
		e.Result = Result{Reused: true}
		return
	}
	e.Result = Result{Stored: slices.Clone(outcome)}
}

// Results returns the Results for BatchTable, or with a Mark for SpoolTable. They are nil
// if every record was stored.
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
	// Unsafe are the settings, as "name=value", with which a crash can lose acknowledged
	// commits. It is empty if commits are on disk.
	Unsafe []string
}

// String returns the ack level: "database", or "database, not fsynced:
// synchronous_commit=off".
func (d Durability) String() string {
	if len(d.Unsafe) == 0 {
		return AckDatabase
	}
	return AckDatabase + ", not fsynced: " + strings.Join(d.Unsafe, ", ")
}

// Refused is the error of rows whose data the database refuses. The statement was undone;
// the transaction continues.
type Refused struct {
	Reason string // the database's message
}

// Error returns the reason.
func (r *Refused) Error() string { return "refused: " + r.Reason }

// Bisect inserts rows [0, n) in order if the database may refuse some of them. insert
// inserts rows [low, high) or none of them, and returns a *Refused if the database refuses
// their data; any other error ends the work. A refused part of more than few rows is
// halved. A smaller one is given to singly, which inserts each row alone.
//
// It calls insert at most 4n/few+1 times, and singly at most once per row.
func Bisect(n, few int, insert func(low, high int) (*Refused, error), singly func(low, high int) error) error {
	if n == 0 {
		return nil
	}
	// The parts that are left, the next one last.
	type part struct{ low, high int }
	parts := []part{{0, n}}
	for len(parts) > 0 {
		p := parts[len(parts)-1]
		parts = parts[:len(parts)-1]
		refused, err := insert(p.low, p.high)
		switch {
		case err != nil:
			return err
		case refused == nil:
		case p.high-p.low <= max(1, few):
			if err := singly(p.low, p.high); err != nil {
				return err
			}
		default:
			middle := (p.low + p.high) / 2
			parts = append(parts, part{middle, p.high}, part{p.low, middle})
		}
	}
	return nil
}
