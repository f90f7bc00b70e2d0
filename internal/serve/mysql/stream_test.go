package mysql

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/storetest"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/streamtables"
)

func TestStreamConformance(t *testing.T) {
	t.Parallel()
	server := apptest.MySQL(t, append(hostileSettings(), "--innodb-flush-log-at-trx-commit=1")...)
	trips := storetest.StreamTrips{Database: 6, Drained: 5, DrainedKeys: 13, Repeated: 5}
	if onMySQL() { // to lock the table and to compare it
		trips = storetest.StreamTrips{Database: 8, Drained: 7, DrainedKeys: 15, Repeated: 7}
	}
	storetest.Stream(t, storetest.StreamBackend{
		Open: func(t testing.TB, pool database.Pool) storetest.StreamDB {
			url := freshDatabase(t, server)
			proxy := storetest.NewProxy(t, server.Addr(), func(sent []byte) bool { return isCommit(sent) })
			db := open(t, strings.Replace(url, server.Addr(), proxy.Addr(), 1), pool)
			return storetest.StreamDB{
				Sink:  func(_ testing.TB, schema *stream.Schema) stream.Sink { return db.Stream(schema) },
				Exec:  func(ctx context.Context, sql string) error { return execute(ctx, url, withChecks(sql)...) },
				Rows:  func(ctx context.Context, sql string) ([][]string, error) { return streamRows(ctx, url, sql) },
				Hold:  func(t testing.TB, sql string) func() { return holdLock(t, url, sql) },
				Kill:  server.Kill,
				Start: server.Start,
				Proxy: proxy,
			}
		},
		Types: map[stream.Type]string{
			stream.Integer: "bigint", stream.Real: "double", stream.Text: "text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
			stream.Boolean: "boolean", stream.Timestamp: "datetime(6)", stream.JSON: "json", stream.UUID: "char(36)",
			stream.Decimal: "decimal(65,30)",
		},
		Trips:  trips,
		Newer:  []string{"CREATE TABLE spillway_requests (id int) COMMENT='spillway format 2'"},
		Serial: "bigint NOT NULL AUTO_INCREMENT PRIMARY KEY", Small: "smallint NOT NULL", Short: "varchar(5) CHARACTER SET utf8mb4",
		Spoil: []string{"CREATE TRIGGER spoil BEFORE INSERT ON readings FOR EACH ROW IF NEW.note = 'spoil' THEN INSERT INTO no_such_table VALUES (1); END IF"},
		Fixed: "decimal(20,2)", Narrow: "decimal(15,2)", Narrowed: "ALTER TABLE amounts MODIFY amount decimal(20,1)", Inexact: []string{"1.005", "1e18", `"-0.001"`},
		Insensitive: "varchar(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", Sensitive: "varchar(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
	})
}

// withChecks adds triggers for the CHECK constraints of a table, which MySQL ignores before
// 8.0.16.
func withChecks(sql string) []string {
	statements := []string{sql}
	if !onMySQL() || !strings.Contains(sql, "CHECK (note <> 'bad')") {
		return statements
	}
	return append(statements, "CREATE TRIGGER check_insert BEFORE INSERT ON readings FOR EACH ROW IF NEW.note = 'bad' THEN "+
		"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'constraint: bad'; END IF")
}

// isCommit reports whether the adapter sends a COMMIT.
func isCommit(sent []byte) bool {
	return bytes.Contains(sent, []byte("\x03COMMIT")) || bytes.Contains(sent, []byte(" FOR COMMIT")) || quickBatch.Match(sent)
}

// quickBatch matches the time among the arguments of a quick batch.
var quickBatch = regexp.MustCompile(`(?s)^....\x17.*\x13\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`)

