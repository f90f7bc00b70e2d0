package postgres

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"spillway/internal/database"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// TestStreamStorage: tables that a crash or another server empties, also behind views and as
// partitions, and tables that take nothing, are refused with what to do.
func TestStreamStorage(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, `CREATE TABLE plain (id bigint); CREATE UNLOGGED TABLE cache (id bigint);
		CREATE VIEW two AS SELECT id FROM plain WHERE id NOT IN (SELECT id FROM cache); CREATE VIEW deep AS SELECT id FROM cache; CREATE VIEW deeper AS SELECT id FROM deep;
		CREATE TABLE parts (id bigint) PARTITION BY RANGE (id); CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (100);
		CREATE UNLOGGED TABLE weak PARTITION OF parts FOR VALUES FROM (100) TO (200);
		CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;
		CREATE TABLE remotes (id bigint) PARTITION BY RANGE (id); CREATE FOREIGN TABLE remote PARTITION OF remotes FOR VALUES FROM (0) TO (100) SERVER s;
		CREATE TABLE ruled (id bigint); CREATE RULE r AS ON INSERT TO ruled DO INSTEAD INSERT INTO plain VALUES (NEW.id);
		CREATE ROLE writer LOGIN; CREATE TABLE shut (id bigint); ALTER TABLE shut ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON shut FOR SELECT USING (true);
		CREATE TABLE keyed (id bigint PRIMARY KEY); CREATE VIEW keyed_view AS SELECT id FROM keyed;
		CREATE TABLE unread (id bigint UNIQUE); ALTER TABLE unread ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON unread FOR INSERT WITH CHECK (true);
		CREATE TABLE mine (id bigint); ALTER TABLE mine ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON mine FOR INSERT TO writer WITH CHECK (true);
		ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO writer; GRANT ALL ON SCHEMA public TO writer; GRANT ALL ON ALL TABLES IN SCHEMA public TO writer`)
	owner, writer := open(t, url, database.Pool{}), open(t, strings.Replace(url, "postgres@", "writer@", 1), database.Pool{})
	for _, test := range []struct{ table, want, unsafe string }{
		{"plain", "", ""},
		{"two", "", ""},
		{"cache", "cache is unlogged, so that a crash can lose acknowledged records: run ALTER TABLE \"public\".\"cache\" SET LOGGED, or set fsync: off", "table=unlogged"},
		{"deeper", "cache is unlogged", "table=unlogged"},
		{"parts", "weak is unlogged", "table=unlogged"},
		{"remotes", "remote is foreign", "-"},
		{"ruled", "set skipped_rows: accept", "-"},
		{"shut", "row-level security of shut has no policy", "-"},
		{"mine", "", ""},
		{"keyed", "", ""},
		{"keyed_view", "name the table behind it, or leave key out", "-"},
		{"unread", "run CREATE POLICY ... FOR SELECT", "-"},
	} {
		db := owner
		if slices.Contains([]string{"shut", "mine", "unread"}, test.table) {
			db = writer
		}
		def := stream.Definition{Name: "/t", Table: test.table, Columns: []stream.Column{{Name: "id", Type: stream.Integer}}}
		if slices.Contains([]string{"keyed", "keyed_view", "unread"}, test.table) {
			def.Key = []string{"id"}
		}
		schema, err := stream.NewSchema(def)
		if err != nil {
			t.Fatal(err)
		}
		err = db.Stream(schema).Check(t.Context())
		if test.want == "" && err != nil || test.want != "" && (!errors.Is(err, tables.ErrUnusable) || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", test.table, err, test.want)
		}
		if test.unsafe == "-" {
			continue
		}
		def.Fsync = stream.FsyncOff
		schema, _ = stream.NewSchema(def)
		st := db.Stream(schema)
		if err := st.Check(t.Context()); err != nil {
			t.Errorf("%s with fsync off: %v", test.table, err)
		}
		d, err := st.Durability(t.Context())
		if err != nil || !strings.HasSuffix(d.String(), strings.TrimSuffix("synchronous_commit=off, "+test.unsafe, ", ")) {
			t.Errorf("%s with fsync off: %s, %v", test.table, d, err)
		}
	}
}

// skippedCases are the batches of TestStreamSkipped, in order.
var skippedCases = []struct {
	table, accept string
	keyed, marked bool
	ids           []int
	refused       string
	skipped       int
	held          bool
}{
	{table: "plain", ids: []int{1, 2, 3, 4, 13}, refused: "2,4"},
	{table: "plain", ids: []int{1, 2}},
	{table: "plain", marked: true, ids: []int{3, 4}, refused: "0"},
	{table: "plain", accept: "accept", ids: []int{3, 4, 23}, skipped: 2},
	{table: "keyed", keyed: true, ids: []int{4, 5, 4, 6}},
	{table: "keyed", keyed: true, ids: []int{4, 5, 3, 7}, refused: "2"},
	{table: "keyed", keyed: true, marked: true, ids: []int{3, 5, 8}, refused: "0"},
	{table: "keyed", keyed: true, accept: "accept", ids: []int{5, 3, 9}, skipped: 2},
	{table: "instead", ids: []int{1, 3}, refused: "1"},
	{table: "ruled", accept: "accept", ids: []int{1, 3}, skipped: 1},
	{table: "void", accept: "accept", ids: []int{1}, skipped: 1},
	{table: "plain", marked: true, ids: []int{3}, held: true},
}

