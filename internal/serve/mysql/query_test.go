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
	"spillway/internal/serve/query"
)

func TestQuery(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, hostileServer(t))
	mustExecute(t, url,
		"CREATE TABLE t (id int PRIMARY KEY, flag boolean NOT NULL, doc json, name varchar(99) CHARACTER SET utf8mb4)",
		"INSERT INTO t VALUES (1, 1, '[1]', 'it''s \\'), (2, 0, NULL, '🚚')",
		"CREATE TABLE many (n int PRIMARY KEY) SELECT seq AS n FROM seq_1_to_50000")
	db := open(t, url, database.Pool{Max: 2})
	plenty := query.Limit{Rows: 1000, Bytes: 1 << 20}
	make := func(sql string, params ...feed.Param) *Query {
		t.Helper()
		q, err := db.Query(query.Definition{Name: "/q", SQL: sql, Params: params})
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	id, name := feed.Param{Name: "id", Type: feed.Integer}, feed.Param{Name: "name", Type: feed.Text}
	for _, test := range []struct {
		q    *Query
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
			var rows query.Rows
			if err := test.q.Run(t.Context(), test.args, plenty, &rows); err != nil || string(rows.Data) != test.want {
				t.Errorf("%s: %s, %v, want %s", test.q.expansions[0].body, rows.Data, err, test.want)
			}
		}
		if err := test.q.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for sql, want := range map[string]string{"SELECT id, name AS id FROM t": "one name", "SELECT nope FROM t": "nope"} {
		if err := make(sql).Check(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
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
		var rows query.Rows
		if err := many.Run(t.Context(), nil, query.Limit{Rows: 10, Bytes: 1 << 20}, &rows); !errors.Is(err, query.ErrTooLarge) || rows.Count != 11 {
			t.Errorf("too large: %d rows, %v", rows.Count, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	slow := make("SELECT n FROM many WHERE SLEEP(3600) = 0")
	if err := slow.Run(ctx, nil, plenty, new(query.Rows)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
}

// testRejected runs a query with a value that the server rejects, and with another one.
func testRejected(t *testing.T, q *Query, value string) {
	t.Helper()
	for _, arg := range []string{value, "a"} {
		err := q.Run(t.Context(), []string{arg}, query.Limit{Rows: 9, Bytes: 1 << 20}, new(query.Rows))
		if rejected := errors.Is(err, param.ErrValue); rejected != (arg == value) {
			t.Errorf("%s with %q: %v", q.expansions[0].body, arg, err)
		}
	}
}