// holdLock runs a statement in a transaction that stays open until release is called.
func holdLock(t testing.TB, url, sql string) (release func()) {
	t.Helper()
	s := connect(t, url)
	if err := s.Exec(t.Context(), "START TRANSACTION"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Query(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	return func() { _ = s.Close() } // a second time too
}

// streamRows returns a query's rows as text.
func streamRows(ctx context.Context, url, sql string) ([][]string, error) {
	parsed, err := database.Parse(url)
	if err != nil {
		return nil, err
	}
	connector, err := database.NewMySQLConnector(parsed, patience, 0)
	if err != nil {
		return nil, err
	}
	s, err := connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	result, err := s.QueryContext(ctx, sql, nil)
	if err != nil {
		return nil, err
	}
	defer result.Close()
	var rows [][]string
	values := make([]driver.Value, len(result.Columns()))
	for {
		if err := result.Next(values); err != nil {
			if errors.Is(err, io.EOF) {
				return rows, nil
			}
			return nil, err
		}
		var row []string
		for _, value := range values {
			switch v := value.(type) {
			case nil:
				row = append(row, "NULL")
			case []byte:
				row = append(row, string(v))
			default:
				row = append(row, fmt.Sprint(v))
			}
		}
		rows = append(rows, row)
	}
}

func TestStreamDurability(t *testing.T) {
	t.Parallel()
	server := apptest.MySQL(t, "--log-bin=binlog", "--server-id=1", "--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1")
	url := freshDatabase(t, server)
	schema, err := stream.NewSchema(stream.Definition{Name: "/t", Table: "t", Columns: []stream.Column{{Name: "id", Type: stream.Integer}}})
	if err != nil {
		t.Fatal(err)
	}
	sink := open(t, url, database.Pool{}).Stream(schema)
	for _, test := range []struct{ set, want string }{
		{"", "database, local"},
		{"SET GLOBAL innodb_flush_log_at_trx_commit = 2", "database, not fsynced: innodb_flush_log_at_trx_commit=2"},
		{"SET GLOBAL sync_binlog = 0", "database, not fsynced: innodb_flush_log_at_trx_commit=2, sync_binlog=0"},
		{"SET GLOBAL innodb_flush_log_at_trx_commit = 1", "database, not fsynced: sync_binlog=0"},
		{"SET GLOBAL sync_binlog = 1", "database, local"},
	} {
		if test.set != "" {
			mustExecute(t, url, test.set)
		}
		if d, err := sink.Durability(t.Context()); err != nil || d.String() != test.want {
			t.Errorf("%s: %q, %v, want %q", test.set, d, err, test.want)
		}
	}
}

// ownTables are the statements that create the tables of a stream with a spool.
func ownTables() (all []string) {
	for _, t := range streamtables.Own(dialect, true) {
		all = append(all, t.DDL(dialect))
	}
	return all
}

// A drain needs no right to create the table of spools where that is there, and a batch
// may take longer than one statement.
func TestStreamDrainRights(t *testing.T) {
	t.Parallel()
	server := plainServer(t)
	url := freshDatabase(t, server)
	name := url[strings.LastIndexByte(url, '/')+1:]
	mustExecute(t, url, "CREATE TABLE slow (id bigint)", "CREATE TRIGGER slow BEFORE INSERT ON slow FOR EACH ROW DO SLEEP(0.4)")
	mustExecute(t, url, ownTables()...)
	mustExecute(t, url,
		"CREATE USER "+name+"@'%' IDENTIFIED BY 'x'", "GRANT SELECT, INSERT, UPDATE, DELETE ON "+name+".* TO "+name+"@'%'")
	schema, err := stream.NewSchema(stream.Definition{Name: "/slow", Table: "slow", Spooled: true, Columns: []stream.Column{{Name: "id", Type: stream.Integer}}})
	if err != nil {
		t.Fatal(err)
	}
	pool := database.Pool{StatementTimeout: time.Second}
	sink := open(t, "mysql://"+name+":x@"+server.Addr()+"/"+name, pool).Stream(schema)
	sink.most = 1 // a row, a statement
	records, _, err := schema.Parse([]byte(`[{"id":1},{"id":2},{"id":3},{"id":4}]`), stream.FormJSON, time.Now(), stream.Limits{Bytes: 200, Records: 10, Depth: 1, Fields: 1})
	if err != nil {
		t.Fatal(err)
	}
	b := &stream.Batch{Mark: &queue.Mark{Name: "/slow", First: 1, Sums: make([][16]byte, 1)}, Requests: []*stream.Entry{{Records: records}}}
	var start time.Time
	err = inTime(func() error {
		start = time.Now()
		b.Reset()
		return sink.Commit(t.Context(), b)
	})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < pool.StatementTimeout+clientGrace {
		t.Errorf("the batch took %v: no longer than a statement may", took)
	}
}

// A stream starts and stores with the documented privileges, whoever creates its tables.
// Those for drains are needed only to drain.
func TestStreamGrants(t *testing.T) {
	t.Parallel()
	server := plainServer(t)
	for _, first := range []bool{false, true} {
		url := freshDatabase(t, server)
		name := url[strings.LastIndexByte(url, '/')+1:]
		user := "writer_" + name
		rights := "SELECT, INSERT, UPDATE, DELETE"
		onNotes := "SELECT, INSERT"
		if !strings.Contains(value(t, url, "SELECT VERSION()"), "MariaDB") {
			onNotes += ", UPDATE"
		}
		mustExecute(t, url, notesTable, "CREATE USER "+user+"@'%' IDENTIFIED BY 'x'", "GRANT "+onNotes+" ON notes TO "+user+"@'%'")
		if first {
			rights = "CREATE, " + rights
		} else {
			mustExecute(t, url, ownTables()...)
		}
		grant := func(tables ...string) {
			for _, table := range tables {
				mustExecute(t, url, fmt.Sprintf("GRANT %s ON %s TO %s@'%%'", rights, table, user))
			}
		}
		grant("spillway_batches", "spillway_requests")
		_, schema := notes(t, url, database.Pool{})
		sinkOf := func(spooled bool) *Stream {
			def := schema.Definition()
			def.Key, def.Spooled = []string{"id"}, spooled
			schema, err := stream.NewSchema(def)
			if err != nil {
				t.Fatal(err)
			}
			return open(t, "mysql://"+user+":x@"+server.Addr()+"/"+name, database.Pool{}).Stream(schema)
		}
		sink := sinkOf(false)
		keep := stream.Keep{Batches: time.Hour, Keys: time.Hour, Marks: time.Hour}
		use := func(b *stream.Batch) {
			if err := sink.Check(t.Context()); err != nil {
				t.Fatalf("first start %v: check: %v", first, err)
			}
			b.Requests[0].Key = string(b.ID[:])
			mustCommit(t, sink, b)
			if _, err := sink.Sweep(t.Context(), keep, 10); err != nil {
				t.Errorf("first start %v: sweep: %v", first, err)
			}
		}
		use(notesOf(t, schema, 1, "{\"id\":1}\n{\"id\":1}"))
		sink = sinkOf(true)
		if err := sink.Commit(t.Context(), marked(notesOf(t, schema, 2, `{"id":2}`), 1, 1, 1)); err == nil || !strings.Contains(err.Error(), "spillway_epochs") {
			t.Errorf("first start %v: a drain without its privileges: %v", first, err)
		}
		grant("spillway_epochs")
		rights = strings.Replace(rights, "UPDATE, ", "", 1)
		grant("spillway_drained")
		use(marked(notesOf(t, schema, 3, `{"id":2}`), 1, 1, 1))
		if got := stored(t, url); got != "1,2" {
			t.Errorf("first start %v: stored %s", first, got)
		}
	}
}

// inTime repeats work until it meets the statement timeout, which is short, on a slow machine
// too.
func inTime(work func() error) error {
	for {
		err := work()
		if err == nil || errors.Is(err, stream.ErrUnconfirmed) || !strings.Contains(err.Error(), "max_statement_time") && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

// Tables that could lose or bend records are refused, by name.
func TestStreamTables(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	mustExecute(t, url, "CREATE TABLE unsafe (id bigint) ENGINE=MyISAM", "CREATE TABLE nullable (id bigint UNIQUE)",
		"CREATE TABLE twice (id bigint NOT NULL, other bigint NOT NULL, PRIMARY KEY (id, other), INDEX (id))")
	db := open(t, url, database.Pool{})
	for table, want := range map[string]string{"unsafe": "ENGINE=InnoDB", "nullable": "make it NOT NULL", "twice": "no unique index on id", "missing": "missing"} {
		schema, err := stream.NewSchema(stream.Definition{Name: "/" + table, Table: table, Key: []string{"id"}, Columns: []stream.Column{{Name: "id", Type: stream.Integer, Required: true}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Stream(schema).Check(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", table, err, want)
		}
		if err := db.Stream(schema).Commit(t.Context(), &stream.Batch{}); table != "missing" && (err == nil || errors.Is(err, stream.ErrTransient)) {
			t.Errorf("commit into %s: %v", table, err)
		}
	}
}

// Columns that alter values are refused, and so are keys that do not tell texts apart. Where
// only spaces at the end make no difference, the records that have some are.
func TestStreamColumns(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	const unicode = " CHARACTER SET utf8mb4 COLLATE utf8mb4_"
	tests := []struct {
		kind, server string // "": every server
		of           stream.Type
		want         string // of the start's error
		stored       string // of four keys, two with a space at the end
	}{
		{"float NOT NULL UNIQUE", "", stream.Real, "double", ""},
		{"double NOT NULL UNIQUE", "", stream.Real, "", ""},
		{"varchar(9) CHARACTER SET latin1 COLLATE latin1_general_cs NOT NULL UNIQUE", "", stream.Text, "latin1_bin", ""},
		{"varchar(9)" + unicode + "bin NOT NULL UNIQUE", "", stream.Text, "", "a,123456789"},
		{"char(9)" + unicode + "bin NOT NULL UNIQUE", "", stream.Text, "", "a,123456789"},
		{"varbinary(9) NOT NULL UNIQUE", "", stream.Text, "", "a,a ,123456789"},
		{"varchar(9)" + unicode + "nopad_bin NOT NULL UNIQUE", "mariadb", stream.Text, "", "a,a ,123456789"},
		{"char(9)" + unicode + "nopad_bin NOT NULL UNIQUE", "mariadb", stream.Text, "", "a,123456789"},
		{"varchar(9)" + unicode + "uca1400_as_cs NOT NULL UNIQUE", "mariadb", stream.Text, "utf8mb4_bin", ""},
		{"varchar(9)" + unicode + "0900_as_cs NOT NULL UNIQUE", "8.0", stream.Text, "utf8mb4_bin", ""},
	}
	version := strings.ToLower(value(t, url, "SELECT VERSION()"))
	for i, test := range tests {
		if !strings.Contains(version, test.server) {
			t.Logf("this server has no such collation: %s", test.kind)
			continue
		}
		mustExecute(t, url, "DROP TABLE IF EXISTS kept", "CREATE TABLE kept (id "+test.kind+")")
		schema, err := stream.NewSchema(stream.Definition{Name: "/kept", Table: "kept", Key: []string{"id"}, Columns: []stream.Column{{Name: "id", Type: test.of, Required: true}}})
		if err != nil {
			t.Fatal(err)
		}
		sink := open(t, url, database.Pool{}).Stream(schema)
		if err := sink.Check(t.Context()); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.kind, err, test.want)
		}
		if test.stored == "" {
			continue
		}
		b := notesOf(t, schema, byte(i), `{"id":"a"}`, `{"id":"a "}`, `{"id":"123456789"}`, `{"id":"123456789 "}`)
		mustCommit(t, sink, b)
		var refused []stream.RowRefusal
		for _, e := range b.Requests {
			refused = append(refused, e.Result.Refused...)
		}
		if got := value(t, url, "SELECT GROUP_CONCAT(id ORDER BY LENGTH(id)) FROM kept"); got != test.stored || len(refused)+len(strings.Split(got, ",")) != 4 {
			t.Errorf("%s: stored %q, refused %+v", test.kind, got, refused)
		}
	}
}
