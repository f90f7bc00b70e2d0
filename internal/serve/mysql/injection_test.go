package mysql

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// hostileTexts would do harm if they became part of a statement, under some sql_mode and
// some character set: quotes, comments, NUL, bytes that are no UTF-8, and first bytes of
// two that swallow the backslash of an escaped quote.
func hostileTexts() []string {
	texts := []string{
		"", "plain", "'", "''", `"`, "`", `\`, `\\`, `\'`, `'\`, `\0`, "\x00", "a\x00b", "\x1a", "\n", "\r\n", "%", "_", "?", ":v", "$1", ";",
		"' OR 1=1 -- ", `" OR 1=1 -- `, "` OR 1=1 # ", "1 OR 1=1", "'; DROP TABLE secrets; -- ", `\'; DROP TABLE secrets; -- `,
		"/*", "*/", "/*! OR 1=1 */", "'/*!50000 OR 1=1 */ -- ", "--", "-- ", "#", "' UNION SELECT 1, 2 -- ", "0x27", "NULL", "b'1'", "_gbk'",
		"\xff", "\xfe\xff", "\xc0\xa7", "\xe0\x80\xa7", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc2", "\xf0\x9f\x9a", "集装箱 🚚", "\u00a5' OR 1=1 -- ",
	}
	for _, first := range []byte{0x81, 0x8f, 0x95, 0xa1, 0xb5, 0xbf, 0xe0, 0xfd} { // GBK, Big5, Shift-JIS, EUC
		for _, rest := range []string{"'", `\'`, `"`, `\`, "' OR 1=1 -- ", `\' OR 1=1 -- `, "\\' OR 1=1 #"} {
			texts = append(texts, string(first)+rest)
		}
	}
	return append(texts, strings.Repeat(`\'`, 200))
}

// sqlModes are MariaDB's modes, one at a time, and the sets that matter together.
func sqlModes(t *testing.T, se *session) []string {
	t.Helper()
	modes := []string{
		"", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES", "PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES", "REAL_AS_FLOAT", "PIPES_AS_CONCAT", "ANSI_QUOTES",
		"IGNORE_SPACE", "IGNORE_BAD_TABLE_OPTIONS", "ONLY_FULL_GROUP_BY", "NO_UNSIGNED_SUBTRACTION", "NO_DIR_IN_CREATE", "POSTGRESQL", "ORACLE",
		"MSSQL", "DB2", "MAXDB", "NO_KEY_OPTIONS", "NO_TABLE_OPTIONS", "NO_FIELD_OPTIONS", "MYSQL323", "MYSQL40", "ANSI",
		"NO_AUTO_VALUE_ON_ZERO", "NO_BACKSLASH_ESCAPES", "STRICT_TRANS_TABLES", "STRICT_ALL_TABLES", "NO_ZERO_IN_DATE", "NO_ZERO_DATE",
		"ALLOW_INVALID_DATES", "ERROR_FOR_DIVISION_BY_ZERO", "TRADITIONAL", "NO_AUTO_CREATE_USER", "HIGH_NOT_PRECEDENCE",
		"NO_ENGINE_SUBSTITUTION", "PAD_CHAR_TO_FULL_LENGTH", "EMPTY_STRING_IS_NULL", "SIMULTANEOUS_ASSIGNMENT", "TIME_ROUND_FRACTIONAL",
	}
	for _, mode := range modes {
		if err := se.Exec(t.Context(), "SET SESSION sql_mode = '"+mode+"'"); err != nil {
			t.Fatalf("sql_mode %s: %v", mode, err)
		}
	}
	return modes
}

// multibyte are the character sets besides Unicode's whose characters can have several bytes.
var multibyte = []string{"gbk", "gb2312", "big5", "sjis", "cp932", "eucjpms", "ujis", "euckr"}

