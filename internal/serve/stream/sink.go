package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
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
	// COMMIT either.
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
	// ErrHeld is what a *Held wraps.
	ErrHeld = queue.ErrHeld
)

// Batch is what one transaction stores. The tables that a Sink keeps, whose definitions each
// adapter documents:
//
//   - spillway_batches has Batch.Results as committed: id, created_at, results.
//   - spillway_requests has idempotency keys: stream, key, fingerprint, outcome, expires_at,
//     accepted_at, earlier (see Entry.Judge).
//   - spillway_epochs has a row for each epoch of a spool: spool, epoch, stream, last (number),
//     updated_at.
//   - spillway_drained has a row for each batch that was drained: spool, epoch, last, first,
//     sums, results, created_at.
//
// Each of them has the TableComment.
type Batch struct {
	ID       [16]byte
	Requests []*Entry
	// Forget are ids of earlier batches that are no longer needed. The transaction may
	// delete them.
	Forget [][16]byte
	// Mark replaces the ID of a batch that is drained from a spool. nil: none.
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
	// Trial are requests that follow a batch with a Mark, and are not part of it. If Verify
	// fails, the Sink inserts their rows too and takes them back: see Held.
	Trial []*Entry
	// Session is set by the Sink to the server's number of the session that ran the batch.
	// With a new session, the server may be another one. 0: unknown.
	Session uint64

	drained *drainBatch // of a batch with a Mark; nil: unknown
	attempt *attempt    // the running call of Commit; nil: unlimited
}

// TableComment is the comment of each table that a Sink keeps. In SQLite it is a comment in the
// statement that creates the table.
const TableComment = "spillway format 1"

var tableFormat = regexp.MustCompile(`spillway format (\d+)`)

