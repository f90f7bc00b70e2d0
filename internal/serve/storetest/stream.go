package storetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

// StreamBackend is the database under test of Stream.
type StreamBackend struct {
	// Open opens a new, empty database through the adapter. It registers the
	// clean-up with t.
	Open func(t testing.TB, pool database.Pool) StreamDB
	// Types is the type of a table's column for each type of a stream's.
	Types map[stream.Type]string
	// Special and Loose are those of a stream.Definition.
	Special, Loose bool
	// Serial is a primary key that counts the rows as they are inserted.
	Serial string
	// Small is a whole number of 16 bits, and Short a text of at most 5 characters;
	// empty where the database has no such bounds.
	Small, Short string
	// Fixed is a column type of decimals with 20 digits, 2 of them behind the point, and
	// Inexact are decimals that it cannot hold. Narrow is one of 15 digits.
	// Narrowed leaves the column amount of the table amounts one digit behind the point; ""
	// where columns have no such bounds.
	Fixed, Narrow, Narrowed string
	Inexact                 []string
	// Insensitive is a column type for which ab and AB are equal, after Setup; Sensitive is
	// one that tells them apart.
	Setup, Insensitive, Sensitive string
	// Spoil are statements after which an insert into readings with the note spoil fails with
	// an error that is not certainly the record's.
	Spoil []string
	// Newer are statements that create a table spillway_requests of format 2.
	Newer []string
	// Trips are the round trips of a batch; if its records come from a spool; if 300 of these
	// have idempotency keys; and if the database has the batch.
	Trips StreamTrips
	// Pooled: a pooler that loses prepared statements and session state is in between. With
	// go test -short only the tests that it can break run.
	Pooled bool
}

// StreamDB is one open database.
type StreamDB struct {
	Sink func(t testing.TB, schema *stream.Schema) stream.Sink
	Exec func(ctx context.Context, sql string) error               // on a connection that is not the adapter's
	Rows func(ctx context.Context, sql string) ([][]string, error) // on another connection; NULL is "NULL"
	// Feeds open a feed, each in sessions of another time zone. StreamPairs needs them.
	Feeds []func(def feed.Definition) (feed.Source, error)
	// Kill ends the server as in a crash, Start starts it again; nil: there is no server.
	Kill  func()
	Start func() error
	// Hold runs a statement in a separate transaction, which stays open until release is
	// called; nil: the database has no row locks.
	Hold func(t testing.TB, sql string) (release func())
	// Proxy is between the adapter and the server; nil: there is no server.
	Proxy *Proxy
}

// StreamTrips are numbers of round trips.
type StreamTrips struct{ Database, Drained, DrainedKeys, Repeated int }

// Stream tests the adapter's stream.Sink.
func Stream(t *testing.T, b StreamBackend) {
	runParts(t, b, b.Pooled, []part[StreamBackend]{
		{"Types", testStreamTypes, breaks},
		{"Neighbours", testStreamNeighbours, breaks},
		{"Decimals", testStreamDecimals, keeps},
		{"DecimalsSpooled", testStreamDecimalsSpooled, keeps},
		{"Rounded", testStreamRounded, keeps},
		{"KeyCollation", testStreamKeyCollation, keeps},
		{"Bounds", testStreamBounds, keeps},
		{"AllRefused", testStreamAllRefused, keeps},
		{"Blocked", testStreamBlocked, breaks},
		{"BlockedInOrder", testStreamBlockedInOrder, keeps},
		{"UniqueKey", testStreamUniqueKey, keeps},
		{"IdempotencyKey", testStreamIdempotencyKey, breaks},
		{"Names", testStreamNames, keeps},
		{"KeyRace", testStreamKeyRace, keeps},
		{"Order", testStreamOrder, keeps},
		{"Forget", testStreamForget, keeps},
		{"Sweep", testStreamSweep, keeps},
		{"Mistakes", testStreamMistakes, keeps},
		{"Newer", testStreamNewer, keeps},
		{"SameBatchTwice", testStreamSameBatch, breaks},
		{"CommitCut", testStreamCommitCut, keeps},
		{"Crash", testStreamCrash, keeps},
		{"FoundAgain", testStreamFoundAgain, keeps},
		{"KeyTimes", testStreamKeyTimes, keeps},
		{"Spoiled", testStreamSpoiled, keeps},
		{"SpoiledFound", testStreamSpoiledFound, keeps},
		{"Trips", testStreamTrips, keeps},
		{"Mark", testStreamMark, breaks},
		{"MarkRace", testStreamMarkRace, keeps},
		{"Drain", testStreamDrain, breaks},
		{"DrainAllRefused", testStreamDrainAllRefused, keeps},
		{"DrainOtherColumns", testStreamDrainOtherColumns, keeps},
		{"Outage", testStreamOutage, keeps},
	})
}

// open opens a fresh database with the table readings (seq, id, device, note): seq
// counts, id is unique, note is at most 20 characters by a check, and device refers
// to the table devices, where there are 1 to 8.
func (b StreamBackend) open(t testing.TB) StreamDB {
	t.Helper()
	db := b.Open(t, streamPool)
	db.exec(t, fmt.Sprintf("CREATE TABLE devices (id %s NOT NULL PRIMARY KEY)", b.Types[stream.Integer]))
	db.exec(t, "INSERT INTO devices (id) VALUES (1), (2), (3), (4), (5), (6), (7), (8)")
	db.exec(t, fmt.Sprintf("CREATE TABLE readings (seq %s, id %s NOT NULL UNIQUE, device %s, note %s CHECK (note <> 'bad'), FOREIGN KEY "+
		"(device) REFERENCES devices (id))",
		b.Serial, b.Types[stream.Integer], b.Types[stream.Integer], b.Types[stream.Text]))
	return db
}

