package popuptest

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

const popupRedis = "  store: redis\n  keys: [0123456789abcdef0123456789abcdef]\n"

// popupCount returns a function that says how many events a database has.
func popupCount(t *testing.T, db storetest.Database) func() int {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return func() (n int) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM popup_events").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// TestPopupRedisTwoDatabases: a process with the same Redis and another database is refused, and
// takes no events of the first one.
func TestPopupRedisTwoDatabases(t *testing.T) {
	t.Parallel()
	store := apptest.Redis(t)
	own, other := storetest.PostgresDatabase(t, postgres.Get(t)), storetest.PostgresDatabase(t, postgres.Get(t))
	first := apptest.Serve(t, binary.Path(t), "--database", own.URL, "--redis", store.URL(""), apptest.PopupConfig(t, popupRedis))
	first.WaitReady(t)
	apptest.SendCampaign(t, first, "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	second := apptest.Serve(t, binary.Path(t), "--database", other.URL, "--redis", store.URL(""), apptest.PopupConfig(t, popupRedis))
	apptest.Await(t, "the second process has seen Redis", func() bool {
		status, reason := apptest.Readyz(t, second, "/readyz", "/popup")
		return status == 200 || strings.Contains(reason, "popups.redis_prefix")
	})
	apptest.SendCampaign(t, second, "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	const users = 10
	ownCount, otherCount := popupCount(t, own), popupCount(t, other)
	for i := range users { // one after the other, so that each can be taken by either process
		showTo(t, first, fmt.Sprintf("a%d-", i))
		apptest.Await(t, "the event is in a database", func() bool { return ownCount()+otherCount() > i })
	}
	if n := otherCount(); n > 0 {
		t.Errorf("%d of %d events went to one database, %d to the other", users-n, users, n)
	}
	for _, database := range []string{own.URL, other.URL} {
		if name := apptest.DatabaseName(database); !strings.Contains(second.Log(t), name) {
			t.Errorf("the log does not name the database %s:\n%s", name, second.Log(t))
		}
	}
	if a, _ := apptest.AskPopup(t, second, "user=a1-1"); a.Status != 503 {
		t.Errorf("the second process: %d %s", a.Status, a.Body)
	}
	prefixed := apptest.Serve(t, binary.Path(t), "--database", other.URL, "--redis", store.URL(""), apptest.PopupConfig(t, popupRedis+"  redis_prefix: other\n"))
	prefixed.WaitReady(t)
	expectReason(t, prefixed, "user=a1-1", "200 1 first")
}

// popupOutage is a database that is stopped while a replica and Redis are restarted.
type popupOutage struct {
	server *apptest.PostgresServer
	store  *apptest.Server
	s      *apptest.Spillway
}

// TestPopupRedisOutage: while the database refuses connections or hangs, users whose states Redis has are answered, and new
// ones are answered or refused at once. After a restart of Redis, and of the process, all are refused until the database is back.
func TestPopupRedisOutage(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	for name, c := range map[string]struct {
		ttl  string
		down func(*testing.T, *apptest.PostgresServer)
		up   func(*testing.T, *apptest.PostgresServer)
	}{
		"refuses": {"0s", func(_ *testing.T, server *apptest.PostgresServer) { server.Kill() }, func(t *testing.T, server *apptest.PostgresServer) {
			t.Helper()
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
		}},
		"hangs": {
			"720h", func(t *testing.T, server *apptest.PostgresServer) {
				t.Helper()
				apptest.SignalServer(t, server, syscall.SIGSTOP)
			},
			func(t *testing.T, server *apptest.PostgresServer) {
				t.Helper()
				apptest.SignalServer(t, server, syscall.SIGCONT)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := popupOutage{server: apptest.Postgres(t), store: apptest.Redis(t, "--appendonly", "yes", "--appendfsync", "always")}
			db := storetest.PostgresDatabase(t, o.server)
			o.s = apptest.Serve(t, binary.Path(t), "--database", db.URL, "--redis", o.store.URL(""), apptest.PopupConfig(t, popupRedis+"  state_ttl: "+c.ttl+"\n"))
			o.s.WaitReady(t)
			apptest.SendCampaign(t, o.s, "POST", "/popups/campaigns", apptest.PopupForAll, 201)
			o.known(t, "known", "200 1 first")
			o.known(t, "known", "204 0 wait-shown")
			counted := popupCount(t, db)
			apptest.Await(t, "the event is in the database", func() bool { return counted() == 1 })
			c.down(t, o.server)
			o.known(t, "known", "204 0 wait-shown")
			if c.ttl == "0s" {
				o.known(t, "new", "200 1 first")
			} else {
				o.refusesNew(t)
			}
			if err := o.store.Restart(); err != nil {
				t.Fatal(err)
			}
			apptest.Await(t, "the popups are not ready", func() bool { return apptest.Metric(t, o.s, "spillway_popup_down") == 1 })
			o.refusesNew(t)
			o.s.Kill()
			if err := o.s.Start(); err != nil {
				t.Fatal(err)
			}
			apptest.Await(t, "it listens", func() bool {
				_, err := apptest.TryFetch(t.Context(), http.DefaultClient, o.s.URL("popup?user=known"))
				return err == nil
			})
			o.refusesNew(t)
			c.up(t, o.server)
			o.known(t, "later", "200 1 first")
			o.known(t, "known", "204 0 wait-shown")
			apptest.SendCampaign(t, o.s, "POST", "/popups/campaigns/1/pause", "", 200)
			o.known(t, "none", "204 0 none-left")
			apptest.Await(t, "no event waits", func() bool { return apptest.Metric(t, o.s, "spillway_popup_events_waiting") == 0 })
		})
	}
}

// known waits until a user gets an answer.
func (o *popupOutage) known(t *testing.T, user, want string) {
	t.Helper()
	expectReason(t, o.s, "user="+user, want)
}

// refusesNew checks that new users need not wait for the database. One after the other they
// would wait for two seconds each, the end of a read, and 200 seconds together.
func (o *popupOutage) refusesNew(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
	defer cancel()
	for i := range 100 {
		a, err := apptest.TryFetch(ctx, http.DefaultClient, o.s.URL(fmt.Sprint("popup?user=new-", i)))
		if err != nil || a.Status != 503 {
			t.Fatalf("new user %d while the database is away: %d %s, %v, want 503", i, a.Status, a.Body, err)
		}
	}
}

// TestPopupRedisFull: while Redis is out of memory, the popups are not ready and say why. Users
// who wait are still answered. It ends by itself.
func TestPopupRedisFull(t *testing.T) {
	t.Parallel()
	store := apptest.Redis(t)
	s := apptest.Serve(t, binary.Path(t), "--database", postgres.Get(t).CreateDatabase(t), "--redis", store.URL(""), apptest.PopupConfig(t, popupRedis))
	s.WaitReady(t)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	expectReason(t, s, "user=known", "200 1 first")
	limit := func(bytes string) {
		t.Helper()
		conn := apptest.Dial(t, store.Addr())
		_, _ = fmt.Fprintf(conn, "CONFIG SET maxmemory %s\r\n", bytes) // the buffer keeps an error for Flush
		if err := conn.Flush(); err != nil {
			t.Fatal(err)
		}
		if line, err := conn.ReadString('\n'); err != nil || line != "+OK\r\n" {
			t.Fatalf("CONFIG SET: %q %v", line, err)
		}
	}
	limit("1")
	apptest.Await(t, "the popups are not ready", func() bool {
		status, reason := apptest.Readyz(t, s, "/readyz", "/popup")
		return status != 200 && strings.Contains(reason, "out of memory")
	})
	if down := apptest.Metric(t, s, "spillway_popup_down"); down != 1 {
		t.Errorf("down: %v", down)
	}
	expectReason(t, s, "user=known", "204 0 wait-shown")
	if got := popupReason(t, s, "user=new"); !strings.HasPrefix(got, "503") {
		t.Errorf("a new user: %s, want 503", got)
	}
	limit("0")
	s.WaitReady(t)
	expectReason(t, s, "user=new", "200 1 first")
}
