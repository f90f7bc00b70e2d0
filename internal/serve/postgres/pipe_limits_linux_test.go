//go:build linux && !portable

package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/storetest"
)

// TestLoopLargeRow: a row that would hold up the loop is read elsewhere, and a smaller one is read in several parts.
func TestLoopLargeRow(t *testing.T) {
	t.Parallel()
	db, loop := open(t, shared.Get(t).CreateDatabase(t), database.Pool{Max: 4}), storetest.StartLoop(t)
	s := loopSource(t, db, feed.Definition{Name: "/q", SQL: "SELECT repeat('x', :a::int) AS x", Params: []param.Param{{Name: "a", Type: param.Integer}}})
	for range 3 {
		if got, err := inLoop(t, loop, s, wide, "1000000"); len(got) != 1000000+len(`{"x":""}`) || err != nil {
			t.Fatal(len(got), err)
		}
		if got, err := inLoop(t, loop, s, wide, "1"); got != `{"x":"x"}` || err != nil {
			t.Fatal(got, err)
		}
		r := storetest.BeginReads(t, loop, s, nil, feed.Limit{Rows: 1, Bytes: 1 << 30}, []string{"8000000"})[0]
		if err := apptest.Receive(t, "an answer", r.Ended); !errors.Is(err, feed.ErrElsewhere) {
			t.Fatal(len(r.Rows.Data), err)
		}
	}
}

// TestLoopHangingConnect: executions do not wait for a connection that hangs while it is opened.
func TestLoopHangingConnect(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	url := pg.CreateDatabase(t)
	proxy := newSplitter(t, pg.Addr())
	db, loop := open(t, strings.Replace(url, pg.Addr(), proxy.Addr().String(), 1), database.Pool{Max: 4, StatementTimeout: time.Hour}), storetest.StartLoop(t)
	s := pausing(t, db, url)
	apptest.Await(t, "no connection is being opened", func() bool { return db.pool.Stat().ConstructingConns() == 0 })
	proxy.hangs.Store(true)
	for db.pool.Stat().IdleConns() > 0 {
		held, err := db.acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer held.Release()
	}
	r := storetest.BeginReads(t, loop, s, nil, wide, []string{"1"})[0]
	if err := apptest.Receive(t, "an answer", r.Ended); !errors.Is(err, feed.ErrElsewhere) {
		t.Error(err)
	}
	storetest.OnLoop(t, loop, func() {
		if !db.pipesOf(loop).opens {
			t.Error("it has waited for the connection")
		}
	})
}

// TestLoopFewConnections: a loop asks a server that grants no further connection for one, and not again at once.
func TestLoopFewConnections(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	url := pg.CreateDatabase(t)
	role := fmt.Sprintf("few_%x", rand.Uint64())
	mustExecute(t, url, "CREATE ROLE "+role+" LOGIN CONNECTION LIMIT 2")
	db, loop := open(t, strings.Replace(url, "postgres@", role+"@", 1), database.Pool{Max: 6}), storetest.StartLoop(t)
	s := loopSource(t, db, feed.Definition{Name: "/q", SQL: "SELECT :a AS x", Params: []param.Param{{Name: "a", Type: param.Integer}}})
	for range 2 {
		held, err := db.acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer held.Release()
	}
	r := storetest.BeginReads(t, loop, s, nil, wide, []string{"1"})[0]
	if err := apptest.Receive(t, "an answer", r.Ended); !errors.Is(err, feed.ErrElsewhere) {
		t.Error(err)
	}
	apptest.Await(t, "the limit of the server was known", func() bool { return db.slots.Limit() == 2 })
}

// lateWriter is a connection whose writes return late, but for pings, as those of a process that gets no CPU.
type lateWriter struct{ *net.TCPConn }

// Write implements net.Conn.
func (w lateWriter) Write(b []byte) (int, error) {
	n, err := w.TCPConn.Write(b)
	if !bytes.Contains(b, []byte("-- ping")) {
		<-time.After(30 * time.Millisecond)
	}
	return n, err
}

// TestLoopReadsAlone: nothing else reads from a connection that a loop has got.
func TestLoopReadsAlone(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	s := loopSource(t, open(t, url, database.Pool{Max: 2}), feed.Definition{Name: "/q", SQL: "SELECT 1 AS x"})
	config, err := pgconn.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return lateWriter{c.(*net.TCPConn)}, nil
	}
	conn, err := pgconn.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	c := &pipe{conn: conn, statements: make(map[*statement]*prepared)}
	if err := c.prepare(t.Context(), []*flow{{source: s, statement: s.statement(shape{})}}); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(c.fd, []byte{'S', 0, 0, 0, 4}); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 10)
	apptest.Await(t, "the answer", func() bool {
		n, err := unix.Read(c.fd, answer)
		return err == nil && string(answer[:n]) == "Z\x00\x00\x00\x05I"
	})
}
