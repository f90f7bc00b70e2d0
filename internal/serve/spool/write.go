package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/stream"
)

// Write implements stream.SpoolFile.
func (f *SpoolFile) Write(c stream.SpoolChange) (int64, error) {
	if len(c.Names)+len(c.Groups)+len(c.Drained)+len(c.Requeued) == 0 {
		err := f.measure()
		return f.used, err
	}
	if err := f.room(c); err != nil {
		return 0, err
	}
	w := &spoolWriter{conn: f.writer, numbers: make(map[string]int64)}
	if err := w.write(f, c); err != nil {
		return 0, err
	}
	f.grow(c)
	return f.used, nil
}

// spoolReserve is how much of the disk groups leave free, for the drain: what it deletes it
// writes to the log first, which is folded into the file now and then. Both may grow for
// that, by 1,000 pages and a transaction each. A file that had taken the whole disk could
// never be emptied.
const spoolReserve = 12 << 20

// room returns an error where groups would take what the drain needs. Free pages in the
// file are as good as a free disk.
func (f *SpoolFile) room(c stream.SpoolChange) error {
	if len(c.Groups) == 0 {
		return nil
	}
	need := f.reserve
	for _, g := range c.Groups {
		need += 2 * int64(len(g.Payload)) // in the log, and in the file
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(f.file, &disk); err != nil {
		return fmt.Errorf("look how much of the disk is free: %w", err)
	}
	if free := int64(disk.Bavail)*disk.Bsize + f.free; free < need {
		return fmt.Errorf("%w: %d bytes are free, the drain may need %d", stream.ErrSpoolFull, free, need)
	}
	return nil
}

// measureEvery is how many changes are reckoned before the file is measured again.
const measureEvery = 16

// grow brings the figure of the bytes in use up to date after a change: what was
// added is reckoned, what was deleted is measured.
func (f *SpoolFile) grow(c stream.SpoolChange) {
	for _, g := range c.Groups {
		f.used += int64(len(g.Payload)) + groupBytes
		f.free = max(0, f.free-int64(len(g.Payload))-groupBytes)
	}
	for _, k := range c.Keys {
		f.used += int64(len(k.Key)) + keyBytes
	}
	if f.reckoned++; f.reckoned >= measureEvery || len(c.Drained)+len(c.Requeued) > 0 {
		_ = f.measure() // the change is on disk, whatever the file's size; the last figure stands
	}
}

// What a row takes beside its payload or key.
const (
	groupBytes = 40
	keyBytes   = 64
)

// measure reads how many bytes of the file are in use.
func (f *SpoolFile) measure() error {
	pages, err := number(f.writer, "PRAGMA page_count")
	free, errFree := number(f.writer, "PRAGMA freelist_count")
	if err := errors.Join(err, errFree); err != nil {
		return fmt.Errorf("read the size of the spool: %w", damaged(err))
	}
	f.used, f.free, f.reckoned = (pages-free)*spoolPage, free*spoolPage, 0
	return nil
}

// spoolWriter makes one change.
type spoolWriter struct {
	conn    *sqlite.Conn
	numbers map[string]int64 // of the names that are new
}

func (w *spoolWriter) write(f *SpoolFile, c stream.SpoolChange) error {
	err := sqlitex.Execute(w.conn, "BEGIN IMMEDIATE", nil)
	if err == nil {
		err = w.change(f, c)
	}
	committing := err == nil
	if committing {
		err = sqlitex.Execute(w.conn, "COMMIT", nil)
	}
	if err != nil && !w.conn.AutocommitEnabled() {
		err = errors.Join(err, sqlitex.Execute(w.conn, "ROLLBACK", nil))
	}
	switch code := sqlite.ErrCode(err).ToPrimary(); {
	case err == nil:
	case code == sqlite.ResultFull:
		return fmt.Errorf("%w: %w", stream.ErrSpoolFull, err)
	case committing && code == sqlite.ResultIOErr:
		return fmt.Errorf("%w: %w", stream.ErrUnconfirmed, err) // it may be in the log, and be read from there after a crash
	default:
		return damaged(err)
	}
	f.numbersMu.Lock()
	defer f.numbersMu.Unlock()
	for name, number := range w.numbers {
		f.numbers[name] = number
	}
	return nil
}

func (w *spoolWriter) exec(sql string, args ...any) error {
	return sqlitex.Execute(w.conn, sql, &sqlitex.ExecOptions{Args: args})
}

func (w *spoolWriter) change(f *SpoolFile, c stream.SpoolChange) error {
	for _, n := range c.Names {
		if err := w.exec("INSERT INTO names (name, id, drained, last) VALUES (?, ?, ?, ?)", n.Name, n.ID[:], int64(n.Drained), int64(n.Last)); err != nil {
			return err
		}
		w.numbers[n.Name] = w.conn.LastInsertRowID()
	}
	number := func(name string) int64 {
		if n, ok := w.numbers[name]; ok {
			return n
		}
		return f.number(name)
	}
	for _, g := range c.Groups {
		n := number(g.Name)
		err := w.exec("INSERT INTO groups (id, at, rows, sum, payload) VALUES (?, ?, ?, ?, ?)",
			groupID(n, g.Sequence), g.At.UnixMicro(), g.Rows, int64(g.Sum), g.Payload)
		if err == nil {
			err = w.exec("UPDATE names SET last = max(last, ?) WHERE number = ?", int64(g.Sequence), n)
		}
		if err != nil {
			return err
		}
	}
	for _, k := range c.Keys {
		err := w.exec("INSERT OR REPLACE INTO keys (number, key, fingerprint, expires_at, sequence) VALUES (?, ?, ?, ?, ?)",
			number(k.Name), k.Key, k.Fingerprint[:], k.Expires.UnixMicro(), int64(k.Sequence))
		if err != nil {
			return err
		}
	}
	for _, d := range c.Drained {
		if err := w.drained(number(d.Name), d); err != nil {
			return err
		}
	}
	for _, id := range c.Requeued {
		if err := w.exec("DELETE FROM dead WHERE id = ?", id); err != nil {
			return err
		}
	}
	return nil
}

func groupID(number int64, sequence uint64) int64 { return number<<sequenceBits | int64(sequence) }

// drained deletes what a drain has taken.
func (w *spoolWriter) drained(number int64, d stream.Drained) error {
	if err := w.exec("DELETE FROM groups WHERE id BETWEEN ? AND ?", groupID(number, 0), groupID(number, d.Upto)); err != nil {
		return err
	}
	if err := w.exec("UPDATE names SET drained = ? WHERE number = ?", int64(d.Upto), number); err != nil {
		return err
	}
	for _, key := range d.Keys {
		// A key that expired and came again belongs to a later group.
		if err := w.exec("DELETE FROM keys WHERE number = ? AND key = ? AND sequence <= ?", number, key, int64(d.Upto)); err != nil {
			return err
		}
	}
	for _, l := range d.Dead {
		if err := w.dead(l); err != nil {
			return err
		}
	}
	return w.shrink()
}

func (w *spoolWriter) dead(l stream.DeadLetter) error {
	return w.exec("INSERT INTO dead (name, sequence, at, rows, reason, payload, raw) VALUES (?, ?, ?, ?, ?, ?, ?)",
		l.Name, int64(l.Sequence), l.At.UnixMicro(), l.Rows, l.Reason, l.Payload, l.Raw)
}

const (
	shrinkFrom  = 8192 // free pages that a file keeps for the next outage
	shrinkPages = 2048 // given back by one transaction
)

// shrink gives room back to the disk once most of the file is free.
func (w *spoolWriter) shrink() error {
	free, err := number(w.conn, "PRAGMA freelist_count")
	if err != nil || free < shrinkFrom {
		return err
	}
	pages, err := number(w.conn, "PRAGMA page_count")
	if err != nil || free < pages/4*3 {
		return err
	}
	return sqlitex.Execute(w.conn, fmt.Sprintf("PRAGMA incremental_vacuum(%d)", shrinkPages), nil)
}

// Key implements stream.SpoolFile.
func (f *SpoolFile) Key(name, key string) (*stream.SpoolKey, error) {
	var found *stream.SpoolKey
	err := sqlitex.Execute(f.writer, "SELECT fingerprint, expires_at, sequence FROM keys WHERE number = ? AND key = ?", &sqlitex.ExecOptions{
		Args: []any{f.number(name), key}, ResultFunc: func(stmt *sqlite.Stmt) error {
			found = &stream.SpoolKey{Name: name, Key: key, Expires: time.UnixMicro(stmt.ColumnInt64(1)), Sequence: uint64(stmt.ColumnInt64(2))}
			stmt.ColumnBytes(0, found.Fingerprint[:])
			return nil
		},
	})
	return found, damaged(err)
}

// Read implements stream.SpoolFile.
func (f *SpoolFile) Read(ctx context.Context, name string, after uint64, bytes int) ([]stream.SealedGroup, error) {
	var groups []stream.SealedGroup
	err := f.read(ctx, func(conn *sqlite.Conn) error {
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
			if size += stmt.ColumnLen(4); len(groups) > 0 && size > bytes {
				return stmt.Reset()
			}
			groups = append(groups, stream.SealedGroup{
				Name: name, Sequence: uint64(stmt.ColumnInt64(0) & (1<<sequenceBits - 1)), At: time.UnixMicro(stmt.ColumnInt64(1)),
				Rows: stmt.ColumnInt(2), Sum: uint32(stmt.ColumnInt64(3)), Payload: columnBytes(stmt, 4),
			})
		}
	})
	return groups, damaged(err)
}

// read runs work on the reading connection, alone.
func (f *SpoolFile) read(ctx context.Context, work func(*sqlite.Conn) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reader.SetInterrupt(ctx.Done())
	defer f.reader.SetInterrupt(nil)
	return work(f.reader)
}
