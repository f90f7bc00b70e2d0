package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"spillway/internal/serve/stream"
)

// Flaw is what a drain cannot pass: groups that are missing, or a damaged one.
type Flaw struct {
	Name        string
	First, Last uint64 // the groups
	Reason      string
	After       time.Time // when the group before them was accepted; zero: not known
	Before      time.Time // likewise the group behind them
	Kept        []byte    // what is there of a damaged group
}

// Flaws looks at every group that waits. It reads all of the file.
func (f *SpoolFile) Flaws(ctx context.Context) ([]Flaw, error) {
	var flaws []Flaw
	err := f.survey(ctx, func(stream.SealedGroup) error { return nil }, func(flaw Flaw) error {
		flaws = append(flaws, flaw)
		return nil
	})
	return flaws, err
}

// survey calls good or flawed for each group that waits, name by name, in order.
func (f *SpoolFile) survey(ctx context.Context, good func(stream.SealedGroup) error, flawed func(Flaw) error) error {
	heads, err := f.Heads(ctx)
	if err != nil {
		return err
	}
	for _, h := range heads {
		if err := f.surveyName(ctx, h, good, flawed); err != nil {
			return err
		}
	}
	return nil
}

const surveyBytes = 8 << 20 // read at once

func (f *SpoolFile) surveyName(ctx context.Context, h stream.SpoolHead, good func(stream.SealedGroup) error, flawed func(Flaw) error) error {
	at, before := h.Drained, time.Time{}
	for at < h.Last {
		groups, err := f.Read(ctx, h.Name, at, surveyBytes)
		if errors.Is(err, stream.ErrSpoolDamaged) {
			// SQLite cannot read on from here: one by one, then.
			groups, err = f.readable(ctx, h, at)
		}
		if err != nil {
			return err
		}
		next := h.Last + 1
		if len(groups) > 0 {
			next = groups[0].Sequence
		}
		if next > at+1 {
			flaw := Flaw{Name: h.Name, First: at + 1, Last: next - 1, Reason: "missing", After: before}
			if len(groups) > 0 {
				flaw.Before = groups[0].At
			}
			if err := flawed(flaw); err != nil {
				return err
			}
		}
		at = next - 1
		for _, g := range groups {
			if g.Sequence != at+1 {
				break // another gap: read again from here
			}
			at = g.Sequence
			if _, err := g.Open(); err != nil {
				err = flawed(Flaw{Name: h.Name, First: at, Last: at, Reason: "bad checksum", After: before, Before: g.At, Kept: g.Payload})
				if err != nil {
					return err
				}
				continue
			}
			before = g.At
			if err := good(g); err != nil {
				return err
			}
		}
	}
	return nil
}

// readable returns the first group behind one that can be read, none when there is
// none.
func (f *SpoolFile) readable(ctx context.Context, h stream.SpoolHead, at uint64) ([]stream.SealedGroup, error) {
	for ; at < h.Last && ctx.Err() == nil; at++ {
		groups, err := f.Read(ctx, h.Name, at, 1)
		if err == nil {
			return groups, nil
		}
		if !errors.Is(err, stream.ErrSpoolDamaged) {
			return nil, err
		}
	}
	return nil, ctx.Err()
}

