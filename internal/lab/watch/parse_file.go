package watch

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// maxProcFile bounds one file of /proc: an interrupt table of the largest machines stays far below it.
const maxProcFile = 4 << 20

// A procFile is a file of /proc that is kept open and read again from its start, which spares the path walk and makes
// the kernel write it anew each time. A file of a namespace stays with the namespace in which it was opened.
type procFile struct {
	path string
	fd   int
	buf  []byte
}

func openProc(path string) (*procFile, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return &procFile{path: path, fd: fd, buf: make([]byte, 4096)}, nil
}

// read returns the content, good until the next read.
func (f *procFile) read() ([]byte, error) {
	content, err := readFrom(f.fd, &f.buf)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.path, err)
	}
	return content, nil
}

func (f *procFile) close() {
	if f != nil {
		_ = unix.Close(f.fd)
	}
}

// closeAll closes files, of which some may be nil.
func closeAll(files ...*procFile) {
	for _, f := range files {
		f.close()
	}
}

// readOnce returns the content of a file of /proc, in buf or in what buf grows to.
func readOnce(path string, buf *[]byte) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return readFrom(fd, buf)
}

// readFrom reads a file that the kernel writes in one piece, as it does those that this package reads: one that does
// not fill the buffer is whole.
func readFrom(fd int, buf *[]byte) ([]byte, error) {
	for {
		n, err := unix.Pread(fd, *buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		case n < len(*buf):
			return (*buf)[:n], nil
		case len(*buf) >= maxProcFile:
			return nil, fmt.Errorf("longer than %d bytes", maxProcFile)
		}
		*buf = make([]byte, 4*len(*buf))
	}
}

// list calls each with the inode number and the name of every entry of a directory; the name is good until each returns.
func list(path string, buf []byte, each func(inode uint64, name []byte)) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		if err := parseEntries(buf[:n], each); err != nil {
			return err
		}
	}
}

// parseEntries reads what getdents64 returned: inode, offset, record length, type, name.
func parseEntries(b []byte, each func(inode uint64, name []byte)) error {
	const nameAt = 19
	for len(b) > 0 {
		if len(b) < nameAt {
			return errors.New("a directory entry is cut off")
		}
		length := int(binary.NativeEndian.Uint16(b[16:]))
		if length <= nameAt || length > len(b) {
			return fmt.Errorf("a directory entry of %d bytes in %d", length, len(b))
		}
		name := b[nameAt:length]
		for i, c := range name {
			if c == 0 {
				name = name[:i]
				break
			}
		}
		each(binary.NativeEndian.Uint64(b), name)
		b = b[length:]
	}
	return nil
}
