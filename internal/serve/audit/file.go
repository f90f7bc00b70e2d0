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
const FileBytesMax = 2 << 20

// File is a Store in a file of JSON lines, the oldest first, which each change replaces. One process writes it.
type File struct {
	path string
	most int

	mu sync.Mutex // one change at a time
}

// NewFile returns a File, which the first change creates.
func NewFile(path string) *File { return &File{path: path, most: FileBytesMax} }

// AddChange implements Store. After an error the file is as it was.
func (f *File) AddChange(_ context.Context, c Change) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	text, err := f.read()
	if err == nil {
		var line []byte
		line, err = json.Marshal(c)
		text = append(append(f.kept(text, c.At), line...), '\n')
	}
	if err == nil {
		err = f.replace(text)
	}
	if err != nil {
		return fmt.Errorf("record a change: %w", err)
	}
	return nil
}

func (f *File) read() ([]byte, error) {
	text, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// kept returns the lines of changes that are not too old, and not too many.
func (f *File) kept(text []byte, now time.Time) []byte {
	if len(text) > f.most {
		text = text[len(text)/2:]
		text = text[bytes.IndexByte(text, '\n')+1:]
	}
	for line := range bytes.Lines(text) {
		var first Change
		if json.Unmarshal(line, &first) == nil && now.Sub(first.At) < Kept {
			break
		}
		text = text[len(line):]
	}
	return text
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
	text, err := f.read()
	if err != nil {
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
