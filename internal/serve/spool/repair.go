package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"spillway/internal/serve/queue"
)

// Repair copies what can be read of a spool's file into a new one, which takes its place.
// An empty group replaces each one that cannot be read, so that the drain goes on; what is
// left of damaged groups becomes dead letters. The old file is kept under another name,
// which Repair returns together with what was wrong. Errors wrap ErrInUse.
func Repair(ctx context.Context, path string, now time.Time) (kept string, flaws []Flaw, err error) {
	lock, err := lockFile(path+"-lock", "")
	if err != nil {
		return "", nil, fmt.Errorf("repair the spool %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, unlock(lock)) }()
	fresh := path + ".repaired"
	if err := remove(fresh); err != nil {
		return "", nil, err
	}
	if flaws, err = copyFile(ctx, path, fresh); err != nil {
		return "", nil, errors.Join(fmt.Errorf("repair the spool %s: %w", path, err), remove(fresh))
	}
	kept = fmt.Sprintf("%s.damaged-%s", path, now.UTC().Format("20060102T150405Z"))
	return kept, flaws, replace(path, kept, fresh)
}

// replace gives the old file a second name and puts the new one in its place, so that one
// of them is there at every moment.
func replace(path, kept, fresh string) error {
	for _, name := range []string{path, fresh} {
		if log, err := os.Stat(name + "-wal"); err == nil && log.Size() > 0 {
			return fmt.Errorf("repair the spool: %s-wal was not copied into its file: end other processes that read the spool", name)
		}
	}
	if err := os.Link(path, kept); err != nil {
		return fmt.Errorf("keep the old spool: %w", err)
	}
	// SQLite has deleted the log of the old file. It must not come back beside the new one.
	if err := syncFile(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return fmt.Errorf("replace the spool: %w", err)
	}
	return syncFile(filepath.Dir(path))
}

// remove deletes what an unfinished repair left.
func remove(path string) error {
	for _, ending := range []string{"", "-wal", "-shm", "-lock"} {
		if err := os.Remove(path + ending); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove an unfinished repair: %w", err)
		}
	}
	return nil
}

// copyFile writes what can be read of one file into a new one.
func copyFile(ctx context.Context, from, to string) (flaws []Flaw, err error) {
	old, err := inspectFile(from)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, old.close()) }()
	fresh, err := openFile(ctx, to, "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, fresh.close(), os.Remove(to+"-lock")) }()
	heads, err := old.heads(ctx)
	if err != nil {
		return nil, err
	}
	c := &copying{to: fresh, change: change{names: heads}}
	for _, h := range heads {
		c.head = h
		if err := old.survey(ctx, h, c.good, c.flawed); err != nil {
			return nil, err
		}
	}
	err = old.deadLetters(ctx, Filter{}, func(l queue.DeadLetter) error {
		c.change.dead = append(c.change.dead, l)
		return c.flush(surveyBytes)
	})
	return c.flaws, errors.Join(err, c.flush(0))
}

// copying collects what goes into the new file.
type copying struct {
	to     *file
	head   head // of the name that is copied
	change change
	bytes  int
	flaws  []Flaw
}

func (c *copying) good(g sealedGroup, group queue.Group) error {
	c.change.keys = appendKeys(c.change.keys, g.name, g.sequence, group.Entries)
	c.change.groups = append(c.change.groups, g)
	c.bytes += len(g.payload)
	return c.flush(surveyBytes)
}

func (c *copying) flawed(flaw Flaw) error {
	c.flaws = append(c.flaws, flaw)
	for sequence := flaw.First; sequence <= flaw.Last; sequence++ {
		empty := seal(flaw.Name, sequence, c.head.place(sequence), nil)
		empty.at = flaw.After
		c.change.groups = append(c.change.groups, empty)
		if err := c.flush(surveyBytes); err != nil {
			return err
		}
	}
	if len(flaw.Kept) > 0 {
		c.change.dead = append(c.change.dead, queue.DeadLetter{
			Name: flaw.Name, Sequence: flaw.First, At: flaw.Before, Reason: flaw.Reason, Payload: flaw.Kept, Raw: true,
		})
	}
	return nil
}

// flush writes what was collected if it has at least that many bytes; each group and dead
// letter counts 64 besides its payload.
func (c *copying) flush(bytes int) error {
	if c.bytes+64*(len(c.change.groups)+len(c.change.dead)) < bytes {
		return nil
	}
	written := c.change
	c.change, c.bytes = change{}, 0
	if _, err := c.to.write(written); err != nil {
		return fmt.Errorf("write the repaired spool: %w", err)
	}
	return nil
}
