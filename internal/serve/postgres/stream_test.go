package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/storetest"
	"spillway/internal/serve/stream"
)

func TestStreamConformance(t *testing.T) {
	t.Parallel()
	storetest.Stream(t, streamBackend(apptest.Postgres(t, hostileSettings...)))
}

// Through PgBouncer in transaction mode, which loses prepared statements.
func TestStreamConformancePgBouncer(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	bouncer := apptest.PgBouncer(t, pg, "transaction")
	b := streamBackend(pg)
	b.Open = func(t testing.TB, pool database.Pool) storetest.StreamDB {
		return streamDB(t, pg, pool, func(url string) string { return strings.Replace(url, pg.Addr(), bouncer.Addr(), 1) })
	}
	b.Pooled = true
	storetest.Stream(t, b)
}

func streamBackend(pg *apptest.PostgresServer) storetest.StreamBackend {
	return storetest.StreamBackend{
		Open: func(t testing.TB, pool database.Pool) storetest.StreamDB {
			commit, quick := []byte(newStatement("COMMIT", nil).name), []byte(newQuickBatch(stream.Definition{}).name)
			proxy := storetest.NewProxy(t, pg.Addr(), func(sent []byte) bool {
				return sent[0] == 'B' && bytes.Contains(sent, quick) || bytes.Contains(sent, commit) && !bytes.Contains(sent, []byte("\x00COMMIT\x00")) || bytes.Contains(sent, []byte("COMMIT\x00")) && sent[0] == 'Q'
			})
			db := streamDB(t, pg, pool, func(url string) string { return strings.Replace(url, pg.Addr(), proxy.Addr(), 1) })
			db.Kill, db.Start, db.Proxy = pg.Kill, pg.Start, proxy
			return db
		},
		Types: map[stream.Type]string{
			stream.Integer: "bigint", stream.Real: "double precision", stream.Text: "text", stream.Boolean: "boolean",
			stream.Timestamp: "timestamptz", stream.JSON: "jsonb", stream.UUID: "uuid", stream.Decimal: "numeric",
		},
		Trips:  storetest.StreamTrips{Database: 1, Drained: 5, DrainedKeys: 7, Repeated: 7},
		Newer:  []string{"CREATE TABLE spillway_requests (id int)", "COMMENT ON TABLE spillway_requests IS 'spillway format 2'"},
		Serial: "bigserial PRIMARY KEY", Small: "smallint", Short: "varchar(5)",
		Fixed: "numeric(20,2)", Narrow: "numeric(15,2)", Narrowed: "ALTER TABLE amounts ALTER amount TYPE numeric(20,1)", Inexact: []string{"1.005", "1e18", `"-0.001"`},
		Setup:       "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)",
		Insensitive: "text COLLATE loose", Sensitive: "text",
		Spoil: []string{
			"CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.note = 'spoil' THEN INSERT INTO no_such_table VALUES (1); END IF; RETURN NEW; END $$",
			"CREATE TRIGGER spoil BEFORE INSERT ON readings FOR EACH ROW EXECUTE FUNCTION spoil()",
		},
	}
}

func streamDB(t testing.TB, pg *apptest.PostgresServer, pool database.Pool, via func(string) string) storetest.StreamDB {
	url := pg.CreateDatabase(t)
	db := open(t, via(url), pool)
	return storetest.StreamDB{
		Sink: func(_ testing.TB, schema *stream.Schema) stream.Sink { return db.Stream(schema) },
		Exec: func(ctx context.Context, sql string) error { return execute(ctx, url, sql) },
		Rows: func(ctx context.Context, sql string) ([][]string, error) { return streamRows(ctx, url, sql) },
		Hold: func(t testing.TB, sql string) func() { return holdLock(t, url, sql) },
	}
}

// holdLock runs a statement in a transaction that stays open until release is called.
func holdLock(t testing.TB, url, sql string) (release func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err == nil {
		_, err = conn.PgConn().Exec(t.Context(), "BEGIN; "+sql).ReadAll()
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = conn.Close(context.Background()) } // a second time too
}

