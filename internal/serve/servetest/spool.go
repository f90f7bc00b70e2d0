package servetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/stream"
)

// sink is a table that refuses id 13, or a database that is down.
type sink struct{ down bool }

func (s sink) Commit(_ context.Context, b *stream.Batch) error {
	if s.down {
		return stream.ErrTransient
	}
	for _, e := range b.Requests {
		for row := range e.Records.Len() {
			if e.Records.Integer(row, 0) == 13 {
				e.Result.Refused = append(e.Result.Refused, stream.RowRefusal{Row: row, Reason: "no luck"})
			}
		}
	}
	return nil
}

func (sink) Durability(context.Context) (stream.Durability, error) {
	return stream.Durability{}, nil
}

func (sink) Sweep(context.Context, stream.Keep, int) (int, error) { return 0, nil }

// FillSpool posts ids to a spool in data. If the database is up, it waits until they
// are drained.
func FillSpool(t *testing.T, data string, down bool, ids ...int) {
	t.Helper()
	schema, err := stream.NewSchema(stream.Definition{Name: "/readings", Table: "t", Columns: []stream.Column{
		{Name: "id", Type: stream.Integer}, {Name: "at", Type: stream.Timestamp}, {Name: "note", Type: stream.Text},
	}})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	opened, err := spool.Open(t.Context(), spool.Path(data), spool.Config{Bytes: 1 << 30, QueueBytes: 1 << 20, GroupBytes: 1 << 20, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.Config{BatchRows: 100, BatchBytes: 1 << 20, CommitTimeout: time.Minute, KeyTTL: time.Hour, Log: log}
	s, err := stream.OpenSpooled(cfg, schema, opened, sink{down: down})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		body := fmt.Appendf(nil, `{"id":%d,"at":"2016-12-01T10:00:00Z","note":"é"}`, id)
		records, _, err := schema.Parse(body, stream.FormJSON, time.Now(), stream.Limits{Bytes: 1000, Records: 10, Depth: 5, Fields: 10})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Store(t.Context(), stream.Request{Records: records}); err != nil {
			t.Fatal(err)
		}
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !down && opened.Stats().Names[0].Groups > 0 {
		<-tick.C
	}
	if err := errors.Join(s.Close(t.Context()), opened.Close()); err != nil {
		t.Fatal(err)
	}
}

// SmallDisk is a small file system that a test can fill.
type SmallDisk struct{ Path string }

// NewSmallDisk mounts a tmpfs for the duration of a test.
func NewSmallDisk(t *testing.T, megabytes int) *SmallDisk {
	t.Helper()
	apptest.NeedRoot(t)
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

// WantSpooled checks that the answer acknowledges records in the spool. It ignores the part
// about the database.
func WantSpooled(t *testing.T, a Answer, records int) {
	t.Helper()
	if a.Status != 202 || !strings.HasPrefix(string(a.Body), fmt.Sprintf(`{"stored":%d,"ack":"spool`, records)) {
		t.Errorf("%d %s, want %d in the spool", a.Status, a.Body, records)
	}
}
