package sqlite_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	driver "zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/database"
	"spillway/internal/serve/sqlite"
	"spillway/internal/serve/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFeed(t *testing.T) {
	t.Parallel()
	storetest.Feed(t, backend(open))
}

// backend is files for the conformance suite.
func backend(open func(testing.TB, database.Pool) (*sqlite.DB, *driver.Conn)) storetest.Backend {
	return storetest.Backend{
		Open: func(t testing.TB, pool database.Pool) storetest.DB {
			db, writer := open(t, pool)
			return storetest.DB{
				Source: db.Source,
				InList: "IN (:list)",
				Exec:   func(_ context.Context, sql string) error { return sqlitex.ExecuteTransient(writer, sql, nil) },
			}
		},
		// SQLite has no exact decimals and no times with a zone.
		Types: map[storetest.Kind]string{
			storetest.Integer:   "INTEGER",
			storetest.Real:      "REAL",
			storetest.Boolean:   "BOOLEAN",
			storetest.Text:      "TEXT",
			storetest.Timestamp: "TIMESTAMP",
			storetest.Date:      "DATE",
			storetest.Bytes:     "BLOB",
			storetest.JSON:      "JSON",
			storetest.UUID:      "UUID",
		},
		Bytes: func(b []byte) string { return fmt.Sprintf("x'%x'", b) },
	}
}

// open opens a new file through the adapter, and a second connection that writes to it.
func open(t testing.TB, pool database.Pool) (*sqlite.DB, *driver.Conn) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "test.db")
	db := openFile(t, file, pool)
	return db, openWriter(t, file)
}

func openFile(t testing.TB, file string, pool database.Pool) *sqlite.DB {
	t.Helper()
	for _, bound := range []*time.Duration{&pool.ConnectTimeout, &pool.AcquireTimeout, &pool.StatementTimeout} {
		*bound = cmp.Or(*bound, 5*time.Minute) // only a hang reaches it
	}
	db, err := opened(t, parse(t, file), pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return db
}

// opened returns the database of a file after its first Ping.
func opened(t testing.TB, url database.URL, pool database.Pool) (*sqlite.DB, error) {
	t.Helper()
	db, err := sqlite.New(url, pool, slog.New(slog.DiscardHandler))
	for again := err == nil; again; {
		err = db.Ping(t.Context())
		// A busy machine may be slower than the short timeout of a test.
		again = err != nil && strings.Contains(err.Error(), "stopped after the statement timeout")
	}
	return db, err
}

func openWriter(t testing.TB, file string) *driver.Conn {
	t.Helper()
	writer, err := driver.OpenConn(file, driver.OpenReadWrite, driver.OpenCreate)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := writer.Close(); err != nil {
			t.Errorf("close the writer: %v", err)
		}
	})
	return writer
}

func parse(t testing.TB, file string) database.URL {
	t.Helper()
	url, err := database.Parse("sqlite:" + file)
	if err != nil {
		t.Fatal(err)
	}
	return url
}

// script runs statements through the writer.
func script(t testing.TB, writer *driver.Conn, sql string) {
	t.Helper()
	if err := sqlitex.ExecuteScript(writer, sql, nil); err != nil {
		t.Fatal(err)
	}
}

// openUTF16 opens a file whose texts are stored as UTF-16.
func openUTF16(t testing.TB) (*sqlite.DB, *driver.Conn) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "utf16.db")
	writer := openWriter(t, file)
	script(t, writer, "PRAGMA encoding = 'UTF-16le'; CREATE TABLE first (id INTEGER)")
	return openFile(t, file, database.Pool{}), writer
}
