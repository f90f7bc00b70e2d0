package sqlite

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	driver "zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// TestPreparedStatements: requests choose filters and the lengths of lists, but a connection
// keeps only so many statements prepared.
func TestPreparedStatements(t *testing.T) {
	t.Parallel()
	url, err := database.Parse("sqlite:" + filepath.Join(t.TempDir(), "test.db"))
	if err != nil {
		t.Fatal(err)
	}
	db, err := New(url, database.Pool{Max: 1, ConnectTimeout: time.Hour, StatementTimeout: time.Hour}, slog.New(slog.DiscardHandler))
	if err == nil {
		err = db.Ping(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	writer, err := driver.OpenConn(db.file, driver.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	script := "CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b INTEGER, c INTEGER); INSERT INTO t VALUES (1, 1, 1, 1), (2, 2, 2, 2);"
	if err := sqlitex.ExecuteScript(writer, script, nil); err != nil {
		t.Fatal(err)
	}
	def := feed.Definition{Name: "/t", SQL: "SELECT * FROM t WHERE id IN (:ids)", Key: []feed.KeyColumn{{Name: "id"}}}
	def.Params = []param.Param{
		{Name: "ids", Type: param.Integer, ListMax: 300},
		param.Filter("a", param.Integer), param.Filter("b", param.Integer), param.Filter("c", param.Integer),
	}
	source, err := db.Source(def)
	if err != nil {
		t.Fatal(err)
	}
	var last feed.Key
	for shape := range 2 * 8 * 9 * 2 { // twice each
		var texts []string
		for id := range 1 << (shape % 9) {
			texts = append(texts, fmt.Sprint(id+2))
		}
		ids, err := param.Argument(def.Params[0], texts...)
		if err != nil {
			t.Fatal(err)
		}
		r, filters := feed.Range{Args: []string{ids}, Limit: 10}, shape/9%8
		for bit := range 3 {
			r.Args = append(r.Args, []string{param.Absent, "2"}[filters>>bit&1])
		}
		want := 1
		if shape/72%2 == 1 {
			r.After, want = last, 0
		}
		var rows feed.Rows
		if err := source.Read(t.Context(), r, &rows); err != nil || rows.Len() != want {
			t.Fatalf("%d values, filters %b: %d rows, %v, want %d", len(texts), filters, rows.Len(), err, want)
		}
		if want == 1 {
			last = rows.Keys[0]
		}
	}
	err = db.read(t.Context(), func(conn conn) error {
		const others = 10 // that read the schema
		if n := reflect.ValueOf(conn.Conn).Elem().FieldByName("stmts").Len(); n > preparedPerConnection+others {
			t.Errorf("%d statements are prepared, at most %d", n, preparedPerConnection)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
