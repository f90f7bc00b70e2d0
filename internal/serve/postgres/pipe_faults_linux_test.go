//go:build linux && !portable

package postgres

import (
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// TestLoopRows: an execution that is run again has its rows once.
func TestLoopRows(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	db, loop := open(t, url, database.Pool{Max: 6, StatementTimeout: time.Hour}), startLoop(t)
	mustExecute(t, url, `CREATE TABLE t (a int, id int, pad text);
		INSERT INTO t SELECT a, i, repeat('x', 1000) FROM generate_series(0, 9) AS a(a), generate_series(1, 30) AS s(i);
		CREATE FUNCTION pause(a int, id int) RETURNS int STABLE LANGUAGE plpgsql AS
		$$ BEGIN IF a = 7 AND id = 30 THEN PERFORM pg_sleep(0.3); END IF; RETURN id; END $$`)
	s := loopSource(t, db, feed.Definition{
		Name: "/slow", SQL: "SELECT pause(a, id) AS id, pad FROM t WHERE a = :a ORDER BY t.id", Params: []param.Param{{Name: "a", Type: param.Integer}},
	})
	for range 200 {
		if got, err := inLoop(t, loop, s, wide, "1"); strings.Count(got, `"id"`) != 30 || err != nil {
			t.Fatal(got, err)
		}
	}
	reads := begin(t, loop, s, wide, []string{"1"}, []string{"7"}, []string{"2"}, []string{"3"})
	for i, r := range reads {
		err := apptest.Receive(t, "an answer", r.done)
		t.Log(i, err, strings.Count(string(r.Rows.Data), `"id"`))
		if n := strings.Count(string(r.Rows.Data), `"id"`); err == nil && n != 30 {
			t.Errorf("%v: %d rows, %v", r.Args, n, err)
		}
	}
}