// TestStreamSkipped: records that the table drops without an error are refused one by one, unless
// the stream accepts that. Those with a row under their key are duplicates.
func TestStreamSkipped(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, `CREATE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.id % 10 = 3 THEN RETURN NULL; END IF; RETURN NEW; END';
		CREATE TABLE plain (id bigint); CREATE TRIGGER d BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION drops();
		CREATE TABLE keyed (id bigint PRIMARY KEY); CREATE TRIGGER d BEFORE INSERT ON keyed FOR EACH ROW EXECUTE FUNCTION drops(); INSERT INTO keyed VALUES (5);
		CREATE TABLE target (id bigint); CREATE VIEW instead AS SELECT id FROM target;
		CREATE FUNCTION inserts() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.id % 10 = 3 THEN RETURN NULL; END IF; INSERT INTO target VALUES (NEW.id); RETURN NEW; END';
		CREATE TRIGGER d INSTEAD OF INSERT ON instead FOR EACH ROW EXECUTE FUNCTION inserts();
		CREATE TABLE ruled (id bigint); CREATE RULE r AS ON INSERT TO ruled WHERE NEW.id % 10 = 3 DO INSTEAD NOTHING;
		CREATE TABLE void (id bigint); CREATE RULE r AS ON INSERT TO void DO INSTEAD NOTHING`)
	db := open(t, url, database.Pool{})
	for _, test := range skippedCases {
		def := stream.Definition{
			Name: "/t", Table: test.table, SkippedRows: test.accept, Spooled: test.marked,
			Columns: []stream.Column{{Name: "id", Type: stream.Integer, Required: true}},
		}
		if test.keyed {
			def.Key = []string{"id"}
		}
		schema, err := stream.NewSchema(def)
		if err != nil {
			t.Fatal(err)
		}
		b := newBatch(t, schema, test.ids...)
		if test.marked {
			b.Mark = &queue.Mark{Spool: [16]byte{9}, Epoch: b.ID, Name: "/t", First: 1, Sums: [][16]byte{{1}}}
		}
		err = db.Stream(schema).Commit(t.Context(), b)
		if test.held && (!errors.Is(err, stream.ErrHeld) || !strings.Contains(err.Error(), "skipped_rows: accept")) || !test.held && err != nil {
			t.Errorf("%+v: %v", test, err)
		}
		if err != nil {
			continue
		}
		var refused []string
		for _, r := range b.Requests[0].Result.Refused {
			refused = append(refused, fmt.Sprint(r.Row))
			if !strings.HasPrefix(r.Reason, "row-skipped: ") || r.Unsure != test.marked {
				t.Errorf("%+v: %+v", test, r)
			}
		}
		if got := strings.Join(refused, ","); got != test.refused || b.Skipped != test.skipped {
			t.Errorf("%+v: refused %q, skipped %d", test, got, b.Skipped)
		}
	}
	if got := queryText(t, url, "SELECT string_agg(id::text, ',' ORDER BY id) FROM (SELECT id FROM plain UNION ALL SELECT 1000 + id FROM keyed) AS a"); got !=
		"1,1,2,2,4,4,4,1004,1005,1006,1007,1008,1009" {
		t.Errorf("stored %s", got)
	}
}

// newBatch returns a batch of one request with these ids.
func newBatch(t *testing.T, schema *stream.Schema, ids ...int) *stream.Batch {
	t.Helper()
	b := &stream.Batch{Requests: []*stream.Entry{idEntry(t, schema, "", ids...)}}
	_, _ = rand.Read(b.ID[:])
	return b
}

