package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"spillway/internal/serve/popup"
)

// lockSuffix makes the name of the lock's file from that of the database.
const lockSuffix = "-popups.lock"

// Lock makes this process the only one that keeps the database's popup states in memory.
// The *popup.LockedError of other processes names holder. The lock ends with the process.
// It is a lock on a file next to the database; the file remains.
func (p *Popups) Lock(ctx context.Context, holder string) (*popup.Lock, error) {
	return popup.Hold(ctx, func(context.Context, [16]byte, bool) (popup.Holding, error) {
		return takeLock(p.db.file+lockSuffix, holder)
	}, p.db.log)
}

func takeLock(name, holder string) (popup.Holding, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		text, readErr := os.ReadFile(name)
		locked := &popup.LockedError{Holder: strings.TrimSpace(string(text))}
		return nil, errors.Join(locked, readErr, file.Close())
	}
	if err == nil {
		err = errors.Join(file.Truncate(0), writeAt(file, holder+"\n"))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), file.Close())
	}
	return &heldLock{file}, nil
}

func writeAt(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

// heldLock is the file that is locked.
type heldLock struct{ file *os.File }

// Check implements popup.Holding. The lock lasts as long as the file is open and has its name.
func (h *heldLock) Check(context.Context) error {
	locked, err := h.file.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(h.file.Name())
	if err == nil && !os.SameFile(locked, named) {
		err = fmt.Errorf("%s was replaced", h.file.Name())
	}
	return err
}

// Release implements popup.Holding.
func (h *heldLock) Release() {
	_ = syscall.Flock(int(h.file.Fd()), syscall.LOCK_UN) // also of a copy of the descriptor in a program that is about to start
	_ = h.file.Close()                                   // everything is written
}
