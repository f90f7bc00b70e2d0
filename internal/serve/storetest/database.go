package storetest

import (
	"context"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/apptest"
	"spillway/internal/database"
)

// MariaDBQuery opens a session on the database of a URL, for direct access by the test.
func MariaDBQuery(t *testing.T, url string) func(sql string) [][]string {
	t.Helper()
	parsed, err := database.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	connector, err := database.NewMySQLConnector(parsed, time.Minute, 0)
	if err != nil {
		t.Fatal(err)
	}
	s, err := connector.Connect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return func(sql string) [][]string {
		t.Helper()
		rows, err := s.Query(t.Context(), sql)
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return rows
	}
}

// Database is the database of a stream, with direct access for the test.
type Database struct {
	URL   string
	Query func(t *testing.T, sql string) [][]string
}

// PostgresDatabase creates a database on a server.
func PostgresDatabase(t *testing.T, server *apptest.PostgresServer) Database {
	url := server.CreateDatabase(t)
	return Database{url, PostgresQuery(url)}
}

// PostgresQuery returns a function that runs statements, each on a connection of its own.
func PostgresQuery(url string) func(t *testing.T, sql string) [][]string {
	return func(t *testing.T, sql string) [][]string {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		results, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		var rows [][]string
		for _, row := range results[len(results)-1].Rows {
			var texts []string
			for _, value := range row {
				texts = append(texts, string(value))
			}
			rows = append(rows, texts)
		}
		return rows
	}
}

// MariaDatabase returns the database test of a MariaDB or MySQL server.
func MariaDatabase(t *testing.T, server *apptest.Server) Database {
	url := server.URL("test")
	query := MariaDBQuery(t, url)
	return Database{url, func(t *testing.T, sql string) [][]string { t.Helper(); return query(sql) }}
}

// SQLiteDatabase returns a database in a file that does not exist yet.
func SQLiteDatabase(t *testing.T) Database {
	return SQLiteFile(filepath.Join(t.TempDir(), "app.db"))
}

// SQLiteFile returns the database in a file, which is created by the first statement.
func SQLiteFile(file string) Database {
	return Database{"sqlite:" + file, func(t *testing.T, sql string) [][]string {
		t.Helper()
		conn, err := sqlite.OpenConn(file, sqlite.OpenReadWrite|sqlite.OpenCreate|sqlite.OpenWAL)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetBusyTimeout(time.Minute)
		var rows [][]string
		err = sqlitex.ExecuteTransient(conn, sql, &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
			var texts []string
			for i := range stmt.ColumnCount() {
				texts = append(texts, stmt.ColumnText(i))
			}
			rows = append(rows, texts)
			return nil
		}})
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return rows
	}}
}

// ServeReadings creates the table and serves the configuration.
func (p Database) ServeReadings(t *testing.T, binary *apptest.Binary, text string, args ...string) *apptest.Spillway {
	t.Helper()
	p.Query(t, "CREATE TABLE readings (id bigint NOT NULL, device bigint, value double precision CHECK (value <> 13), note varchar(20))")
	return apptest.ServeText(t, binary, text, p.URL, args...)
}

// IDs returns the stored ids in ascending order.
func (p Database) IDs(t *testing.T) []int {
	t.Helper()
	var ids []int
	for _, row := range p.Query(t, "SELECT id FROM readings ORDER BY id") {
		id, err := strconv.Atoi(row[0])
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}
