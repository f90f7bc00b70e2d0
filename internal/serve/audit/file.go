package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// FileBytesMax bounds a File. Beyond, the older half of its changes is deleted.
const FileBytesMax = 8 << 20

// File is a Store in a file of JSON lines, the oldest first. One process writes it. It is created with the first change.
type File struct {
	path string
	most int64

	mu sync.Mutex // one change at a time
}

// NewFile returns a File, which nothing has opened yet.
func NewFile(path string) *File { return &File{path: path, most: FileBytesMax} }

// AddChange implements Store. After an error the file is as it was. A line that a crash has cut off is no change.
func (f *File) AddChange(_ context.Context, c Change) error {
	line, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode a change: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	text, err := os.ReadFile(f.path)
	isNew := errors.Is(err, fs.ErrNotExist)
	if err != nil && !isNew {
		return fmt.Errorf("record a change: %w", err)
	}
	line = append(line, '\n')
	if kept := f.current(text, c.At); isNew || len(kept) < len(text) {
		err = f.replace(append(kept, line...))
	} else {
		err = f.append(line, int64(len(text)))
	}
	if err != nil {
		return fmt.Errorf("record a change: %w", err)
	}
	return nil
}

// current returns the lines that are kept: whole ones, of changes that are not too old, and not too many.
func (f *File) current(text []byte, now time.Time) []byte {
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	if int64(len(text)) > f.most {
		half := text[len(text)/2:]
		text = half[bytes.IndexByte(half, '\n')+1:]
	}
	for len(text) > 0 {
		end := bytes.IndexByte(text, '\n') + 1
		var first Change
		if json.Unmarshal(text[:end], &first) == nil && now.Sub(first.At) < Kept {
			break
		}
		text = text[end:]
	}
	return slices.Clip(text)
}

// append adds a line to a file of some size.
func (f *File) append(line []byte, size int64) error {
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if _, err = file.Write(line); err == nil {
		err = file.Sync()
	}
	if err != nil {
		err = errors.Join(err, file.Truncate(size))
	}
	return errors.Join(err, file.Close())
}

// replace writes the whole file. A crash leaves the old one or the new one.
func (f *File) replace(text []byte) error {
	next := f.path + ".new"
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = file.Write(text); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(next, f.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	directory, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

// Changes implements Store.
func (f *File) Changes(_ context.Context, from, before time.Time, limit int) ([]Change, error) {
	f.mu.Lock()
	text, err := os.ReadFile(f.path)
	f.mu.Unlock()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the changes: %w", err)
	}
	var all []Change
	for line := range bytes.Lines(text) {
		var c Change
		if json.Unmarshal(line, &c) == nil && !c.At.Before(from) && c.At.Before(before) {
			all = append(all, c)
		}
	}
	slices.Reverse(all)
	return all[:min(limit, len(all))], nil
}