// CheckFormat returns an error if the comment of a table says that it has another format than
// this program knows.
func CheckFormat(table, comment string) error {
	if found := tableFormat.FindStringSubmatch(comment); found != nil && found[0] != TableComment {
		return fmt.Errorf("%s has format %s, this program supports format 1", table, found[1])
	}
	return nil
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

// Row is one record of a batch.
type Row struct {
	*Records
	Row   int
	Entry *Entry
}

// NoteFound adds rows to Result.Found. A Sink for a table with a key calls it for each
// statement of a batch with a Mark that has not, or not certainly, inserted all of its rows.
func NoteFound(rows []Row) {
	for _, r := range rows {
		r.Entry.Result.Found = append(r.Entry.Result.Found, r.Row)
	}
}

// Rows appends to dst the records to insert, in order. Requests whose key was found are
// left out; their Results must be set before.
func (b *Batch) Rows(dst []Row) []Row {
	for _, e := range b.Requests {
		if e.Known() {
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
		if e.Key != "" && !e.Known() {
			dst = append(dst, e)
		}
	}
	return dst
}

// Reset forgets the Results of an attempt that was not committed.
func (b *Batch) Reset() {
	for _, e := range slices.Concat(b.Requests, b.Trial) {
		e.Result = Result{}
	}
}

// Known reports whether the request's key was found: nothing of it is stored now.
func (e *Entry) Known() bool { return e.Result.Stored != nil || e.Result.Reused }

// Found sets the Result of a request whose key is in spillway_requests.
func (e *Entry) Found(fingerprint, outcome []byte) {
	if string(fingerprint) != string(e.Fingerprint[:]) {
		e.Result = Result{Reused: true}
		return
	}
	e.Result = Result{Stored: slices.Clone(outcome)}
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

// StoredKey is a request with an idempotency key that the database has.
type StoredKey struct {
	Accepted    time.Time `json:"accepted"`
	Fingerprint []byte    `json:"fingerprint"`
	Outcome     []byte    `json:"outcome"`
}

// Judge looks for a request among those that spillway_requests has under its key: the newest
// one, and the earlier ones that its column earlier holds. Two requests with one key are the
// same if their acceptance times differ by less than KeyTTL, whichever was stored first. now is
// the time of the database. If the request is found, Judge sets its Result and returns true.
//
// A key that belongs to keyUsesMax requests that are still kept takes no other: the request is
// refused like one with another body, because an earlier one cannot be forgotten.
func (b *Batch) Judge(e *Entry, stored []StoredKey, now time.Time) bool {
	at, kept := e.acceptedAt(now), 0
	for _, k := range stored {
		if at.Sub(k.Accepted).Abs() < b.KeyTTL {
			e.Found(k.Fingerprint, k.Outcome)
			return true
		}
		if b.keeps(k, now) {
			kept++
		}
	}
	if kept >= keyUsesMax {
		e.Result = Result{Reused: true}
		return true
	}
	return false
}

// AddKey adds a request to those that spillway_requests has under its key, which Judge has not
// found it among. It returns the one that was accepted last, and the others for the column
// earlier, without those that are no longer kept.
func (b *Batch) AddKey(e *Entry, stored []StoredKey, now time.Time) (newest StoredKey, earlier []StoredKey, err error) {
	outcome, err := e.OutcomeNow()
	if err != nil {
		return StoredKey{}, nil, err
	}
	all := append([]StoredKey{{Accepted: e.acceptedAt(now).UTC(), Fingerprint: e.Fingerprint[:], Outcome: outcome}}, stored...)
	slices.SortStableFunc(all, func(a, b StoredKey) int { return b.Accepted.Compare(a.Accepted) })
	earlier = slices.DeleteFunc(all[1:], func(k StoredKey) bool { return !b.keeps(k, now) })
	return all[0], earlier, nil
}

// keeps reports whether a request that is the same as a stored one may still come.
func (b *Batch) keeps(k StoredKey, now time.Time) bool {
	return b.KeyKeep == 0 || now.Sub(k.Accepted) <= b.KeyTTL+b.KeyKeep
}

func (e *Entry) acceptedAt(now time.Time) time.Time {
	if e.Accepted.IsZero() {
		return now
	}
	return e.Accepted
}

// keyUsesMax bounds the row of an idempotency key.
const keyUsesMax = 1000

// Durability is what an acknowledgement of a database is worth.
type Durability struct {
	// Level is what a COMMIT waits for now; "" for a database without replication.
	Level string
	// Clock is how far the database's clock is ahead of this process's.
	Clock time.Duration
	// Unsafe are the settings, as "name=value", with which a crash can lose acknowledged
	// commits. It is empty if commits are on disk.
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

// Verify is called by a Sink before it commits a batch with a Mark. It returns a *Held if a
// row with an Unsure refusal has no row behind it in the batch that was inserted. A row that
// was found shows nothing: the table may refuse every new one.
func (b *Batch) Verify() error {
	unsure := false
	for _, e := range b.Requests {
		unsure = unsure || slices.ContainsFunc(e.Result.Refused, func(r RowRefusal) bool { return r.Unsure })
	}
	if !unsure {
		return nil
	}
	rows := b.Rows(nil)
	refusals, found := make(map[Row]RowRefusal), make(map[Row]bool)
	for _, e := range b.Requests {
		for _, row := range e.Result.Found {
			found[Row{Records: e.Records, Row: row, Entry: e}] = true
		}
		for _, r := range e.Result.Refused {
			refusals[Row{Records: e.Records, Row: r.Row, Entry: e}] = r
		}
	}
	var held *Held
	for i := len(rows) - 1; i >= 0; i-- {
		r, refused := refusals[rows[i]]
		if !refused && !found[rows[i]] {
			break
		}
		if r.Unsure {
			held = &Held{Row: i, Reason: r.Reason, entry: rows[i].Entry}
		}
	}
	if held == nil {
		return nil
	}
	return held
}

// VerifyTrial returns nil if a row of Trial was inserted, and else held, which Verify has
// returned. The Sink has inserted the rows of Trial, set their Results, and taken them back.
func (b *Batch) VerifyTrial(held error) error {
	for _, e := range b.Trial {
		if len(e.Result.Refused)+len(e.Result.Found) < e.Records.Len() {
			return nil
		}
	}
	return held
}

// TrialRows returns the rows of Trial, in order.
func (b *Batch) TrialRows() []Row {
	var rows []Row
	for _, e := range b.Trial {
		for row := range e.Records.Len() {
			rows = append(rows, Row{Records: e.Records, Row: row, Entry: e})
		}
	}
	return rows
}

// Held is the error of a batch with a Mark of which nothing was stored, because a row was
// refused for a reason that may be the server's, and no later row, nor one of Trial, was
// inserted. It wraps ErrHeld.
type Held struct {
	Row    int // the first such row, counted in Batch.Rows
	Reason string

	entry *Entry // of the row
}

// Error returns the reason of the row.
func (h *Held) Error() string { return ErrHeld.Error() + ": " + h.Reason }

// Unwrap returns ErrHeld.
func (h *Held) Unwrap() error { return ErrHeld }

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
