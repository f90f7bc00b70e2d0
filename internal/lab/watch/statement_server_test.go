package watch

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
)

// statementsOf reads a database until the statements are as wanted, and returns their samples by subject.
func statementsOf(t *testing.T, s *Sampler, wanted func(map[string]map[string]float64) bool) map[string]map[string]float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	found := map[string]map[string]float64{}
	for {
		samples, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		clear(found)
		for _, sample := range samples {
			if sample.Sampler != result.SamplerStatement {
				continue
			}
			if strings.Contains(sample.Subject, "secret") {
				t.Fatalf("the sample %q has a literal", sample.Subject)
			}
			if found[sample.Subject] == nil {
				found[sample.Subject] = map[string]float64{}
			}
			for name, v := range sample.Values {
				found[sample.Subject][name] = v
			}
		}
		if wanted(found) {
			return found
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the statements are %v", found)
		case <-poll.C:
		}
	}
}

// TestPostgresStatements has a statement wait for a lock, and another run several times.
func TestPostgresStatements(t *testing.T) {
	pg := apptest.Postgres(t, "shared_preload_libraries=pg_stat_statements")
	admin, waiter := postgresSession(t, pg.URL("postgres")), postgresSession(t, pg.URL("postgres"))
	postgresExec(t, admin, "CREATE EXTENSION pg_stat_statements", "CREATE TABLE things (v text)")
	s := openDatabase(t, pg.URL("postgres"))
	if _, err := s.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	postgresExec(t, admin, "BEGIN", "LOCK TABLE things")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := waiter.Exec(ctx, "SELECT v FROM things WHERE v = 'secret'", pgx.QueryExecModeSimpleProtocol)
		ended <- err
	}()
	const waiting = "SELECT v FROM things WHERE v = ?"
	found := statementsOf(t, s, func(all map[string]map[string]float64) bool {
		for subject, values := range all {
			if strings.HasSuffix(subject, ": "+waiting) && values["active"] == 1 && values["waiting_lock"] == 1 {
				return true
			}
		}
		return false
	})
	if len(found) == 0 {
		t.Error("no statement")
	}
	for range 3 {
		postgresExec(t, admin, "SELECT pg_sleep(0.05), 'secret'")
	}
	statementsOf(t, s, func(all map[string]map[string]float64) bool {
		for subject, values := range all {
			if strings.HasSuffix(subject, ": SELECT pg_sleep($1), $2") {
				return values["calls_total"] == 3 && values["seconds_total"] > 0.15 && values["seconds_total"] < 60
			}
		}
		return false
	})
	cancel()
	<-ended
}

// TestMariaDBStatements looks at a statement while it runs, and at what performance_schema counts of it.
func TestMariaDBStatements(t *testing.T) {
	server := apptest.MariaDB(t, "--performance-schema=on")
	runner := mysqlSession(t, server.URL("test"))
	s := openDatabase(t, server.URL("test"))
	if _, err := s.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := runner.ExecContext(ctx, "DO SLEEP(30), 'secret'")
		ended <- err
	}()
	statementsOf(t, s, func(all map[string]map[string]float64) bool {
		for subject, values := range all {
			if strings.HasSuffix(subject, ": DO SLEEP(?), ?") && values["active"] == 1 {
				return true
			}
		}
		return false
	})
	cancel()
	<-ended
}