// streamRows returns a query's rows as text, in a session in UTC.
func streamRows(ctx context.Context, url, sql string) ([][]string, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	results, err := conn.PgConn().Exec(ctx, "SET timezone = UTC; SET datestyle = ISO; SET intervalstyle = postgres; SET extra_float_digits = 1; SET bytea_output = hex; "+sql).ReadAll()
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for _, values := range results[len(results)-1].Rows {
		var row []string
		for _, value := range values {
			if value == nil {
				row = append(row, "NULL")
				continue
			}
			row = append(row, string(value))
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func TestStreamDurability(t *testing.T) {
	t.Parallel()
	pg := apptest.Postgres(t, "fsync=on", "full_page_writes=on", "synchronous_commit=on")
	url := pg.CreateDatabase(t)
	name := apptest.DatabaseName(url)
	mustExecute(t, url, `CREATE TABLE levels (id bigint, level text DEFAULT current_setting('synchronous_commit'));`)
	tests := []struct {
		settings string // of the database, or of the server
		fsync    stream.Fsync
		ack      string
		level    string // in the transaction
	}{
		{"", stream.FsyncOn, "database, local", "on"},
		{"ALTER DATABASE " + name + " SET synchronous_commit = off", stream.FsyncOn, "database, local", "on"},
		{"", stream.FsyncServer, "database, not fsynced: synchronous_commit=off", "off"},
		{"ALTER DATABASE " + name + " SET synchronous_commit = remote_apply", stream.FsyncOn, "database, local", "remote_apply"},
		{"", stream.FsyncServer, "database, local", "remote_apply"},
		{"", stream.FsyncOff, "database, not fsynced: synchronous_commit=off", "off"},
		{"ALTER SYSTEM SET full_page_writes = off", stream.FsyncOn, "database, local", "remote_apply"}, // the command line goes first
	}
	for i, test := range tests {
		if test.settings != "" {
			mustExecute(t, url, test.settings)
		}
		schema, err := stream.NewSchema(stream.Definition{Name: "/t", Table: "levels", Fsync: test.fsync, Columns: []stream.Column{{Name: "id", Type: stream.Integer}}})
		if err != nil {
			t.Fatal(err)
		}
		sink := open(t, url, database.Pool{}).Stream(schema)
		if d, err := sink.Durability(t.Context()); err != nil || d.String() != test.ack {
			t.Errorf("%d: %q, %v, want %q", i, d, err, test.ack)
		}
		records, _, err := schema.Parse(fmt.Appendf(nil, "{\"id\":%d}", i), stream.FormJSON, time.Now(), stream.Limits{Bytes: 100, Records: 1, Depth: 1, Fields: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := sink.Commit(t.Context(), &stream.Batch{ID: [16]byte{byte(i)}, Requests: []*stream.Entry{{Records: records}}}); err != nil {
			t.Fatal(err)
		}
		if got := queryText(t, url, fmt.Sprintf("SELECT level FROM levels WHERE id = %d", i)); got != test.level {
			t.Errorf("%d: committed with synchronous_commit = %s, want %s", i, got, test.level)
		}
	}
	// The test servers' own defaults.
	schema := positionsSchema(t)
	soft := shared.Get(t)
	if d, err := open(t, soft.CreateDatabase(t), database.Pool{}).Stream(schema).Durability(t.Context()); err != nil || d.String() != "database, not fsynced: fsync=off, full_page_writes=off" {
		t.Errorf("fsync off: %q, %v", d, err)
	}
}

// A constraint that is due at COMMIT fails its own record, too; a trigger's refusal is
// a record's; a column of another type than the stream's is cast.
func TestStreamConstraints(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	url := pg.CreateDatabase(t)
	mustExecute(t, url, `CREATE SCHEMA "My schema";
		CREATE TABLE parents (id bigint PRIMARY KEY); INSERT INTO parents VALUES (1);
		CREATE TABLE "My schema"."the Table" (id int PRIMARY KEY, parent bigint REFERENCES parents DEFERRABLE INITIALLY DEFERRED, v numeric(5,2), note varchar(3), at timestamp, j json);
		CREATE FUNCTION no_sevens() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.id = 7 THEN RAISE EXCEPTION 'no sevens'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER no_sevens BEFORE INSERT ON "My schema"."the Table" FOR EACH ROW EXECUTE FUNCTION no_sevens();`)
	schema, err := stream.NewSchema(stream.Definition{Name: "/t", Table: "My schema.the Table", Columns: []stream.Column{
		{Name: "id", Type: stream.Integer},
		{Name: "parent", Type: stream.Integer},
		{Name: "v", Type: stream.Real},
		{Name: "note", Type: stream.Text},
		{Name: "at", Type: stream.Timestamp},
		{Name: "j", Type: stream.JSON},
	}})
	if err != nil {
		t.Fatal(err)
	}
	sink := open(t, url, database.Pool{}).Stream(schema)
	if err := sink.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	body := `[{"id":1,"parent":1,"v":1.25,"note":"abc","at":"2016-12-01T23:59:57+08:00","j":{"a":1}},
		{"id":2,"parent":2},{"id":7},{"id":3,"v":1000},{"id":4,"note":"abcd"},{"id":3000000000},{"id":5}]`
	records, _, err := schema.Parse([]byte(body), stream.FormJSON, time.Now(), stream.Limits{Bytes: 1000, Records: 10, Depth: 5, Fields: 10})
	if err != nil {
		t.Fatal(err)
	}
	entry := &stream.Entry{Records: records}
	if err := sink.Commit(t.Context(), &stream.Batch{ID: [16]byte{9}, Requests: []*stream.Entry{entry}}); err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, r := range entry.Result.Refused {
		reasons = append(reasons, fmt.Sprintf("%d %s", r.Row, r.Reason))
	}
	want := []string{
		`1 insert or update on table "the Table" violates foreign key constraint "the Table_parent_fkey"`, "2 no sevens",
		"3 v: 1000 cannot be stored exactly in a column of type numeric(5,2)", "4 note: abcd cannot be stored exactly in a column of type character varying(3)",
		"5 id: 3000000000 cannot be stored exactly in a column of type integer",
	}
	if diff := cmp.Diff(want, reasons); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if got := queryText(t, url, `SELECT string_agg(id || ' ' || coalesce(v || ' ' || note || ' ' || to_char(at, 'YYYY-MM-DD HH24:MI:SS') || ' ' || j, ''), ', ' ORDER BY id) FROM "My schema"."the Table"`); got != `1 1.25 abc 2016-12-01 15:59:57 {"a":1}, 5 ` {
		t.Errorf("stored %s", got)
	}
}

// An error that a trigger raises with its own SQLSTATE, or a policy violation, rejects the
// record. A missing privilege does not, because it is not caused by a record.
func TestStreamRefusals(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	url := pg.CreateDatabase(t)
	role := "stream_writer_" + apptest.DatabaseName(url)
	mustExecute(t, url, `CREATE TABLE guarded (id int);
		CREATE FUNCTION no_sevens() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.id = 7 THEN RAISE 'no sevens' USING ERRCODE = 'AB123'; END IF;
			IF NEW.id = 8 THEN RAISE insufficient_privilege; END IF; RETURN NEW; END $$;
		CREATE TRIGGER no_sevens BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION no_sevens();
		ALTER TABLE guarded ENABLE ROW LEVEL SECURITY; CREATE POLICY small ON guarded USING (id < 100);
		CREATE ROLE `+role+`; GRANT ALL ON guarded TO `+role+`; GRANT ALL ON SCHEMA public TO `+role)
	schema, err := stream.NewSchema(stream.Definition{Name: "/guarded", Table: "guarded", Columns: []stream.Column{{Name: "id", Type: stream.Integer}}})
	if err != nil {
		t.Fatal(err)
	}
	sink := open(t, url+"&role="+role, database.Pool{}).Stream(schema)
	commit := func(id byte, body string) (*stream.Batch, error) {
		records, _, err := schema.Parse([]byte(body), stream.FormJSON, time.Now(), stream.Limits{Bytes: 200, Records: 10, Depth: 1, Fields: 1})
		if err != nil {
			t.Fatal(err)
		}
		b := &stream.Batch{ID: [16]byte{id}, Requests: []*stream.Entry{{Records: records}}}
		return b, sink.Commit(t.Context(), b)
	}
	b, err := commit(1, `[{"id":1},{"id":7},{"id":2},{"id":8},{"id":100},{"id":3}]`)
	if err != nil {
		t.Fatal(err)
	}
	want := []stream.RowRefusal{{Row: 1, Reason: "no sevens"}, {Row: 3, Reason: "insufficient_privilege"}, {Row: 4, Reason: `new row violates row-level security policy for table "guarded"`}}
	if diff := cmp.Diff(want, b.Requests[0].Result.Refused); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	mustExecute(t, url, "REVOKE INSERT ON guarded FROM "+role)
	b, err = commit(2, `[{"id":4},{"id":5}]`)
	if err == nil || errors.Is(err, stream.ErrTransient) || len(b.Requests[0].Result.Refused) > 0 {
		t.Errorf("without the privilege: %v, refused %v", err, b.Requests[0].Result.Refused)
	}
	if got := queryText(t, url, "SELECT string_agg(id::text, ',' ORDER BY id) FROM guarded"); got != "1,2,3" {
		t.Errorf("stored %s", got)
	}
}

// A column without a time zone gets UTC, regardless of what the server, the database, the role
// and the URL are set to, and through a pooler too.
func TestStreamTimestampWithoutZone(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	bouncer := apptest.PgBouncer(t, pg, "transaction")
	url := pg.CreateDatabase(t)
	mustExecute(t, url, "CREATE TABLE moments (id bigint, at timestamp, zoned timestamptz);")
	mustExecute(t, url, "ALTER DATABASE "+apptest.DatabaseName(url)+" SET timezone = 'America/New_York'")
	mustExecute(t, url, "ALTER ROLE CURRENT_USER IN DATABASE "+apptest.DatabaseName(url)+" SET timezone = 'Asia/Kolkata'")
	schema, err := stream.NewSchema(stream.Definition{Name: "/moments", Table: "moments", Columns: []stream.Column{
		{Name: "id", Type: stream.Integer}, {Name: "at", Type: stream.Timestamp}, {Name: "zoned", Type: stream.Timestamp},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, test := range []struct{ url, want string }{
		{url, "2016-12-01 15:59:57.25"},
		{strings.Replace(url, pg.Addr(), bouncer.Addr(), 1), "2016-12-01 15:59:57.25"},
		{url + "&timezone=Asia/Shanghai", "2016-12-01 15:59:57.25"},
	} {
		body := fmt.Sprintf(`{"id":%d,"at":"2016-12-01T23:59:57.25+08:00","zoned":"2016-12-01T23:59:57.25+08:00"}`, i)
		records, _, err := schema.Parse([]byte(body), stream.FormJSON, time.Now(), stream.Limits{Bytes: 200, Records: 1, Depth: 1, Fields: 3})
		if err != nil {
			t.Fatal(err)
		}
		sink := open(t, test.url, database.Pool{}).Stream(schema)
		if err := sink.Commit(t.Context(), &stream.Batch{ID: [16]byte{byte(i)}, Requests: []*stream.Entry{{Records: records}}}); err != nil {
			t.Fatal(err)
		}
		rows, err := streamRows(t.Context(), url, fmt.Sprintf("SELECT at, zoned FROM moments WHERE id = %d", i))
		if err != nil || len(rows) != 1 || rows[0][0] != test.want || rows[0][1] != "2016-12-01 15:59:57.25+00" {
			t.Errorf("%s: %v, %v; want %s", test.url[strings.IndexByte(test.url, '@'):], rows, err, test.want)
		}
	}
}
