package spool

import (
	"context"
	"crypto/rand"
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

	"spillway/internal/serve/queue"
)

// What statements know a name by, which is their first parameter: its number, and the id of the group with the
// sequence that is the second parameter.
const (
	ofName  = "(SELECT number FROM names WHERE name = ?1)"
	ofGroup = "(SELECT number << 44 | ?2 FROM names WHERE name = ?1)"
)

// file is the SQLite file of a spool. One goroutine calls write and key; the other methods
// may be called concurrently.
type file struct {
	path    string
	lock    *os.File     // nil: read only
	writer  *sqlite.Conn // nil: read only
	used    int64        // bytes of the file in use
	free    int64        // bytes of its free pages
	epoch   [16]byte     // of the groups that are written; zero: read only
	reserve int64        // bytes of the disk that groups leave free
	changes int          // since used and free were measured

	mu     sync.Mutex // guards reader
	reader *sqlite.Conn
}

// openFile opens a file for writing; directory and file are created if missing. Errors
// wrap ErrInUse and ErrDamaged.
func openFile(ctx context.Context, path, admin string) (*file, error) {
	f := &file{path: path, reserve: reserveBytes}
	_, _ = rand.Read(f.epoch[:]) // never fails
	err := makeDirectory(filepath.Dir(path))
	if err == nil {
		f.lock, err = lockFile(path+"-lock", admin)
	}
	if err == nil {
		f.writer, err = openWriter(ctx, path)
	}
	if err == nil {
		f.reader, err = sqlite.OpenConn(path, sqlite.OpenReadWrite)
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
		_, err = checkVersion(f.reader)
	}
	if err != nil {
		return nil, fmt.Errorf("open the spool %s: %w", path, errors.Join(damaged(err), f.close()))
	}
	return f, nil
}

// close closes the file and releases the lock.
func (f *file) close() error {
	var errs []error
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range []*sqlite.Conn{f.reader, f.writer} {
		if conn != nil {
			errs = append(errs, conn.Close())
		}
	}
	f.reader = nil
	if f.lock != nil {
		errs = append(errs, unlock(f.lock))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close the spool %s: %w", f.path, err)
	}
	return nil
}

// makeDirectory makes a directory, and those above it that are missing, so that they survive
// a power cut. A process that made some of them may have been killed before it synced them:
// those are synced too, as far as this process may.
func makeDirectory(dir string) error {
	dir = filepath.Clean(dir)
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := makeDirectory(parent); err != nil {
			return err
		}
	}
	switch err := os.Mkdir(dir, 0o750); {
	case err == nil:
		return syncFile(parent)
	case errors.Is(err, os.ErrExist):
		_ = syncFile(parent)
		return nil
	default:
		if info, statErr := os.Stat(dir); statErr != nil || !info.IsDir() {
			return fmt.Errorf("make its directory: %w", err)
		}
		return nil
	}
}

// lockFile takes the lock, which ends with the process at the latest. It notes the process's
// number and its admin listener.
func lockFile(name, admin string) (*os.File, error) {
	lock, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open its lock: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		pid, _ := readOwner(lock) // for the message only
		_ = lock.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		return nil, fmt.Errorf("%w (pid %s): stop that process, or use another data directory", ErrInUse, pid)
	}
	_ = lock.Truncate(0) // for the message above and Owner only
	_, _ = fmt.Fprintf(lock, "%d %s\n", os.Getpid(), admin)
	return lock, nil
}

// unlock gives the lock up also where a process that is about to start another program has a copy of the descriptor.
func unlock(lock *os.File) error {
	return errors.Join(unix.Flock(int(lock.Fd()), unix.LOCK_UN), lock.Close())
}

// readOwner returns what the process that has a lock has noted.
func readOwner(lock *os.File) (pid, admin string) {
	owner := make([]byte, 1024)
	n, _ := lock.Read(owner)
	pid, admin, _ = strings.Cut(strings.TrimSpace(string(owner[:n])), " ")
	return pid, admin
}

// Owner returns whether a process has the spool of a file open, and Config.Admin of that process.
func Owner(path string) (held bool, admin string) {
	lock, err := os.Open(path + "-lock")
	if err != nil {
		return false, ""
	}
	defer lock.Close()
	if !errors.Is(unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK) {
		return false, ""
	}
	_, admin = readOwner(lock)
	return true, admin
}

func openWriter(ctx context.Context, path string) (*sqlite.Conn, error) {
	conn, err := sqlite.OpenConn(path, sqlite.OpenReadWrite, sqlite.OpenCreate)
	if err != nil {
		return nil, err
	}
	conn.SetInterrupt(ctx.Done())
	if err := prepare(ctx, conn, path); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	conn.SetInterrupt(nil)
	return conn, nil
}

