package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/audit"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

// absentStandby is a server whose synchronous standby is away.
type absentStandby struct {
	*apptest.PostgresServer
	url string // of a database with the table t (id bigint)
}

// TestAbsentStandby runs, one after the other, the tests that tell a server whether to wait for
// a standby.
func TestAbsentStandby(t *testing.T) {
	t.Parallel()
	pg := apptest.Postgres(t, apptest.SynchronousSettings()...)
	for name, test := range map[string]func(*testing.T, *apptest.PostgresServer){
		"StreamStandbyAway": testStreamStandbyAway, "StreamLevel": testStreamLevel,
		"StreamStandbyAwayStop": testStreamStandbyAwayStop, "PopupStandbyAway": testPopupStandbyAway,
	} {
		t.Run(name, func(t *testing.T) { test(t, pg) })
	}
}

func newAbsentStandby(t *testing.T, pg *apptest.PostgresServer) *absentStandby {
	t.Helper()
	a := &absentStandby{pg, pg.CreateDatabase(t)}
	a.require(t, "")
	mustExecute(t, a.url, "CREATE TABLE t (id bigint)")
	return a
}

// require makes COMMIT wait for the standby, or not.
func (a *absentStandby) require(t *testing.T, names string) {
	t.Helper()
	if err := a.RequireStandby(t.Context(), names); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the server has read its settings", func() bool { return queryText(t, a.url, "SHOW synchronous_standby_names") == names })
	if names != "" {
		apptest.Await(t, "a COMMIT waits for the standby", func() bool { return a.commitWaits(t) })
	}
}

// commitWaits commits a write and reports whether that waits for the standby. COMMIT does so
// only after the checkpointer has read the settings.
func (a *absentStandby) commitWaits(t *testing.T) bool {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), a.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT pg_logical_emit_message(true, 'test', '')")
		done <- err
	}()
	cancel := fmt.Sprintf("SELECT count(pg_cancel_backend(pid))::text FROM pg_stat_activity WHERE pid = %d AND wait_event = 'SyncRep'", conn.PgConn().PID())
	waited := false
	apptest.Await(t, "the COMMIT is answered, or cancelled where it waits", func() bool {
		select {
		case err = <-done:
			return true
		default:
			waited = queryText(t, a.url, cancel) == "1" || waited
			return false
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return waited
}

const waitsForStandby = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'spillway' AND datname = current_database()"

func (a *absentStandby) waiting(t *testing.T) string {
	t.Helper()
	return queryText(t, a.url, "SELECT count(*)::text "+waitsForStandby)
}

// cancel has the server cancel what waits for the standby, as an administrator can.
func (a *absentStandby) cancel(t *testing.T) {
	t.Helper()
	if got := queryText(t, a.url, "SELECT string_agg(pg_cancel_backend(pid)::text, ',') "+waitsForStandby); got != "true" {
		t.Fatalf("cancelled: %q", got)
	}
}

func idSchema(t testing.TB) *stream.Schema {
	t.Helper()
	schema, err := stream.NewSchema(stream.Definition{Name: "/t", Table: "t", Spooled: true, Columns: []stream.Column{{Name: "id", Type: stream.Integer}}})
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// idEntry returns a request with records of these ids.
func idEntry(t testing.TB, schema *stream.Schema, key string, ids ...int) *stream.Entry {
	t.Helper()
	var body []byte
	for _, id := range ids {
		body = fmt.Appendf(body, "{\"id\":%d}\n", id)
	}
	records, refused, err := schema.Parse(body, stream.FormLines, time.Now(), stream.Limits{Bytes: 1 << 20, Records: 1000, Depth: 1, Fields: 1})
	if err != nil || len(refused) > 0 {
		t.Fatal(err, refused)
	}
	return &stream.Entry{Records: records, Key: key, Fingerprint: stream.FingerprintOf(body)}
}

// inTime repeats work until it meets statement_timeout, which is short, on a slow machine too.
// The server may call that a user's request; a batch that is found again is not confirmed then.
// This side gives up a little later. COMMIT has no such errors.
func inTime(work func() error) error {
	for {
		var pgErr *pgconn.PgError
		err := work()
		late := isDefinite(err, &pgErr) && pgErr.Code == "57014" ||
			errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, stream.ErrBlocked)
		if !late {
			return err
		}
	}
}

// untilWaiting returns when the COMMIT whose outcome comes in done waits for the standby.
func (a *absentStandby) untilWaiting(t *testing.T, done chan error) {
	t.Helper()
	apptest.Await(t, "COMMIT waits", func() bool {
		select {
		case err := <-done:
			t.Fatalf("COMMIT has not waited for the standby: %v", err)
		default:
		}
		return a.waiting(t) == "1"
	})
}

// wantWaiting fails the test if a COMMIT is answered within d.
func wantWaiting(t *testing.T, done chan error, d time.Duration) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("COMMIT has not waited for the standby: %v", err)
	case <-time.After(d):
	}
}

