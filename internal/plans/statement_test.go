package plans

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestParseStatement(t *testing.T) {
	good := func(sql, rendered string, names ...string) {
		t.Helper()
		s, err := ParseStatement(sql, Postgres)
		if err != nil {
			t.Errorf("%q: %v", sql, err)
			return
		}
		got := s.Render(func(name string) string { return "<" + name + ">" })
		if got != rendered || !slices.Equal(s.Names(), names) {
			t.Errorf("%q: %q with names %q, want %q with %q", sql, got, s.Names(), rendered, names)
		}
	}
	same := func(sql string) { t.Helper(); good(sql, sql) }

	good("SELECT :b, :a, :b", "SELECT <b>, <a>, <b>", "b", "a")
	good("\n select 1 ; -- done\n /* really */ ", "select 1")
	good("SELECT 1 -- why :no\nFROM t -- end", "SELECT 1 \nFROM t")
	good("-- first\nWITH x AS (SELECT 1) SELECT * FROM x WHERE a=:a_1;", "WITH x AS (SELECT 1) SELECT * FROM x WHERE a=<a_1>", "a_1")
	good("(SELECT :a) UNION (VALUES (:b))", "(SELECT <a>) UNION (VALUES (<b>))", "a", "b")
	good("SELECT :a::int, :b :: text", "SELECT <a>::int, <b> :: text", "a", "b")
	good("SELECT :claim.sub, :claim .x, :claim, :claims.a, x:claim.b, ':claim.c', :claim.org_1::int", "SELECT <claim.sub>, <claim> .x, <claim>, <claims>.a, x:claim.b, ':claim.c', <claim.org_1>::int", "claim.sub", "claim", "claims", "claim.org_1")
	good("SELECT (:claim.9), :claim.", "SELECT (<claim>.9), <claim>.", "claim")
	good("SELECT a[:lo: :hi]", "SELECT a[<lo>: <hi>]", "lo", "hi")
	good("SELECT 'é' || :ü || :a", "SELECT 'é' || :ü || <a>", "a") // names are ASCII: the database refuses the rest
	good("SELECT '' || :a || e'\\'' || :b", "SELECT '' || <a> || e'\\'' || <b>", "a", "b")
	good("SELECT $$ :no $$ || :a || $t$ $$ :no $t$", "SELECT $$ :no $$ || <a> || $t$ $$ :no $t$", "a")

	same("SELECT ':no', 'it''s :no', E'\\' :no', E'\\\\', e''''")
	same(`SELECT ":no", "a"":no", ` + "`:no`, `a``:no`")
	same("SELECT 1 /* :no /* :no */ :no */ + 1")
	same("SELECT a::text, b::int[], c[1:2], c[i:j], f(x)[1:n], @v := 1")
	same("SELECT doc ? 'a', doc ?| x, doc #> y, doc->>'$.a', 12:30")
	same("SELECT a$1, price$ FROM t$x")
	same("SELECT 'a;b', $$;$$, \";\"")
	same("VALUES (1, 'x')")
	same(`SELECT '\' || '\'`) // the standard: no escape
}

func TestParseStatementMySQL(t *testing.T) {
	for _, c := range []struct{ sql, rendered string }{
		{"SELECT 5--1", "SELECT 5--1"},
		{"SELECT 5--:a", "SELECT 5--<a>"},
		{"SELECT 5-- :a", "SELECT 5"},
		{"SELECT 5--", "SELECT 5"},
		{"SELECT 5--\n- :a", "SELECT 5\n- <a>"},
		{"SELECT 5--\x01 :a\n+:b", "SELECT 5\n+<b>"},
		{"SELECT 1 # :no\n, :a", "SELECT 1 \n, <a>"},
		{"SELECT '#', \"--\", `# `, :a", "SELECT '#', \"--\", `# `, <a>"},
		{"SELECT 1 /* :no /* :no */ + :a", "SELECT 1 /* :no /* :no */ + <a>"},
		{"SELECT $a$, :a, $a$", "SELECT $a$, <a>, $a$"},
		{"SELECT E'\\', :a, '\\'", "SELECT E'\\', <a>, '\\'"},
	} {
		s, err := ParseStatement(c.sql, MySQL)
		if err != nil {
			t.Errorf("%q: %v", c.sql, err)
			continue
		}
		if got := s.Render(func(name string) string { return "<" + name + ">" }); got != c.rendered {
			t.Errorf("%q: %q, want %q", c.sql, got, c.rendered)
		}
	}
	if s, err := ParseStatement("SELECT 5--:a", Postgres); err != nil || len(s.Names()) != 0 {
		t.Errorf("PostgreSQL's comment: %v, %v", s.Names(), err)
	}
}

