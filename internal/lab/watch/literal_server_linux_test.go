package watch

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
	"spillway/internal/plans"
)

// quoted are texts that are hard to quote.
func quoted() []string {
	return []string{"", `C:\`, "it's", `a"b`, "a\nb\r", "a$t", `\'`, `\\''\`, "-- x /* */", "$$", "\u00e9"}
}

// hasSubject reports whether a statement is among those of a database.
func hasSubject(all map[string]map[string]float64, text, figure string) bool {
	for subject, values := range all {
		if strings.HasSuffix(subject, ": "+text) && values[figure] > 0 {
			return true
		}
	}
	return false
}

// TestPostgresLiterals runs statements that hold a secret, which no sample may show, and has the server read the strings of quoter.
func TestPostgresLiterals(t *testing.T) {
	t.Parallel()
	url := sharedPostgres.Get(t).CreateDatabase(t)
	admin := postgresSession(t, url)
	postgresExec(t, admin, "CREATE EXTENSION pg_stat_statements", "CREATE ROLE bob")
	quoting := postgresSession(t, url).PgConn()
	for setting, escapes := range map[string]bool{"on": false, "off": true} {
		q := quoter{plans.Postgres, escapes}
		for _, text := range quoted() {
			for _, literal := range append(q.strings(text), q.comments(text)[0]+"''", q.comments(text)[1]+"''", q.comments(text)[2]+"''") {
				results, err := quoting.Exec(t.Context(), "SET standard_conforming_strings = "+setting+"; SET escape_string_warning = off").ReadAll()
				if err == nil {
					results, err = quoting.Exec(t.Context(), "SELECT "+literal).ReadAll()
				}
				comment := strings.IndexAny(literal, "-/") == 0
				if err != nil || string(results[0].Rows[0][0]) != text && !comment {
					t.Fatalf("the server reads %s as %v, %v", literal, results, err)
				}
			}
		}
	}
	s := openDatabase(t, url)
	for sql, want := range map[string]string{
		`SELECT pg_sleep(3000) WHERE 'C:\' <> 'x' AND 'secret' <> ''`: "SELECT pg_sleep(?) WHERE ?…",
		`SELECT pg_sleep(3000), $t$it's secret$t$`:                    "SELECT pg_sleep(?), ?",
		`SELECT pg_sleep(3000) /* a /* b */ it's */, 'secret'`:        "SELECT pg_sleep(?) , ?",
		"SELECT pg_sleep(3000) -- it's\r, 'a\nsecret'":                "SELECT pg_sleep(?) , ?",
		"SELECT E'a'\n'\\'secret', pg_sleep(3000)":                    "SELECT ? ?…",
	} {
		conn := postgresSession(t, url)
		ctx, cancel := context.WithCancel(t.Context())
		session := conn.PgConn().PID()
		ended := make(chan error, 1)
		go func() {
			_, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
			ended <- err
		}()
		statementsOf(t, s, func(all map[string]map[string]float64) bool { return hasSubject(all, want, "active") })
		postgresExec(t, admin, fmt.Sprintf("SELECT pg_terminate_backend(%d)", session)) // also if it has not begun
		<-ended
		cancel()
	}
	postgresExec(t, admin, `ALTER ROLE bob PASSWORD $pw$secret'x$pw$`)
	statementsOf(t, s, func(all map[string]map[string]float64) bool {
		return hasSubject(all, "ALTER ROLE bob PASSWORD ?", "calls_total")
	})
}

// TestMariaDBLiterals runs statements that hold a secret, which no sample may show, and has the server read the strings of quoter.
func TestMariaDBLiterals(t *testing.T) {
	t.Parallel()
	server := apptest.MariaDB(t)
	s := openDatabase(t, server.URL("test"))
	admin := mysqlSession(t, server.URL("test"))
	for _, mode := range []string{"", "NO_BACKSLASH_ESCAPES"} {
		mysqlExec(t, admin, "SET SESSION sql_mode = '"+mode+"'")
		q := quoter{plans.MySQL, mode == ""}
		for _, text := range quoted() {
			for _, literal := range append(q.strings(text), q.comments(text)[0]+"''", q.comments(text)[1]+"''", q.comments(text)[3]+"''") {
				var got string
				comment := strings.IndexAny(literal, "#-/") == 0
				if err := admin.QueryRowContext(t.Context(), "SELECT "+literal).Scan(&got); err != nil || got != text && !comment {
					t.Fatalf("the server reads %s as %q, %v", literal, got, err)
				}
			}
		}
	}
	for _, one := range []struct{ mode, sql, want string }{
		{"NO_BACKSLASH_ESCAPES", `SELECT SLEEP(3000), 'C:\' <> 'secret'`, "SELECT SLEEP(?), ?…"},
		{"", `SELECT SLEEP(3000), 'it\'s secret'`, "SELECT SLEEP(?), ?…"},
		{"", "SELECT SLEEP(3000) # it's\n, 'secret'", "SELECT SLEEP(?) , ?"},
		{"", "SELECT SLEEP(3000), 5--1, '\n', 'secret'", "SELECT SLEEP(?), ?--?, ?, ?"},
		{"", "SELECT SLEEP(3000) /*! , 'a */ b', 'secret' */", "SELECT SLEEP(?) ?…"},
		{"ANSI_QUOTES", `SELECT SLEEP(3000) AS "a\", 'secret'`, "SELECT SLEEP(?) AS ?…"},
	} {
		testMariaDBRunning(t, server.URL("test"), s, admin, one.mode, one.sql, one.want)
	}
}

// testMariaDBRunning runs a statement until a reading shows it as wanted.
func testMariaDBRunning(t *testing.T, url string, s *Sampler, admin *sql.Conn, mode, text, want string) {
	t.Helper()
	runner := mysqlSession(t, url)
	var id string
	if err := runner.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id); err != nil {
		t.Fatal(err)
	}
	mysqlExec(t, runner, "SET SESSION sql_mode = '"+mode+"'")
	ended := make(chan error, 1)
	go func() {
		_, err := runner.ExecContext(t.Context(), text)
		ended <- err
	}()
	statementsOf(t, s, func(all map[string]map[string]float64) bool { return hasSubject(all, want, "active") })
	mysqlExec(t, admin, "KILL QUERY "+id)
	<-ended
}
