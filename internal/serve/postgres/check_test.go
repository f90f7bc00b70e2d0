package postgres

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// checkFeed checks a feed and returns its error and what was logged.
func checkFeed(t *testing.T, url string, def feed.Definition) (string, string) {
	t.Helper()
	parsed, err := database.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	db, err := Open(t.Context(), parsed, patient(database.Pool{}), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	source, err := db.source(def)
	if err != nil {
		t.Fatal(err)
	}
	if err := source.Check(t.Context(), 200); err != nil {
		return err.Error(), log.String()
	}
	return "", log.String()
}

func keyOf(columns ...string) []feed.KeyColumn {
	var key []feed.KeyColumn
	for _, column := range columns {
		key = append(key, feed.KeyColumn{Name: column})
	}
	return key
}

func testCheckKey(t *testing.T, pg *apptest.PostgresServer) {
	url := pg.CreateDatabase(t)
	mustExecute(t, url, `CREATE TABLE items (id bigint NOT NULL PRIMARY KEY, at timestamp, "Grp" int NOT NULL);
		CREATE VIEW shown AS SELECT * FROM items;
		CREATE TABLE log (at timestamp NOT NULL, n int NOT NULL);
		CREATE UNIQUE INDEX ON log (at) WHERE n > 0;
		CREATE TABLE parts (at timestamp NOT NULL, n int NOT NULL, UNIQUE (n, at)) PARTITION BY RANGE (at);`)
	tests := []struct {
		name, sql string
		key       []feed.KeyColumn
		err, log  string
	}{
		{"primary key", "SELECT * FROM items", keyOf("id"), "", ""},
		{"more than the primary key", "SELECT * FROM items", keyOf("Grp", "id"), "", ""},
		{"nullable", "SELECT * FROM items", keyOf("at", "id"), "ALTER TABLE items ALTER COLUMN at SET NOT NULL", ""},
		{"renamed", `SELECT id, at AS "when" FROM items`, keyOf("when"), "ALTER TABLE items ALTER COLUMN at SET NOT NULL", ""},
		{"not unique", "SELECT * FROM items", keyOf("Grp"), "", "no unique index"},
		{"unique in part", "SELECT * FROM log", keyOf("at"), "", "no unique index"},
		{"expression", "SELECT id + 1 AS next FROM items", keyOf("next"), "", ""},
		{"view", "SELECT * FROM shown", keyOf("at"), "", ""},
		{"partitioned", "SELECT * FROM parts", keyOf("at", "n"), "", ""},
	}
	for _, test := range tests {
		err, log := checkFeed(t, url, feed.Definition{Name: "/test", SQL: test.sql, Key: test.key})
		if (err == "") != (test.err == "") || !strings.Contains(err, test.err) {
			t.Errorf("%s: error %q, want %q", test.name, err, test.err)
		}
		if (log == "") != (test.log == "") || !strings.Contains(log, test.log) {
			t.Errorf("%s: logged %q, want %q", test.name, log, test.log)
		}
	}
}

func testCheckPlans(t *testing.T, pg *apptest.PostgresServer) {
	url := pg.CreateDatabase(t)
	mustExecute(t, url, `CREATE TABLE "Users" (id int PRIMARY KEY, name text NOT NULL, city int NOT NULL);
		CREATE TABLE orders (id int PRIMARY KEY, at timestamp NOT NULL, users_id int NOT NULL, city int NOT NULL, state text NOT NULL);
		CREATE TABLE notes (orders_id int NOT NULL, note text NOT NULL);
		INSERT INTO "Users" SELECT i, 'n' || i, i % 400 FROM generate_series(1, 30000) i;
		INSERT INTO orders SELECT i, '2016-01-01'::timestamp + i * interval '1 s', 1 + i * 7 % 30000, i % 400, CASE i % 10 WHEN 0 THEN 'closed' ELSE 'open' END FROM generate_series(1, 60000) i;
		INSERT INTO notes SELECT i, 'note' FROM generate_series(1, 60000) i;
		CREATE TABLE days (id int NOT NULL, at timestamp NOT NULL, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
		CREATE TABLE day1 PARTITION OF days FOR VALUES FROM ('2016-01-01') TO ('2016-01-02');
		CREATE TABLE day2 PARTITION OF days FOR VALUES FROM ('2016-01-02') TO ('2016-01-03');
		CREATE TABLE hours (at timestamp NOT NULL, id int NOT NULL, n int NOT NULL, PRIMARY KEY (at, id)) PARTITION BY RANGE (at);
		DO $$ BEGIN FOR i IN 0..29 LOOP
			EXECUTE format('CREATE TABLE hour%s PARTITION OF hours FOR VALUES FROM (%L) TO (%L)', i,
				'2016-01-01'::timestamp + i * interval '1 h', '2016-01-01'::timestamp + (i + 1) * interval '1 h');
		END LOOP; END $$;
		INSERT INTO hours SELECT '2016-01-01'::timestamp + i * interval '2 s', i, i % 100 FROM generate_series(1, 50000) i;
		INSERT INTO days SELECT i, '2016-01-01'::timestamp + i * interval '4 s' FROM generate_series(1, 40000) i;
		ANALYZE;`)
	city := []param.Param{{Name: "city", Type: param.Integer}}
	tests := []struct {
		name, sql string
		key       []feed.KeyColumn
		params    []param.Param
		want      string // in the error; "" for none
	}{
		{"key indexed, joined", `SELECT o.id, u.name FROM orders o JOIN "Users" u ON u.id = o.users_id`, keyOf("id"), nil, ""},
		{"key not indexed", `SELECT o.id, o.at FROM orders o`, keyOf("at", "id"), nil, "CREATE INDEX CONCURRENTLY ON orders (at DESC, id DESC)"},
		{"aliased and joined", `SELECT o.id, o.at AS "when", u.name FROM orders o JOIN "Users" u ON u.id = o.users_id`, keyOf("when", "id"), nil, "ON orders (at DESC, id DESC)"},
		{"filter that few rows pass", `SELECT id FROM orders WHERE city = :city`, keyOf("id"), city, "ON orders (city, id DESC)"},
		{"filter that few rows pass, aliased", `SELECT o.id FROM orders AS o WHERE o.city = :city AND o.state = 'open'`, keyOf("id"), city, "ON orders (city, state, id DESC)"},
		{"filter of another kind", `SELECT id FROM orders WHERE city % 400 = :city`, keyOf("id"), city, "few rows meet the other conditions"},
		{"filter that most rows pass", `SELECT id FROM orders WHERE state <> 'closed'`, keyOf("id"), nil, ""},
		{"filter on the other table", `SELECT o.id FROM orders o JOIN "Users" u ON u.id = o.users_id WHERE u.city = :city`, keyOf("id"), city, "conditions on other tables"},
		{"join not indexed", `SELECT o.id, n.note FROM orders o JOIN notes n ON n.orders_id = o.id`, keyOf("id"), nil, "ON notes (orders_id)"},
		{"quoted names", `SELECT u.name, u.id FROM "Users" u`, keyOf("name", "id"), nil, `ON "Users" (name DESC, id DESC)`},
		{"columns of two tables", `SELECT o.at, u.id FROM orders o JOIN "Users" u ON u.id = o.users_id`, keyOf("at", "id"), nil, "columns of one table"},
		{"partitioned", `SELECT id, at FROM days`, keyOf("at", "id"), nil, "CREATE INDEX ON days (at DESC, id DESC)"},
		{"small partitions", `SELECT id, at FROM hours`, keyOf("at", "id"), nil, ""},
		{"small partitions, filtered", `SELECT id, at FROM hours WHERE n <> 7`, keyOf("at", "id"), nil, ""},
		{"small partitions, one row of each", `SELECT id, at FROM hours WHERE n = 7 AND id % 1000 = 7`, keyOf("at", "id"), nil, "hours"},
		{"grouped", `SELECT users_id AS id, count(*) AS n FROM orders GROUP BY users_id`, keyOf("id"), nil, "orders"},
	}
	for _, test := range tests {
		err, _ := checkFeed(t, url, feed.Definition{Name: "/test", SQL: test.sql, Key: test.key, Params: test.params})
		if (err == "") != (test.want == "") || !strings.Contains(err, test.want) {
			t.Errorf("%s: error %q, want %q", test.name, err, test.want)
		}
	}
	// The command in the error is what the feed needs.
	refusal, _ := checkFeed(t, url, feed.Definition{Name: "/test", SQL: tests[3].sql, Key: keyOf("id"), Params: city})
	_, command, _ := strings.Cut(refusal, "feed's order: ")
	if mustExecute(t, url, command); !strings.HasSuffix(command, "ON orders (city, id DESC)") {
		t.Errorf("the command is %q", command)
	}
	if err, _ := checkFeed(t, url, feed.Definition{Name: "/test", SQL: tests[3].sql, Key: keyOf("id"), Params: city}); err != "" {
		t.Errorf("with the index: %s", err)
	}
}

// TestAdviseArray: only an operator that is missing for an array is one that IN has looked for.
func TestAdviseArray(t *testing.T) {
	params := []param.Param{{Name: "n", Type: param.Integer}, {Name: "ids", Type: param.Text, ListMax: 2}}
	for message, want := range map[string]bool{
		"operator does not exist: bigint = text[]": true,
		"operator does not exist: bigint = text":   false, // of = ANY(:ids)
		"function f(bigint) does not exist":        false,
	} {
		err := adviseArray(params, &pgconn.PgError{Code: stateUndefinedFunction, Message: message})
		if got := strings.Contains(err.Error(), "write = ANY(:ids) instead of IN (:ids)"); got != want {
			t.Errorf("%s: %v", message, err)
		}
	}
}