func TestParseStatementErrors(t *testing.T) {
	bad := func(sql, want string) {
		t.Helper()
		_, err := ParseStatement(sql, Postgres)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s...", sql, err, want)
		}
	}
	bad("", "1:1: the statement is empty")
	bad(" -- nothing\n;", "2:1: the statement must start with SELECT")
	bad("/* nothing */", "1:1: the statement is empty")
	bad("DELETE FROM t", "1:1: the statement must start")
	bad("\n  (UPDATE t SET a = 1)", "2:4: the statement must start")
	bad("SELECTED", "1:1: the statement must start")
	bad(":a", "1:1: the statement must start")
	bad("SELECT 1; DROP TABLE t", "1:9: several statements")
	bad("SELECT 1;;", "1:9: several statements")
	bad("SELECT 1\n; /* a */ -- b\n x", "2:1: several statements")
	bad("SELECT 'é\n', 'a", "2:4: this ' is not closed")
	bad("SELECT E'a\\'", "1:9: this ' is not closed")
	bad("SELECT \"a", "1:8: this \" is not closed")
	bad("SELECT `a", "1:8: this ` is not closed")
	bad("SELECT 1 /* /* */", "1:10: this /* is not closed")
	bad("SELECT $a$ $b$", "1:8: this $a$ is not closed")
	bad("SELECT $1", "1:8: parameters by number ($1)")
	bad("SELECT (1", "1:8: this ( is not closed")
	bad("SELECT 1) x, (SELECT 2", "1:9: this ) closes nothing")
	bad("SELECT 'é\x00'", "1:10: the statement contains a NUL byte")
	bad("SELECT '\xff'", "1:9: the statement is not valid UTF-8")
}

func TestZeroStatement(t *testing.T) {
	var s Statement
	if s.Names() != nil || s.Render(nil) != "" {
		t.Errorf("zero Statement renders %q with names %q", s.Render(nil), s.Names())
	}
}

// A statement that was read is read again the same from what it renders, its errors
// have a position, and its placeholders stay apart from its text.
func FuzzParseStatement(f *testing.F) {
	for _, s := range []string{
		"SELECT :a::int -- x\n", "WITH a AS (VALUES(1)) SELECT $t$:b$t$, E'\\'' ;", "SELECT \"a\"\"\" /* /* */ */", "SELECT a[1:2], :b_2 ; --", "SELECT 1;;", "SELECT '\\'", "(((SELECT", "SELECT :claim.sub, :claim", "SELECT -:a--:b", "SELECT 1-/**/-:a",
	} {
		f.Add(s)
	}
	position := regexp.MustCompile(`^[1-9][0-9]*:[1-9][0-9]*: [^\n]+$`)
	f.Fuzz(func(t *testing.T, sql string) {
		s, err := ParseStatement(sql, Postgres)
		if err != nil {
			if !position.MatchString(strings.ToValidUTF8(err.Error(), "?")) {
				t.Fatalf("%q: error without a position: %q", sql, err)
			}
			return
		}
		text := s.Render(func(name string) string { return ":" + name })
		again, err := ParseStatement(text, Postgres)
		if err != nil {
			t.Fatalf("%q renders %q: %v", sql, text, err)
		}
		if !slices.Equal(again.Names(), s.Names()) || again.Render(func(n string) string { return ":" + n }) != text {
			t.Fatalf("%q renders %q, which reads as %q", sql, text, again.Names())
		}
		n := 0
		s.Render(func(name string) string {
			n++
			if !slices.Contains(s.Names(), name) || !isParamName(name) {
				t.Fatalf("%q: asked for the unknown name %q", sql, name)
			}
			return fmt.Sprintf("$%d", n)
		})
		if wrapped, err := ParseStatement("SELECT * FROM ("+text+") q", Postgres); err != nil || !slices.Equal(wrapped.Names(), s.Names()) {
			t.Fatalf("%q in parentheses: %v", text, err)
		}
	})
}
