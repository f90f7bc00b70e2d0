package watch

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"spillway/internal/plans"
)

// TestWithoutLiteralsPostgres has "hidden" and 777 in literals and comments only.
func TestWithoutLiteralsPostgres(t *testing.T) {
	for sql, want := range map[string]string{
		"": "",
		"SELECT * FROM t1\n WHERE a = 'it''s' AND b=12.5e3 -- hidden\nLIMIT 5": "SELECT * FROM t1 WHERE a = ? AND b=? LIMIT ?",
		`UPDATE "Order" SET n = n+1 WHERE id = $1 /* 'x' */`:                   `UPDATE "Order" SET n = n+? WHERE id = $1`,
		`SELECT $$body 'x' $$, a_1`:                                            "SELECT ?, a_1",
		`SELECT E'a\'hidden', 0x1F`:                                            "SELECT ?, ?",
		`SELECT E'a\nhidden', N'hidden', U&'\0061hidden', x'777', b'0101'`:     "SELECT ?, ?, U&?, ?, ?",
		`SELECT 'C:\dir\file', 'hidden\\'`:                                     "SELECT ?, ?",
		`SELECT 1_000_777, .777e7, -777, +777, '\\'||777`:                      "SELECT ?, .?, -?, +?, ?||?",
		`ALTER ROLE bob PASSWORD $pw$hidden'x$pw$`:                             "ALTER ROLE bob PASSWORD ?",
		`SELECT 1 /* a /* b */ it's hidden */, 'hidden'`:                       "SELECT ? , ?",
		"SELECT 1 -- it's\r, 'a\nhidden'":                                      "SELECT ? , ?",
		"SELECT a ` b, 'x` hidden'":                                            "SELECT a ?…",
		"SELECT \u00e9, '\u00e9\u4e2d hidden'":                                 "SELECT \u00e9, ?",
		"SELECT \"\x1b[31mx\", \x1b[2J":                                        "SELECT \"\ufffd[31mx\", \ufffd[?",

		// Settings or versions of the server make a difference.
		`SELECT * FROM files WHERE path = 'C:\' AND owner = 'hidden'`: "SELECT * FROM files WHERE path = ?…",
		"SELECT E'a'\n'\\'hidden'":                                    "SELECT ? ?…",
		"SELECT 1a$b$, 'x$b$hidden'":                                  "SELECT ?…",
		"SELECT $1a$$ , 'x$$ hidden'":                                 "SELECT ?…",

		// The server has cut off the text.
		"SELECT 'cut hidden":          "SELECT ?…",
		"SELECT a, $pw$hidden":        "SELECT a, ?…",
		"SELECT a, $hidden":           "SELECT a, ?…",
		"SELECT a /* hidden":          "SELECT a ?…",
		"SELECT a FROM \"hidden":      "SELECT a FROM ?…",
		"SELECT a, \xc3, 'a\xffb', b": "SELECT a, ?…",
		"SELECT 'a\xffb\x00', b":      "SELECT ?, b",
		"/* hidden":                   "?…",
	} {
		if got := withoutLiterals(sql, plans.Postgres); got != want {
			t.Errorf("%q is %q, want %q", sql, got, want)
		}
	}
}

// TestWithoutLiteralsMySQL has "hidden" and 777 in literals and comments only.
func TestWithoutLiteralsMySQL(t *testing.T) {
	for sql, want := range map[string]string{
		`SELECT "hidden" FROM t`:                                 "SELECT ? FROM t",
		"SELECT `7a` FROM `x``y`":                                "SELECT `7a` FROM `x``y`",
		`SELECT 'a''hidden', "a""hidden", N'hidden', 'a' "b"`:    "SELECT ?, ?, ?, ? ?",
		`SELECT 'a\nhidden', _utf8'hidden', 0xDEAD777, @777, :a`: "SELECT ?, _utf8?, ?, @?, :a",
		"SELECT 1 # it's hidden\n, 'hidden'":                     "SELECT ? , ?",
		"SELECT 5--1, '\n', 'hidden'":                            "SELECT ?--?, ?, ?",
		"SELECT a--b FROM t WHERE x = 'a\nhidden'":               "SELECT a--b FROM t WHERE x = ?",
		"SELECT a -- it's hidden\nFROM t":                        "SELECT a FROM t",
		"/* it's hidden */ SELECT 'hidden'":                      "SELECT ?",

		// Settings, character sets or versions of the server make a difference.
		`SELECT * FROM f WHERE path = 'C:\' AND owner = 'hidden'`: "SELECT * FROM f WHERE path = ?…",
		`SELECT a,"a\"hidden"`:                     "SELECT a,?…",
		"SELECT _binary'\x00\xff\\'hidden'":        "SELECT _binary?…",
		"SELECT 1 /*! , 'a */ b', 'hidden' */":     "SELECT ? ?…",
		"SELECT /*+ SET_VAR(a='*/ b') */ 'hidden'": "SELECT ?…",
		"SELECT $$ it's $$, 'hidden'":              "SELECT ?…",
		"SELECT 1 --\u00a0it's\n, 'hidden'":        "SELECT ? ?…",
		"SELECT \u00a0777":                         "SELECT ?…",
		"SELECT 'hidden":                           "SELECT ?…",
		"SELECT a FROM `hidden":                    "SELECT a FROM ?…",
	} {
		if got := withoutLiterals(sql, plans.MySQL); got != want {
			t.Errorf("%q is %q, want %q", sql, got, want)
		}
	}
}

