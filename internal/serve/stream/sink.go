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
	// Results are those of that attempt. With a Mark, Mark.Judge decides instead of the id: if
	// it returns true, nothing of the batch is stored and Commit returns nil.
	//
	// An error wraps ErrTransient if nothing was stored and the same batch may succeed
	// later, and ErrUnconfirmed if a COMMIT was sent and not answered, or answered with a
	// warning. After any other error nothing was stored and a retry does not help.
	//
	// ctx ends if Commit has not called Batch.Progress for some time. Commit calls
	// Batch.Committing before it sends COMMIT. From then on ctx ends only when the process
	// stops, and Commit waits for as long as the connection lasts: it neither closes it nor
	// has the server cancel the COMMIT, also if ctx ends. No timeout of the server may end a
	// COMMIT either. A Commit that sends COMMIT with the rows in one statement need not call Committing, unless it waits for a
	// replica: a timeout ends that statement with ErrUnconfirmed.
	//
	// Before it acknowledges what an earlier transaction has stored (a batch id or groups
	// that are found again), Commit commits a write of its own under the same settings.
	Commit(ctx context.Context, b *Batch) error
	// Durability returns what the database's settings make of a commit.
	Durability(ctx context.Context) (Durability, error)
	// Sweep deletes up to limit rows each of what is older than Keep says, by the clock of
	// the database, and returns how many it deleted.
	Sweep(ctx context.Context, keep Keep, limit int) (int, error)
}

// Keep is how long a Sink keeps rows of its own tables.
type Keep struct {
	Batches time.Duration // batch ids, after they were written
	Keys    time.Duration // idempotency keys, after their expires_at
	Marks   time.Duration // epochs and drained batches of spools, after they were written last
}

// Errors that a Sink's Commit wraps.
var (
	ErrTransient   = errors.New("the batch was not stored this time")
	ErrUnconfirmed = errors.New("the commit was not answered")
	// ErrBlocked comes with ErrTransient: a request waits for a lock of another session.
	// The other requests of the batch may be stored without it.
	ErrBlocked = errors.New("a lock was not free in time")
	// ErrRefused comes with ErrTransient: the database refuses a request for what no client has sent,
	// such as a default. The other requests of the batch may be stored without it.
	ErrRefused = errors.New("the database refuses what no client has sent")
	// ErrHeld is what a *Held wraps.
	ErrHeld = queue.ErrHeld
)

// Batch is what one transaction stores. The package streamtables has the tables that a Sink
// keeps beside that of the records.
type Batch struct {
	ID       [16]byte
	Requests []*Entry
	// Forget are ids of earlier batches that are no longer needed. The transaction may
	// delete them.
	Forget [][16]byte
	// Mark replaces the ID of a batch that is drained from a spool. nil: none. Only a stream with
	// Definition.Spooled has such batches.
	Mark *queue.Mark
	// LockWait is about how long a request may wait for a lock before the batch fails with
	// ErrBlocked. 0: as the server is configured.
	LockWait time.Duration
	// RowByRow asks for small steps, because an attempt with large statements took too long, or
	// to find out which rows are inserted.
	RowByRow bool
	KeyTTL   time.Duration // how long an idempotency key is kept after its acceptance
	KeyKeep  time.Duration // and for how long after that, because a request may wait in a spool; 0: for ever
	// Level is set by the Sink to what the COMMIT was worth: LevelLocal and so on; "" for a
	// database without replication.
	Level string
	// Skipped is set by the Sink, with Definition.SkippedRows: how many rows the database did not
	// insert, those that were found under their Definition.Key included.
	Skipped int
	// Trial are requests that follow a batch with a Mark, and are not part of it. If Verify
	// fails, the Sink inserts their rows too and takes them back: see Held.
	Trial []*Entry
	// Session is set by the Sink to the server's number of the session that ran the batch.
	// With a new session, the server may be another one. 0: unknown.
	Session uint64

	drained *drainBatch // of a batch with a Mark; nil: unknown
	attempt *attempt    // the running call of Commit; nil: unlimited
}

