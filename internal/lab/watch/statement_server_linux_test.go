package watch

import (
	"context"
	"fmt"
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
	found := map[string]map[string]float64{}
	apptest.AwaitState(t, "the statements are as wanted", func() (string, bool) {
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
		return fmt.Sprint(found), wanted(found)
	})
	return found
}

// TestPostgresStatements has a statement wait for a lock, and another run several times.
func TestPostgresStatements(t *testing.T) {
	t.Parallel()
	url := sharedPostgres.Get(t).CreateDatabase(t)
	admin, waiter := postgresSession(t, url), postgresSession(t, url)
	postgresExec(t, admin, "CREATE EXTENSION pg_stat_statements", "CREATE TABLE things (v text)")
	s := openDatabase(t, url)
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
	began := time.Now()
	for range 3 {
		postgresExec(t, admin, "SELECT pg_sleep(0.05), 'secret'")
	}
	statementsOf(t, s, func(all map[string]map[string]float64) bool {
		for subject, values := range all {
			if strings.HasSuffix(subject, ": SELECT pg_sleep($1), $2") {
				return values["calls_total"] == 3 && values["seconds_total"] > 0.15 && values["seconds_total"] < time.Since(began).Seconds()
			}
		}
		return false
	})
	cancel()
	<-ended
}

// TestMariaDBStatements looks at a statement while it runs, and at what performance_schema counts of it.
func TestMariaDBStatements(t *testing.T) {
	t.Parallel()
	server := apptest.MariaDB(t, "--performance-schema=on")
	runner := mysqlSession(t, server.URL("test"))
	s := openDatabase(t, server.URL("test"))
	if _, err := s.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := runner.ExecContext(ctx, "DO SLEEP(3000), 'secret'")
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
