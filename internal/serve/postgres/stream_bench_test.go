package postgres

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/stream"
)

// durable are the settings of a server that keeps what it acknowledges.
var durable = []string{"fsync=on", "synchronous_commit=on", "full_page_writes=on"}

func positionsSchema(tb testing.TB) *stream.Schema {
	tb.Helper()
	now := stream.Now
	schema, err := stream.NewSchema(stream.Definition{Name: "/positions", Table: "positions", Columns: []stream.Column{
		{Name: "device_id", Type: stream.Integer, Required: true},
		{Name: "recorded_at", Type: stream.Timestamp, Default: &now},
		{Name: "latitude", Type: stream.Real},
		{Name: "longitude", Type: stream.Real},
	}})
	if err != nil {
		tb.Fatal(err)
	}
	return schema
}

const positionsTable = "CREATE TABLE positions (id bigserial PRIMARY KEY, device_id bigint NOT NULL, recorded_at timestamptz NOT NULL, latitude double precision, longitude double precision)"

func positions(tb testing.TB, schema *stream.Schema, n int) *stream.Records {
	tb.Helper()
	body := strings.Repeat(`{"device_id":42,"latitude":31.2304,"longitude":121.4737}`+"\n", n)
	records, refused, err := schema.Parse([]byte(body), stream.FormLines, time.Now(), stream.Limits{Bytes: 1 << 20, Records: 10000, Depth: 10, Fields: 10})
	if err != nil || len(refused) > 0 {
		tb.Fatal(err, refused)
	}
	return records
}

