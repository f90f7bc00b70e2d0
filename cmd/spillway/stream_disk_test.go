package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// smallDisk is a file system of a few megabytes that a test can fill.
type smallDisk struct{ path string }

const smallDiskOptions = "size=16m"

// newSmallDisk mounts one for the length of a test.
func newSmallDisk(t *testing.T) *smallDisk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("a disk that is full is a tmpfs of its own, and mounting one needs root: run this test as root")
	}
	path := t.TempDir()
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, smallDiskOptions); err != nil {
		t.Fatalf("mount a tmpfs of %s (a container needs CAP_SYS_ADMIN): %v", smallDiskOptions, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", path, err)
		}
	})
	return &smallDisk{path}
}

func (d *smallDisk) ballast() string { return filepath.Join(d.path, "ballast") }

// fill leaves no room.
func (d *smallDisk) fill(t *testing.T) {
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

// empty makes room again.
func (d *smallDisk) empty(t *testing.T) {
	t.Helper()
	if err := os.Remove(d.ballast()); err != nil {
		t.Fatal(err)
	}
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