// RepairSpool copies what can be read of a spool's file into a new one, an empty group
// in the place of each that cannot, and puts it in the file's place. What is there of
// damaged groups becomes dead letters. The old file is kept; its new name is
// returned with what was wrong. Errors wrap stream.ErrSpoolInUse.
func RepairSpool(ctx context.Context, file string, now time.Time) (kept string, flaws []Flaw, err error) {
	lock, err := lockSpool(file + "-lock")
	if err != nil {
		return "", nil, fmt.Errorf("repair the spool %s: %w", file, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	fresh := file + ".repaired"
	if err := removeSpool(fresh); err != nil {
		return "", nil, err
	}
	if flaws, err = copySpool(ctx, file, fresh); err != nil {
		return "", nil, errors.Join(fmt.Errorf("repair the spool %s: %w", file, err), removeSpool(fresh))
	}
	kept = fmt.Sprintf("%s.damaged-%s", file, now.UTC().Format("20060102T150405Z"))
	return kept, flaws, replaceSpool(file, kept, fresh)
}

// replaceSpool gives the old file a second name and puts the new one in its place: at
// every moment one of them is there.
func replaceSpool(file, kept, fresh string) error {
	for _, name := range []string{file, fresh} {
		if log, err := os.Stat(name + "-wal"); err == nil && log.Size() > 0 {
			return fmt.Errorf("repair the spool: %s-wal is still in use, or cannot be folded in: is another process looking at the spool?", name)
		}
	}
	if err := os.Link(file, kept); err != nil {
		return fmt.Errorf("keep the old spool: %w", err)
	}
	if err := os.Rename(fresh, file); err != nil {
		return fmt.Errorf("put the repaired spool in place: %w", err)
	}
	return syncDirectory(filepath.Dir(file))
}

func removeSpool(file string) error {
	for _, ending := range []string{"", "-wal", "-shm", "-lock"} {
		if err := os.Remove(file + ending); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove an unfinished repair: %w", err)
		}
	}
	return nil
}

// copySpool writes what can be read of one file into a new one.
func copySpool(ctx context.Context, from, to string) (flaws []Flaw, err error) {
	old, err := InspectSpool(from)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, old.Close()) }()
	fresh, err := OpenSpool(ctx, to)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, fresh.Close(), removeLock(to)) }()
	c := &spoolCopy{to: fresh}
	heads, err := old.Heads(ctx)
	if err != nil {
		return nil, err
	}
	c.change.Names = heads
	if err := old.survey(ctx, c.good, c.flawed); err != nil {
		return nil, err
	}
	err = old.Dead(ctx, "", func(l stream.DeadLetter) error {
		c.dead = append(c.dead, l)
		return c.flush(surveyBytes)
	})
	return c.flaws, errors.Join(err, c.flush(0))
}

func removeLock(file string) error {
	if err := os.Remove(file + "-lock"); err != nil {
		return fmt.Errorf("remove a lock: %w", err)
	}
	return nil
}

// spoolCopy collects what goes into the new file.
type spoolCopy struct {
	to     *SpoolFile
	change stream.SpoolChange
	dead   []stream.DeadLetter
	bytes  int
	flaws  []Flaw
}

func (c *spoolCopy) good(g stream.SealedGroup) error {
	group, err := g.Open()
	if err != nil {
		return err
	}
	for _, e := range group.Entries {
		if e.Key != "" {
			c.change.Keys = append(c.change.Keys, stream.SpoolKey{Name: g.Name, Key: e.Key, Fingerprint: e.Fingerprint, Expires: e.Expires, Sequence: g.Sequence})
		}
	}
	c.change.Groups = append(c.change.Groups, g)
	c.bytes += len(g.Payload)
	return c.flush(surveyBytes)
}

func (c *spoolCopy) flawed(flaw Flaw) error {
	c.flaws = append(c.flaws, flaw)
	for sequence := flaw.First; sequence <= flaw.Last; sequence++ {
		empty := stream.Seal(flaw.Name, sequence, nil)
		empty.At = flaw.After
		c.change.Groups = append(c.change.Groups, empty)
		if err := c.flush(surveyBytes); err != nil {
			return err
		}
	}
	if len(flaw.Kept) > 0 {
		c.dead = append(c.dead, stream.DeadLetter{Name: flaw.Name, Sequence: flaw.First, At: flaw.Before, Reason: flaw.Reason, Payload: flaw.Kept, Raw: true})
	}
	return nil
}

// flush writes what was collected once it has that many bytes, a group having some
// of its own.
func (c *spoolCopy) flush(bytes int) error {
	if c.bytes+64*(len(c.change.Groups)+len(c.dead)) < bytes {
		return nil
	}
	change := c.change
	dead := c.dead
	c.change, c.dead, c.bytes = stream.SpoolChange{}, nil, 0
	if _, err := c.to.Write(change); err != nil {
		return fmt.Errorf("write the repaired spool: %w", err)
	}
	return c.to.addDead(dead)
}

func (f *SpoolFile) addDead(letters []stream.DeadLetter) (err error) {
	w := &spoolWriter{conn: f.writer}
	if err := w.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	for _, l := range letters {
		if err := w.dead(l); err != nil {
			return errors.Join(err, w.exec("ROLLBACK"))
		}
	}
	return w.exec("COMMIT")
}
