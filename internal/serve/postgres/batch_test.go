package postgres

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// batchTables are what the statements of these tests read.
const batchTables = `
	CREATE TABLE items (id int PRIMARY KEY, grp int, name text COLLATE "C", price numeric(12,2), at timestamptz(3), tags text[], doc jsonb, f float4);
	INSERT INTO items SELECT i, i % 97, 'name ' || i % 50, i / 7.0, '2020-01-01'::timestamptz + i * interval '1.337 s', ARRAY['a', NULL, i::text],
		jsonb_build_object('i', i), i / 3.0 FROM generate_series(1, 5000) i;
	CREATE INDEX ON items (grp, id);
	CREATE VIEW noted AS SELECT id, nextval('notes') AS note FROM items;
	CREATE FUNCTION secret(bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN $1; END';
	CREATE FUNCTION steady(bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS 'BEGIN RETURN $1 + 1; END';`

func batchSource(t testing.TB, db *DB, sql string, params ...param.Param) *source {
	t.Helper()
	s, err := db.source(feed.Definition{Name: "/q", SQL: sql, Params: params})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return s
}

func testBatch(t *testing.T, pg *apptest.PostgresServer) {
	url := pg.CreateDatabase(t)
	mustExecute(t, url, "CREATE SEQUENCE notes")
	mustExecute(t, url, batchTables)
	mustExecute(t, url, "VACUUM ANALYZE items")
	db := open(t, url, database.Pool{})
	t.Run("forms", func(t *testing.T) { testBatchForms(t, db) })
	t.Run("same answers", func(t *testing.T) { testBatchAnswers(t, db) })
}

var (
	batchID   = param.Param{Name: "id", Type: param.Integer}
	batchName = param.Param{Name: "name", Type: param.Text}
	batchRaw  = param.Param{Name: "raw", Type: param.Bytes}
)

// testBatchForms: what is not known to be harmless runs alone, and so does what has another plan in a batch.
func testBatchForms(t *testing.T, db *DB) {
	list := param.Param{Name: "ids", Type: param.Integer, ListMax: 9}
	for _, test := range []struct {
		sql    string
		params []param.Param
		want   bool
	}{
		{"SELECT * FROM items WHERE id = :id", []param.Param{batchID}, true},
		{"SELECT id, steady(id) FROM items WHERE id = :id", []param.Param{batchID}, true},
		{"SELECT id FROM items WHERE grp = :id ORDER BY id DESC LIMIT 5", []param.Param{batchID}, true},
		{"SELECT ':id' AS a, $$:id$$ AS b, /* :id */ :id AS c", []param.Param{batchID}, true},
		{"SELECT id FROM items ORDER BY id LIMIT :id", []param.Param{batchID}, true},
		{"SELECT count(:id) AS n FROM items", []param.Param{batchID}, false},
		{"SELECT id AS spillway_row FROM items WHERE id = :id", []param.Param{batchID}, false},
		{"SELECT id FROM items WHERE id = :id FOR UPDATE", []param.Param{batchID}, false},
		{"SELECT note FROM noted WHERE id = :id", []param.Param{batchID}, false},
		{"SELECT nextval('notes') AS n WHERE :id > 0", []param.Param{batchID}, false},
		{"SELECT secret(id) AS n FROM items WHERE id = :id", []param.Param{batchID}, false},
		{"SELECT id FROM items WHERE secret(id) = :id", []param.Param{batchID}, false},
		{"SELECT id FROM items WHERE id IN (SELECT secret(:id))", []param.Param{batchID}, false},
		{"SELECT id FROM items ORDER BY secret(id + :id) LIMIT 1", []param.Param{batchID}, false},
		{"SELECT x.n FROM secret(:id) AS x(n)", []param.Param{batchID}, false},
		{"SELECT pg_sleep(:id)::text AS t", []param.Param{batchID}, false},
		{"WITH gone AS (DELETE FROM items WHERE id = -:id RETURNING id) SELECT id FROM gone", []param.Param{batchID}, false},
		{"SELECT id FROM items WHERE id = ANY (:ids)", []param.Param{list}, false},
		{"SELECT id FROM items LIMIT 3", nil, false},
	} {
		if got := batchSource(t, db, test.sql, test.params...).Batches(); got != test.want {
			t.Errorf("%s: together %v, want %v", test.sql, got, test.want)
		}
	}
}