// settleFor is how long settle waits for other processes that read the file.
const settleFor = 30 * time.Second

// settle makes durable what SQLite has found in the log. After a crash, that may be a
// transaction whose fsync was not made, or failed: then a later fsync of the log does not
// cover it. So the transactions are copied into the file, and the log is emptied. If the disk
// has no room for that, there is only the fsync.
func settle(ctx context.Context, conn *sqlite.Conn, path string) error {
	path, err := filepath.EvalSymlinks(path) // SQLite's log is beside the file itself
	if err != nil {
		return fmt.Errorf("find the spool's file: %w", err)
	}
	log, err := os.Stat(path + "-wal")
	var disk unix.Statfs_t
	if err := errors.Join(err, unix.Statfs(path, &disk)); err != nil {
		return fmt.Errorf("read the size of its log: %w", err)
	}
	if int64(disk.Bavail)*int64(disk.Bsize) < log.Size() {
		return syncFile(path + "-wal")
	}
	limited, cancel := context.WithTimeout(ctx, settleFor)
	defer cancel()
	conn.SetInterrupt(limited.Done())
	busy, err := number(conn, "PRAGMA wal_checkpoint(TRUNCATE)")
	conn.SetInterrupt(ctx.Done())
	switch {
	case limited.Err() != nil && ctx.Err() == nil, err == nil && busy != 0:
		return fmt.Errorf("copy its log into it: another process has read it for %v: end that process", settleFor)
	case err != nil && sqlite.ErrCode(err).ToPrimary() != sqlite.ResultFull:
		return fmt.Errorf("copy its log into it: %w", err)
	}
	return syncFile(path + "-wal")
}

// syncFile syncs a file or directory.
func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}

// number returns the number that a statement yields.
func number(conn *sqlite.Conn, sql string) (int64, error) {
	n := int64(0)
	err := each(conn, sql, nil, func(stmt *sqlite.Stmt) { n = stmt.ColumnInt64(0) })
	return n, err
}

// each calls yield for each row of a statement.
func each(conn *sqlite.Conn, sql string, args []any, yield func(*sqlite.Stmt)) error {
	return sqlitex.Execute(conn, sql, &sqlitex.ExecOptions{Args: args, ResultFunc: func(stmt *sqlite.Stmt) error {
		yield(stmt)
		return nil
	}})
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

// key returns an idempotency key; nil if no group that waits has it.
func (f *file) key(name, key string) (*groupKey, error) {
	var found *groupKey
	err := each(f.writer, "SELECT fingerprint, expires_at, sequence, accepted_at FROM keys WHERE number = "+ofName+" AND key = ?2",
		[]any{name, key}, func(stmt *sqlite.Stmt) {
			found = &groupKey{
				name: name, key: key, expires: time.UnixMicro(stmt.ColumnInt64(1)), sequence: uint64(stmt.ColumnInt64(2)),
				accepted: time.UnixMicro(stmt.ColumnInt64(3)),
			}
			stmt.ColumnBytes(0, found.fingerprint[:])
		})
	return found, damaged(err)
}

// read returns the groups of a name behind a sequence, in order: at least one if there are
// any, and then no more than limit bytes together. An error wraps ErrDamaged if SQLite
// cannot read the file.
func (f *file) read(ctx context.Context, name string, after uint64, limit int) ([]sealedGroup, error) {
	var groups []sealedGroup
	err := f.query(ctx, func(conn *sqlite.Conn) error {
		stmt, err := conn.Prepare("SELECT g.id - (n.number << 44), g.at, g.rows, g.sum, g.payload FROM names AS n JOIN groups AS g " +
			"ON g.id > (n.number << 44 | ?2) AND g.id < (n.number + 1) << 44 WHERE n.name = ?1 ORDER BY g.id")
		if err != nil {
			return err
		}
		stmt.BindText(1, name)
		stmt.BindInt64(2, int64(after))
		size, last := 0, int64(after)
		for {
			more, err := stmt.Step()
			if err != nil || !more {
				return errors.Join(err, stmt.Reset())
			}
			sequence := stmt.ColumnInt64(0)
			if sequence <= last || sequence >= 1<<44 { // SQLite trusts the order of the rows in a page
				return errors.Join(fmt.Errorf("%w: the groups of %s are not in order", ErrDamaged, name), stmt.Reset())
			}
			last = sequence
			if size += stmt.ColumnLen(4); len(groups) > 0 && size > limit {
				return stmt.Reset()
			}
			groups = append(groups, sealedGroup{
				name: name, sequence: uint64(sequence), at: time.UnixMicro(stmt.ColumnInt64(1)),
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
	if f.reader == nil {
		return queue.ErrClosed
	}
	f.reader.SetInterrupt(ctx.Done())
	defer f.reader.SetInterrupt(nil)
	return work(f.reader)
}
