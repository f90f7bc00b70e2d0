package streamtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/serve/storetest"
)

// TestValues checks on each database that numbers and keys arrive as they were sent, or are
// refused.
func TestValues(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		db := storetest.SQLiteDatabase(t)
		testValues(t, db, "printf('%!.2f', amount)", "text COLLATE NOCASE")
		testFormats(t, db, formatDatabase{
			types: "id BIGINT NOT NULL PRIMARY KEY, small SMALLINT, amount DECIMAL_TEXT, x DOUBLE, at DATETIME(3) NOT NULL, moment TIMESTAMP, label TEXT, yes BOOLEAN, doc JSON, guid TEXT",
			any:   inSmalls,
		})
	})
	t.Run("postgres", func(t *testing.T) {
		p := storetest.PostgresDatabase(t, postgres.Get(t))
		p.Query(t, "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)")
		testValues(t, p, "amount", "text COLLATE loose")
		testFormats(t, p, formatDatabase{
			types: "id bigint PRIMARY KEY, small smallint, amount numeric(12,2), x double precision, at timestamp(3) NOT NULL, moment timestamptz, label varchar(20), yes boolean, doc jsonb, guid uuid",
			zone:  "+00", any: "= ANY(:smalls)",
		})
	})
	t.Run("mariadb", func(t *testing.T) {
		db := mariaDatabase(t, "numbers")
		testValues(t, db, "amount", "varchar(40) COLLATE utf8mb4_general_ci")
		testFormats(t, db, formatDatabase{
			types: "id bigint PRIMARY KEY, small smallint, amount decimal(12,2), x double, at DATETIME(3) NOT NULL, moment TIMESTAMP(6) NULL, label varchar(20), yes boolean, doc JSON, guid char(36)",
			any:   inSmalls,
		})
	})
}

// amounts is a stream of numbers with 20 digits, 2 of them behind the point.
const amounts = `streams:
  - path: /amounts
    table: amounts
    columns: {id: {type: integer, required: true}, amount: {type: TYPE, max: 1e16}, label: {type: text, required: true}}
    key: [KEY]
    ack: ACK
`

// testValues reads the amounts by an expression.
func testValues(t *testing.T, p storetest.Database, shown, insensitive string) {
	p.Query(t, "CREATE TABLE amounts (id bigint NOT NULL UNIQUE, amount decimal(20,2), label "+insensitive+" NOT NULL UNIQUE)")
	config := func(kind, key, ack string) string {
		return strings.NewReplacer("TYPE", kind, "KEY", key, "ACK", ack).Replace(amounts)
	}
	for want, text := range map[string]string{
		"declare it as ":               config("real", "id", "database"),
		"set key_collation: accept":    config("decimal", "label", "database"),
		"column amount is ":            config("real", "id", "spool"),
		"so records would be lost: us": config("decimal", "label", "spool"),
	} {
		file := filepath.Join(t.TempDir(), "refused.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, stderr, code := binary.Run(t, "serve", "--strict", file, "--database", p.URL, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", t.TempDir())
		if code != exit.Usage || !strings.Contains(stderr, want) {
			t.Errorf("exit %d, want %d and %s:\n%s", code, exit.Usage, want, stderr)
		}
	}

	const exact = `{"id":1,"amount":12345678901234.56,"label":"a"}` + "\n" + `{"id":2,"amount":"-99.990","label":"b"}` + "\n" + `{"id":3,"amount":15e-1,"label":"c"}`
	stored := func() []string {
		var all []string
		for _, row := range p.Query(t, "SELECT id, "+shown+" FROM amounts ORDER BY id") {
			all = append(all, row[0]+"="+strings.TrimSuffix(row[1], "0"))
		}
		return all
	}
	want := []string{"1=12345678901234.56", "2=-99.99", "3=1.5"}
	s := apptest.ServeText(t, &binary, config("decimal", "label", "database")+"    key_collation: accept\n", p.URL)
	a := apptest.Post(t, s.URL("amounts"), exact, "Content-Type", "application/x-ndjson")
	if got := stored(); a.Status != 200 || !strings.HasPrefix(string(a.Body), `{"stored":3,`) || !slices.Equal(got, want) {
		t.Errorf("%d %s, stored %v", a.Status, a.Body, got)
	}
	apptest.WantAnswer(t, apptest.Post(t, s.URL("amounts"), `{"id":4,"amount":10000000000000000.01,"label":"d"}`), 422, `records-refused {"index":0,"field":"amount","reason":"must be at most 1e16"}`)
	a = apptest.Post(t, s.URL("amounts"), `{"id":4,"amount":0.12345678901234567890,"label":"d"}`)
	apptest.WantAnswer(t, a, 422, "records-refused amount: 0.12345678901234567890 cannot be stored exactly in a column of type ")
	apptest.WantAnswer(t, apptest.Post(t, s.URL("amounts"), `{"id":4,"amount":"twelve","label":"d"}`), 422, "records-refused must be a number")
	if got := stored(); !slices.Equal(got, want) {
		t.Errorf("stored %v", got)
	}

	p.Query(t, "DELETE FROM amounts")
	s = apptest.ServeText(t, &binary, config("decimal", "id", "spool"), p.URL, "--data", t.TempDir())
	if a := apptest.Post(t, s.URL("amounts"), exact, "Content-Type", "application/x-ndjson"); a.Status != 202 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	apptest.Await(t, "the records are drained", func() bool { return len(stored()) == 3 })
	if got := stored(); !slices.Equal(got, want) {
		t.Errorf("drained %v", got)
	}
}
