package sqlite

import (
	"context"
	"fmt"

	"zombiezen.com/go/sqlite"
)

// Ping reads the file's header and says whether the database answers.
func (db *DB) Ping(ctx context.Context) error {
	err := db.read(ctx, func(conn *sqlite.Conn) error {
		_, err := schemaVersion(conn)
		return err
	})
	if err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return nil
}

// Probe runs one trivial statement through the pool: what a request to the
// database costs at least. The statement reads no table and waits for no lock, so
// that ctx bounds the wait for a connection only.
func (db *DB) Probe(ctx context.Context) error {
	conn, err := db.acquire(ctx)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer db.release(conn)
	one, err := integer(conn, "SELECT 1")
	if err == nil && one != 1 {
		err = fmt.Errorf("SELECT 1 is %d", one)
	}
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

// schemaVersion returns the number that SQLite changes with every change of
// the schema, by any process.
func schemaVersion(conn *sqlite.Conn) (int64, error) {
	return integer(conn, "PRAGMA schema_version")
}

// integer returns the one integer that query yields. The statement stays
// prepared; query is one of a few.
func integer(conn *sqlite.Conn, query string) (int64, error) {
	stmt, err := conn.Prepare(query)
	if err != nil {
		return 0, err
	}
	found, err := stmt.Step()
	if err != nil {
		return 0, err
	}
	if !found {
		return 0, fmt.Errorf("%s: no row", query)
	}
	n := stmt.ColumnInt64(0)
	return n, stmt.Reset()
}