// BenchmarkStreamInsert compares the ways to insert a batch, on one connection with
// fsync off: the server's and the driver's work and the round trips.
func BenchmarkStreamInsert(b *testing.B) {
	url := apptest.Postgres(b).CreateDatabase(b)
	mustExecute(b, url, positionsTable)
	db := open(b, url, database.Pool{Max: 1})
	schema := positionsSchema(b)
	sink := db.Stream(schema)
	if err := sink.Check(b.Context()); err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{1, 10, 100, 1000} {
		records := positions(b, schema, n)
		b.Run(fmt.Sprintf("unnest/%d", n), func(b *testing.B) {
			for b.Loop() {
				batch := &stream.Batch{Requests: []*stream.Entry{{Records: records}}}
				_, _ = rand.Read(batch.ID[:])
				if err := sink.Commit(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "rows/s")
		})
		b.Run(fmt.Sprintf("copy/%d", n), func(b *testing.B) {
			rows := copyRows(records) // COPY gets its rows for nothing
			for b.Loop() {
				if err := copyBatch(b.Context(), sink, rows); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkOneWriter runs what a quick batch of one row consists of, each form with one part more than the last, in random order on one
// connection with synchronous_commit on, and reports the median round trip of each.
func BenchmarkOneWriter(b *testing.B) {
	url := apptest.Postgres(b).CreateDatabase(b)
	mustExecute(b, url, positionsTable)
	db := open(b, url, database.Pool{Max: 1})
	sink := db.Stream(positionsSchema(b))
	if err := sink.Check(b.Context()); err != nil {
		b.Fatal(err)
	}
	id := func(settings, returning string) step {
		sql := "INSERT INTO spillway_batches (id, created_at) SELECT p.id, now() FROM (SELECT $1::uuid AS id" + settings + ") AS p" + returning
		return step{statement: newStatement(sql, noColumns)}
	}
	plain := "INSERT INTO positions (device_id, recorded_at, latitude, longitude) SELECT 42, now(), 1.5, 2.5"
	insert := step{statement: newStatement(plain, noColumns)}
	checked := step{statement: newStatement(plain+" WHERE CASE WHEN 'now'::timestamptz <> now() THEN true "+
		"ELSE ('x' || extract(epoch FROM 'now'::timestamptz))::boolean END", noColumns)}
	level := " RETURNING current_setting('synchronous_commit'), " + standbyNames
	settings := ", set_config('lock_timeout', '3s', true), set_config('statement_timeout', '27s', true), " +
		"set_config('client_min_messages', 'warning', true), set_config('synchronous_commit', 'on', true)"
	names := []string{"insert", "+id", "+check", "+level", "+settings"}
	forms := [][]step{{insert}, {id("", ""), insert}, {id("", ""), checked}, {id("", level), checked}, {id(settings, level), checked}}
	took := make([][]time.Duration, len(forms))
	err := sink.db.ask(b.Context(), func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := exec(ctx, conn, "SET synchronous_commit = on"); err != nil {
			return err
		}
		for b.Loop() {
			for _, i := range mathrand.Perm(len(forms)) {
				if len(forms[i]) > 1 {
					batch := make([]byte, 16)
					_, _ = rand.Read(batch)
					forms[i][0].args = [][]byte{batch}
				}
				began := time.Now()
				if err := runSteps(ctx, conn, sink, forms[i]...); err != nil {
					return err
				}
				took[i] = append(took[i], time.Since(began))
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	for i, name := range names {
		slices.Sort(took[i])
		b.ReportMetric(float64(took[i][len(took[i])/2].Microseconds()), name+"-us")
	}
}

// copyBatch commits a batch by COPY: what goes before it, COPY itself and COMMIT are
// a round trip each, and COPY's own is two, for the server asks for the rows first.
func copyBatch(ctx context.Context, sink *Stream, rows []byte) error {
	var id [16]byte
	_, _ = rand.Read(id[:])
	return sink.db.ask(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := runSteps(ctx, conn, sink, step{sink.begin, nil, nil}, step{sink.batch, [][]byte{{}, {}, id[:]}, nil}); err != nil {
			return err
		}
		_, err := conn.CopyFrom(ctx, bytes.NewReader(rows), "COPY positions (device_id, recorded_at, latitude, longitude) FROM STDIN (FORMAT binary)")
		if err != nil {
			return err
		}
		return runSteps(ctx, conn, sink, step{sink.commit, nil, nil})
	})
}

func runSteps(ctx context.Context, conn *pgconn.PgConn, sink *Stream, steps ...step) error {
	descriptions, err := sink.describe(ctx, conn, steps)
	if err != nil {
		return err
	}
	_, err = pipeline(ctx, conn, steps, descriptions)
	return err
}

// copyRows writes rows in COPY's binary form.
func copyRows(records *stream.Records) []byte {
	dst := append([]byte("PGCOPY\n\xff\r\n\x00"), 0, 0, 0, 0, 0, 0, 0, 0)
	for row := range records.Len() {
		dst = binary.BigEndian.AppendUint16(dst, 4)
		one := []stream.Row{{Records: records, Row: row}}
		for i, t := range []stream.Type{stream.Integer, stream.Timestamp, stream.Real, stream.Real} {
			const header = 20 // of an array: what follows is the element with its length
			column := target{column: stream.Column{Type: t}, index: i, element: t}
			dst = append(dst, column.appendColumn(nil, one)[header:]...)
		}
	}
	return binary.BigEndian.AppendUint16(dst, 0xffff)
}

// BenchmarkStreamCallers has a thousand callers store one record each, again and
// again: through a stream, and by one INSERT a call through pools of 5 and 8. The
// server syncs every commit.
func BenchmarkStreamCallers(b *testing.B) {
	url := apptest.Postgres(b, durable...).CreateDatabase(b)
	mustExecute(b, url, positionsTable)
	schema := positionsSchema(b)
	records := positions(b, schema, 1)
	for _, committers := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("stream/%d", committers), func(b *testing.B) {
			db := open(b, url, database.Pool{Max: committers, AcquireTimeout: time.Minute})
			s := stream.Open(stream.Config{
				Committers: committers, BatchRows: 1000, BatchBytes: 1 << 20, QueueRows: 100000, QueueBytes: 64 << 20,
				WaitMax: time.Minute, CommitTimeout: 10 * time.Second, RetryFor: time.Minute, KeyTTL: time.Hour, Log: slog.New(slog.DiscardHandler),
			}, schema, db.Stream(schema))
			callers(b, func(ctx context.Context) error {
				_, waiting, err := s.Begin(ctx, stream.Request{Records: records}, nil)
				if err == nil {
					_, err = waiting.Receipt(ctx)
				}
				return err
			})
			stats := s.Stats()
			b.ReportMetric(float64(stats.BatchRows)/float64(stats.Batches), "rows/batch")
			if err := s.Close(b.Context()); err != nil {
				b.Error(err)
			}
		})
	}
	for _, size := range []int{5, 8} {
		b.Run(fmt.Sprintf("pool/%d", size), func(b *testing.B) {
			db := open(b, url, database.Pool{Max: size, AcquireTimeout: time.Minute})
			at := time.Now()
			callers(b, func(ctx context.Context) error {
				_, err := db.pool.Exec(ctx, "INSERT INTO positions (device_id, recorded_at, latitude, longitude) VALUES ($1, $2, $3, $4)", int64(42), at, 31.2304, 121.4737)
				return err
			})
		})
	}
}

func callers(b *testing.B, call func(context.Context) error) {
	const callers = 1000
	var left atomic.Int64
	var group sync.WaitGroup
	var worst atomic.Int64
	left.Store(int64(b.N))
	b.ResetTimer()
	for range callers {
		group.Go(func() {
			for left.Add(-1) >= 0 {
				start := time.Now()
				if err := call(b.Context()); err != nil {
					b.Error(err)
					return
				}
				if took := int64(time.Since(start)); took > worst.Load() {
					worst.Store(took)
				}
			}
		})
	}
	group.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(time.Duration(worst.Load()).Seconds()*1000, "worst-ms")
}
