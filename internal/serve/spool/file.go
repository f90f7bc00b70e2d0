package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// tables are the tables of a spool's file. Times are microseconds since 1970. A group's id
// is the number of its name, shifted by sequenceBits, and its sequence.
const tables = `CREATE TABLE names (
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
	application  = 0x5377_5370 // "SwSp", the file's application_id
	version      = 1           // the file's user_version
	sequenceBits = 44
	pageBytes    = 4096
)

func groupID(number int64, sequence uint64) int64 { return number<<sequenceBits | int64(sequence) }

// file is the SQLite file of a spool. One goroutine calls write and key; the other methods
// may be called concurrently.
type file struct {
	path    string
	lock    *os.File     // nil: read only
	writer  *sqlite.Conn // nil: read only
	used    int64        // bytes of the file in use
	free    int64        // bytes of its free pages
	reserve int64        // bytes of the disk that groups leave free
	changes int          // since used and free were measured

	mu     sync.Mutex // guards reader
	reader *sqlite.Conn

	numbersMu sync.Mutex
	numbers   map[string]int64 // of the names
}

// openFile opens a file for writing; directory and file are created if missing. Errors
// wrap ErrInUse and ErrDamaged.
func openFile(ctx context.Context, path string) (*file, error) {
	f := &file{path: path, reserve: reserveBytes}
	err := makeDirectory(filepath.Dir(path))
	if err == nil {
		f.lock, err = lockFile(path + "-lock")
	}
	if err == nil {
		f.writer, err = openWriter(ctx, path)
	}
	if err == nil {
		f.reader, err = sqlite.OpenConn(path, sqlite.OpenReadWrite)
	}
	if err == nil {
		err = f.readNumbers()
	}
	if err != nil {
		return nil, fmt.Errorf("open the spool %s: %w", path, errors.Join(damaged(err), f.close()))
	}
	return f, nil
}

// inspectFile opens a file for reading only. Another process may write to it at the same time.
func inspectFile(path string) (*file, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("find the spool: %w", err)
	}
	f := &file{path: path}
	var err error
	// After a crash, SQLite needs write access to read a file in WAL mode.
	f.reader, err = sqlite.OpenConn(path, sqlite.OpenReadWrite)
	if err == nil {
		err = sqlitex.ExecuteTransient(f.reader, "PRAGMA query_only = ON", nil)
	}
	if err == nil {
		err = f.readNumbers()
	}
	if err != nil {
		return nil, fmt.Errorf("open the spool %s: %w", path, errors.Join(damaged(err), f.close()))
	}
	return f, nil
}

// close closes the file and releases the lock.
func (f *file) close() error {
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
		return fmt.Errorf("close the spool %s: %w", f.path, err)
	}
	return nil
}

// makeDirectory makes a directory that survives a crash.
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

// lockFile takes the lock, which ends with the process at the latest.
func lockFile(name string) (*os.File, error) {
	lock, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open its lock: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		owner := make([]byte, 20)
		n, _ := lock.Read(owner) // for the message only
		_ = lock.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		return nil, fmt.Errorf("%w (pid %s): stop that process, or use another data directory", ErrInUse, strings.TrimSpace(string(owner[:n])))
	}
	_ = lock.Truncate(0) // the pid is for the message above only
	_, _ = fmt.Fprintf(lock, "%d\n", os.Getpid())
	return lock, nil
}

func openWriter(ctx context.Context, path string) (*sqlite.Conn, error) {
	conn, err := sqlite.OpenConn(path, sqlite.OpenReadWrite, sqlite.OpenCreate)
	if err != nil {
		return nil, err
	}
	conn.SetInterrupt(ctx.Done())
	if err := prepare(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	conn.SetInterrupt(nil)
	return conn, nil
}

// prepare checks that the file is a spool, sets how it is written, and creates the tables
// in a new one.
func prepare(conn *sqlite.Conn) error {
	foundApplication, err := number(conn, "PRAGMA application_id")
	foundVersion, errVersion := number(conn, "PRAGMA user_version")
	found, errTables := number(conn, "SELECT count(*) FROM sqlite_schema")
	switch err := errors.Join(err, errVersion, errTables); {
	case err != nil:
		return err
	case found > 0 && foundApplication != application:
		return errors.New("the file is not a spool")
	case found > 0 && foundVersion != version:
		return fmt.Errorf("the file has version %d, this program supports %d", foundVersion, version)
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
	if found > 0 {
		return nil
	}
	script := fmt.Sprintf("%s PRAGMA application_id = %d; PRAGMA user_version = %d;", tables, application, version)
	return sqlitex.ExecuteScript(conn, script, nil)
}

// number returns the number that a statement yields.
func number(conn *sqlite.Conn, sql string) (int64, error) {
	n := int64(0)
	err := sqlitex.Execute(conn, sql, &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
		n = stmt.ColumnInt64(0)
		return nil
	}})
	return n, err
}

// columnBytes returns a copy of a column.
func columnBytes(stmt *sqlite.Stmt, column int) []byte {
	data := make([]byte, stmt.ColumnLen(column))
	stmt.ColumnBytes(column, data)
	return data
}

// damaged makes an error wrap ErrDamaged if SQLite cannot read what the file holds.
func damaged(err error) error {
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultCorrupt, sqlite.ResultNotADB:
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

func (f *file) readNumbers() error {
	f.numbers = make(map[string]int64)
	return sqlitex.Execute(f.reader, "SELECT name, number FROM names", &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
		f.numbers[stmt.ColumnText(0)] = stmt.ColumnInt64(1)
		return nil
	}})
}

// number returns the number of a name; 0 if it is new.
func (f *file) number(name string) int64 {
	f.numbersMu.Lock()
	defer f.numbersMu.Unlock()
	return f.numbers[name]
}

// key returns an idempotency key; nil if no group that waits has it.
func (f *file) key(name, key string) (*groupKey, error) {
	var found *groupKey
	err := sqlitex.Execute(f.writer, "SELECT fingerprint, expires_at, sequence FROM keys WHERE number = ? AND key = ?", &sqlitex.ExecOptions{
		Args: []any{f.number(name), key}, ResultFunc: func(stmt *sqlite.Stmt) error {
			found = &groupKey{name: name, key: key, expires: time.UnixMicro(stmt.ColumnInt64(1)), sequence: uint64(stmt.ColumnInt64(2))}
			stmt.ColumnBytes(0, found.fingerprint[:])
			return nil
		},
	})
	return found, damaged(err)
}

// read returns the groups of a name behind a sequence, in order: at least one if there are
// any, and then no more than limit bytes together. An error wraps ErrDamaged if SQLite
// cannot read the file.
func (f *file) read(ctx context.Context, name string, after uint64, limit int) ([]sealedGroup, error) {
	var groups []sealedGroup
	err := f.query(ctx, func(conn *sqlite.Conn) error {
		stmt, err := conn.Prepare("SELECT id, at, rows, sum, payload FROM groups WHERE id > ? AND id < ? ORDER BY id")
		if err != nil {
			return err
		}
		n := f.number(name)
		stmt.BindInt64(1, groupID(n, after))
		stmt.BindInt64(2, groupID(n+1, 0))
		size := 0
		for {
			more, err := stmt.Step()
			if err != nil || !more {
				return errors.Join(err, stmt.Reset())
			}
			if size += stmt.ColumnLen(4); len(groups) > 0 && size > limit {
				return stmt.Reset()
			}
			groups = append(groups, sealedGroup{
				name: name, sequence: uint64(stmt.ColumnInt64(0) & (1<<sequenceBits - 1)), at: time.UnixMicro(stmt.ColumnInt64(1)),
				rows: stmt.ColumnInt(2), sum: uint32(stmt.ColumnInt64(3)), payload: columnBytes(stmt, 4),
			})
		}
	})
	return groups, damaged(err)
}

// query runs work alone on the reading connection.
func (f *file) query(ctx context.Context, work func(*sqlite.Conn) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reader.SetInterrupt(ctx.Done())
	defer f.reader.SetInterrupt(nil)
	return work(f.reader)
}
