package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/streamtables"
)

// newIDs opens an empty database with the table t (id bigint).
func newIDs(t *testing.T, url string) (*Stream, *stream.Schema) {
	t.Helper()
	mustExecute(t, url, "CREATE TABLE t (id bigint)")
	schema := idSchema(t)
	return open(t, url, database.Pool{Max: 3}).Stream(schema), schema
}

func storedIDs(t *testing.T, url string) string {
	t.Helper()
	return queryText(t, url, "SELECT coalesce(string_agg(id::text, ',' ORDER BY id), '') FROM t")
}

// TestStreamEpochs: groups are recognized by spool, epoch, number and checksum.
func TestStreamEpochs(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	sink, schema := newIDs(t, url)
	commit := func(epoch byte, first uint64, id int, sums ...byte) *queue.Mark {
		t.Helper()
		m := &queue.Mark{Spool: [16]byte{1, '\'', 0, 255}, Epoch: [16]byte{epoch}, Name: "/t", First: first}
		for _, sum := range sums {
			m.Sums = append(m.Sums, [16]byte{sum, 0, '\\'})
		}
		if err := sink.Commit(t.Context(), &stream.Batch{Mark: m, Requests: []*stream.Entry{idEntry(t, schema, "", id)}}); err != nil {
			t.Fatal(err)
		}
		return m
	}
	known := func(m *queue.Mark) string {
		text := fmt.Sprint(m.Last)
		for _, k := range m.Known {
			text += fmt.Sprintf(" %v", k.Same)
			if k.Stored != nil {
				text += fmt.Sprintf(" %d-%d", k.Stored.First, k.Stored.Last)
			}
		}
		return text
	}
	if m := commit(1, 1, 1, 10, 11); m.Known != nil || m.Behind != nil {
		t.Errorf("the first batch: %+v", m)
	}
	if m := commit(1, 3, 2, 12); m.Known != nil || m.Behind != nil {
		t.Errorf("the next batch: %+v", m)
	}
	ids := queryText(t, url, "SELECT count(*)::text FROM spillway_batches")
	for _, test := range []struct {
		mark *queue.Mark
		want string
	}{
		{commit(1, 1, 3, 10, 11), "3 true 1-2 true 1-2"},
		{commit(1, 1, 3, 10, 99, 12, 13), "3 true 1-2 false 1-2 true 3-3"},
		{commit(1, 3, 3, 12, 13), "3 true 3-3"},
	} {
		if got := known(test.mark); got != test.want {
			t.Errorf("known: %s, want %s", got, test.want)
		}
	}
	if got := queryText(t, url, "SELECT count(*)::text FROM spillway_batches"); ids != "0" || got != "3" {
		t.Errorf("%s batch ids, then %s: what is found again needs a commit of its own", ids, got)
	}
	if m := commit(2, 1, 4, 10); m.Known != nil {
		t.Errorf("another epoch: %+v", m)
	}
	if m := commit(1, 6, 5, 14); m.Known != nil || m.Behind == nil || *m.Behind != 3 {
		t.Errorf("behind a gap: %+v", m)
	}
	if got := storedIDs(t, url); got != "1,2,4,5" {
		t.Errorf("stored %s", got)
	}
	mustExecute(t, url, "UPDATE spillway_drained SET created_at = now() - interval '2 hours' WHERE last < 6; UPDATE spillway_epochs SET updated_at = now() - interval '2 hours' WHERE last = 1")
	for _, want := range []int{3, 1, 0} { // two of three batches and the epoch, then the third
		if n, err := sink.Sweep(t.Context(), stream.Keep{Batches: time.Hour, Keys: time.Hour, Marks: time.Hour}, 2); err != nil || n != want {
			t.Errorf("swept %d, %v, want %d", n, err, want)
		}
	}
	if got := queryText(t, url, "SELECT (SELECT count(*) FROM spillway_drained) || ' ' || (SELECT count(*) FROM spillway_epochs)"); got != "1 1" {
		t.Errorf("batches and epochs kept: %s", got)
	}
	if m := commit(1, 1, 9, 10); known(m) != "6 false" {
		t.Errorf("a group that is no longer known: %s", known(m))
	}
}

