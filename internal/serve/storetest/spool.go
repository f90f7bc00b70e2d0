package storetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

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
			if e.Records.Value(row, 0).N == 13 {
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
	s := stream.OpenSpooled(cfg, schema, opened, sink{down: down})
	for _, id := range ids {
		body := fmt.Appendf(nil, `{"id":%d,"at":"2016-12-01T10:00:00Z","note":"é"}`, id)
		records, _, err := schema.Parse(body, stream.FormJSON, time.Now(), stream.Limits{Bytes: 1000, Records: 10, Depth: 5, Fields: 10})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store(t.Context(), s, stream.Request{Records: records}); err != nil {
			t.Fatal(err)
		}
	}
	if !down {
		apptest.Await(t, "the records are drained", func() bool { return opened.Stats().Names[0].Groups == 0 })
	}
	if err := errors.Join(s.Close(t.Context()), opened.Close()); err != nil {
		t.Fatal(err)
	}
}
