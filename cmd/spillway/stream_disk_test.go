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

// smallDisk is a file system of a few megabytes that a test can fill.
type smallDisk struct{ path string }

// newSmallDisk mounts one for the length of a test.
func newSmallDisk(t *testing.T, megabytes int) *smallDisk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("a disk that is full is a tmpfs of its own, and mounting one needs root: run this test as root")
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

// TestStreamTakesTheDisk has the spool take all the disk that there is while the database
// is away, twice: it leaves what its drain needs, so all that was acknowledged is stored,
// and there is room again.
func TestStreamTakesTheDisk(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	p := postgresPlace(t, server)
	s := p.serve(t, readings+"    ack: spool\n", "--data", newSmallDisk(t, 16).path)
	taken := 0
	for range 2 {
		server.Kill()
		for refused := false; !refused; {
			var records []string
			for i := range 1000 {
				records = append(records, fmt.Sprintf(`{"id":%d,"note":"0123456789"}`, taken+i))
			}
			a := post(t, s.URL("readings"), "["+strings.Join(records, ",")+"]")
			switch refused = a.status != 202; {
			case refused:
				wantAnswer(t, a, 503, "busy disk")
			default:
				taken += len(records)
			}
			if taken > 1_000_000 {
				t.Fatal("the disk has room without end")
			}
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all is drained", func() bool { return metric(t, s, `spillway_spool_backlog_records{stream="/readings"}`) == 0 })
		if ids := p.ids(t); len(ids) != taken || len(slices.Compact(ids)) != taken {
			t.Errorf("%d stored, %d taken", len(ids), taken)
		}
	}
	t.Logf("%d records taken", taken)
	if got := metric(t, s, `spillway_spool_overloads_total{limit="disk"}`); got != 2 {
		t.Errorf("%v requests refused for the disk, want 2", got)
	}
}