// charsets are those that the server lets a client speak.
func charsets(t *testing.T, se *session) []string {
	t.Helper()
	rows, err := se.Query(t.Context(), "SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, row := range rows {
		if se.Exec(t.Context(), "SET NAMES "+row[0]) == nil {
			names = append(names, row[0])
		}
	}
	for _, want := range append(multibyte, "latin1", "utf8mb3", "binary") {
		if !slices.Contains(names, want) {
			t.Errorf("the character set %s is not tested: %v", want, names)
		}
	}
	return names
}

// injection is a feed whose parameter is compared with a column of bytes.
type injection struct {
	db *DB
	f  *source
}

func newInjection(t testing.TB, url string) injection {
	t.Helper()
	mustExecute(t, url, "CREATE TABLE secrets (id bigint NOT NULL PRIMARY KEY, v longblob NOT NULL)")
	db := open(t, url, database.Pool{})
	f, err := db.source(feed.Definition{
		Name:   "/secrets",
		SQL:    "SELECT id, HEX(v) AS stored, HEX(:v) AS bound FROM secrets WHERE v = :v OR :v IS NULL",
		Key:    keyOf("id"),
		Params: []param.Param{{Name: "v", Type: param.Text}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return injection{db: db, f: f}
}

// store puts texts into the table, as hexadecimal digits.
func (in injection) store(t testing.TB, url string, texts []string) {
	t.Helper()
	var statements []string
	for i, text := range texts {
		statements = append(statements, fmt.Sprintf("INSERT INTO secrets VALUES (%d, x'%x')", i, text))
	}
	mustExecute(t, url, statements...)
}

// ask reads the feed on a session with any settings, and checks that exactly
// the row of the text came back.
func (in injection) ask(ctx context.Context, se *session, id int, text string) error {
	d, err := in.f.describe(ctx)
	if err != nil {
		return err
	}
	args, err := in.f.arguments(d.columns, feed.Range{Args: []string{text}, Limit: 10})
	if err != nil {
		return err
	}
	values := make([]any, len(args))
	for i, arg := range args {
		values[i] = arg.Value
	}
	rows, err := se.texts(ctx, in.f.writer(d.columns).write(shape{}), values...)
	if err != nil {
		return err
	}
	digits := strings.ToUpper(hex.EncodeToString([]byte(text)))
	if len(rows) != 1 || rows[0][0] != fmt.Sprint(id) || rows[0][1] != digits || rows[0][2] != digits {
		return fmt.Errorf("%d rows: %.200q", len(rows), rows)
	}
	return nil
}

// TestInjection binds hostile texts under every sql_mode and every character set of the
// connection, set behind the adapter's back: each finds its own row only. With -short, one of
// the two is always one that is known to do harm, and all texts are bound only under the
// multibyte character sets; elsewhere every fourth, another one each time.
func TestInjection(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	in := newInjection(t, url)
	texts := hostileTexts()
	in.store(t, url, texts)
	err := in.db.onSession(context.WithoutCancel(t.Context()), forever, func(_ context.Context, se *session) error {
		ctx := t.Context()
		modes, names := sqlModes(t, se), charsets(t, se)
		proveHarm(t, se)
		combinations := 0
		for _, mode := range modes {
			for _, charset := range names {
				step, usual := 1, slices.Contains([]string{"", "NO_BACKSLASH_ESCAPES"}, mode)
				if testing.Short() && !usual && charset != "gbk" {
					continue
				}
				if testing.Short() && !(usual && slices.Contains(multibyte, charset)) {
					step = 4
				}
				combinations++
				if err := se.Exec(ctx, "SET NAMES "+charset+", sql_mode = '"+mode+"'"); err != nil {
					t.Errorf("%s, %s: %v", mode, charset, err)
				}
				se.prepared.Purge() // a statement keeps the mode that it was prepared under
				for id, text := range texts {
					if (id+combinations)%step != 0 {
						continue
					}
					if text == "" && strings.Contains(mode, "EMPTY_STRING_IS_NULL") {
						continue // this mode says so; the adapter takes it out
					}
					if err := in.ask(ctx, se, id, text); err != nil {
						t.Fatalf("sql_mode %q, character set %s, %.60q: %v", mode, charset, text, err)
					}
				}
			}
		}
		rows, err := se.Query(ctx, "SELECT COUNT(*) FROM secrets")
		if err != nil || rows[0][0] != fmt.Sprint(len(texts)) {
			t.Errorf("%v rows are left of %d, %v", rows, len(texts), err)
		}
		t.Logf("%d texts, %d modes, %d character sets", len(texts), len(modes), len(names))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// proveHarm pastes a text with its quote escaped, as PHP's addslashes does: in GBK the
// backslash becomes half a character, and the text a condition.
func proveHarm(t *testing.T, se *session) {
	t.Helper()
	text := "\xbf' OR 1=1 -- "
	escaped := strings.ReplaceAll(text, "'", `\'`)
	if err := se.Exec(t.Context(), "SET NAMES gbk, sql_mode = ''"); err != nil {
		t.Fatal(err)
	}
	rows, err := se.Query(t.Context(), "SELECT id FROM secrets WHERE v = '"+escaped+"'")
	if err != nil || len(rows) < 2 {
		t.Errorf("pasted, the text finds %d rows, %v: the test tests nothing", len(rows), err)
	}
}

// Through the adapter, random bytes are returned as they were bound.
func TestBoundBytes(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, hostileServer(t))
	in := newInjection(t, url)
	random := rand.New(rand.NewPCG(6, 3))
	alphabet := []byte("'\"\\`;-#/*%_?:\x00\x1a\n\xbf\x27\x5c\xff\xe9\x9b\x86a1 ")
	var texts []string
	seen := map[string]bool{}
	count := 2000
	if testing.Short() {
		count = 500
	}
	for len(texts) < count {
		b := make([]byte, random.IntN(24))
		for i := range b {
			b[i] = alphabet[random.IntN(len(alphabet))]
		}
		if !seen[string(b)] {
			seen[string(b)] = true
			texts = append(texts, string(b))
		}
	}
	in.store(t, url, texts)
	for id, text := range texts {
		err := in.db.withSession(t.Context(), func(ctx context.Context, se *session) error { return in.ask(ctx, se, id, text) })
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	}
}

// FuzzBound binds any text to a statement on a real server and to a cursor.
func FuzzBound(f *testing.F) {
	for _, text := range hostileTexts() {
		f.Add([]byte(text))
	}
	db := open(f, freshDatabase(f, plainServer(f)), database.Pool{})
	def := feed.Definition{
		Name: "/echo", SQL: "SELECT HEX(:v) AS bound, CAST(:v AS BINARY) AS k",
		Key: keyOf("k"), Params: []param.Param{{Name: "v", Type: param.Text}},
	}
	echo, err := db.source(def)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var rows feed.Rows
		if err := echo.Read(t.Context(), feed.Range{Args: []string{string(b)}, Limit: 2}, &rows); err != nil {
			t.Fatalf("%.60q: %v", b, err)
		}
		if !utf8.Valid(b) {
			// The engine refuses such a text; the server may cut it where it is broken.
			if err := checkCut(rows.Data, b); err != nil {
				t.Fatalf("%.60q: %.200s, %v", b, rows.Data, err)
			}
			return
		}
		want := `{"bound":"` + strings.ToUpper(hex.EncodeToString(b)) + `","k":` + string(feed.AppendBase64(nil, b)) + `}`
		if string(rows.Data) != want {
			t.Fatalf("%.60q: %.200s, want %.200s", b, rows.Data, want)
		}
		behind := feed.Range{Args: []string{string(b)}, After: rows.Keys[0], Limit: 2}
		rows.Reset()
		if err := echo.Read(t.Context(), behind, &rows); err != nil || rows.Len() != 0 {
			t.Fatalf("%.60q behind itself: %.200s, %v", b, rows.Data, err)
		}
	})
}

// checkCut accepts what was bound, or its beginning.
func checkCut(data, b []byte) error {
	var row struct{ Bound string }
	if err := json.Unmarshal(data, &row); err != nil {
		return err
	}
	if !strings.HasPrefix(strings.ToUpper(hex.EncodeToString(b)), row.Bound) {
		return errors.New("this is not what was bound")
	}
	return nil
}
