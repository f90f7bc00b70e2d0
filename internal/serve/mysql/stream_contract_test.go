package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

const notesTable = "CREATE TABLE notes (seq int AUTO_INCREMENT PRIMARY KEY, id bigint NOT NULL UNIQUE, note longtext CHARACTER SET utf8mb4)"

// notes opens a sink into the table notes.
func notes(t testing.TB, url string, pool database.Pool) (*Stream, *stream.Schema) {
	t.Helper()
	schema, err := stream.NewSchema(stream.Definition{Name: "/notes", Table: "notes", Spooled: true, Columns: []stream.Column{
		{Name: "id", Type: stream.Integer, Required: true}, {Name: "note", Type: stream.Text},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return open(t, url, pool).Stream(schema), schema
}

// notesOf returns a batch with one request per body.
func notesOf(t testing.TB, schema *stream.Schema, id byte, bodies ...string) *stream.Batch {
	t.Helper()
	b := &stream.Batch{ID: [16]byte{id}, KeyTTL: time.Hour}
	for _, body := range bodies {
		records, refused, err := schema.Parse([]byte(body), stream.FormLines, time.Now(), stream.Limits{Bytes: 16 << 20, Records: 10000, Depth: 1, Fields: 9})
		if err != nil || len(refused) > 0 {
			t.Fatal(err, refused)
		}
		b.Requests = append(b.Requests, &stream.Entry{Records: records, Fingerprint: stream.FingerprintOf([]byte(body))})
	}
	return b
}

// marked gives a batch the groups from first on, one per sum.
func marked(b *stream.Batch, epoch byte, first uint64, sums ...byte) *stream.Batch {
	b.Mark = &queue.Mark{Spool: [16]byte{9}, Epoch: [16]byte{epoch}, Name: "/notes", First: first}
	for _, sum := range sums {
		b.Mark.Sums = append(b.Mark.Sums, [16]byte{sum})
	}
	return b
}

func mustCommit(t testing.TB, sink *Stream, b *stream.Batch) {
	t.Helper()
	if err := sink.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

func stored(t testing.TB, url string) string {
	t.Helper()
	return value(t, url, "SELECT COALESCE(GROUP_CONCAT(id ORDER BY id), '') FROM notes")
}

// blockCommits makes every COMMIT of a MariaDB server wait until release is called.
func blockCommits(t testing.TB, url string) (release func()) {
	t.Helper()
	s := connect(t, url)
	for _, stage := range []string{"START", "FLUSH", "BLOCK_DDL", "BLOCK_COMMIT"} {
		if err := s.Exec(t.Context(), "BACKUP STAGE "+stage); err != nil {
			t.Fatal(err)
		}
	}
	return func() { _ = s.Close() } // a second time too
}

// committing counts the sessions that have waited in a COMMIT for some time.
func committing(t testing.TB, url string, since time.Duration) string {
	t.Helper()
	return value(t, url, fmt.Sprintf("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE '%%COMMIT' AND INFO NOT LIKE 'BACKUP%%' AND TIME_MS > %d AND ID <> CONNECTION_ID()", since.Milliseconds()))
}

// No timeout ends a COMMIT, neither the server's nor this side's. When the process stops,
// the connection is closed and the server goes on.
func TestStreamCommitUnlimited(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, apptest.MariaDB(t))
	mustExecute(t, url, notesTable)
	unhurried, schema := notes(t, url, database.Pool{})
	mustCommit(t, unhurried, notesOf(t, schema, 1, `{"id":1}`))
	if err := unhurried.db.Popups().EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	pool := database.Pool{StatementTimeout: time.Second}
	sink, _ := notes(t, url, pool)
	p := open(t, url, pool).Popups()
	commit := func(ctx context.Context, b *stream.Batch) error {
		return inTime(func() error { b.Reset(); return sink.Commit(ctx, b) })
	}
	release := blockCommits(t, url)
	defer release()
	long := 2*pool.StatementTimeout + clientGrace
	results := make(chan error, 2)
	second, last := notesOf(t, schema, 2, `{"id":2}`), notesOf(t, schema, 3, `{"id":3}`)
	go func() { results <- commit(t.Context(), second) }()
	event := popup.Event{ID: [16]byte{1}, Key: popup.Key{User: "u", Placement: "p"}, ShownAt: time.Now(), At: time.Now()}
	go func() {
		results <- inTime(func() error {
			return p.Apply(t.Context(), []popup.Event{event})
		})
	}()
	stopAtCommit(t, func(ctx context.Context) error { return commit(ctx, last) }, func() string { return committing(t, url, long) })
	release()
	for range 2 {
		if err := apptest.Receive(t, "the end of a COMMIT", results); err != nil {
			t.Error(err)
		}
	}
	apptest.AwaitState(t, "all three are stored, or the server has given up the one whose client left", func() (string, bool) {
		got, waiting := stored(t, url), committing(t, url, -time.Millisecond)
		return fmt.Sprintf("stored are %s, and %s COMMITs wait", got, waiting), got == "1,2,3" || got == "1,2" && waiting == "0"
	})
}

// stopAtCommit stops a process while its COMMIT and two others wait. The COMMIT is not ended by
// this side: it waits on. The server itself ends it after a second without a client, so this
// may take several attempts on a slow machine.
func stopAtCommit(t *testing.T, commit func(context.Context) error, waiting func() string) {
	t.Helper()
	const attempts = 20
	for range attempts {
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- commit(ctx) }()
		apptest.Await(t, "three COMMITs have waited for long", func() bool { return waiting() == "3" })
		stop()
		if err := apptest.Receive(t, "the end of the third COMMIT's caller", done); !errors.Is(err, stream.ErrUnconfirmed) {
			t.Errorf("the process stops: %v, want %v", err, stream.ErrUnconfirmed)
		}
		if waiting() == "3" {
			return
		}
	}
	t.Errorf("in %d attempts, the COMMIT never waited on after the process stopped", attempts)
}

// A batch id that is found again is acknowledged after another commit.
func TestStreamFoundAgain(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	mustExecute(t, url, notesTable)
	sink, schema := notes(t, url, database.Pool{})
	count := func() string { return value(t, url, "SELECT COUNT(*) FROM spillway_batches") }
	b := notesOf(t, schema, 1, "{\"id\":1}\n{\"id\":1}")
	mustCommit(t, sink, b)
	first := fmt.Sprint(b.Requests[0].Result)
	b.Reset()
	mustCommit(t, sink, b)
	if got := fmt.Sprint(b.Requests[0].Result); got != first || count() != "2" || stored(t, url) != "1" {
		t.Errorf("result %s, then %s; %s ids", first, got, count())
	}
	mustCommit(t, sink, marked(notesOf(t, schema, 2, `{"id":2}`), 1, 1, 1))
	again := marked(notesOf(t, schema, 3, `{"id":2}`), 1, 1, 1)
	mustCommit(t, sink, again)
	if len(again.Mark.Known) != 1 || !again.Mark.Known[0].Same || count() != "3" || again.Level != stream.LevelLocal {
		t.Errorf("groups again: %+v; %s ids, level %q", again.Mark.Known, count(), again.Level)
	}
}

// Groups are recognized by epoch, number and content.
func TestStreamEpochs(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	mustExecute(t, url, notesTable)
	sink, schema := notes(t, url, database.Pool{})
	mustCommit(t, sink, marked(notesOf(t, schema, 1, "{\"id\":1}\n{\"id\":1}"), 1, 1, 1, 2))
	mustCommit(t, sink, marked(notesOf(t, schema, 1, `{"id":3}`), 1, 3, 3))
	overlap := marked(notesOf(t, schema, 1, `{"id":99}`), 1, 2, 2, 33, 4)
	mustCommit(t, sink, overlap)
	known := overlap.Mark.Known
	if len(known) != 2 || !known[0].Same || known[1].Same || overlap.Mark.Last != 3 || len(known[0].Stored.Results) == 0 || known[0].Stored.Last != 2 {
		t.Errorf("an overlap: %+v, last %d", known, overlap.Mark.Last)
	}
	other := marked(notesOf(t, schema, 1, `{"id":4}`), 2, 1, 1)
	mustCommit(t, sink, other) // a copy of the file, in another epoch
	gap := marked(notesOf(t, schema, 1, `{"id":5}`), 1, 9, 9)
	mustCommit(t, sink, gap)
	if len(other.Mark.Known) != 0 || gap.Mark.Behind == nil || *gap.Mark.Behind != 3 {
		t.Errorf("another epoch: %+v; a gap: %+v", other.Mark, gap.Mark)
	}
	if got := stored(t, url); got != "1,3,4,5" {
		t.Errorf("stored %s", got)
	}
}

// keyed commits one request with the key k.
func keyed(t testing.TB, sink *Stream, schema *stream.Schema, id byte, body string, accepted time.Time) stream.Result {
	t.Helper()
	b := notesOf(t, schema, id, body)
	b.Requests[0].Key, b.Requests[0].Accepted = "k\xff", accepted
	mustCommit(t, sink, b)
	return b.Requests[0].Result
}

// Two requests with a key are the same if they were accepted less than key_ttl apart,
// whichever is stored first.
func TestStreamKeyTimes(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	mustExecute(t, url, notesTable, ownTables()[1],
		"INSERT INTO spillway_requests VALUES (CONCAT(DATABASE(), '.notes'), x'6bff', REPEAT('x', 32), '{}', UTC_TIMESTAMP(6) + INTERVAL 30 MINUTE, UTC_TIMESTAMP(6) - INTERVAL 210 MINUTE, NULL)")
	sink, schema := notes(t, url, database.Pool{})
	now := time.Now().Add(-3 * time.Hour)
	steps := []struct {
		at    time.Duration
		found bool
	}{
		{0, true}, // accepted half an hour after the first request
		{31 * time.Minute, false},
		{-91 * time.Minute, false},
		{-89 * time.Minute, true},
		{-45 * time.Minute, true},
		{90 * time.Minute, true},
		{92 * time.Minute, false},
		{31 * time.Minute, true},
		{-150 * time.Minute, true},
		{-152 * time.Minute, false},
	}
	for i, step := range steps {
		r := keyed(t, sink, schema, byte(i), fmt.Sprintf(`{"id":%d}`, i), now.Add(step.at))
		if found := r.Reused || r.Stored != nil; found != step.found {
			t.Errorf("accepted at %v: %+v", step.at, r)
		}
	}
	if got := stored(t, url); got != "1,2,6,9" {
		t.Errorf("stored %s", got)
	}
	if got := value(t, url, "SELECT COUNT(*) FROM spillway_requests WHERE expires_at BETWEEN UTC_TIMESTAMP(6) + INTERVAL 58 MINUTE AND UTC_TIMESTAMP(6) + INTERVAL 60 MINUTE"); got != "1" {
		t.Errorf("%s rows expire in an hour", got)
	}
	if n, err := sink.Sweep(t.Context(), stream.Keep{Keys: -2 * time.Hour, Batches: time.Hour, Marks: time.Hour}, 10); err != nil || n != 1 {
		t.Errorf("swept %d, %v", n, err)
	}
}

// In a batch from a spool, a record that fails for an unclear reason is refused alone, if a
// later record is stored. A duplicate of the record's own key is refused for sure.
func TestStreamUnsure(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	mustExecute(t, url, notesTable,
		"CREATE TRIGGER missing BEFORE INSERT ON notes FOR EACH ROW IF NEW.note = 'bad' THEN INSERT INTO no_such_table VALUES (1); END IF")
	sink, schema := notes(t, url, database.Pool{})
	b := marked(notesOf(t, schema, 1, "{\"id\":1}\n{\"id\":2,\"note\":\"bad\"}\n{\"id\":3}", "{\"id\":1}\n{\"id\":4}"), 1, 1, 1)
	mustCommit(t, sink, b)
	first, second := b.Requests[0].Result.Refused, b.Requests[1].Result.Refused
	if len(first) != 1 || first[0].Row != 1 || !first[0].Unsure || !strings.Contains(first[0].Reason, "no_such_table") || len(second) != 1 || second[0].Unsure {
		t.Errorf("refused %+v and %+v", first, second)
	}
	var held *stream.Held
	if err := sink.Commit(t.Context(), marked(notesOf(t, schema, 1, `{"id":5}`, `{"id":6,"note":"bad"}`), 1, 2, 2)); !errors.As(err, &held) || errors.Is(err, stream.ErrTransient) {
		t.Errorf("nothing is stored behind it: %v", err)
	}
	if err := sink.Commit(t.Context(), notesOf(t, schema, 2, `{"id":7}`, `{"id":8,"note":"bad"}`)); err == nil || errors.Is(err, stream.ErrTransient) || errors.Is(err, stream.ErrUnconfirmed) {
		t.Errorf("without a spool: %v", err)
	}
	if got := stored(t, url) + " " + value(t, url, "SELECT `last` FROM spillway_epochs"); got != "1,3,4 1" {
		t.Errorf("stored and last: %s", got)
	}
}

// A record whose key exists is told from an inserted one, whatever the URL says of the counts
// of the server.
func TestStreamFoundCounts(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	mustExecute(t, url, notesTable, "INSERT INTO notes (id) VALUES (1), (2)",
		"CREATE TRIGGER missing AFTER INSERT ON notes FOR EACH ROW INSERT INTO no_such_table VALUES (1)")
	_, schema := notes(t, url, database.Pool{})
	def := schema.Definition()
	def.Key = []string{"id"}
	schema, err := stream.NewSchema(def)
	if err != nil {
		t.Fatal(err)
	}
	sink := open(t, url+"?clientFoundRows=true", database.Pool{}).Stream(schema)
	twice := []string{"{\"id\":1}\n{\"id\":1}\n{\"id\":2}\n{\"id\":2}"}
	for _, rowByRow := range []bool{false, true} {
		for _, step := range []struct{ batch, trial []string }{{[]string{`{"id":3}`, `{"id":1}`}, nil}, {[]string{`{"id":3}`}, twice}} {
			b := marked(notesOf(t, schema, 1, step.batch...), 1, 1, 1)
			b.RowByRow, b.Trial = rowByRow, notesOf(t, schema, 1, step.trial...).Requests
			if err := sink.Commit(t.Context(), b); !errors.Is(err, stream.ErrHeld) {
				t.Errorf("row by row %v, %v, to try %v: %v", rowByRow, step.batch, step.trial, err)
			}
		}
	}
	mustExecute(t, url, "DROP TRIGGER missing")
	mustCommit(t, sink, marked(notesOf(t, schema, 1, `{"id":3}`, `{"id":1}`), 1, 1, 1))
	if got := stored(t, url); got != "1,2,3" {
		t.Errorf("stored %s", got)
	}
}

// A record over max_allowed_packet is refused alone; several that exceed it together are
// stored.
func TestStreamPacket(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, apptest.MySQL(t, "--max-allowed-packet=1M"))
	mustExecute(t, url, notesTable)
	sink, schema := notes(t, url, database.Pool{})
	note := func(id, size int) string { return fmt.Sprintf(`{"id":%d,"note":"%s"}`, id, strings.Repeat("x", size)) }
	many := make([]string, 32)
	for i := range many {
		many[i] = note(i, 100<<10)
	}
	mustCommit(t, sink, notesOf(t, schema, 1, many...))
	b := notesOf(t, schema, 2, note(100, 10), note(101, 2<<20), note(102, 10))
	mustCommit(t, sink, b)
	if r := b.Requests[1].Result.Refused; len(r) != 1 || r[0].Unsure || !strings.Contains(r[0].Reason, "max_allowed_packet") {
		t.Errorf("refused %+v", r)
	}
	b = marked(notesOf(t, schema, 3, note(200, 10), note(201, 2<<20), note(202, 10)), 1, 1, 1)
	mustCommit(t, sink, b)
	if r := b.Requests[1].Result.Refused; len(r) != 1 || !r[0].Unsure {
		t.Errorf("from a spool: refused %+v", r)
	}
	if got := value(t, url, "SELECT COUNT(*) FROM notes"); got != "36" {
		t.Errorf("%s rows", got)
	}
}

// A commit has the level semi_sync only if a replica has acknowledged it.
func TestStreamSemiSync(t *testing.T) {
	t.Parallel()
	primary := apptest.MariaDB(t, "--log-bin=binlog", "--server-id=1", "--rpl-semi-sync-master-timeout=3600000")
	replica := apptest.MariaDB(t, "--server-id=2", "--rpl-semi-sync-slave-enabled=ON")
	port := primary.Addr()[strings.LastIndexByte(primary.Addr(), ':')+1:]
	url := primary.URL("test")
	mustExecute(t, url, notesTable)
	sink, schema := notes(t, url, database.Pool{})
	commit := func(id byte, want string) {
		t.Helper()
		d, err := sink.Durability(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b := notesOf(t, schema, id, fmt.Sprintf(`{"id":%d}`, id))
		mustCommit(t, sink, b)
		if b.Level != want {
			t.Errorf("commit %d has level %q, want %q; before it: %+v", id, b.Level, want, d)
		}
	}
	commit(1, stream.LevelLocal)
	mustExecute(t, url, "SET GLOBAL rpl_semi_sync_master_enabled = ON")
	mustExecute(t, replica.URL("test"), "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = "+port+", MASTER_USER = 'root', MASTER_USE_GTID = slave_pos", "START SLAVE")
	status := func(name string) string {
		return value(t, url, "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = '"+name+"'")
	}
	apptest.Await(t, "the replica is connected", func() bool {
		return status("RPL_SEMI_SYNC_MASTER_CLIENTS") == "1" && status("RPL_SEMI_SYNC_MASTER_STATUS") == "ON"
	})
	commit(2, stream.LevelSemiSync)
	testUnloggedCommit(t, url)
	mustExecute(t, url, "SET GLOBAL rpl_semi_sync_master_timeout = 1000")
	replica.Kill()
	commit(3, stream.LevelLocal) // the server gives up the wait after a second, and says nothing
	commit(4, stream.LevelLocal)
}

// testUnloggedCommit: a commit that the binary log lacks is not covered by those of others.
func testUnloggedCommit(t *testing.T, url string) {
	t.Helper()
	for setting, want := range map[string]bool{"": true, "?sql_log_bin=0": false} {
		err := open(t, url+setting, database.Pool{}).withSession(t.Context(), func(ctx context.Context, se *session) error {
			before, err := readSemiSyncStatus(ctx, se)
			if err != nil {
				return err
			}
			if err := se.Exec(ctx, "INSERT INTO notes (id) SELECT MAX(id) + 1000 FROM notes"); err != nil {
				return err
			}
			mustExecute(t, url, "INSERT INTO notes (id) SELECT MAX(id) + 1000 FROM notes")
			after, err := readSemiSyncStatus(ctx, se)
			if got := before.covers(after); got != want {
				t.Errorf("%s: covered %v, want %v: %+v, then %+v", setting, got, want, before, after)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// Popup events that are stored already are still a transaction that reaches the log.
func TestPopupRepeatedWrites(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, apptest.MariaDB(t, "--log-bin=binlog"))
	p := open(t, url, database.Pool{}).Popups()
	if err := p.EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	events := []popup.Event{{ID: [16]byte{1}, Key: popup.Key{User: "u", Placement: "p"}, Kind: popup.KindShow, Campaign: 1, ShownAt: time.Now(), At: time.Now()}}
	position := ""
	for i := range 3 {
		if err := p.Apply(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		now := value(t, url, "SELECT @@gtid_binlog_pos")
		if now == position {
			t.Errorf("the events for the %dth time wrote nothing", i+1)
		}
		position = now
	}
	if got := value(t, url, "SELECT COUNT(*) FROM popup_events"); got != "1" {
		t.Errorf("events: %s", got)
	}
	if counts, err := p.Counts(t.Context()); err != nil || len(counts) != 1 {
		t.Errorf("counts: %v, %v", counts, err)
	}
}
