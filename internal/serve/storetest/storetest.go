// Package storetest is the conformance suite of the database adapters. Every adapter
// passes the same tests on the real database. An adapter's test fills a Backend and calls
// Feed. The tests of the built program use its Database and FillSpool.
//
// The suite writes SQL that PostgreSQL, MySQL, MariaDB and SQLite accept; Backend holds
// the differences. It opens a fresh database for each test and expects no goroutine to remain.
package storetest

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// Backend is the database under test.
type Backend struct {
	// Open opens a new, empty database through the adapter, with the
	// given bounds over the defaults. It registers the clean-up with t.
	Open func(t testing.TB, pool database.Pool) DB
	// Types is the column type for each kind of value. Kinds without a type are left out.
	// Integer, Real and Text are required.
	Types map[Kind]string
	// Bytes writes a literal of Types[Bytes]; nil leaves the kind out.
	Bytes func(b []byte) string
	// Slow is a statement over the table items that returns ids and takes far longer than
	// any test waits. Empty: a recursion of a thousand million steps, which some databases
	// cut short.
	Slow string
	// JSON returns how the adapter writes a value of a kind for which the suite expects
	// want. Nil: as expected.
	JSON func(kind Kind, want string) string
	// Pooled: a pooler that loses prepared statements and session state is in between. With
	// go test -short only the tests that it can break run.
	Pooled bool
}

// DB is one open database.
type DB struct {
	Source  func(def feed.Definition) (feed.Source, error)
	InList  string                                      // compares with the values of the parameter list: IN (:list)
	Exec    func(ctx context.Context, sql string) error // one statement, on a connection that is not the adapter's
	Restart func() error                                // restarts the server; nil: there is no server
}

// Kind is a kind of column that databases share.
type Kind string

// The kinds of columns.
const (
	Integer     Kind = "integer" // of 64 bits
	Real        Kind = "real"    // of 64 bits
	Decimal     Kind = "decimal" // exact, at least 20 digits before and 6 behind the point
	Boolean     Kind = "boolean"
	Text        Kind = "text" // ordered by its bytes
	Timestamp   Kind = "timestamp"
	TimestampTZ Kind = "timestamp with time zone"
	Date        Kind = "date"
	Bytes       Kind = "bytes"
	JSON        Kind = "json"
	UUID        Kind = "uuid"
)

// Feed tests the adapter's feed.Source, for feeds and for queries.
func Feed(t *testing.T, b Backend) {
	runParts(t, b, b.Pooled, []part[Backend]{
		{"Order", testOrder, keeps},
		{"Append", testAppend, keeps},
		{"NullKeys", testNullKeys, keeps},
		{"Types", testTypes, breaks},
		{"Params", testParams, breaks},
		{"Lists", testLists, breaks},
		{"Filters", testFilters, keeps},
		{"FilterValues", testFilterValues, keeps},
		{"FilterBytes", testFilterBytes, keeps},
		{"OptionalPlan", testOptionalPlan, keeps},
		{"ParamsQuoted", testParamsQuoted, keeps},
		{"Definition", testDefinition, keeps},
		{"NullKey", testNullKey, keeps},
		{"RejectedValue", testRejectedValue, breaks},
		{"ForgedKey", testForgedKey, keeps},
		{"Changes", testChanges, keeps},
		{"Timeout", testTimeout, breaks},
		{"Cancel", testCancel, breaks},
		{"Concurrent", testConcurrent, breaks},
		{"Restart", testRestart, breaks},
		{"Check", testCheck, keeps},
	})
}

// part is a test of a suite.
type part[B any] struct {
	name   string
	run    func(t *testing.T, b B)
	pooler effect
}

// effect is what a pooler that loses prepared statements and session state does to a test.
type effect bool

const (
	keeps  effect = false // it cannot matter
	breaks effect = true  // it can break it
)

// runParts runs the tests of a suite, with a pooler and -short only those that it can break.
func runParts[B any](t *testing.T, b B, pooled bool, parts []part[B]) {
	t.Helper()
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			if pooled && p.pooler == keeps {
				apptest.Long(t)
			}
			p.run(t, b)
		})
	}
}

// patient returns pool without a bound that a slow machine could meet, unless the test has
// set it.
func patient(pool database.Pool) database.Pool {
	for _, bound := range []*time.Duration{&pool.ConnectTimeout, &pool.AcquireTimeout, &pool.StatementTimeout} {
		*bound = cmp.Or(*bound, patience)
	}
	return pool
}

// patience bounds every call of the suite that should succeed. It is long, so that only a
// call that hangs exceeds it.
const patience = 5 * time.Minute

// open opens a fresh database with a table named items:
// (id, grp, name, score), id being the primary key.
func (b Backend) open(t testing.TB, pool database.Pool) DB {
	t.Helper()
	db := b.Open(t, patient(pool))
	db.exec(t, fmt.Sprintf("CREATE TABLE items (id %s NOT NULL PRIMARY KEY, grp %s NOT NULL, name %s NOT NULL, score %s NOT NULL)",
		b.Types[Integer], b.Types[Integer], b.Types[Text], b.Types[Real]))
	return db
}