// testBatchAnswers: a batch answers as single executions do, byte for byte. If one of them fails, the batch does.
func testBatchAnswers(t *testing.T, db *DB) {
	var queries []*source
	for _, q := range []struct {
		sql    string
		params []param.Param
	}{
		{"SELECT * FROM items WHERE id = :id", []param.Param{batchID}},
		{"SELECT * FROM items WHERE grp = :id AND name < :name ORDER BY id DESC LIMIT 5", []param.Param{batchID, batchName}},
		{"SELECT count(*) AS n, max(price) AS most, array_agg(f) AS f FROM items WHERE grp = :id", []param.Param{batchID}},
		{"SELECT grp, sum(price) AS total FROM items WHERE grp BETWEEN :id AND :id + 3 GROUP BY grp ORDER BY 2 DESC, 1", []param.Param{batchID}},
		{"SELECT id, 100 / (id - :id) AS q FROM items WHERE grp = 1 ORDER BY id LIMIT 3", []param.Param{batchID}},
		{"SELECT :name AS name, ':name' AS text, length(:name) AS n", []param.Param{batchName}},
		{
			"SELECT a.id, b.id AS other FROM items a JOIN items b ON b.grp = a.grp AND b.id > a.id WHERE a.id = :id ORDER BY b.id LIMIT 4",
			[]param.Param{batchID},
		},
		{
			"WITH w AS (SELECT id FROM items WHERE grp = :id) SELECT id FROM w WHERE id > :id UNION ALL SELECT 7 ORDER BY 1 LIMIT 6",
			[]param.Param{batchID},
		},
		{"SELECT id FROM items WHERE name = :name ORDER BY id", []param.Param{batchName}},
		{"SELECT :raw AS raw, length(:raw) AS n", []param.Param{batchRaw}},
	} {
		if s := batchSource(t, db, q.sql, q.params...); s.Batches() {
			queries = append(queries, s)
		} else {
			t.Errorf("%s: its executions run alone", q.sql)
		}
	}
	id := rapid.OneOf(rapid.Int64Range(-2, 200), rapid.Int64())
	name := rapid.OneOf(rapid.SampledFrom([]string{"", "name 7", `a"b\c{},`, "NULL", " x ", "é\n", param.Absent}), rapid.StringMatching("name [0-9]{1,2}"))
	rapid.Check(t, func(rt *rapid.T) {
		s := queries[rapid.IntRange(0, len(queries)-1).Draw(rt, "query")]
		args := make([][]string, rapid.IntRange(2, 12).Draw(rt, "size"))
		limit := feed.Limit{Rows: rapid.SampledFrom([]int{3, 1000}).Draw(rt, "rows"), Bytes: 1 << 20}
		for i := range args {
			for _, p := range s.def.Params {
				arg := fmt.Sprint(id.Draw(rt, "id"))
				switch p.Type {
				case param.Text:
					arg = name.Draw(rt, "name")
				case param.Bytes:
					arg = rapid.SampledFrom([]string{"", "AAEC", "XA==", param.Absent}).Draw(rt, "raw")
				}
				args[i] = append(args[i], arg)
			}
		}
		compareBatch(rt, s, args, limit)
	})
}

func compareBatch(rt *rapid.T, s *source, args [][]string, limit feed.Limit) {
	got, want := make([]feed.Rows, len(args)), make([]feed.Rows, len(args))
	failed := false
	for i := range args {
		got[i].Limit, want[i].Limit = limit, limit
		failed = s.Read(rt.Context(), feed.Range{Args: args[i]}, &want[i]) != nil || failed
	}
	err := s.ReadBatch(rt.Context(), args, got)
	if (err != nil) != failed {
		rt.Fatalf("%s of %q: the batch failed: %v, an execution alone: %v", s.def.SQL, args, err, failed)
	}
	for i := range args {
		if err == nil && (string(got[i].Data) != string(want[i].Data) || got[i].Len() != want[i].Len()) {
			rt.Fatalf("%s of %q: %s; alone %s", s.def.SQL, args[i], got[i].Data, want[i].Data)
		}
	}
}
