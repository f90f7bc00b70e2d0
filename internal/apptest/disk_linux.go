package apptest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// SmallDisk is a small file system that a test can fill.
type SmallDisk struct{ Path string }

// NewSmallDisk mounts a tmpfs for the duration of a test.
func NewSmallDisk(t *testing.T, megabytes int) *SmallDisk {
	t.Helper()
	NeedRoot(t)
	path := t.TempDir()
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, fmt.Sprintf("size=%dm", megabytes)); err != nil {
		t.Fatalf("mount a tmpfs of %d MiB (a container needs CAP_SYS_ADMIN): %v", megabytes, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", path, err)
		}
	})
	return &SmallDisk{path}
}

func (d *SmallDisk) ballast() string { return filepath.Join(d.Path, "ballast") }

// Fill uses all free space.
func (d *SmallDisk) Fill(t *testing.T) {
	t.Helper()
	f, err := os.Create(d.ballast())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, zeros{}); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
}

// Empty frees what fill has used.
func (d *SmallDisk) Empty(t *testing.T) {
	t.Helper()
	if err := os.Remove(d.ballast()); err != nil {
		t.Fatal(err)
	}
}

// zeros is an endless reader of zero bytes.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// hasMemory reports whether a directory is one of everybody in a file system in memory that has room for
// the servers of several test processes, and from which programs can run.
func hasMemory(dir string) bool {
	const room = 4 << 30
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil || disk.Type != unix.TMPFS_MAGIC || disk.Flags&unix.ST_NOEXEC != 0 {
		return false
	}
	info, err := os.Stat(dir)
	return err == nil && info.Mode().Perm() == 0o777 && disk.Bavail*uint64(disk.Bsize) >= room
}
