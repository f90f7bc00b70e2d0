package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/stream"
)

// spoolTables are the tables of a spool's file. Times are microseconds since 1970. A
// group's id is its name's number, 44 bits further up, and its sequence.
const spoolTables = `CREATE TABLE names (
	number INTEGER PRIMARY KEY,
	name TEXT NOT NULL UNIQUE,
	id BLOB NOT NULL,
	drained INTEGER NOT NULL,
	last INTEGER NOT NULL
);
CREATE TABLE groups (
	id INTEGER PRIMARY KEY,
	at INTEGER NOT NULL,
	rows INTEGER NOT NULL,
	sum INTEGER NOT NULL,
	payload BLOB NOT NULL
);
CREATE TABLE keys (
	number INTEGER NOT NULL,
	key TEXT NOT NULL,
	fingerprint BLOB NOT NULL,
	expires_at INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	PRIMARY KEY (number, key)
) WITHOUT ROWID;
CREATE TABLE dead (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	name TEXT NOT NULL,
	sequence INTEGER NOT NULL,
	at INTEGER NOT NULL,
	rows INTEGER NOT NULL,
	reason TEXT NOT NULL,
	payload BLOB NOT NULL,
	raw INTEGER NOT NULL
);`

const (
	spoolApplication = 0x5377_5370 // "SwSp"
	spoolVersion     = 1
	sequenceBits     = 44
	spoolPage        = 4096
)

// SpoolFile is the file of a spool. It implements stream.SpoolFile.
//
// It is in WAL mode with synchronous=FULL: a COMMIT appends the changed pages to
// FILE-wal and returns after an fsync of it (and of the directory, once). Every
// 1,000 pages SQLite copies them into FILE, synced before the log begins anew. After
// a crash what was committed is read from the log again; a torn end of it, which
// was never acknowledged, is left out by its checksums.
//
// One process has it open for writing, held by a lock on FILE-lock.
type SpoolFile struct {
	file     string
	lock     *os.File     // nil: read only
	writer   *sqlite.Conn // nil: read only
	used     int64        // bytes of the file in use
	free     int64        // and of its free pages
	reserve  int64        // spoolReserve
	reckoned int          // changes since they were measured

	mu     sync.Mutex // of reader
	reader *sqlite.Conn

	numbersMu sync.Mutex
	numbers   map[string]int64 // of the names
}

var _ stream.SpoolFile = (*SpoolFile)(nil)

// OpenSpool opens a spool's file for writing; directory and file are created where they
// are missing. Errors wrap stream.ErrSpoolInUse and stream.ErrSpoolDamaged.
func OpenSpool(ctx context.Context, file string) (*SpoolFile, error) {
	f, err := openSpool(ctx, file)
	if err != nil {
		return nil, fmt.Errorf("open the spool %s: %w", file, err)
	}
	return f, nil
}

func openSpool(ctx context.Context, file string) (*SpoolFile, error) {
	if err := makeDirectory(filepath.Dir(file)); err != nil {
		return nil, err
	}
	lock, err := lockSpool(file + "-lock")
	if err != nil {
		return nil, err
	}
	f := &SpoolFile{file: file, lock: lock, reserve: spoolReserve}
	if f.writer, err = openSpoolWriter(ctx, file); err == nil {
		f.reader, err = sqlite.OpenConn(file, sqlite.OpenReadWrite)
	}
	if err == nil {
		err = f.readNumbers()
	}
	if err != nil {
		return nil, errors.Join(damaged(err), f.Close())
	}
	return f, nil
}

// InspectSpool opens a spool's file to be looked at, while another process may be
// writing it.
func InspectSpool(file string) (*SpoolFile, error) {
	if _, err := os.Stat(file); err != nil {
		return nil, fmt.Errorf("find the spool: %w", err)
	}
	f := &SpoolFile{file: file}
	var err error
	// Reading a file in WAL mode after a crash needs the right to mend its log.
	f.reader, err = sqlite.OpenConn(file, sqlite.OpenReadWrite)
	if err == nil {
		err = sqlitex.ExecuteTransient(f.reader, "PRAGMA query_only = ON", nil)
	}
	if err == nil {
		err = f.readNumbers()
	}
	if err != nil {
		return nil, fmt.Errorf("open the spool %s: %w", file, errors.Join(damaged(err), f.Close()))
	}
	return f, nil
}

