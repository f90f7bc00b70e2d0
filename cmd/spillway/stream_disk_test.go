package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
)

// smallDisk is a small file system that a test can fill.
type smallDisk struct{ path string }

// newSmallDisk mounts a tmpfs for the duration of a test.
func newSmallDisk(t *testing.T, megabytes int) *smallDisk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test fills a tmpfs, and mounting one requires root: run it as root")
	}
	path := t.TempDir()
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, fmt.Sprintf("size=%dm", megabytes)); err != nil {
		t.Fatalf("mount a tmpfs of %d MiB (a container needs CAP_SYS_ADMIN): %v", megabytes, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", path, err)
		}
	})
	return &smallDisk{path}
}

func (d *smallDisk) ballast() string { return filepath.Join(d.path, "ballast") }

// fill uses all free space.
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

// empty frees what fill has used.
func (d *smallDisk) empty(t *testing.T) {
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

// TestStreamSpoolDiskFull fills the spool's disk while the database is down, twice. The spool
// keeps the space that its drain needs, so every acknowledged record is stored, and the
// drain frees space for new records.
func TestStreamSpoolDiskFull(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	db := postgresDatabase(t, server)
	s := db.serve(t, readings+"    ack: spool\n", "--data", newSmallDisk(t, 16).path)
	accepted := 0
	for range 2 {
		server.Kill()
		for refused := false; !refused; {
			var records []string
			for i := range 1000 {
				records = append(records, fmt.Sprintf(`{"id":%d,"note":"0123456789"}`, accepted+i))
			}
			a := post(t, s.URL("readings"), "["+strings.Join(records, ",")+"]")
			switch refused = a.status != 202; {
			case refused:
				wantAnswer(t, a, 503, "busy disk")
			default:
				accepted += len(records)
			}
			if accepted > 1_000_000 {
				t.Fatal("the disk is never full")
			}
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all records are drained", func() bool { return metric(t, s, `spillway_spool_backlog_records{stream="/readings"}`) == 0 })
		if ids := db.ids(t); len(ids) != accepted || len(slices.Compact(ids)) != accepted {
			t.Errorf("%d stored, %d accepted", len(ids), accepted)
		}
	}
	t.Logf("%d records accepted", accepted)
	if got := metric(t, s, `spillway_spool_overloads_total{limit="disk"}`); got != 2 {
		t.Errorf("%v requests refused because of the disk, want 2", got)
	}
}
