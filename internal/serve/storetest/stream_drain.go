package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/stream"
)

// gatedSink is a stream.Sink that can fail like a database that is down.
type gatedSink struct {
	stream.Sink
	shut   atomic.Bool
	unsafe atomic.Bool // its settings can lose commits

	// lives is the number of batches until the process is killed between the commit of
	// a batch and its deletion from the spool. Then dead is closed.
	lives atomic.Int64
	dead  chan struct{}
}

func (g *gatedSink) Durability(ctx context.Context) (stream.Durability, error) {
	if g.unsafe.Load() {
		return stream.Durability{Unsafe: []string{"fsync=off"}}, nil
	}
	return g.Sink.Durability(ctx)
}

func (g *gatedSink) Commit(ctx context.Context, b *stream.Batch) error {
	if g.shut.Load() {
		return fmt.Errorf("%w: it is down", stream.ErrTransient)
	}
	err := g.Sink.Commit(ctx, b)
	if err == nil && g.lives.Add(-1) == -1 {
		g.shut.Store(true)
		close(g.dead)
		return errors.New("killed")
	}
	return err
}

// drained is a spooled stream with its parts.
type drained struct {
	*stream.Spooled
	spool *spool.Spool
	sink  *gatedSink
}

const immortal = 1 << 60

// spooled starts a stream over a spool file.
func (db StreamDB) spooled(t testing.TB, def stream.Definition, path string, shut bool, lives int64) *drained {
	t.Helper()
	return db.spooledWith(t, def, path, shut, lives, nil)
}

// spooledWith does the same with another configuration.
func (db StreamDB) spooledWith(t testing.TB, def stream.Definition, path string, shut bool, lives int64,
	change func(*stream.Config),
) *drained {
	t.Helper()
	def.Spooled = true
	schema, err := stream.NewSchema(def)
	if err != nil {
		t.Fatal(err)
	}
	d := &drained{sink: &gatedSink{Sink: db.Sink(t, schema), dead: make(chan struct{})}}
	d.sink.shut.Store(shut)
	d.sink.lives.Store(lives)
	cfg := streamConfig()
	cfg.BatchRows = 40
	if change != nil {
		change(&cfg)
	}
	d.spool, err = spool.Open(t.Context(), path, spool.Config{Bytes: 1 << 30, QueueBytes: 1 << 20, GroupBytes: 400, Log: cfg.Log})
	if err != nil {
		t.Fatal(err)
	}
	d.Spooled = stream.OpenSpooled(cfg, schema, d.spool, d.sink)
	return d
}

func (d *drained) close(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := errors.Join(d.Close(ctx), d.spool.Close()); err != nil {
		t.Error(err)
	}
}

func (d *drained) send(t testing.TB, key, body string) stream.Outcome {
	t.Helper()
	limits := stream.Limits{Bytes: 1 << 20, Records: 10000, Depth: 20, Fields: 100}
	records, refused, err := d.Schema().Parse([]byte(body), stream.FormLines, time.Now(), limits)
	if err != nil {
		t.Fatal(err)
	}
	r := stream.Request{Records: records, Refused: refused, Key: key, Fingerprint: stream.FingerprintOf([]byte(body))}
	receipt, err := store(t.Context(), d, r)
	if err != nil {
		t.Errorf("%.100s: %v", body, err)
	}
	return receipt.Outcome
}

// empty waits until the spool is empty.
func (d *drained) empty(t testing.TB) {
	t.Helper()
	apptest.AwaitState(t, "the spool is drained", func() (string, bool) {
		stats := d.spool.Stats()
		return fmt.Sprintf("%+v", stats), stats.Names[0].Groups == 0
	})
}

func (d *drained) deadLetters(t testing.TB) []string {
	t.Helper()
	var texts []string
	for last := int64(0); ; {
		letters, err := d.spool.Letters(t.Context(), spool.Filter{}, last, math.MaxInt)
		if err != nil {
			t.Fatal(err)
		}
		if len(letters) == 0 {
			return texts
		}
		for _, l := range letters {
			records, err := stream.SpooledJSON(l.Payload)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				texts = append(texts, fmt.Sprintf("%s: %s", r, l.Reason))
			}
			last = l.ID
		}
	}
}

// drainBody returns the nth request of a client: two records, one of which is bad in every
// tenth request.
func drainBody(client, n int) string {
	id, note := client*10000+n*2, "good"
	if n%10 == 7 {
		note = "bad"
	}
	return fmt.Sprintf("{\"id\":%d,\"device\":%d,\"note\":%q}\n{\"id\":%d,\"device\":%d}", id, client+1, note, id+1, client+1)
}

