package plans

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Each dialect reads strings, names and comments in its own way.
func TestLex(t *testing.T) {
	f := func(d Dialect, sql string, want ...string) {
		t.Helper()
		tokens, err := Lex(sql, d)
		if err != nil {
			t.Errorf("%s: %v", sql, err)
		}
		var got []string
		for _, token := range tokens {
			got = append(got, []string{"word", "name", "string", "number", "param", "symbol", "comment"}[token.Kind]+" "+token.Text)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", sql, diff)
		}
	}
	f(Postgres, `a."b""c"`, "word a", "symbol .", `name b"c`)
	f(Postgres, `$t$ ' $$ $t$ E'\'' e'x' N'y'`, "string  ' $$ ", `string \'`, "string x", "string y")
	f(Postgres, `/* /* */ */ $1 a$1`, "comment /* /* */ */", "param $1", "word a$1")
	f(Postgres, `5--1`, "number 5", "comment --1")
	f(Postgres, `1e-5--x`, "number 1e-5", "comment --x")
	f(Postgres, `5e--x`, "number 5e", "comment --x")
	f(Postgres, `a[1:2] :b::int`, "word a", "symbol [", "number 1", "symbol :", "number 2", "symbol ]", "param b", "symbol ::", "word int")
	f(Postgres, "-- a\r1 -- b\n2", "comment -- a", "number 1", "comment -- b", "number 2")
	f(Postgres|BackslashEscapes, `'a\'b' "c\"`, `string a\'b`, `name c\`)
	f(MySQL, `"a" 'b\' "c""d"`, "string a", `string b\`, `string c""d`)
	f(MySQL|BackslashEscapes, `"a\"" 'b\''`, `string a\"`, `string b\'`)
	f(MySQL|ANSIQuotes, "\"a\" `b``c`", "name a", "name b`c")
	f(MySQL, "/* /* */ 5--1 # x\n-- y", "comment /* /* */", "number 5", "symbol -", "symbol -", "number 1", "comment # x", "comment -- y")
	f(MySQL, `$a$ E'\'`, "symbol $", "word a$", "word E", `string \`)
	f(SQLite, `[it's] "a" /* /* */ $a$ E'\'`, "name it's", "name a", "comment /* /* */", "symbol $", "word a$", "word E", `string \`)
}

// Tokens are in order, do not overlap, and leave out blanks only.
func FuzzLex(f *testing.F) {
	for _, sql := range []string{"SELECT 'a''b' -- c", `$t$ $$ $t$ E'\''`, "/* /* */ */", "`a``b` [c] # d", `"a\"`, "1e-5.2", ":a::b:=c", "a->>'b'"} {
		f.Add(sql, uint8(Postgres))
		f.Add(sql, uint8(MySQL))
		f.Add(sql, uint8(MySQL|BackslashEscapes|ANSIQuotes))
		f.Add(sql, uint8(SQLite))
	}
	f.Fuzz(func(t *testing.T, sql string, dialect uint8) {
		tokens, err := Lex(sql, Dialect(dialect))
		at := 0
		for _, token := range tokens {
			if token.Start < at || token.End <= token.Start || token.End > len(sql) || strings.Trim(sql[at:token.Start], " \t\r\n\f\v") != "" {
				t.Fatalf("%q: token %+v after offset %d", sql, token, at)
			}
			if token.Kind != Name && !strings.Contains(sql[token.Start:token.End], token.Text) {
				t.Fatalf("%q: the text of %+v is not in the source", sql, token)
			}
			at = token.End
		}
		if err == nil && strings.Trim(sql[at:], " \t\r\n\f\v") != "" {
			t.Fatalf("%q: nothing was read from offset %d", sql, at)
		}
	})
}

// parts returns the source of the conditions in a text.
func parts(text string) (list []string) {
	r, _ := NewReader(text, Postgres)
	last := Span{}
	for _, c := range r.Conditions(r.All()) {
		if c.Part != last { // a join gives two conditions
			list = append(list, r.Text(c.Part))
		}
		last = c.Part
	}
	return list
}

func TestConjuncts(t *testing.T) {
	tests := []struct {
		condition string
		want      []string
	}{
		{"", nil},
		{"(o.city = $1)", []string{"o.city = $1"}},
		{"((o.city = $1) AND (o.state = 'a) AND (b'::text))", []string{"o.city = $1", "o.state = 'a) AND (b'::text"}},
		{"((a.b = 1) OR ((a.c = 2) AND (a.d = 3)))", []string{"(a.b = 1) OR ((a.c = 2) AND (a.d = 3))"}},
		{"(ROW(a.b, a.c) < ROW($1, $2))", []string{"ROW(a.b, a.c) < ROW($1, $2)"}},
		{"((a.state)::text = 'it''s'::text)", []string{"(a.state)::text = 'it''s'::text"}},
	}
	for _, test := range tests {
		if diff := cmp.Diff(test.want, parts(test.condition)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.condition, diff)
		}
	}
}

func FuzzConjuncts(f *testing.F) {
	f.Add("((o.city = $1) AND (o.state = 'a) AND (b'::text))")
	f.Add(")(")
	f.Add("(' AND ")
	f.Fuzz(func(t *testing.T, condition string) {
		for _, part := range parts(condition) {
			if !strings.Contains(condition, part) {
				t.Errorf("%q is no part of %q", part, condition)
			}
		}
	})
}

func TestConditions(t *testing.T) {
	for text, want := range map[string]Condition{
		"((o.state)::character varying = 'open'::text)":      {Column: ColumnRef{"o", "state"}, Usage: Equal},
		"(o.at > '2016-01-01'::timestamp without time zone)": {Column: ColumnRef{"o", "at"}, Usage: Ordered},
		"(3 = o.city)":                        {Column: ColumnRef{"o", "city"}, Usage: Equal},
		"(o.city = ANY ('{1,2}'::integer[]))": {Column: ColumnRef{"o", "city"}, Usage: Among},
		"((o.city % 400) = $1)":               {},
		"(\"Users\".id = o.users_id)":         {Column: ColumnRef{"Users", "id"}, Usage: Joined, Other: ColumnRef{"o", "users_id"}},
	} {
		r, err := NewReader(text, Postgres)
		if err != nil {
			t.Fatal(err)
		}
		c := r.Conditions(r.All())[0]
		if c.Column != want.Column || c.Usage != want.Usage || c.Other != want.Other || c.Usage == Unusable && c.Reason == "" {
			t.Errorf("%s: %+v", text, c)
		}
	}
}
