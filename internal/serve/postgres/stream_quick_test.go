package postgres

import (
	"strings"
	"testing"

	"spillway/internal/database"
	"spillway/internal/serve/stream"
)

// TestStreamQuick: batches of a plain table are quick from the second of a session on, until the table is changed. A batch that is
// repeated is found, and rows that a new trigger drops are not acknowledged.
func TestStreamQuick(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, `CREATE TABLE devices (id bigint PRIMARY KEY); INSERT INTO devices VALUES (1), (2), (3);
		CREATE TABLE t (id bigint REFERENCES devices, note text); CREATE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN IF NEW.id = 3 THEN RETURN NULL; END IF; RETURN NEW; END'`)
	db := open(t, url, database.Pool{Max: 1})
	st := db.Stream(idSchema(t))
	doubt := 0
	commit := func(b *stream.Batch) (quick bool) {
		t.Helper()
		if err := st.Commit(t.Context(), b); err != nil || b.Level != stream.LevelLocal {
			t.Fatalf("level %q, %v", b.Level, err)
		}
		before := doubt
		doubt = doubtOf(t, db, st)
		return doubt < before
	}
	schema := st.schema
	for i, ids := range [][]int{{1}, {1}, {1, 2}, {1, 2}} {
		if quick := commit(newBatch(t, schema, ids...)); quick != (i%2 == 1) {
			t.Errorf("batch %d: quick %t", i, quick)
		}
	}
	again := newBatch(t, schema, 2)
	commit(again)
	commit(again)
	if got, want := storedIDs(t, url), "1,1,1,1,2,2,2"; got != want {
		t.Errorf("stored %s, want %s", got, want)
	}
	for _, test := range []struct{ change, refused string }{
		{"ANALYZE t", ""},
		{"CREATE TRIGGER d BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION drops()", "row-skipped"},
		{"ALTER TABLE t DISABLE TRIGGER d", ""},
		{"DROP TRIGGER d ON t", ""},
		{"DELETE FROM devices WHERE id = 3 AND (SELECT count(*) FROM t WHERE id = 3) = 0", ""},
	} {
		mustExecute(t, url, test.change)
		b := newBatch(t, schema, 3)
		err := st.Commit(t.Context(), b)
		if err != nil { // the table has changed: it is checked again
			b.Reset()
			err = st.Commit(t.Context(), b)
		}
		var reason string
		for _, r := range b.Requests[0].Result.Refused {
			reason = r.Reason
		}
		if err != nil || test.refused == "" && reason != "" || !strings.HasPrefix(reason, test.refused) {
			t.Errorf("%s: refused %q, %v", test.change, reason, err)
		}
	}
}

// doubtOf sums up the doubts of the connection of the last batch.
func doubtOf(t *testing.T, db *DB, st *Stream) (doubt int) {
	t.Helper()
	pooled, err := db.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pooled.Release()
	table, se := st.table.Load(), sessionOf(pooled.Conn().PgConn())
	for _, s := range []*statement{table.quick, table.quickRow} {
		if p, ok := se.prepared.Peek(s.name); ok {
			doubt += p.trusts(s).doubt
		}
	}
	return doubt
}
