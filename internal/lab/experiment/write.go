package experiment

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// replaceJSON replaces a file at once: whoever reads it, also after a crash, sees the old text or the new one.
func replaceJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	fresh := path + ".new"
	file, err := os.Create(fresh)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	_, err = file.Write(append(text, '\n'))
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}

// begin makes the directory of a run, and keeps other runs out of it until the file returned is closed. A directory
// that holds a run is refused, unless it is to be resumed.
func (e *engine) begin() (lock *os.File, err error) {
	dir := e.config.Dir
	if _, err := os.Stat(filepath.Join(dir, ManifestFile)); err == nil && !e.config.Resume {
		return nil, &UseError{fmt.Sprintf("%s holds a run already: go on with it by --resume %s, or give another directory", dir, dir)}
	}
	if err := os.MkdirAll(filepath.Join(dir, BlocksDir), 0o755); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	if !e.config.Resume {
		if err := os.WriteFile(filepath.Join(dir, SourceFile), e.file.source, 0o644); err != nil {
			return nil, fmt.Errorf("write experiment: %w", err)
		}
	}
	if lock, err = os.Open(filepath.Join(dir, SourceFile)); err != nil {
		return nil, fmt.Errorf("lock directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, &UseError{fmt.Sprintf("%s is in use by another run", dir)}
	}
	return lock, nil
}

func (e *engine) saveState(block int, variant, level, ended string) error {
	return replaceJSON(filepath.Join(e.config.Dir, StateFile), State{
		UpdatedAt: time.Now(), PID: os.Getpid(), Block: block, Variant: variant, Level: level, Done: e.done, Turns: e.turns(), Ended: ended,
	})
}

func (e *engine) blockDir(block int) string {
	return filepath.Join(e.config.Dir, BlocksDir, fmt.Sprintf("%03d", block))
}

func (e *engine) turnDir(block int, variant string) string {
	return filepath.Join(e.blockDir(block), variant)
}

// incomplete lists the blocks that are to be run: those in which a turn has no record, or one of a run that ended in it.
func (e *engine) incomplete() []int {
	var blocks []int
	for i, turns := range e.plan.Turns {
		for _, plan := range turns {
			var t Turn
			if err := readJSON(filepath.Join(e.turnDir(i+1, plan.Variant), TurnFile), &t); err != nil || t.Interrupted {
				blocks = append(blocks, i+1)
				break
			}
		}
	}
	return blocks
}

// failures are the turns of a block that are not complete.
func (e *engine) failures(block int) []string {
	var failed []string
	for _, plan := range e.plan.Turns[block-1] {
		var t Turn
		if err := readJSON(filepath.Join(e.turnDir(block, plan.Variant), TurnFile), &t); err == nil && !t.Complete {
			failed = append(failed, fmt.Sprintf("block %d, %s: %s", block, plan.Variant, t.Error))
		}
	}
	return failed
}

// setAside keeps what there is of a block that is run again.
func (e *engine) setAside(block int) error {
	dir := e.blockDir(block)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	aside := filepath.Join(e.config.Dir, "incomplete")
	if err := os.MkdirAll(aside, 0o755); err != nil {
		return fmt.Errorf("set an incomplete block aside: %w", err)
	}
	for i := 1; ; i++ {
		to := filepath.Join(aside, fmt.Sprintf("%03d-%d", block, i))
		if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.Rename(dir, to); err != nil {
			return fmt.Errorf("set an incomplete block aside: %w", err)
		}
		return nil
	}
}