// The levels of a COMMIT: what it waited for before it was answered.
const (
	LevelLocal       = "local"        // the server's own disk
	LevelRemoteWrite = "remote_write" // a standby's operating system
	LevelOn          = "on"           // a standby's disk
	LevelRemoteApply = "remote_apply" // a standby has applied it
	LevelSemiSync    = "semi_sync"    // a replica's relay log (MySQL, MariaDB)
)

// Entry is one request of a batch.
type Entry struct {
	Records     *Records
	Key         string // idempotency key; "": none
	Fingerprint [32]byte
	// Accepted is when the request was accepted, by the clock of the database. Zero: now,
	// as the database says.
	Accepted time.Time
	Result   Result // set by the Sink

	refused []Refusal // by the schema
}

// Result is what became of a request in a batch.
type Result struct {
	Refused []RowRefusal `json:"refused,omitempty"` // by the database
	Stored  []byte       `json:"stored,omitempty"`  // outcome of an earlier request with the key; nothing was stored now
	Reused  bool         `json:"reused,omitempty"`  // the key belongs to another body; nothing was stored
	// Found are rows that were not inserted because the table has their key (Definition.Key),
	// or of which the Sink cannot tell. Only batches with a Mark have them: see NoteFound.
	Found []int `json:"-"`
}

// RowRefusal is a row of Records that the database refused. Reason is the database's
// message, without data of other rows.
type RowRefusal struct {
	Row    int    `json:"row"`
	Reason string `json:"reason"`
	// Unsure: the reason may be a condition of the server instead of the row. Only batches
	// with a Mark have such refusals.
	Unsure bool `json:"-"`
}

// SkippedRow returns the refusal of a row that the database did not insert, and that has no row
// under its Definition.Key. marked says that its batch has a Mark: if no row behind it is inserted,
// the drain is held.
func SkippedRow(row int, marked bool) RowRefusal {
	return RowRefusal{Row: row, Unsure: marked, Reason: "row-skipped: the database accepted the record and did not insert it, " +
		"because of a trigger, a rule or a conflict clause of the table; skipped_rows: accept takes such records as stored"}
}

// Row is one record of a batch.
type Row struct {
	*Records
	Row   int
	Entry *Entry
}

// Refuse adds the refusal of the row to its request's Result.
func (r Row) Refuse(refused RowRefusal) {
	refused.Row = r.Row
	r.Entry.Result.Refused = append(r.Entry.Result.Refused, refused)
}

// Rows appends to dst the records to insert, in order. Requests whose key was found are
// left out; their Results must be set before.
func (b *Batch) Rows(dst []Row) []Row {
	for _, e := range b.Requests {
		if e.KeyFound() {
			continue
		}
		for row := range e.Records.Len() {
			dst = append(dst, Row{Records: e.Records, Row: row, Entry: e})
		}
	}
	return dst
}

// Reset forgets the Results of an attempt that was not committed.
func (b *Batch) Reset() {
	b.Skipped = 0
	for _, e := range slices.Concat(b.Requests, b.Trial) {
		e.Result = Result{}
	}
}

// Results returns the Results for spillway_batches, or with a Mark for spillway_drained. They are nil
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

// SetResults sets the Results of a batch without a Mark from what Results returned in an
// earlier attempt.
func (b *Batch) SetResults(data []byte) error {
	b.Reset()
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
	// Level is what a COMMIT waits for now; "" for a database without replication.
	Level string
	// Clock is how far the database's clock is ahead of this process's.
	Clock time.Duration
	// Unsafe are the settings and the properties of the table, as "name=value", with which a
	// crash can lose acknowledged commits. It is empty if commits are on disk.
	Unsafe []string
}

// String returns what an acknowledgement is worth: "database, remote_apply", "database" if
// the database has no replication, or "database, not fsynced: synchronous_commit=off".
func (d Durability) String() string {
	if len(d.Unsafe) > 0 {
		return AckDatabase + ", not fsynced: " + strings.Join(d.Unsafe, ", ")
	}
	switch d.Level { // constants, because this is part of each answer
	case "":
		return AckDatabase
	case LevelLocal:
		return AckDatabase + ", " + LevelLocal
	case LevelOn:
		return AckDatabase + ", " + LevelOn
	case LevelRemoteApply:
		return AckDatabase + ", " + LevelRemoteApply
	}
	return AckDatabase + ", " + d.Level
}
