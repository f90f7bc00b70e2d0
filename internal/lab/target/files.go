package target

import (
	"fmt"
	"io"
	"os"
)

// Files opens the files that requests name: bodies, lists of requests, columns of
// values and certificates. A nil Files has no files.
type Files func(name string) (io.ReadCloser, error)

// LocalFiles opens the files of this host.
func LocalFiles(name string) (io.ReadCloser, error) { return os.Open(name) }

// Open opens a file.
func (f Files) Open(name string) (io.ReadCloser, error) {
	if f == nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: os.ErrPermission}
	}
	return f(name)
}

// Read reads a file of at most bodyFileMax bytes.
func (f Files) Read(name string) ([]byte, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, bodyFileMax+1))
	if err == nil && len(text) > bodyFileMax {
		err = fmt.Errorf("%s is larger than %d bytes", name, bodyFileMax)
	}
	return text, err
}
