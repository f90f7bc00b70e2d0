package sqlite_test

import (
	"context"
	"flag"
	"path/filepath"
	"slices"
	"testing"

	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/sqlite"
	"spillway/internal/serve/storetest"
	"spillway/internal/serve/stream"
)

// exactColumns has a type of a column for every affinity.
func exactColumns() []storetest.ExactColumn {
	numbers := []stream.Type{stream.Integer, stream.Real, stream.Boolean}
	texts := []stream.Type{
		stream.Text, stream.Integer, stream.Decimal, stream.JSON, stream.Timestamp, stream.Date, stream.Time, stream.UUID,
	}
	others := []stream.Type{
		stream.Integer, stream.Real, stream.Decimal, stream.Boolean, stream.Timestamp, stream.Date, stream.Time, stream.UUID,
	}
	all := append([]stream.Type{stream.Text, stream.Bytes, stream.JSON}, others...)
	json, text := []stream.Type{stream.JSON}, []stream.Type{stream.Text, stream.JSON}
	narrow := append([]stream.Type{stream.Decimal}, others[3:]...)
	list := []storetest.ExactColumn{
		{SQL: "INTEGER", Types: numbers},
		{SQL: "UNSIGNED BIG INT", Types: numbers},
		{SQL: "INTEGER", Table: " STRICT", Types: numbers},
		{SQL: "REAL", Types: []stream.Type{stream.Integer, stream.Real}, Refused: []string{"9007199254740993", `"NaN"`, "true"}},
		{SQL: "DOUBLE PRECISION", Types: []stream.Type{stream.Real, stream.Integer}},
		{SQL: "TEXT", Types: texts},
		{SQL: "VARCHAR(5)", Types: texts},
		{SQL: "TEXT", Table: " STRICT", Types: texts},
		{SQL: "TEXT COLLATE NOCASE", Types: texts, Unkeyed: text},
		{SQL: "TEXT COLLATE RTRIM", Types: texts, Unkeyed: text},
		{SQL: "JSON", Types: append(json, others...), Unkeyed: json},
		{SQL: "BOOLEAN", Types: append([]stream.Type{stream.Integer}, others[3:]...)},
		{SQL: "STRING", Types: others},
		{SQL: "NUMERIC(15)", Types: others},
		{SQL: "DATETIME", Types: others},
		{SQL: "ANY", Types: others},
		{SQL: "DECIMAL(20,2)", Types: append(narrow, stream.Integer), Refused: []string{"9223372036854775809", "12345678901234567.89"}},
		{SQL: "BLOB", Types: all, Hex: "hex(v)"},
		{SQL: "", Types: all, Hex: "hex(v)"},
		{SQL: "ANY", Table: " STRICT", Types: all, Hex: "hex(v)"},
		{SQL: "BLOB", Table: " STRICT", Types: []stream.Type{stream.Bytes}, Hex: "hex(v)"},
	}
	for i := range list {
		if slices.Contains(list[i].Types, stream.Text) { // a feed writes JSON in a column of texts as a text
			list[i].Returns = map[stream.Type]stream.Type{stream.JSON: stream.Text}
		}
	}
	return list
}

// Values of exact pairs of types come back as they were sent, and all other pairs are refused.
func TestStreamPairs(t *testing.T) {
	t.Parallel()
	values := 200_000
	if testing.Short() {
		values = 4000
	}
	file := filepath.Join(t.TempDir(), "pairs.db")
	db := openFile(t, file, database.Pool{})
	writer := openWriter(t, file)
	storetest.StreamPairs(t, storetest.StreamBackend{
		Open: func(testing.TB, database.Pool) storetest.StreamDB {
			return storetest.StreamDB{
				Sink:  func(t testing.TB, schema *stream.Schema) stream.Sink { return streamSink(t, db, schema) },
				Exec:  func(_ context.Context, sql string) error { return sqlitex.ExecuteTransient(writer, sql, nil) },
				Rows:  func(_ context.Context, sql string) ([][]string, error) { return streamRows(writer, sql) },
				Feeds: []func(feed.Definition) (feed.Source, error){db.Source},
			}
		},
		Types:   map[stream.Type]string{stream.Integer: "INTEGER"},
		Special: true, Loose: true,
	}, exactColumns(), values)
}

var update = flag.Bool("update", false, "write the table of pairs into the document")

func TestPairsDocumented(t *testing.T) {
	t.Parallel()
	storetest.PairsDocumented(t, "SQLite", sqlite.Pairs(), *update)
}
