package watch

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
)

// mysqlSession returns a session that is closed when the test ends.
func mysqlSession(t testing.TB, rawURL string) *sql.Conn {
	t.Helper()
	url, err := database.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := sql.Open("mysql", url.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Close() })
	conn, err := pool.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func mysqlExec(t testing.TB, conn *sql.Conn, statements ...string) {
	t.Helper()
	for _, text := range statements {
		if _, err := conn.ExecContext(t.Context(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

const mariadbNames = `connections connections_limit connections_active statements_total commits_total rollbacks_total fsyncs_total
row_lock_seconds_total wait_lock wait_wal`

func TestMariaDB(t *testing.T) {
	t.Parallel()
	server := apptest.MariaDB(t, "--max-connections=23", "--innodb-flush-log-at-trx-commit=1", "--log-bin=binlog", "--sync-binlog=1", "--server-id=1")
	admin := mysqlSession(t, server.URL("test"))
	mysqlExec(t, admin, "CREATE TABLE things (id INT AUTO_INCREMENT PRIMARY KEY, v INT)", "INSERT INTO things (v) VALUES (0)",
		"CREATE USER weak@'%' IDENTIFIED BY 's3cret'")
	s := openDatabase(t, strings.Replace(server.URL(""), "root@", "weak:s3cret@", 1)) // SHOW GLOBAL STATUS needs no right
	values := databaseValues(t, s)
	databaseNames(t, values, mariadbNames)
	// A session that is still ending, or a thread of the server's own, may count for a moment.
	awaitValues(t, s, map[string]float64{"connections_limit": 23, "connections": 1, "connections_active": 0})
	t.Run("counts", func(t *testing.T) {
		repeatDisturbed(t, func() string { return testMariaDBCounts(t, s, server, admin) })
	})
	t.Run("lock", func(t *testing.T) { testMariaDBLock(t, s, server, admin) })
	t.Run("refused", func(t *testing.T) {
		bad := openDatabase(t, strings.Replace(server.URL(""), "root@", "weak:s3cretly@", 1))
		_, err := bad.Read(t.Context())
		if err == nil || !strings.Contains(err.Error(), "Access denied") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("with a wrong password: %v", err)
		}
	})
	t.Run("outage", func(t *testing.T) { databaseOutage(t, s, server) })
}

// testMariaDBCounts compares counters with what a session did. What the server does of itself in the meantime counts too, such
// as an fsync per second.
func testMariaDBCounts(t *testing.T, s *Sampler, server *apptest.Server, admin *sql.Conn) (wrong string) {
	log, err := os.ReadFile(filepath.Join(server.Dir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	files := 2.0 // the redo log and the binary log
	if strings.Contains(string(log), "(memory-mapped)") {
		files = 1 // MariaDB does not sync a redo log in memory
	}
	before := databaseValues(t, s)
	for range 20 { // the watch does not count its own statements
		databaseValues(t, s)
	}
	const single, double, reads, undone = 100, 30, 50, 10
	for range single {
		mysqlExec(t, admin, "INSERT INTO things (v) VALUES (1)")
	}
	for range double {
		mysqlExec(t, admin, "BEGIN", "INSERT INTO things (v) VALUES (1)", "INSERT INTO things (v) VALUES (1)", "COMMIT")
	}
	for range reads {
		mysqlExec(t, admin, "SELECT v FROM things WHERE id = 1")
	}
	for range undone {
		mysqlExec(t, admin, "BEGIN", "INSERT INTO things (v) VALUES (1)", "ROLLBACK")
	}
	after := databaseValues(t, s)
	for name, want := range map[string]float64{
		"commits_total": single + double + undone, "rollbacks_total": undone, "statements_total": single + 4*double + reads + 3*undone,
		"fsyncs_total": files * (single + double),
	} {
		got := after[name] - before[name]
		if got < want {
			t.Errorf("%s grew by %g, want %g", name, got, want)
		}
		if got > want*1.05+1 {
			wrong = fmt.Sprintf("%s grew by %g, want %g", name, got, want)
		}
	}
	return wrong
}

// testMariaDBLock locks a row that another session needs.
func testMariaDBLock(t *testing.T, s *Sampler, server *apptest.Server, admin *sql.Conn) {
	waiter := mysqlSession(t, server.URL("test"))
	mysqlExec(t, admin, "BEGIN", "UPDATE things SET v = 2 WHERE id = 1")
	ended := make(chan error, 1)
	go func() {
		_, err := waiter.ExecContext(context.WithoutCancel(t.Context()), "UPDATE things SET v = 3 WHERE id = 1")
		ended <- err
	}()
	// The holder's session counts as active for a moment after its UPDATE was answered.
	awaitValues(t, s, map[string]float64{"wait_lock": 1, "connections": 2, "connections_active": 1})
	mysqlExec(t, admin, "COMMIT")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	after := awaitDatabase(t, s, "nothing waits for a lock", func(v map[string]float64) bool { return v["wait_lock"] == 0 })
	if !(after["row_lock_seconds_total"] > 0) {
		t.Errorf("no wait was counted: %v", after)
	}
}

// TestMySQLStatus reads the status of MySQL, which differs from MariaDB's.
func TestMySQLStatus(t *testing.T) {
	r := &mysqlReader{limit: 151}
	values := r.values(map[string]float64{"Threads_connected": 3, "Threads_running": 0, "Innodb_data_fsyncs": 5})
	for name, want := range map[string]float64{"connections": 2, "connections_active": 0, "fsyncs_total": 5, "connections_limit": 151} {
		if values[name] != want {
			t.Errorf("%s = %g, want %g", name, values[name], want)
		}
	}
	if _, ok := values["commits_total"]; ok || len(values) != 4 {
		t.Errorf("more than the server tells: %v", values)
	}
}

// benchMariaDB starts a server with 50 idle sessions.
func benchMariaDB(t testing.TB) (string, int, func()) {
	server := apptest.MariaDB(t)
	return server.URL(""), server.PID(), func() {
		for range 50 {
			mysqlSession(t, server.URL("test"))
		}
	}
}
