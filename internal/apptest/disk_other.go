//go:build !linux

package apptest

import "testing"

// SmallDisk is a file system with little room, which only Linux can make.
type SmallDisk struct{ Path string }

// NewSmallDisk fails the test.
func NewSmallDisk(t *testing.T, megabytes int) *SmallDisk {
	t.Helper()
	t.Fatalf("a disk of %d MB needs Linux", megabytes)
	return nil
}

// Fill does nothing.
func (*SmallDisk) Fill(*testing.T) {}

// Empty does nothing.
func (*SmallDisk) Empty(*testing.T) {}

// hasMemory is false: only Linux has such a directory.
func hasMemory(string) bool { return false }