// TestStreamChanged: after a change of its table, also of a partition or of a view's table, a stream
// stores nothing before the table was checked again.
func TestStreamChanged(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, `CREATE TABLE a (id double precision); CREATE TABLE b (id bigint); CREATE VIEW v AS SELECT id FROM b;
		CREATE TABLE p (id bigint) PARTITION BY RANGE (id); CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100); CREATE TABLE c (id bigint)`)
	db := open(t, url, database.Pool{})
	for _, test := range []struct {
		table, change, mend string
		kind                stream.Type
	}{
		{"a", "ALTER TABLE a ALTER id TYPE numeric", "ALTER TABLE a ALTER id TYPE double precision", stream.Real},
		{"v", "ALTER TABLE b SET UNLOGGED", "ALTER TABLE b SET LOGGED", stream.Integer},
		{"p", "ALTER TABLE p1 SET UNLOGGED", "ALTER TABLE p1 SET LOGGED", stream.Integer},
		{"p", "CREATE UNLOGGED TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200)", "DROP TABLE p2", stream.Integer},
		{"c", "DROP TABLE c; CREATE UNLOGGED TABLE c (id bigint)", "ALTER TABLE c SET LOGGED", stream.Integer},
	} {
		schema, err := stream.NewSchema(stream.Definition{
			Name: "/t", Table: test.table, Spooled: true, Columns: []stream.Column{{Name: "id", Type: test.kind}},
		})
		if err != nil {
			t.Fatal(err)
		}
		st := db.Stream(schema)
		marked := newBatch(t, schema, 1)
		marked.Mark = &queue.Mark{Spool: [16]byte{1}, Epoch: marked.ID, Name: "/t", First: 1, Sums: [][16]byte{{1}}}
		for i, b := range []*stream.Batch{newBatch(t, schema, 1), marked} {
			if err := st.Commit(t.Context(), newBatch(t, schema, 1)); err != nil {
				t.Fatal(err)
			}
			mustExecute(t, url, test.change)
			if err := st.Commit(t.Context(), b); !errors.Is(err, stream.ErrTransient) {
				t.Errorf("%s, %d: %v, want a transient error", test.change, i, err)
			}
			if err := st.Commit(t.Context(), b); !errors.Is(err, tables.ErrUnusable) {
				t.Errorf("%s, %d: %v, want that the table does not fit", test.change, i, err)
			}
			mustExecute(t, url, test.mend)
			if err := st.Commit(t.Context(), b); err != nil {
				t.Errorf("%s, %d: %v", test.mend, i, err)
			}
		}
	}
}

// TestStreamChangedBeforeDrain: the statement of a drained batch no longer suits the table, which the
// server says before it compares the stamp. The next attempt checks the table again.
func TestStreamChangedBeforeDrain(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, "CREATE TABLE changed (id bigint, j text)")
	schema, err := stream.NewSchema(stream.Definition{
		Name: "/t", Table: "changed", Spooled: true, Columns: []stream.Column{{Name: "id", Type: stream.Integer}, {Name: "j", Type: stream.JSON}},
	})
	if err != nil {
		t.Fatal(err)
	}
	sink := open(t, url, database.Pool{}).Stream(schema)
	if err := sink.Commit(t.Context(), newBatch(t, schema, 2)); err != nil { // prepares the statement
		t.Fatal(err)
	}
	mustExecute(t, url, "ALTER TABLE changed ALTER COLUMN j TYPE jsonb USING NULL")
	b := newBatch(t, schema, 1)
	b.Mark = &queue.Mark{Spool: [16]byte{9}, Epoch: b.ID, Name: "/t", First: 1, Sums: [][16]byte{{1}}}
	if err := sink.Commit(t.Context(), b); err == nil {
		t.Error("the first attempt stores it")
	}
	b.Reset()
	if err := sink.Commit(t.Context(), b); err != nil || len(b.Requests[0].Result.Refused) > 0 {
		t.Errorf("the second attempt: %v, %+v", err, b.Requests[0].Result)
	}
}

// TestStreamTriggerSettings: a trigger that switches synchronous_commit off does not make a commit
// unsafe, or is named.
func TestStreamTriggerSettings(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, `CREATE TABLE t (id bigint); CREATE FUNCTION off() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM set_config(''synchronous_commit'', ''off'', true); RETURN NEW; END'; CREATE TRIGGER o BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION off()`)
	db := open(t, url, database.Pool{})
	for fsync, want := range map[stream.Fsync]string{stream.FsyncOn: stream.LevelLocal, stream.FsyncServer: "not fsynced: synchronous_commit=off"} {
		schema, err := stream.NewSchema(stream.Definition{
			Name: "/t", Table: "t", Fsync: fsync, Columns: []stream.Column{{Name: "id", Type: stream.Integer}},
		})
		if err != nil {
			t.Fatal(err)
		}
		b := newBatch(t, schema, 1)
		if err := db.Stream(schema).Commit(t.Context(), b); err != nil || b.Level != want {
			t.Errorf("fsync %q: level %q, %v", fsync, b.Level, err)
		}
	}
}

// TestStreamTerminated: if the server has ended an idle connection, nothing was stored for certain.
func TestStreamTerminated(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	st, schema := newIDs(t, url)
	for range 3 {
		if err := st.Commit(t.Context(), newBatch(t, schema, 1)); err != nil {
			t.Fatal(err)
		}
		mustExecute(t, url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
		if err := st.Commit(t.Context(), newBatch(t, schema, 2)); errors.Is(err, stream.ErrUnconfirmed) {
			t.Errorf("after the end of the idle connection: %v", err)
		}
	}
}
