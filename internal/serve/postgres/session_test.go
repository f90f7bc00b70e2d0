package postgres

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// TestLargeResultEndsSoon asks for millions of rows where ten are wanted: the
// server is told to stop, and the connection serves on.
func TestLargeResultEndsSoon(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	for name, unprepared := range map[string]bool{"prepared": false, "unprepared": true} {
		t.Run(name, func(t *testing.T) {
			db := open(t, url, database.Pool{Max: 1, Min: 1})
			if unprepared {
				db.unprepared.start(time.Now())
			}
			large, err := db.Source(feed.Definition{Name: "/large", SQL: "SELECT repeat('x', 100) AS x FROM generate_series(1, 3000) a, generate_series(1, 3000) b, generate_series(1, 3000) c"})
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			// A connection is closed if the server does not stop soon, as on a slow machine.
			apptest.AwaitState(t, "5 results over the limit are stopped on one connection", func() (string, bool) {
				before := db.Stats()
				for range 5 {
					rows := feed.Rows{Limit: feed.Limit{Rows: 10, Bytes: 1 << 20}}
					if err := large.Read(t.Context(), feed.Range{}, &rows); !errors.Is(err, feed.ErrTooLarge) {
						t.Fatal(err)
					}
					if err := db.Probe(t.Context()); err != nil {
						t.Fatalf("afterwards: %v", err)
					}
				}
				after := db.Stats()
				return fmt.Sprintf("%+v, then %+v", before, after), after.Connects == before.Connects && after.InUse == 0 && after.Idle == 1
			})
		})
	}
}

// TestPoolerRefusals: a pooler's own refusal to connect has the code of a lost
// prepared statement, and is none; a real loss passes after a while.
func TestPoolerRefusals(t *testing.T) {
	db := &DB{log: slog.New(slog.DiscardHandler)}
	refusal := &pgconn.PgError{Severity: "FATAL", Code: stateProtocolViolation, Message: "no more connections allowed (max_client_conn)"}
	closed := open(t, "postgres://postgres@127.0.0.1:1/x", database.Pool{})
	connect := closed.Ping(t.Context())
	if connect == nil {
		t.Fatal("a server at port 1")
	}
	if db.worthRetrying(errors.Join(connect, refusal)) || db.unprepared.active() {
		t.Error("a refused connection ended prepared statements")
	}
	if !db.worthRetrying(&pgconn.PgError{Severity: "ERROR", Code: stateProtocolViolation}) || !db.unprepared.active() {
		t.Error("a lost statement did not")
	}
	db.unprepared.until.Store(time.Now().UnixNano())
	if db.unprepared.active() {
		t.Error("they stay ended")
	}
	if db.unprepared.start(time.Now()) || !db.unprepared.active() {
		t.Error("a second loss is told again, or does not count")
	}
}

// testQueryRejectsValue runs a query with values that the server rejects.
func testQueryRejectsValue(t *testing.T, pg *apptest.PostgresServer) {
	db := open(t, pg.CreateDatabase(t), database.Pool{})
	q, err := db.Source(feed.Definition{Name: "/q", SQL: "SELECT 'a' LIKE :text AS v", Params: []param.Param{{Name: "text", Type: param.Text}}})
	if err != nil {
		t.Fatal(err)
	}
	for value, rejected := range map[string]bool{"a%": false, `\`: true} {
		err := q.Read(t.Context(), feed.Range{Args: []string{value}}, &feed.Rows{Limit: feed.Limit{Rows: 1, Bytes: 99}})
		if (err != nil) != rejected || errors.Is(err, param.ErrValue) != rejected {
			t.Errorf("%q: %v", value, err)
		}
	}
}
