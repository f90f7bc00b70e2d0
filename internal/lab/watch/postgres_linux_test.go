package watch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
)

// postgresSession returns a session that is closed when the test ends.
func postgresSession(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func postgresExec(t testing.TB, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// sharedPostgres is the server of the tests that look at statements.
var sharedPostgres = apptest.Shared[*apptest.PostgresServer]{Start: func() (*apptest.PostgresServer, error) {
	return apptest.StartPostgres("shared_preload_libraries=pg_stat_statements")
}}

const (
	postgresNames = `connections connections_limit connections_active connections_idle connections_idle_in_transaction
wait_cpu wait_lock wait_lwlock wait_io wait_client wait_ipc wait_buffer_pin wait_timeout wait_extension wait_wal
commits_total rollbacks_total blocks_read_total blocks_hit_total rows_inserted_total rows_fetched_total temp_bytes_total deadlocks_total
wal_bytes_total wal_records_total wal_writes_total fsyncs_total`
	postgresStatementNames = postgresNames + " statements_total plans_total"
)

func TestPostgres(t *testing.T) {
	t.Parallel()
	pg := apptest.Postgres(t, "autovacuum=off", "shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track_planning=on", "max_connections=37")
	admin := postgresSession(t, pg.URL("postgres"))
	postgresExec(t, admin, "CREATE TABLE things (id bigserial, v int)", "CREATE ROLE weak LOGIN PASSWORD 's3cret'", "GRANT ALL ON things TO weak")
	t.Run("names", func(t *testing.T) {
		databaseNames(t, databaseValues(t, openDatabase(t, pg.URL("postgres"))), postgresNames)
	})
	postgresExec(t, admin, "CREATE SCHEMA \"odd schema\"", "CREATE EXTENSION pg_stat_statements SCHEMA \"odd schema\"")
	t.Run("names with statements", func(t *testing.T) {
		values := databaseValues(t, openDatabase(t, pg.URL("postgres")))
		databaseNames(t, values, postgresStatementNames)
		if values["connections_limit"] != 37 {
			t.Errorf("connections_limit = %g, want 37", values["connections_limit"])
		}
	})
	t.Run("counts", func(t *testing.T) { testPostgresCounts(t, pg) })
	t.Run("sessions", func(t *testing.T) { testPostgresSessions(t, pg) })
	t.Run("rights", func(t *testing.T) { testPostgresRights(t, pg, admin) })
	t.Run("outage", func(t *testing.T) {
		s := openDatabase(t, strings.Replace(pg.URL("postgres"), "postgres@", "postgres:s3cret@", 1))
		databaseOutage(t, s, pg.Server)
	})
}

// testPostgresCounts compares counters with what a session did.
func testPostgresCounts(t *testing.T, pg *apptest.PostgresServer) {
	const inserts, rollbacks = 200, 10
	s := openDatabase(t, pg.URL("postgres"))
	before := databaseValues(t, s)
	for range 50 { // the watch does not count its own statements
		databaseValues(t, s)
	}
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	for range inserts {
		postgresExec(t, conn, "INSERT INTO things (v) VALUES (1)")
	}
	for range rollbacks {
		postgresExec(t, conn, "BEGIN; INSERT INTO things (v) VALUES (1); ROLLBACK")
	}
	if err := conn.Close(t.Context()); err != nil { // which adds what it has not added yet
		t.Fatal(err)
	}
	grown := func(after map[string]float64, name string) float64 { return after[name] - before[name] }
	after := awaitDatabase(t, s, "commits and rollbacks are counted", func(v map[string]float64) bool {
		return grown(v, "commits_total") >= inserts && grown(v, "rollbacks_total") >= rollbacks
	})
	for name, want := range map[string]float64{
		"commits_total": inserts, "rollbacks_total": rollbacks, "rows_inserted_total": inserts + rollbacks,
		"statements_total": inserts + 3*rollbacks,
	} {
		got := grown(after, name)
		t.Logf("%s grew by %g, %g were made", name, got, want)
		if got < want || got > want*1.05+1 {
			t.Errorf("%s grew by %g, want %g", name, got, want)
		}
	}
	if grown(after, "wal_records_total") < inserts || grown(after, "wal_bytes_total") < 50*inserts || grown(after, "blocks_hit_total") < inserts {
		t.Errorf("WAL or blocks did not grow: %v", after)
	}
}

// testPostgresSessions keeps sessions in known states.
func testPostgresSessions(t *testing.T, pg *apptest.PostgresServer) {
	s := openDatabase(t, pg.URL("postgres"))
	databaseValues(t, s)
	holder, waiter, sleeper := postgresSession(t, pg.URL("postgres")), postgresSession(t, pg.URL("postgres")), postgresSession(t, pg.URL("postgres"))
	postgresExec(t, holder, "BEGIN", "LOCK TABLE things")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for conn, sql := range map[*pgx.Conn]string{waiter: "SELECT count(*) FROM things", sleeper: "SELECT pg_sleep(3600)"} {
		go func() {
			_, err := conn.Exec(ctx, sql)
			ended <- err
		}()
	}
	awaitValues(t, s, map[string]float64{ // sessions that ended a moment ago may still count
		"connections": 4, "connections_active": 2, "connections_idle": 1, "connections_idle_in_transaction": 1,
		"wait_lock": 1, "wait_timeout": 1, "wait_cpu": 0, "wait_client": 0, "wait_io": 0, "wait_lwlock": 0, "wait_wal": 0,
	})
	cancel()
	<-ended
	<-ended
	for _, conn := range []*pgx.Conn{holder, waiter, sleeper} {
		conn.Close(t.Context())
	}
	awaitValues(t, s, map[string]float64{"connections": 1})
}

// testPostgresRights reads as a role that may not see the sessions of others.
func testPostgresRights(t *testing.T, pg *apptest.PostgresServer, admin *pgx.Conn) {
	weak := strings.Replace(pg.URL("postgres"), "postgres@", "weak:s3cret@", 1)
	s := openDatabase(t, weak)
	var notices []string
	reads := 0
	apptest.AwaitState(t, "three readings have 1 connection, that of admin", func() (string, bool) {
		samples, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, sample := range samples {
			if sample.Error != "" {
				notices = append(notices, sample.Error)
			}
		}
		databaseNames(t, samples[0].Values, postgresNames)
		n := samples[0].Values["connections"] // of admin, which it may not look into, and of sessions that ended a moment ago
		if n == 1 {
			reads++
		}
		return fmt.Sprintf("connections = %g", n), reads == 3
	})
	if len(notices) != 1 || !strings.Contains(notices[0], "GRANT pg_monitor TO weak") ||
		!strings.Contains(notices[0], `GRANT USAGE ON SCHEMA "odd schema" TO weak`) {
		t.Errorf("told %q, want the missing rights once", notices)
	}
	postgresExec(t, admin, "GRANT pg_monitor TO weak", `GRANT USAGE ON SCHEMA "odd schema" TO weak`)
	s = openDatabase(t, weak)
	samples, err := s.Read(t.Context())
	if err != nil || len(samples) != 1 {
		t.Errorf("with the right: %v, %v", samples, err)
	}
	awaitValues(t, s, map[string]float64{"connections_idle": 2}) // admin, and the other sampler
}

func TestPostgresRefused(t *testing.T) {
	t.Parallel()
	pg := sharedPostgres.Get(t)
	bouncer := apptest.PgBouncer(t, pg, "transaction")
	for what, url := range map[string]string{
		"watch the database behind it": bouncer.URL("postgres"),
		"does not exist":               strings.Replace(pg.URL("nowhere"), "postgres@", "postgres:s3cret@", 1),
	} {
		_, err := openDatabase(t, url).Read(t.Context())
		if err == nil || !strings.Contains(err.Error(), what) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("read: %v, want %q in it", err, what)
		}
	}
}

// TestPostgresVersions checks that the statement for a version names only columns that the version has.
func TestPostgresVersions(t *testing.T) {
	for version, want := range map[int]string{120022: "pg_current_wal_insert_lsn", 130023: "pg_current_wal_insert_lsn", 140022: "wal_sync", 170010: "wal_sync", 180004: "pg_stat_io"} {
		sql, err := postgresStatement(version, "public", false)
		if err != nil || !strings.Contains(sql, want) || strings.Contains(sql, "flush") != (version >= 150000) || strings.Contains(sql, "plans") {
			t.Errorf("version %d is asked %s, %v", version, sql, err)
		}
	}
}

// benchPostgres starts a server with 50 idle sessions.
func benchPostgres(t testing.TB) (string, int, func()) {
	pg := apptest.Postgres(t, "autovacuum=off", "shared_preload_libraries=pg_stat_statements")
	return pg.URL("postgres"), pg.PID(), func() {
		postgresExec(t, postgresSession(t, pg.URL("postgres")), "CREATE EXTENSION pg_stat_statements")
		for range 49 {
			postgresExec(t, postgresSession(t, pg.URL("postgres")), "SELECT 1")
		}
	}
}

// treeTicks is the CPU time of a process and its children so far, in ticks of 10 ms.
func treeTicks(t testing.TB, pid int) int {
	t.Helper()
	children, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "task", strconv.Itoa(pid), "children"))
	ticks := 0
	for _, one := range append(strings.Fields(string(children)), strconv.Itoa(pid)) {
		stat, err := os.ReadFile(filepath.Join("/proc", one, "stat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		for _, field := range fields[11:13] {
			n, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			ticks += n
		}
	}
	return ticks
}