// Close closes the file and gives the lock up. Nothing may use it any more.
func (f *SpoolFile) Close() error {
	var errs []error
	for _, conn := range []*sqlite.Conn{f.reader, f.writer} {
		if conn != nil {
			errs = append(errs, conn.Close())
		}
	}
	if f.lock != nil {
		errs = append(errs, f.lock.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close the spool %s: %w", f.file, err)
	}
	return nil
}

// makeDirectory makes a directory that outlives a crash.
func makeDirectory(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make its directory: %w", err)
	}
	return syncDirectory(filepath.Dir(dir))
}

func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync a directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync a directory: %w", err)
	}
	return nil
}

// lockSpool takes the lock, which ends with the process at the latest.
func lockSpool(name string) (*os.File, error) {
	lock, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open its lock: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		owner := make([]byte, 20)
		n, _ := lock.Read(owner) // for people only
		_ = lock.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		return nil, fmt.Errorf("%w (pid %s): stop it first, or give this one a data directory of its own", stream.ErrSpoolInUse, strings.TrimSpace(string(owner[:n])))
	}
	_ = lock.Truncate(0) // the number is for people only
	_, _ = fmt.Fprintf(lock, "%d\n", os.Getpid())
	return lock, nil
}

func openSpoolWriter(ctx context.Context, file string) (*sqlite.Conn, error) {
	conn, err := sqlite.OpenConn(file, sqlite.OpenReadWrite, sqlite.OpenCreate)
	if err != nil {
		return nil, err
	}
	conn.SetInterrupt(ctx.Done())
	if err := prepareSpool(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	conn.SetInterrupt(nil)
	return conn, nil
}

// prepareSpool sets how the file is written and creates the tables.
func prepareSpool(conn *sqlite.Conn) error {
	application, err := number(conn, "PRAGMA application_id")
	if err != nil {
		return err
	}
	version, err := number(conn, "PRAGMA user_version")
	if err != nil {
		return err
	}
	tables, err := number(conn, "SELECT count(*) FROM sqlite_schema")
	switch {
	case err != nil:
		return err
	case tables > 0 && application != spoolApplication:
		return errors.New("the file is no spool")
	case tables > 0 && version != spoolVersion:
		return fmt.Errorf("the file is of version %d, this program knows %d", version, spoolVersion)
	}
	for _, sql := range []string{
		fmt.Sprintf("PRAGMA page_size = %d", spoolPage), "PRAGMA auto_vacuum = INCREMENTAL",
		"PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "PRAGMA wal_autocheckpoint = 1000", "PRAGMA journal_size_limit = 67108864",
	} {
		if err := sqlitex.ExecuteTransient(conn, sql, nil); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	if level, err := number(conn, "PRAGMA synchronous"); err != nil || level != 2 {
		return fmt.Errorf("set synchronous = FULL: it is %d: %w", level, err)
	}
	mode, err := texts(conn, "SELECT journal_mode FROM pragma_journal_mode WHERE ?", "1")
	if err != nil || len(mode) != 1 || mode[0] != "wal" {
		return fmt.Errorf("set WAL mode: the journal mode stays %v: %w", mode, err)
	}
	if tables > 0 {
		return nil
	}
	script := fmt.Sprintf("%s PRAGMA application_id = %d; PRAGMA user_version = %d;", spoolTables, spoolApplication, spoolVersion)
	return sqlitex.ExecuteScript(conn, script, nil)
}

// number returns the one number that a statement yields.
func number(conn *sqlite.Conn, sql string) (int64, error) {
	n := int64(0)
	err := sqlitex.Execute(conn, sql, &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
		n = stmt.ColumnInt64(0)
		return nil
	}})
	return n, err
}

// damaged wraps an error that says that the file is not what SQLite wrote.
func damaged(err error) error {
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultCorrupt, sqlite.ResultNotADB:
		return fmt.Errorf("%w: %w", stream.ErrSpoolDamaged, err)
	}
	return err
}

func (f *SpoolFile) readNumbers() error {
	f.numbers = make(map[string]int64)
	return sqlitex.Execute(f.reader, "SELECT name, number FROM names", &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
		f.numbers[stmt.ColumnText(0)] = stmt.ColumnInt64(1)
		return nil
	}})
}

// number returns that of a name; 0 when it is new.
func (f *SpoolFile) number(name string) int64 {
	f.numbersMu.Lock()
	defer f.numbersMu.Unlock()
	return f.numbers[name]
}