// answered returns the outcome of a COMMIT.
func answered(t *testing.T, done chan error) error {
	t.Helper()
	return apptest.Receive(t, "the answer to COMMIT", done)
}

// testStreamStandbyAway: a COMMIT that waits for a standby is not ended by statement_timeout.
// If an administrator ends it, the warning means that it is not confirmed, and neither is
// the batch that is found again, until a commit of its own has reached the standby.
func testStreamStandbyAway(t *testing.T, pg *apptest.PostgresServer) {
	a := newAbsentStandby(t, pg)
	bouncer := apptest.PgBouncer(t, a.PostgresServer, "transaction")
	schema := idSchema(t)
	for i, test := range []struct {
		name, url string
		long      bool
		change    func(*stream.Batch)
	}{
		{"direct", a.url, false, func(*stream.Batch) {}},
		{"quiet", a.url + "&client_min_messages=error", true, func(*stream.Batch) {}},
		{"stepwise", a.url, true, func(b *stream.Batch) { b.RowByRow = true }},
		{"keyed", a.url, true, func(b *stream.Batch) { b.Requests[0].Key = "key" }},
		{"drained", a.url, false, func(b *stream.Batch) {
			b.Mark = &queue.Mark{Spool: [16]byte{1}, Epoch: [16]byte{2}, Name: "/t", First: 1, Sums: [][16]byte{{3}}}
		}},
		{"pgbouncer", strings.Replace(a.url, a.Addr(), bouncer.Addr(), 1), false, func(*stream.Batch) {}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.long {
				apptest.Long(t)
			}
			a.require(t, "")
			sink := open(t, test.url, database.Pool{Max: 2, StatementTimeout: 100 * time.Millisecond}).Stream(schema)
			prepared := &stream.Batch{ID: [16]byte{0, byte(i)}, Requests: []*stream.Entry{idEntry(t, schema, "", -1)}}
			if err := inTime(func() error { prepared.Reset(); return sink.Commit(t.Context(), prepared) }); err != nil || prepared.Level != stream.LevelLocal {
				t.Fatalf("without a standby: %q, %v", prepared.Level, err)
			}
			a.require(t, "nobody")
			b := &stream.Batch{ID: [16]byte{1, byte(i)}, KeyTTL: time.Hour, Requests: []*stream.Entry{idEntry(t, schema, "", i)}}
			test.change(b)
			commit := func() chan error {
				done := make(chan error, 1)
				go func() { done <- inTime(func() error { b.Reset(); return sink.Commit(t.Context(), b) }) }()
				a.untilWaiting(t, done)
				wantWaiting(t, done, 500*time.Millisecond) // longer than statement_timeout
				return done
			}
			done := commit()
			a.cancel(t)
			if err := answered(t, done); !errors.Is(err, stream.ErrUnconfirmed) || !strings.Contains(err.Error(), "canceling wait for synchronous replication") {
				t.Errorf("cancelled: %v", err)
			}
			if got := queryText(t, a.url, fmt.Sprintf("SELECT count(*)::text FROM t WHERE id = %d", i)); got != "1" {
				t.Errorf("stored %s times", got)
			}
			b.Reset()
			done = commit()
			a.cancel(t)
			if err := answered(t, done); !errors.Is(err, stream.ErrUnconfirmed) {
				t.Errorf("found again, cancelled: %v", err)
			}
			b.Reset()
			done = commit()
			a.require(t, "")
			if err := answered(t, done); err != nil || b.Level != stream.LevelLocal { // no standby was ever there
				t.Errorf("found again: level %q, %v", b.Level, err)
			}
			if got := queryText(t, a.url, fmt.Sprintf("SELECT count(*)::text FROM t WHERE id = %d", i)); got != "1" {
				t.Errorf("stored %s times", got)
			}
		})
	}
}

