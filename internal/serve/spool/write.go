package spool

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/queue"
)

// change is what one transaction changes in a spool's file.
type change struct {
	names   []head        // new: name and id; drained, last and epochs in a repair
	epochs  []nameEpoch   // new, of names that are there or new
	groups  []sealedGroup // to be added
	keys    []groupKey    // of these groups
	drained []drained     // to be deleted
	retried []int64       // ids of dead letters to be deleted, because they are in groups or given up
	dead    []queue.DeadLetter
	move    move
}

// move gives dead letters, and the groups of a name, to another name.
type move struct {
	to      string // "": none
	letters []int64
	from    string // the name; "": only letters
}

// nameEpoch is an epoch of a name.
type nameEpoch struct {
	name string
	epoch
}

func (c *change) empty() bool {
	return len(c.names)+len(c.groups)+len(c.keys)+len(c.drained)+len(c.retried)+len(c.dead) == 0 && c.move.to == ""
}

// drained is the groups of a name up to a sequence, which are no longer needed.
type drained struct {
	name string
	upto uint64
	keys []string // of these groups
	dead []queue.DeadLetter
}

// errFull is the error of a change that was not written because the disk is full.
var errFull = errors.New("the disk is full")

// write makes a change in one transaction and returns when it is on disk, with the bytes
// of the file then in use. An error wraps queue.ErrUnknown if the change may have been
// written; after any other error it was not.
func (f *file) write(c change) (used int64, err error) {
	if c.empty() {
		err := f.measure()
		return f.used, err
	}
	if err := f.room(c); err != nil {
		return 0, err
	}
	t := transaction{f.writer}
	if err := t.run(c); err != nil {
		return 0, err
	}
	f.grow(c)
	return f.used, nil
}

// reserveBytes is how much of the disk groups leave free for the drain. SQLite writes
// deletions to the log before it copies them into the file, and both may grow by 1,000
// pages and a transaction. A file that fills the disk could never be emptied.
const reserveBytes = 12 << 20

