package plans

import (
	"fmt"
	"strings"
	"testing"
)

func TestTables(t *testing.T) {
	reads := func(sql, want string) {
		t.Helper()
		names, err := Tables(sql, MySQL)
		if got := strings.Trim(fmt.Sprint(names), "[]"); err != nil || got != want {
			t.Errorf("%q: %s, %v; want %s", sql, got, err, want)
		}
	}
	reads("SELECT 1", "")
	reads("SELECT a, b FROM t", "t")
	reads("SELECT a.b FROM app.t AS a, `odd name` b WHERE a.x IN (SELECT x, y FROM u)", "app.t odd name u")
	reads("SELECT STRAIGHT_JOIN a FROM t JOIN u ON t.id = u.id LEFT JOIN (v CROSS JOIN w) USING (id, x) STRAIGHT_JOIN z", "t u v w z")
	reads("SELECT f(a, b), (SELECT max(x) FROM u) FROM t WHERE a IS DISTINCT FROM b AND c IN (1, d)", "u t")
	reads("SELECT * FROM (SELECT id, x FROM t ORDER BY a, b LIMIT 1, 2) AS d, LATERAL (SELECT 1 FROM u) l", "t u")
	reads("WITH RECURSIVE a AS (SELECT 1 FROM t), b (x, y) AS (SELECT 1, 2 FROM a) SELECT * FROM b, a, app.a, u", "t app.a u")
	reads("SELECT a FROM t UNION SELECT b, c FROM u GROUP BY b, c", "t u")
	reads("SELECT x FROM json_table('[]', '$') AS j, t -- FROM no", "t")
	reads("SELECT 'FROM no', \"FROM no\" FROM t, t AS again", "t")
	if _, err := Tables("SELECT 'open", MySQL); err == nil {
		t.Error("an open string is no error")
	}
}

func TestCheckUnordered(t *testing.T) {
	for sql, want := range map[string]string{
		"SELECT id FROM t": "",
		"SELECT id FROM (SELECT id FROM t ORDER BY id LIMIT 5) AS s":            "",
		"SELECT id, rank() OVER (ORDER BY id) AS limit FROM t":                  "",
		"WITH a AS (SELECT id FROM t LIMIT 5) SELECT a.limit, \"order\" FROM a": "",
		"SELECT id FROM t\nORDER  BY id":                                        "2:1: ORDER BY is not allowed",
		"SELECT id FROM t limit :n":                                             "1:18: LIMIT is not allowed",
		"SELECT id FROM t FETCH FIRST 5 ROWS ONLY":                              "1:18: FETCH is not allowed",
		"SELECT id FROM t -- ORDER BY id":                                       "",
		"SELECT fetch FROM t":                                                   "",
	} {
		err := CheckUnordered(sql, Postgres)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", sql, err, want)
		}
	}
}

// Neither function fails on any text that can be split into tokens.
func FuzzTables(f *testing.F) {
	for _, sql := range []string{"SELECT a FROM t, (u JOIN v) WHERE x", "WITH a (b) AS (SELECT 1) SELECT", ")FROM(,JOIN AS (", "a.b.c FROM . ,"} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		for _, d := range []Dialect{Postgres, MySQL, SQLite} {
			_, lexed := Lex(sql, d)
			if _, err := Tables(sql, d); (err == nil) != (lexed == nil) {
				t.Errorf("%q: %v", sql, err)
			}
			if err := CheckUnordered(sql, d); err != nil && lexed == nil && !strings.Contains(err.Error(), "not allowed") {
				t.Errorf("%q: %v", sql, err)
			}
		}
	})
}