// streamPool has one connection per committer of two streams.
var streamPool = database.Pool{Max: 8, ConnectTimeout: patience, AcquireTimeout: patience, StatementTimeout: patience}

// readings is a stream into that table.
func readings() stream.Definition {
	return stream.Definition{Name: "/readings", Table: "readings", Spooled: true, Columns: []stream.Column{
		{Name: "id", Type: stream.Integer, Required: true},
		{Name: "device", Type: stream.Integer},
		{Name: "note", Type: stream.Text},
	}}
}

// streamConfig returns the limits of the suite's streams.
func streamConfig() stream.Config {
	return stream.Config{
		Committers: 4, BatchRows: 500, BatchBytes: 1 << 20, QueueRows: 100000, QueueBytes: 64 << 20, WaitMax: patience,
		CommitTimeout: time.Minute, RetryFor: patience, KeyTTL: time.Hour, Log: slog.New(slog.DiscardHandler),
	}
}

// stream opens a stream until the test ends.
func (db StreamDB) stream(t testing.TB, def stream.Definition, change func(*stream.Config)) *stream.Stream {
	t.Helper()
	schema, err := stream.NewSchema(def)
	if err != nil {
		t.Fatal(err)
	}
	cfg := streamConfig()
	if change != nil {
		change(&cfg)
	}
	s := stream.Open(cfg, schema, db.Sink(t, schema))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close the stream: %v", err)
		}
	})
	return s
}

func (db StreamDB) exec(t testing.TB, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := db.Exec(ctx, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (db StreamDB) rows(t testing.TB, sql string) [][]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	rows, err := db.Rows(ctx, sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return rows
}

// column returns the values of a query's one column with commas between them.
func (db StreamDB) column(t testing.TB, sql string) string {
	t.Helper()
	var values []string
	for _, row := range db.rows(t, sql) {
		values = append(values, row[0])
	}
	return strings.Join(values, ",")
}

// request parses a body for s.
func request(t testing.TB, s *stream.Stream, key, body string) stream.Request {
	t.Helper()
	limits := stream.Limits{Bytes: 1 << 20, Records: 10000, Depth: 20, Fields: 100}
	records, refused, err := s.Schema().Parse([]byte(body), stream.FormLines, time.Now(), limits)
	if err != nil {
		t.Fatal(err)
	}
	return stream.Request{Records: records, Refused: refused, Key: key, Fingerprint: stream.FingerprintOf([]byte(body))}
}

// send commits a body. It must succeed.
func send(t testing.TB, s *stream.Stream, key, body string) stream.Outcome {
	t.Helper()
	outcome, err := trySend(t, s, key, body)
	if err != nil {
		t.Fatalf("%.100s: %v", body, err)
	}
	return outcome
}

func trySend(t testing.TB, s *stream.Stream, key, body string) (stream.Outcome, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	receipt, err := store(ctx, s, request(t, s, key, body))
	return receipt.Outcome, err
}

// store stores a request, and waits until that is done.
func store(ctx context.Context, s interface {
	Begin(ctx context.Context, r stream.Request, ready func() func()) (stream.Receipt, stream.Waiting, error)
}, r stream.Request,
) (stream.Receipt, error) {
	receipt, waiting, err := s.Begin(ctx, r, nil)
	if waiting == nil {
		return receipt, err
	}
	return waiting.Receipt(ctx)
}

// testStreamNewer finds a table of its own that a newer program has changed.
func testStreamNewer(t *testing.T, b StreamBackend) {
	db := b.open(t)
	for _, sql := range b.Newer {
		db.exec(t, sql)
	}
	_, err := trySend(t, db.stream(t, readings(), nil), "", `{"id":1}`)
	if err == nil || !strings.Contains(err.Error(), "spillway_requests has format 2, this program supports format 1") ||
		errors.Is(err, stream.ErrUnavailable) || errors.Is(err, queue.ErrUnknown) {
		t.Errorf("a newer table: %v", err)
	}
	if got := db.column(t, "SELECT count(*) FROM readings"); got != "0" {
		t.Errorf("%s records are stored", got)
	}
}

// testStreamMistakes stores into a table that does not exist.
func testStreamMistakes(t *testing.T, b StreamBackend) {
	db := b.open(t)
	def := readings()
	def.Table = "no_such_table"
	s := db.stream(t, def, nil)
	_, err := trySend(t, s, "", `{"id":1}`)
	if err == nil || !strings.Contains(err.Error(), "no_such_table") || errors.Is(err, stream.ErrUnavailable) ||
		errors.Is(err, queue.ErrUnknown) {
		t.Errorf("no such table: %v", err)
	}
	def = readings()
	def.Columns = append(def.Columns, stream.Column{Name: "nothing", Type: stream.Integer})
	_, err = trySend(t, db.stream(t, def, nil), "", `{"id":1}`)
	if err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("no such column: %v", err)
	}
	// The table's name and the values are not SQL.
	def.Columns = readings().Columns
	def.Table = `x"; DROP TABLE readings; --`
	if _, err = trySend(t, db.stream(t, def, nil), "", `{"id":1}`); err == nil {
		t.Error("a table with quotes in its name is there")
	}
	good := db.stream(t, readings(), nil)
	note := `'; DROP TABLE readings; -- \' " \\ %s $1 ? :x`
	send(t, good, "", fmt.Sprintf(`{"id":5,"note":%q}`, note))
	if got := db.column(t, "SELECT note FROM readings"); got != note {
		t.Errorf("note %q, want %q", got, note)
	}
}