func TestWithoutLiteralsLength(t *testing.T) {
	for _, end := range []string{"", "'hidden"} {
		got := withoutLiterals("SELECT "+strings.Repeat("\u00e9, ", 500)+end, plans.Postgres)
		if len(got) > statementLength || len(got) < statementLength-4 || !strings.HasPrefix(got, "SELECT \u00e9, \u00e9") {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	}
}

// A quoter writes literals and comments by the rules of a database, independently of package plans.
type quoter struct {
	dialect plans.Dialect
	escapes bool // a backslash in a string escapes
}

// strings returns string literals of a text. Those in lone have a value other than the text.
func (q quoter) strings(text string) []string {
	escaped := strings.ReplaceAll(text, `\`, `\\`)
	plain := text
	if q.escapes {
		plain = escaped
	}
	doubled := func(s, quote string) string { return quote + strings.ReplaceAll(s, quote, quote+quote) + quote }
	list := []string{doubled(plain, "'")}
	if q.escapes {
		list = append(list, "'"+strings.ReplaceAll(plain, "'", `\'`)+"'")
	}
	if q.dialect == plans.MySQL {
		list = append(list, doubled(plain, `"`), doubled(plain, "'")+" "+doubled("", `"`))
		if q.escapes {
			list = append(list, `"`+strings.ReplaceAll(plain, `"`, `\"`)+`"`)
		}
		return list
	}
	list = append(list, "E"+doubled(escaped, "'"), "E'"+strings.ReplaceAll(escaped, "'", `\'`)+"'", "e''\n'"+strings.ReplaceAll(escaped, "'", `\'`)+"'")
	for _, tag := range []string{"$$", "$t$", "$\u00e9_1$"} {
		if strings.Index(text+tag, tag) == len(text) {
			list = append(list, tag+text+tag)
		}
	}
	return list
}

// comments returns comments that hold a text, less what ends them.
func (q quoter) comments(text string) []string {
	block := strings.NewReplacer("/", "", "*", "").Replace(text)
	if q.dialect == plans.Postgres {
		line := strings.NewReplacer("\n", "", "\r", "").Replace(text)
		return []string{"--" + line + "\n", "--" + line + "\r", "/*" + block + "/*" + block + "*/" + block + "*/"}
	}
	line := strings.ReplaceAll(text, "\n", "")
	return []string{"#" + line + "\n", "-- " + line + "\n", "--\t" + line + "\n", "/* " + block + "/*" + block + "*/", "/*! + " + q.strings(text)[0] + " */"}
}

// statement joins pieces that a plan chooses, with the text in all literals and comments.
func (q quoter) statement(plan []byte, text string) string {
	pieces := append(q.strings(text), q.comments(text)...)
	pieces = append(pieces, "a", `"b"`, "1.5e-3", "$1", "5--1", "(", ")", "::", "->>", "-", "/", "x$y", "\u00e9")
	if q.dialect == plans.MySQL {
		pieces = append(pieces, "`c`", "@", "?")
	}
	var sql strings.Builder
	sql.WriteString("SELECT ")
	for _, b := range plan {
		sql.WriteString(pieces[int(b)%len(pieces)])
		sql.WriteString([]string{" ", ", ", "\n", "\t||"}[int(b)/len(pieces)%4])
	}
	return sql.String()
}

// FuzzWithoutLiterals plants a secret in the literals and comments of statements, under all settings of the databases.
func FuzzWithoutLiterals(f *testing.F) {
	for _, text := range []string{"", `C:\`, "it's", `"`, "a\nb\r", "$t", "*", `\'`, `'\''`, "-- ", "\x00\xff", "\u00a0"} {
		for mode := range byte(4) {
			f.Add([]byte{0, 30, 1, 61, 2, 92, 3, 4, 5, 36, 67, 98, 7, 8, 9, 10, 11, 12, 13}, text, text, mode)
			f.Add([]byte{20, 4, 3, 2, 1, 0}, text, "", mode)
		}
	}
	f.Fuzz(func(t *testing.T, plan []byte, before, after string, mode byte) {
		const secret = "hidden"
		q := quoter{plans.Postgres, mode&1 != 0}
		if mode&2 != 0 {
			q.dialect = plans.MySQL
		}
		// A database accepts no NUL and no broken characters in a statement; withoutLiterals must bear them.
		text := strings.ReplaceAll(strings.ToValidUTF8(before+secret+after, "?"), "\x00", "")
		for _, sql := range []string{q.statement(plan, text), q.statement(plan, before+secret+after), before + after} {
			got := withoutLiterals(sql, q.dialect)
			if strings.Contains(got, secret) && strings.Contains(sql, "SELECT ") {
				t.Fatalf("%q is %q", sql, got)
			}
			if len(got) > statementLength || !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Fatalf("%q is %q", sql, got)
			}
		}
	})
}