// TestStreamKeysByAcceptance: requests with one key are the same if they were accepted within
// key_ttl, in whichever order they are stored, and however late.
func TestStreamKeysByAcceptance(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	sink, schema := newIDs(t, url)
	start := time.Now().Add(-3 * time.Hour)
	number := byte(0)
	commit := func(id int, minutes time.Duration) stream.Result {
		t.Helper()
		number++
		e := idEntry(t, schema, "key", id)
		e.Fingerprint = [32]byte{1}
		if minutes >= 0 {
			e.Accepted = start.Add(minutes * time.Minute)
		}
		b := &stream.Batch{ID: [16]byte{number}, KeyTTL: time.Hour, Requests: []*stream.Entry{e}}
		if err := sink.Commit(t.Context(), b); err != nil {
			if !errors.Is(err, stream.ErrTransient) {
				t.Fatal(err)
			}
			b.Reset()
			if err := sink.Commit(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		return e.Result
	}
	for _, step := range []struct {
		id      int
		minutes time.Duration // after start; -1: now
		found   bool
	}{
		{1, 70, false}, {2, 30, true}, {3, 100, true}, {4, 0, false}, {5, 129, true}, {6, 140, false}, {7, 10, true}, {8, 75, true}, {9, -1, true}, {10, 139, true},
	} {
		if r := commit(step.id, step.minutes); (r.Stored != nil) != step.found {
			t.Errorf("request %d, accepted after %d minutes: found %v, want %v", step.id, step.minutes, r.Stored != nil, step.found)
		}
	}
	if got := storedIDs(t, url); got != "1,4,6" {
		t.Errorf("stored %s", got)
	}
	if got := queryText(t, url, "SELECT count(*) || ' ' || bool_and(expires_at > now() + interval '59 minutes') FROM spillway_requests"); got != "1 true" {
		t.Errorf("rows of the key: %s", got)
	}
	// The row is kept from when it was written, by the clock of the database.
	for _, test := range []struct {
		keep time.Duration
		want int
	}{{0, 0}, {-59 * time.Minute, 0}, {-61 * time.Minute, 1}} {
		if n, err := sink.Sweep(t.Context(), stream.Keep{Batches: time.Hour, Keys: test.keep, Marks: time.Hour}, 100); err != nil || n != test.want {
			t.Errorf("keep %v: swept %d, %v, want %d", test.keep, n, err, test.want)
		}
	}
}

// TestStreamKeyRace: two processes store the same request under a key of another request. One
// of them finds it.
func TestStreamKeyRace(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	sink, schema := newIDs(t, url)
	other := open(t, url, database.Pool{Max: 3}).Stream(schema)
	for i, accepted := range []time.Time{{}, time.Now().Add(-4 * time.Hour)} { // after and before the other request
		key := fmt.Sprint("key", i)
		first := &stream.Batch{ID: [16]byte{1, byte(i)}, KeyTTL: 7 * 24 * time.Hour, Requests: []*stream.Entry{idEntry(t, schema, key, 10*i+1)}}
		if err := sink.Commit(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		mustExecute(t, url, "UPDATE spillway_requests SET accepted_at = accepted_at - interval '2 hours' WHERE request_key = '"+key+"'")
		release := holdLock(t, url, "SELECT FROM spillway_requests WHERE request_key = '"+key+"' FOR UPDATE")
		errs := make(chan error, 2)
		found := 0
		var batches []*stream.Batch
		for j, sink := range []*Stream{sink, other} {
			b := &stream.Batch{ID: [16]byte{2, byte(i), byte(j)}, KeyTTL: time.Hour, Requests: []*stream.Entry{idEntry(t, schema, key, 10*i+2)}}
			b.Requests[0].Accepted = accepted
			batches = append(batches, b)
			go func() { errs <- sink.Commit(t.Context(), b) }()
		}
		apptest.Await(t, "both wait", func() bool {
			return queryText(t, url, "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()") == "2"
		})
		release()
		if err := errors.Join(<-errs, <-errs); err != nil {
			t.Error(err)
		}
		for _, b := range batches {
			if b.Requests[0].Result.Stored != nil {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%s: found by %d of 2", key, found)
		}
	}
	if got := storedIDs(t, url); got != "1,2,11,12" {
		t.Errorf("stored %s", got)
	}
}

// TestStreamSweepIndex: a sweep of what was drained reads an index.
func TestStreamSweepIndex(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	sink, schema := newIDs(t, url)
	m := &queue.Mark{Spool: [16]byte{1}, Epoch: [16]byte{1}, Name: "/t", First: 1, Sums: [][16]byte{{1}}}
	if err := sink.Commit(t.Context(), &stream.Batch{Mark: m, Requests: []*stream.Entry{idEntry(t, schema, "", 1)}}); err != nil {
		t.Fatal(err)
	}
	mustExecute(t, url, `INSERT INTO spillway_drained (spool, epoch, last, first, sums, created_at) SELECT '02000000-0000-0000-0000-000000000000', '01000000-0000-0000-0000-000000000000', n, n, '',
			now() - CASE WHEN n <= 3 THEN interval '2 hours' ELSE interval '0' END FROM generate_series(1, 5000) AS n`)
	drained := &streamtables.Own(dialect, true)[3]
	sweep := strings.Replace(strings.Replace(streamtables.DeleteOld(dialect, drained), "?", "-3600000000", 1), "?", "1000", 1)
	mustExecute(t, url, "CREATE TABLE plan (line text); DO $$ DECLARE line text; BEGIN FOR line IN EXECUTE $q$EXPLAIN "+
		sweep+"$q$ LOOP INSERT INTO plan VALUES (line); END LOOP; END $$")
	if plan := queryText(t, url, "SELECT string_agg(line, E'\\n') FROM plan"); !strings.Contains(plan, "spillway_drained_created_at") || strings.Contains(plan, "Seq Scan") {
		t.Errorf("the plan:\n%s", plan)
	}
}

// TestStreamKeyEncoding: a key that the database's encoding cannot hold works as any other.
func TestStreamKeyEncoding(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	latin := "latin_" + apptest.DatabaseName(pg.CreateDatabase(t))
	mustExecute(t, pg.URL("postgres"), "CREATE DATABASE "+latin+" ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
	sink, schema := newIDs(t, pg.URL(latin))
	for i, test := range []struct {
		key   string
		found bool
	}{{"漢", false}, {"é", false}, {"漢", true}, {"字", false}, {"é", true}, {"ascii", false}, {"ascii", true}} {
		for _, rowByRow := range []bool{false, true} { // the second is the same request again
			e := idEntry(t, schema, test.key, i)
			e.Fingerprint = [32]byte{1}
			b := &stream.Batch{ID: [16]byte{byte(i), 1}, RowByRow: rowByRow, KeyTTL: time.Hour, Requests: []*stream.Entry{e}}
			if rowByRow {
				b.ID[1] = 2
			}
			if err := sink.Commit(t.Context(), b); err != nil {
				t.Fatalf("%q: %v", test.key, err)
			}
			if found := e.Result.Stored != nil; found != (test.found || rowByRow) {
				t.Errorf("%d, key %q: found %v", i, test.key, found)
			}
		}
	}
	if got := storedIDs(t, pg.URL(latin)); got != "0,1,3,5" {
		t.Errorf("stored %s", got)
	}
}

// TestStreamUnsureRefusals: in a batch of a spool, a row that fails alone is refused, also if
// the reason may be the server's. Nothing is stored if no later row is.
func TestStreamUnsureRefusals(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	sink, schema := newIDs(t, url)
	mustExecute(t, url, `CREATE SEQUENCE small MAXVALUE 2 START 2; SELECT nextval('small');
		CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.id = 7 THEN PERFORM * FROM no_such_table; END IF;
			IF NEW.id = 8 THEN PERFORM nextval('small'); END IF;
			IF NEW.id = 9 THEN RAISE 'no nines'; END IF;
			IF NEW.id = 10 THEN PERFORM 1 / 0; END IF; RETURN NEW; END $$;
		CREATE TRIGGER guard BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION guard()`)
	number := uint64(0)
	commit := func(marked bool, ids ...int) (*stream.Entry, error) {
		e := idEntry(t, schema, "", ids...)
		number++
		b := &stream.Batch{ID: [16]byte{byte(number)}, Requests: []*stream.Entry{e}}
		if marked {
			b.Mark = &queue.Mark{Spool: [16]byte{1}, Epoch: [16]byte{1}, Name: "/t", First: number, Sums: [][16]byte{{1}}}
		}
		return e, sink.Commit(t.Context(), b)
	}
	e, err := commit(true, 1, 7, 8, 9, 10, 2)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range e.Result.Refused {
		got = append(got, fmt.Sprintf("%d %v", r.Row, r.Unsure))
	}
	if fmt.Sprint(got) != "[1 true 2 true 3 true 4 false]" {
		t.Errorf("refused %v: %+v", got, e.Result.Refused)
	}
	for _, ids := range [][]int{{7}, {3, 7}, {3, 8, 10}, {3, 4, 9}} {
		var held *stream.Held
		if _, err := commit(true, ids...); !errors.Is(err, stream.ErrHeld) || !errors.As(err, &held) {
			t.Errorf("%v: %v", ids, err)
		}
	}
	if _, err := commit(true, 10); err != nil { // certainly the row's
		t.Error(err)
	}
	// Alone in its request, such a row is no refusal of the client's data.
	for id, temporary := range map[int]bool{7: false, 8: true} {
		if e, err := commit(false, id); err == nil || errors.Is(err, stream.ErrTransient) != temporary || len(e.Result.Refused) > 0 {
			t.Errorf("%d, not from a spool: %v, %+v", id, err, e.Result)
		}
	}
	if got := storedIDs(t, url); got != "1,2" {
		t.Errorf("stored %s", got)
	}
}

// TestStreamDeferredLock: a deferred foreign key that waits for a row at COMMIT holds its
// connection no longer than a statement may take. Nothing is stored then.
func TestStreamDeferredLock(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, "CREATE TABLE parents (id bigint PRIMARY KEY); INSERT INTO parents VALUES (1);"+
		"CREATE TABLE t (id bigint REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
	schema := idSchema(t)
	sink := open(t, url, database.Pool{Max: 2, StatementTimeout: time.Second}).Stream(schema)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "BEGIN; SELECT FROM parents FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	b := &stream.Batch{ID: [16]byte{1}, Requests: []*stream.Entry{idEntry(t, schema, "", 1)}}
	commit := func() error {
		done := make(chan error, 1)
		go func() { done <- inTime(func() error { b.Reset(); return sink.Commit(t.Context(), b) }) }()
		return answered(t, done)
	}
	if err := commit(); !errors.Is(err, stream.ErrBlocked) {
		t.Errorf("while the row is locked: %v", err)
	}
	if got := storedIDs(t, url); got != "" {
		t.Errorf("stored %s", got)
	}
	if _, err := conn.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := commit(); err != nil || storedIDs(t, url) != "1" {
		t.Errorf("afterwards: %v, stored %s", err, storedIDs(t, url))
	}
}

// What no client has sent is not the record's fault.
func TestStreamBlamesServer(t *testing.T) {
	t.Parallel()
	now := stream.Now
	st := &Stream{def: stream.Definition{Columns: []stream.Column{{Name: "v"}, {Name: "at", Default: &now}}}}
	st.origins.Store(&origins{numbered: true})
	partition := func(names string) pgconn.PgError {
		return pgconn.PgError{Code: "23514", Routine: "ExecFindPartition", Detail: "Partition key of the failing row contains (" + names + ") = (1, 2)."}
	}
	for _, c := range []struct {
		err  pgconn.PgError
		want bool
	}{
		{partition("at"), true},
		{partition("at, other"), true},
		{partition("at, v"), false},
		{partition("v"), false},
		{partition("(v + 1)"), false},
		{partition("date_trunc('day'::text, at)"), true},
		{pgconn.PgError{Code: "23514", Routine: "ExecFindPartition"}, false}, // this role may not read the detail
		{pgconn.PgError{Code: "23514", Routine: "ExecConstraints"}, false},
		{pgconn.PgError{Code: "22003", Routine: "int84"}, true},
		{pgconn.PgError{Code: "22003", Routine: "float8_numeric"}, false},
		{pgconn.PgError{Code: "2200H", Routine: "nextval_internal"}, true},
	} {
		if got := st.faultOf(&c.err) == stream.ServersFault; got != c.want {
			t.Errorf("%+v: %v", c.err, got)
		}
	}
}