// testStreamDrain fills a spool while the database is down, and kills the process several
// times between a commit and the deletion. Each record is stored once, in its client's
// order, and each bad one is one dead letter.
func testStreamDrain(t *testing.T, b StreamBackend) {
	db := b.open(t)
	path := filepath.Join(t.TempDir(), "spool", "s.db")
	d := db.spooled(t, readings(), path, true, immortal)
	const clients, each = 6, 30
	var group sync.WaitGroup
	for client := range clients {
		group.Go(func() {
			for n := range each {
				key := ""
				if n%3 == 0 {
					key = fmt.Sprintf("drain %d %d", client, n)
				}
				if o := d.send(t, key, drainBody(client, n)); o.Stored != 2 || o.Replayed {
					t.Errorf("outcome %+v", o)
				}
			}
		})
	}
	group.Wait()
	if o := d.send(t, "drain 0 0", drainBody(0, 0)); !o.Replayed || o.Stored != 2 {
		t.Errorf("sent again while it waits: %+v", o)
	}
	before := d.spool.Stats()
	if err := d.Ready(); err != nil || before.Names[0].Rows != clients*each*2 || before.Names[0].OldestSeconds <= 0 {
		t.Errorf("ready %v, stats %+v", err, before)
	}
	d.close(t)

	for kill := range 3 {
		d = db.spooled(t, readings(), path, false, int64(kill))
		apptest.AwaitState(t, "the process has ended behind a commit", func() (string, bool) {
			return fmt.Sprintf("ready: %v", d.Ready()), d.sink.lives.Load() < 0
		})
		d.sink.shut.Store(true)
		d.close(t)
	}
	d = db.spooled(t, readings(), path, false, immortal)
	d.empty(t)
	checkDrained(t, db, d, clients, each)
	if o := d.send(t, "drain 0 0", drainBody(0, 0)); o.Stored != 2 { // the spool no longer knows it
		t.Errorf("sent again after the drain: %+v", o)
	}
	d.send(t, "drain 1 0", drainBody(2, 3)) // or that this key had another body
	d.empty(t)
	letters := d.deadLetters(t)
	if n := clients*each/10 + 2; len(letters) != n || !strings.Contains(letters[n-1], queue.ErrKeyReused.Error()) {
		t.Errorf("%d dead letters, want %d: %q", len(letters), n, letters)
	}
	d.close(t)
	testStreamRetry(t, db, path, len(letters))
}

func checkDrained(t *testing.T, db StreamDB, d *drained, clients, each int) {
	t.Helper()
	last := map[int]int{}
	rows := db.rows(t, "SELECT id FROM readings ORDER BY seq")
	for _, row := range rows {
		id, _ := strconv.Atoi(row[0])
		if before, ok := last[id/10000]; ok && id <= before {
			t.Errorf("record %d is stored behind %d", id, before)
		}
		last[id/10000] = id
	}
	bad := clients * each / 10
	if want := clients*each*2 - bad; len(rows) != want {
		t.Errorf("%d rows, want %d", len(rows), want)
	}
	letters := d.deadLetters(t)
	seen := map[string]bool{}
	for _, l := range letters {
		if !strings.Contains(l, `"note":"bad"`) || seen[l] {
			t.Errorf("dead letter %s", l)
		}
		seen[l] = true
	}
	if len(letters) != bad {
		t.Errorf("%d dead letters, want %d", len(letters), bad)
	}
	if got := db.column(t, "SELECT count(DISTINCT spool) FROM spillway_epochs"); got != "1" {
		t.Errorf("%s spools in spillway_epochs, want 1", got)
	}
}

// testStreamRetry returns the dead letters to the spool after the table was fixed, and
// with other columns.
func testStreamRetry(t *testing.T, db StreamDB, path string, letters int) {
	t.Helper()
	var out strings.Builder
	err := spool.Command{Path: path, Out: &out}.Retry(t.Context(), spool.Filter{}, false)
	// the two records whose key was used before are one letter
	if want := fmt.Sprintf("%d dead letters put back\n", letters-1); err != nil || out.String() != want {
		t.Fatalf("retry: %s, %v, want %s", out.String(), err, want)
	}
	def := readings()
	def.Columns = def.Columns[:2]
	stored, _ := strconv.Atoi(db.column(t, "SELECT count(*) FROM readings"))
	d := db.spooled(t, def, path, false, immortal)
	defer d.close(t)
	d.empty(t)
	got := d.deadLetters(t)
	for _, l := range got[:len(got)-1] {
		if !strings.Contains(l, "the stream no longer has a column note") && !strings.Contains(strings.ToLower(l), "unique") &&
			!strings.Contains(l, "Duplicate") {
			t.Errorf("dead letter %s", l)
		}
	}
	if now, _ := strconv.Atoi(db.column(t, "SELECT count(*) FROM readings")); now != stored || len(got) != letters {
		t.Errorf("%d rows, %d before; %d dead letters: %q", now, stored, len(got), got)
	}
}

// testStreamOutage accepts records while the server is down, and makes the server crash
// while they are drained.
func testStreamOutage(t *testing.T, b StreamBackend) {
	db := b.open(t)
	if db.Kill == nil {
		return // there is no server to kill
	}
	d := db.spooled(t, readings(), filepath.Join(t.TempDir(), "s.db"), false, immortal)
	defer d.close(t)
	d.send(t, "", `{"id":999999}`)
	d.empty(t)
	const each = 60
	db.Kill()
	var group sync.WaitGroup
	for client := range 4 {
		group.Go(func() {
			for n := range each {
				d.send(t, "", drainBody(client, n))
			}
		})
	}
	group.Wait()
	crashes := 2
	if testing.Short() {
		crashes = 1
	}
	for crash := range crashes + 1 {
		if err := db.Start(); err != nil {
			t.Fatal(err)
		}
		if crash == crashes {
			break
		}
		if db.Proxy != nil {
			db.Proxy.Arm(CutAfter)
		}
		stored := d.Stats().Batches
		apptest.AwaitState(t, "the drain goes on", func() (string, bool) {
			return fmt.Sprintf("%+v", d.spool.Stats()), d.Stats().Batches > stored
		})
		db.Kill()
	}
	d.empty(t)
	db.exec(t, "DELETE FROM readings WHERE id = 999999")
	checkDrained(t, db, d, 4, each)
	if stats := d.spool.Stats().Names[0]; stats.Retries == 0 || stats.State != spool.DrainRunning {
		t.Errorf("stats %+v", stats)
	}
}