func (db DB) exec(t testing.TB, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := db.Exec(ctx, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// source returns the source of a feed whose definition is right.
func (db DB) source(t testing.TB, def feed.Definition) feed.Source {
	t.Helper()
	source, err := db.Source(def)
	if err != nil {
		t.Fatalf("feed %s: %v", def.SQL, err)
	}
	return source
}

// definition is a feed over the statement ordered by columns, each with "asc"
// behind it or not.
func definition(sql string, columns ...string) feed.Definition {
	def := feed.Definition{Name: "/test", SQL: sql}
	for _, column := range columns {
		name, ascending := strings.CutSuffix(column, " asc")
		def.Key = append(def.Key, feed.KeyColumn{Name: name, Ascending: ascending})
	}
	return def
}

// read returns the rows of r.
func read(t testing.TB, source feed.Source, r feed.Range) *feed.Rows {
	t.Helper()
	rows, err := tryRead(t, source, r)
	if err != nil {
		t.Fatalf("read %+v: %v", r, err)
	}
	return rows
}

func tryRead(t testing.TB, source feed.Source, r feed.Range) (*feed.Rows, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var rows feed.Rows
	err := source.Read(ctx, r, &rows)
	return &rows, err
}

// fillItems inserts items 1 to n into groups of about size rows. The ids are not in the
// order of the groups.
func fillItems(t testing.TB, db DB, n, size int) {
	t.Helper()
	const batch = 500
	for start := 1; start <= n; start += batch {
		var values []string
		for id := start; id < min(start+batch, n+1); id++ {
			values = append(values, fmt.Sprintf("(%d, %d, 'name %d', %d.5)", id, id%(n/size+1), id%7, id%11))
		}
		db.exec(t, "INSERT INTO items (id, grp, name, score) VALUES "+strings.Join(values, ", "))
	}
}

// testCheck checks feeds over a large table with and without the index that they need, and
// over small ones.
func testCheck(t *testing.T, b Backend) {
	db := b.open(t, database.Pool{})
	check := func(name string, def feed.Definition, want ...string) {
		t.Helper()
		err := db.source(t, def).Check(t.Context(), 200)
		if len(want) == 0 {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			return
		}
		if err == nil {
			t.Errorf("%s: no error", name)
			return
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: error %q does not say %q", name, err, part)
			}
		}
	}
	byID := definition(selectItems, "id")
	byGroup := definition(selectItems, "grp", "id")
	joined := definition("SELECT items.id, items.grp, g.name AS label FROM items JOIN labels g ON g.id = items.grp", "grp", "id")
	db.exec(t, "CREATE TABLE labels (id "+b.Types[Integer]+" NOT NULL PRIMARY KEY, name "+b.Types[Text]+" NOT NULL)")

	check("empty table, key indexed", byID)
	check("empty table, key not indexed", byGroup)
	fillItems(t, db, 20000, 40)
	db.exec(t, "INSERT INTO labels SELECT DISTINCT grp, 'label' FROM items")
	check("large table, key indexed", byID)
	check("large table, key not indexed", byGroup, "items", "CREATE INDEX", "(grp DESC, id DESC)")
	check("large table joined, key not indexed", joined, "items", "CREATE INDEX", "(grp DESC, id DESC)")
	check("large table, first column ascending", definition(selectItems, "grp asc", "id"), "items", "CREATE INDEX", "(grp, id DESC)")
	db.exec(t, "CREATE INDEX items_by_group ON items (grp DESC, id DESC)")
	check("large table, index added", byGroup)
	filtered := byGroup
	filtered.Params = []param.Param{param.Filter("score", param.Real)}
	if db.Restart != nil { // SQLite does not estimate how many rows have a value
		check("large table, filter not indexed", filtered, "with the filter score", "CREATE INDEX", "(score, grp DESC, id DESC)")
	}
	db.exec(t, "CREATE INDEX items_by_score ON items (score, grp DESC, id DESC)")
	check("large table, filter indexed", filtered)
	listed := definition(selectItems+" WHERE grp = :grp AND score "+db.InList, "id")
	listed.Params = []param.Param{{Name: "grp", Type: param.Integer}, {Name: "list", Type: param.Real, ListMax: 100}}
	check("large table, list among few rows", listed)
}

// QueryAllocs tests that a query of one row allocates at most so often per execution.
func QueryAllocs(t *testing.T, source feed.Source, args []string, most float64) {
	t.Helper()
	allocs := testing.AllocsPerRun(200, func() {
		rows := feed.Rows{Limit: feed.Limit{Rows: 1, Bytes: 1000}}
		if err := source.Read(t.Context(), feed.Range{Args: args}, &rows); err != nil || rows.Len() != 1 {
			t.Fatalf("%d rows, error %v", rows.Len(), err)
		}
	})
	if allocs > most {
		t.Errorf("a query of one row allocates %v times, want at most %v times", allocs, most)
	}
}
