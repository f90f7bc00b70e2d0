package mysql

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

func TestQuery(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, hostileServer(t))
	mustExecute(t, url,
		"CREATE TABLE t (id int PRIMARY KEY, flag boolean NOT NULL, doc json, name varchar(99) CHARACTER SET utf8mb4)",
		"INSERT INTO t VALUES (1, 1, '[1]', 'it''s \\'), (2, 0, NULL, '🚚')",
		"CREATE TABLE many (n int PRIMARY KEY) SELECT seq AS n FROM seq_1_to_50000")
	db := open(t, url, database.Pool{Max: 2})
	plenty := feed.Limit{Rows: 1000, Bytes: 1 << 20}
	make := func(sql string, params ...param.Param) *source {
		t.Helper()
		q, err := db.source(feed.Definition{Name: "/q", SQL: sql, Params: params})
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	id, name := param.Param{Name: "id", Type: param.Integer}, param.Param{Name: "name", Type: param.Text}
	for _, test := range []struct {
		q    *source
		args []string
		want string
	}{
		{make("SELECT flag, doc, id FROM t WHERE id = :id", id), []string{"1"}, `{"flag":true,"doc":[1],"id":1}`},
		{make("SELECT flag, doc FROM t WHERE id = :id", id), []string{"3"}, ``},
		{make("SELECT flag, doc FROM t ORDER BY id DESC LIMIT 5"), nil, `{"flag":false,"doc":null},{"flag":true,"doc":[1]}`},
		{make("SELECT id FROM t WHERE name = :name OR :name IS NULL", name), []string{`it's \`}, `{"id":1}`},
		{make("SELECT id FROM t WHERE name = :name", name), []string{`' OR 1=1 -- `}, ``},
		{make("SELECT flag, COUNT(*) AS n FROM t GROUP BY flag ORDER BY flag"), nil, `{"flag":false,"n":1},{"flag":true,"n":1}`},
	} {
		for range 2 {
			rows := feed.Rows{Limit: plenty}
			if err := test.q.Read(t.Context(), feed.Range{Args: test.args}, &rows); err != nil || string(rows.Data) != test.want {
				t.Errorf("%s: %s, %v, want %s", test.q.body, rows.Data, err, test.want)
			}
		}
		if err := test.q.Check(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
	for sql, want := range map[string]string{"SELECT id, name AS id FROM t": "one name", "SELECT nope FROM t": "nope"} {
		if err := make(sql).Check(t.Context(), 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", sql, err, want)
		}
	}
	for sql, value := range map[string]string{
		"SELECT id FROM t WHERE name REGEXP :name":          "(",
		"SELECT id FROM t WHERE name LIKE 'a' ESCAPE :name": "ab",
	} {
		testRejected(t, make(sql, name), value)
	}
	many := make("SELECT a.n FROM many a, many b")
	for range 5 { // all of its 2.5 billion rows would take minutes
		read := 0
		each := func([]byte) error { read++; return nil }
		rows := feed.Rows{Limit: feed.Limit{Rows: 10, Bytes: 1 << 20}, Each: each}
		if err := many.Read(t.Context(), feed.Range{}, &rows); !errors.Is(err, feed.ErrTooLarge) || read != 10 {
			t.Errorf("too large: %d rows, %v", read, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	slow := make("SELECT n FROM many WHERE SLEEP(3600) = 0")
	if err := slow.Read(ctx, feed.Range{}, &feed.Rows{Limit: plenty}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
}

// testRejected runs a query with a value that the server rejects, and with another one.
func testRejected(t *testing.T, q *source, value string) {
	t.Helper()
	for _, arg := range []string{value, "a"} {
		err := q.Read(t.Context(), feed.Range{Args: []string{arg}}, &feed.Rows{Limit: feed.Limit{Rows: 9, Bytes: 1 << 20}})
		if rejected := errors.Is(err, param.ErrValue); rejected != (arg == value) {
			t.Errorf("%s with %q: %v", q.body, arg, err)
		}
	}
}