// testStreamLevel: a COMMIT that waits for a standby when none is required any more is as good
// as one that has not waited. The records are committed, also if the server does not say so.
func testStreamLevel(t *testing.T, pg *apptest.PostgresServer) {
	a := newAbsentStandby(t, pg)
	schema := idSchema(t)
	sink := open(t, a.url, database.Pool{Max: 2}).Stream(schema)
	a.require(t, "nobody")
	b := &stream.Batch{ID: [16]byte{1}, Requests: []*stream.Entry{idEntry(t, schema, "", 1)}}
	done := make(chan error, 1)
	go func() { done <- sink.Commit(t.Context(), b) }()
	a.untilWaiting(t, done)
	ended, end := context.WithCancel(t.Context())
	end()
	for _, test := range []struct {
		ctx   context.Context
		limit time.Duration
		want  string
	}{{t.Context(), 0, stream.LevelRemoteApply}, {t.Context(), time.Nanosecond, stream.LevelLocal}, {ended, 0, stream.LevelLocal}} {
		if err := sink.db.ask(t.Context(), func(_ context.Context, conn *pgconn.PgConn) error {
			c := commit{conn: conn, level: stream.LevelRemoteApply}
			c.recheck(test.ctx, test.limit)
			if c.level != test.want {
				t.Errorf("after COMMIT: level %q, want %q", c.level, test.want)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	a.require(t, "")
	if err := answered(t, done); err != nil || b.Level != stream.LevelLocal {
		t.Errorf("level %q, %v", b.Level, err)
	}
}

// TestStreamLevelWithoutSenders: a server with max_wal_senders = 0 waits for no standby, whatever
// synchronous_standby_names is.
func TestStreamLevelWithoutSenders(t *testing.T) {
	t.Parallel()
	pg := apptest.Postgres(t, "synchronous_standby_names=nobody", "synchronous_commit=on")
	url := pg.CreateDatabase(t)
	mustExecute(t, url, "CREATE TABLE t (id bigint)")
	schema := idSchema(t)
	sink := open(t, url, database.Pool{}).Stream(schema)
	b := &stream.Batch{ID: [16]byte{1}, Requests: []*stream.Entry{idEntry(t, schema, "", 1)}}
	if err := sink.Commit(t.Context(), b); err != nil || b.Level != stream.LevelLocal {
		t.Errorf("level %q, %v", b.Level, err)
	}
	if d, err := sink.Durability(t.Context()); err != nil || d.Level != stream.LevelLocal {
		t.Errorf("level in general %q, %v", d.Level, err)
	}
}

// testStreamStandbyAwayStop: when the process stops, a connection that waits for a standby is
// closed. No cancel request ends the wait, whatever ends the connection.
func testStreamStandbyAwayStop(t *testing.T, pg *apptest.PostgresServer) {
	a := newAbsentStandby(t, pg)
	schema := idSchema(t)
	forward := apptest.NewForward(t, a.Addr())
	sink := open(t, strings.Replace(a.url, a.Addr(), forward.Addr(), 1), database.Pool{Max: 4}).Stream(schema)
	if err := sink.Commit(t.Context(), &stream.Batch{ID: [16]byte{1}, Requests: []*stream.Entry{idEntry(t, schema, "", 1)}}); err != nil {
		t.Fatal(err)
	}
	a.require(t, "nobody")
	for i, end := range []func(stop func()){
		func(stop func()) { stop() },
		func(func()) { forward.To(a.Addr()) }, // breaks the connections
	} {
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		b := &stream.Batch{ID: [16]byte{2, byte(i)}, Requests: []*stream.Entry{idEntry(t, schema, "", 2+i)}}
		go func() { done <- sink.Commit(ctx, b) }()
		want := fmt.Sprint(i + 1)
		apptest.Await(t, "COMMIT waits", func() bool { return a.waiting(t) == want })
		end(stop)
		if err := answered(t, done); !errors.Is(err, stream.ErrUnconfirmed) {
			t.Errorf("%d: %v", i, err)
		}
		stop()
		for end := time.After(500 * time.Millisecond); ; { // a cancel request would arrive
			if got := a.waiting(t); got != want {
				t.Fatalf("%d: %s sessions wait, want %s", i, got, want)
			}
			select {
			case <-end:
			case <-time.After(20 * time.Millisecond):
				continue
			}
			break
		}
	}
	a.require(t, "")
}

// testPopupStandbyAway: the COMMIT of events waits for the standby, also of events that are
// stored already. A campaign is not reported as stored before that.
func testPopupStandbyAway(t *testing.T, pg *apptest.PostgresServer) {
	a := newAbsentStandby(t, pg)
	unhurried := open(t, a.url, database.Pool{Max: 1}).Popups()
	p := open(t, a.url, database.Pool{Max: 4, StatementTimeout: 500 * time.Millisecond}).Popups()
	if err := unhurried.EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.require(t, "nobody")
	at := time.UnixMilli(1e12)
	events := []popup.Event{{ID: [16]byte{1}, Key: popup.Key{User: "u", Placement: "home"}, Sequence: 1, Kind: popup.KindShow, Campaign: 1, ShownAt: at, At: at}}
	apply := func(events []popup.Event) chan error {
		done := make(chan error, 1)
		go func() { done <- inTime(func() error { return p.Apply(t.Context(), events) }) }()
		a.untilWaiting(t, done)
		wantWaiting(t, done, time.Second) // longer than the statement timeout
		return done
	}
	conversion := []popup.Event{{ID: [16]byte{2}, Key: events[0].Key, Sequence: 1, Kind: popup.KindConvert, Campaign: 1, ShownAt: at, At: at}}
	for i, some := range [][]popup.Event{events, events, conversion, conversion} {
		done := apply(some)
		a.cancel(t)
		if err := answered(t, done); !errors.Is(err, stream.ErrUnconfirmed) {
			t.Errorf("%d, cancelled: %v", i, err)
		}
	}
	done := apply(events)
	a.require(t, "")
	if err := answered(t, done); err != nil {
		t.Error(err)
	}
	a.require(t, "nobody")
	campaign := popup.StoredCampaign{Campaign: popup.Campaign{Name: "c", Placement: "home", Payload: []byte("{}"), Status: popup.Active, Rollout: 100}}
	version, _, err := unhurried.Campaigns(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the COMMIT of the campaign is sent before the statement timeout", func() bool {
		_, err := p.SaveCampaign(t.Context(), campaign, version, audit.Author{})
		if err == nil {
			t.Fatal("a campaign is stored without the standby")
		}
		return strings.Contains(err.Error(), "COMMIT was not answered")
	})
	apptest.Await(t, "the COMMIT of the campaign waits", func() bool { return a.waiting(t) == "1" })
	a.require(t, "")
	apptest.Await(t, "the campaign is stored", func() bool { return queryText(t, a.url, "SELECT count(*)::text FROM popup_campaigns") == "1" })
}
