package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"zombiezen.com/go/sqlite"
)

// Somebody may replace the file while it is open, for example by a backup. A connection keeps
// the file that it has opened, which may have no name by then. The pool compares the file at the
// path from time to time, and a writer before each transaction and after its COMMIT. Connections are
// then opened again, as soon as the new file is complete.

const (
	fileEvery   = 100 * time.Millisecond // between two looks of the pool
	fileSettled = time.Second            // without a change, until a new file is taken to be complete
)

// ErrReplaced is the error while the path has no file, or one that is not used yet.
var ErrReplaced = errors.New("the database file was moved, deleted or replaced")

// dataFile is a file that was found at the path of a DB.
type dataFile struct {
	main os.FileInfo
	logs atomic.Pointer[[2]os.FileInfo] // its -wal and -shm, nil if they are missing; a nil pointer: unknown
}

// logSuffixes are of the files that belong to a file in WAL mode.
var logSuffixes = [2]string{"-wal", "-shm"}

// isAt reports whether the file is still the one at the path.
func (f *dataFile) isAt(path string) bool {
	now, err := os.Stat(path)
	return err == nil && os.SameFile(f.main, now)
}

// noteLogs notes which -wal and -shm belong to the file, once, while a connection uses them.
func (f *dataFile) noteLogs(path string) {
	if f == nil || f.logs.Load() != nil {
		return
	}
	var logs [2]os.FileInfo
	for i, suffix := range logSuffixes {
		logs[i], _ = os.Stat(path + suffix)
	}
	if f.isAt(path) {
		f.logs.Store(&logs)
	}
}

// keepLogs renames the -wal and the -shm of a file that was replaced, if they were left. SQLite
// would write the changes in them into the new file.
func (f *dataFile) keepLogs(path string) error {
	logs := f.logs.Load()
	if logs == nil {
		return nil
	}
	for i, suffix := range logSuffixes {
		now, err := os.Stat(path + suffix)
		if err != nil || logs[i] == nil || !os.SameFile(logs[i], now) {
			continue
		}
		if err := os.Rename(path+suffix, fmt.Sprintf("%s%s.replaced-%d", path, suffix, time.Now().Unix())); err != nil {
			return err
		}
	}
	return nil
}

// moved returns an error if the path no longer has the file of a connection.
func (db *DB) moved(file *dataFile) error {
	if file == nil || file == db.current.Load() && file.isAt(db.file) {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrReplaced, db.file)
}

// follow returns the file that connections are opened for. If the path has another one, which is
// complete, follow puts that in WAL mode first. It is nil before the DB is open.
func (db *DB) follow(ctx context.Context) (*dataFile, error) {
	file := db.current.Load()
	if file == nil || file.isAt(db.file) {
		return file, nil
	}
	db.opening.Lock()
	defer db.opening.Unlock()
	if file = db.current.Load(); file.isAt(db.file) {
		return file, nil
	}
	now, err := os.Stat(db.file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReplaced, err)
	}
	if time.Since(now.ModTime()).Abs() < fileSettled {
		return nil, fmt.Errorf("%w: %s is used again when nobody has written to it for %s", ErrReplaced, db.file, fileSettled)
	}
	err = file.keepLogs(db.file)
	if err == nil {
		err = db.prepare(ctx, false)
	}
	next := &dataFile{main: now}
	if err != nil || !next.isAt(db.file) {
		return nil, errors.Join(fmt.Errorf("%w: %s", ErrReplaced, db.file), err)
	}
	db.current.Store(next)
	db.log.Warn("the database file was replaced: connections are opened again", "file", db.file)
	return next, nil
}

// watch calls follow, unless sameFile.
func (db *DB) watch(ctx context.Context) error {
	if db.sameFile() {
		return nil
	}
	_, err := db.follow(ctx)
	return err
}

// sameFile reports whether the path has the file that connections are opened for. It looks at most every fileEvery.
func (db *DB) sameFile() bool {
	now := time.Now().UnixNano()
	if last := db.looked.Load(); now-last < int64(fileEvery) && now > last {
		return true
	}
	file := db.current.Load()
	same := file != nil && file.isAt(db.file)
	if same {
		db.looked.Store(now)
	}
	return same
}

// openConn opens a connection to a file, unless the path has another one by then.
func (db *DB) openConn(file *dataFile, mode sqlite.OpenFlags) (*sqlite.Conn, error) {
	conn, err := sqlite.OpenConn(db.file, mode)
	if err == nil {
		if err = db.moved(file); err != nil {
			err = errors.Join(err, conn.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// Identity returns what identifies the file on this machine. A file that replaces it has another
// identity, unless it is given the same inode.
func (db *DB) Identity(context.Context) (string, error) {
	file, err := os.Stat(db.file)
	if err != nil {
		return "", fmt.Errorf("read the identity of the database: %w", err)
	}
	if stat, ok := file.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprintf("%d/%d", stat.Dev, stat.Ino), nil
	}
	return "", nil
}

// Logins returns 0: a file has no users.
func (db *DB) Logins() uint64 { return 0 }