// room returns an error if groups would take the reserve. Free pages of the file count as
// free disk.
func (f *file) room(c change) error {
	if len(c.groups) == 0 {
		return nil
	}
	need := f.reserve
	for _, g := range c.groups {
		need += 2 * int64(len(g.payload)) // in the log and in the file
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(f.path, &disk); err != nil {
		return fmt.Errorf("read the free space of the disk: %w", err)
	}
	if free := int64(disk.Bavail)*int64(disk.Bsize) + f.free; free < need {
		return fmt.Errorf("%w: %d bytes are free, the drain may need %d", errFull, free, need)
	}
	return nil
}

// measureEvery is the number of changes after which the file is measured again.
const measureEvery = 16

// grow updates the bytes in use after a change: additions are estimated, deletions are
// measured.
func (f *file) grow(c change) {
	for _, g := range c.groups {
		f.used += int64(len(g.payload)) + groupBytes
		f.free = max(0, f.free-int64(len(g.payload))-groupBytes)
	}
	for _, k := range c.keys {
		f.used += int64(len(k.key)) + keyBytes
	}
	if f.changes++; f.changes >= measureEvery || len(c.drained)+len(c.retried) > 0 {
		_ = f.measure() // the change is on disk in any case; the last figures stay
	}
}

// The size of a row without its payload or key.
const (
	groupBytes = 40
	keyBytes   = 64
)

const emptyBytes = 11 * pageBytes // of a file in which nothing waits

// measure reads how many bytes of the file are in use.
func (f *file) measure() error {
	pages, err := number(f.writer, "PRAGMA page_count")
	free, errFree := number(f.writer, "PRAGMA freelist_count")
	if err := errors.Join(err, errFree); err != nil {
		return fmt.Errorf("read the size of the spool: %w", damaged(err))
	}
	f.used, f.free, f.changes = (pages-free)*pageBytes, free*pageBytes, 0
	return nil
}

// transaction makes one change.
type transaction struct{ conn *sqlite.Conn }

func (t *transaction) run(c change) error {
	err := t.exec("BEGIN IMMEDIATE")
	if err == nil {
		err = t.apply(c)
	}
	committing := err == nil
	if committing {
		err = t.exec("COMMIT")
	}
	if err != nil && !t.conn.AutocommitEnabled() {
		err = errors.Join(err, t.exec("ROLLBACK"))
	}
	switch code := sqlite.ErrCode(err).ToPrimary(); {
	case err == nil:
	case code == sqlite.ResultFull:
		return fmt.Errorf("%w: %w", errFull, err)
	case committing && code == sqlite.ResultIOErr:
		return fmt.Errorf("%w: %w", queue.ErrUnknown, err) // the log may have it, and be read after a crash
	}
	return damaged(err)
}

func (t *transaction) exec(sql string, args ...any) error {
	return sqlitex.Execute(t.conn, sql, &sqlitex.ExecOptions{Args: args})
}

func (t *transaction) apply(c change) error {
	for _, h := range c.names {
		err := t.exec("INSERT INTO names (name, id, drained, last, moved_to) VALUES (?, ?, ?, ?, ?)",
			h.name, h.id[:], int64(h.drained), int64(h.last), h.movedTo)
		if err != nil {
			return err
		}
		for _, e := range h.epochs {
			if err := t.addEpoch(h.name, e); err != nil {
				return err
			}
		}
	}
	for _, e := range c.epochs {
		if err := t.addEpoch(e.name, e.epoch); err != nil {
			return err
		}
	}
	for _, g := range c.groups {
		err := t.exec("INSERT INTO groups (id, at, rows, sum, payload) VALUES ("+ofGroup+", ?3, ?4, ?5, ?6)",
			g.name, int64(g.sequence), g.at.UnixMicro(), g.rows, int64(g.sum), g.payload)
		if err == nil {
			err = t.exec("UPDATE names SET last = max(last, ?2) WHERE name = ?1", g.name, int64(g.sequence))
		}
		if err == nil && t.conn.Changes() == 0 { // the group would be another name's
			err = fmt.Errorf("%w: it lacks the name %s", ErrDamaged, g.name)
		}
		if err != nil {
			return err
		}
	}
	for _, k := range c.keys {
		err := t.exec("INSERT OR REPLACE INTO keys (number, key, fingerprint, expires_at, sequence, accepted_at) "+
			"VALUES ("+ofName+", ?2, ?3, ?4, ?5, ?6)",
			k.name, k.key, k.fingerprint[:], k.expires.UnixMicro(), int64(k.sequence), k.accepted.UnixMicro())
		if err != nil {
			return err
		}
	}
	for _, d := range c.drained {
		if err := t.delete(d); err != nil {
			return err
		}
	}
	for _, id := range c.retried {
		if err := t.exec("DELETE FROM dead WHERE id = ?", id); err != nil {
			return err
		}
	}
	if err := t.move(c.move); err != nil {
		return err
	}
	return t.addDead(c.dead)
}

// delete deletes groups that were drained, and adds their dead letters.
func (t *transaction) delete(d drained) error {
	if err := t.exec("DELETE FROM groups WHERE id BETWEEN "+ofName+" << 44 AND "+ofGroup, d.name, int64(d.upto)); err != nil {
		return err
	}
	if err := t.exec("UPDATE names SET drained = ?2 WHERE name = ?1", d.name, int64(d.upto)); err != nil {
		return err
	}
	if err := t.deleteEpochs(d.name, d.upto); err != nil {
		return err
	}
	for _, key := range d.keys {
		// If the key was used again after its time, it belongs to a later group.
		if err := t.exec("DELETE FROM keys WHERE number = "+ofName+" AND key = ?2 AND sequence <= ?3", d.name, key, int64(d.upto)); err != nil {
			return err
		}
	}
	if err := t.addDead(d.dead); err != nil {
		return err
	}
	return t.shrink()
}

// move notes the other name. The groups keep theirs, because it is part of what a database knows
// them by.
func (t *transaction) move(m move) error {
	for _, id := range m.letters {
		if err := t.exec("UPDATE dead SET name = ? WHERE id = ?", m.to, id); err != nil {
			return err
		}
	}
	if m.from == "" {
		return nil
	}
	return t.exec("UPDATE names SET moved_to = iif(name = ?2, '', ?2) WHERE name = ?1 OR moved_to = ?1", m.from, m.to)
}

// addDead adds dead letters.
func (t *transaction) addDead(letters []queue.DeadLetter) error {
	for _, l := range letters {
		err := t.exec("INSERT INTO dead (name, sequence, at, rows, reason, payload, raw, in_doubt) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
			l.Name, int64(l.Sequence), l.At.UnixMicro(), l.Rows, l.Reason, l.Payload, l.Raw, l.InDoubt)
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	shrinkFrom  = 8192 // free pages that the file keeps for the next outage
	shrinkPages = 2048 // returned to the disk by one transaction
)

// shrink returns space to the disk if most of the file is free.
func (t *transaction) shrink() error {
	free, err := number(t.conn, "PRAGMA freelist_count")
	if err != nil || free < shrinkFrom {
		return err
	}
	pages, err := number(t.conn, "PRAGMA page_count")
	if err != nil || free < pages/4*3 {
		return err
	}
	return t.exec(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", shrinkPages))
}
