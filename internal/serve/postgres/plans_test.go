package postgres

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/storetest"
)

// TestPlans compares the check at start with EXPLAIN ANALYZE of the generic plan, which the server uses after
// five executions.
func TestPlans(t *testing.T) {
	t.Parallel()
	pg := apptest.Postgres(t, "fsync=off")
	url := pg.CreateDatabase(t)
	parsed, err := database.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	log := &storetest.PlanLog{}
	db, err := Open(t.Context(), parsed, patient(database.Pool{}), slog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	run := func(t *testing.T, sql string) []byte {
		t.Helper()
		results, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
		if err != nil {
			t.Fatalf("%.200s: %v", sql, err)
		}
		if rows := results[len(results)-1].Rows; len(rows) > 0 {
			return rows[0][0]
		}
		return nil
	}
	run(t, "SET plan_cache_mode = force_generic_plan")
	storetest.Plans(t, storetest.PlanBackend{
		Name: "PostgreSQL", InList: "= ANY(:list)", Analyze: "VACUUM ANALYZE %s", DropIndex: "DROP index INDEX",
		Exec: func(t *testing.T, sql string) { t.Helper(); run(t, sql) },
		Source: func(t *testing.T, def feed.Definition) feed.Source {
			t.Helper()
			s, err := db.source(def)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Judged: log.Judged,
		Reads: func(t *testing.T, from feed.Source, r feed.Range) float64 {
			t.Helper()
			return readsOf(t, run, from.(*source), r)
		},
	}, *update)
}

// readsOf returns how many rows of tables the statement for r reads.
func readsOf(t *testing.T, run func(*testing.T, string) []byte, s *source, r feed.Range) float64 {
	t.Helper()
	values, err := s.arguments(r)
	if err != nil {
		t.Fatal(err)
	}
	var literals []string
	for _, v := range values {
		literals = append(literals, "'"+strings.ReplaceAll(string(v), "'", "''")+"'")
	}
	run(t, "PREPARE tried AS "+s.statement(s.shape(r, false)).sql)
	document := run(t, fmt.Sprintf("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE tried (%s)", strings.Join(literals, ", ")))
	run(t, "DEALLOCATE tried")
	var explained []struct{ Plan planNode }
	if err := json.Unmarshal(document, &explained); err != nil {
		t.Fatal(err)
	}
	return explained[0].Plan.reads()
}

type planNode struct {
	Relation  string     `json:"Relation Name"`
	Rows      float64    `json:"Actual Rows"`
	Loops     float64    `json:"Actual Loops"`
	Removed   float64    `json:"Rows Removed by Filter"`
	Rechecked float64    `json:"Rows Removed by Index Recheck"`
	Plans     []planNode `json:"Plans"`
}

// reads returns the rows of tables that the plan has read.
func (n planNode) reads() (rows float64) {
	if n.Relation != "" {
		rows = (n.Rows + n.Removed + n.Rechecked) * n.Loops
	}
	for _, child := range n.Plans {
		rows += child.reads()
	}
	return rows
}
