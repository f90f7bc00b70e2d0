package spool

import (
	"context"
	_ "embed" // of schema.sql
	"errors"
	"fmt"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

const (
	application = 0x5377_5370 // "SwSp", the file's application_id
	version     = 1           // the file's user_version
	pageBytes   = 4096
)

// tables creates the tables of a spool's file.
//
//go:embed schema.sql
var tables string

// checkVersion reports whether a file is empty. It returns an error unless this program can
// read the file.
func checkVersion(conn *sqlite.Conn) (empty bool, err error) {
	foundApplication, err := number(conn, "PRAGMA application_id")
	found, errVersion := number(conn, "PRAGMA user_version")
	tables, errTables := number(conn, "SELECT count(*) FROM sqlite_schema")
	switch err := errors.Join(err, errVersion, errTables); {
	case err != nil:
		return false, err
	case tables == 0:
		return true, nil
	case foundApplication != application:
		return false, errors.New("the file is not a spool")
	case found != version:
		return false, fmt.Errorf("the file has version %d, this program supports version %d", found, version)
	}
	return false, nil
}

// prepare checks that the file is a spool, sets how it is written, and creates the tables
// in a new one.
func prepare(ctx context.Context, conn *sqlite.Conn, path string) error {
	empty, err := checkVersion(conn)
	if err != nil {
		return err
	}
	for _, sql := range []string{
		fmt.Sprintf("PRAGMA page_size = %d", pageBytes), "PRAGMA auto_vacuum = INCREMENTAL",
		"PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "PRAGMA wal_autocheckpoint = 1000", "PRAGMA journal_size_limit = 67108864",
		"PRAGMA fullfsync = ON", "PRAGMA checkpoint_fullfsync = ON", // macOS; no effect elsewhere
	} {
		if err := sqlitex.ExecuteTransient(conn, sql, nil); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	if level, err := number(conn, "PRAGMA synchronous"); err != nil || level != 2 {
		return fmt.Errorf("set synchronous = FULL: it is %d: %w", level, err)
	}
	wal, err := number(conn, "SELECT journal_mode = 'wal' FROM pragma_journal_mode")
	if err != nil || wal != 1 {
		return fmt.Errorf("set WAL mode: the file system does not support it: %w", err)
	}
	if err := settle(ctx, conn, path); err != nil || !empty {
		return err
	}
	return sqlitex.ExecuteScript(conn, fmt.Sprintf("%s PRAGMA application_id = %d; PRAGMA user_version = %d;",
		tables, application, version), nil)
}
