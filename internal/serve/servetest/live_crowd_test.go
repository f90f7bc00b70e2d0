package servetest

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
)

// freightFeed is the feed of the freight app.
const freightFeed = `feeds:
  - path: /goodslist
    sql: SELECT orders.id, orders.createtime, orders.goods_name, users.nickname, users.mobileno FROM orders JOIN users ON users.id = orders.users_id
    key: id
`

// crowd is many listeners, each with its own connection.
type crowd struct {
	conns    []net.Conn
	readers  sync.WaitGroup
	round    atomic.Pointer[crowdRound]
	answered atomic.Int64 // that got their first event
	lost     atomic.Int64 // whose connection has ended
}

// crowdRound is one order that the listeners wait for.
type crowdRound struct {
	mark  []byte // in its event only
	began time.Time
	mu    sync.Mutex
	took  []time.Duration
}

// newCrowd connects count listeners, from several addresses of this machine, because one has
// too few ports for very many.
func newCrowd(t *testing.T, address, path string, count int) *crowd {
	t.Helper()
	c := &crowd{}
	c.round.Store(&crowdRound{})
	for i := range count {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+i/5000))}}
		conn, err := from.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		c.conns = append(c.conns, conn)
		if _, err := fmt.Fprintf(conn, "GET /%s HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n", path); err != nil {
			t.Fatal(err)
		}
		c.readers.Go(func() { c.read(conn) })
	}
	apptest.Await(t, "all listeners have the first event", func() bool { return c.answered.Load() == int64(count) })
	return c
}

// read notes when each round's event arrives.
func (c *crowd) read(conn net.Conn) {
	var buffer [4096]byte
	var last *crowdRound
	for first := true; ; {
		n, err := conn.Read(buffer[:])
		if err != nil {
			c.lost.Add(1)
			return
		}
		if first && bytes.Contains(buffer[:n], []byte("data: ")) {
			first = false
			c.answered.Add(1)
		}
		if r := c.round.Load(); r != last && r.mark != nil && bytes.Contains(buffer[:n], r.mark) {
			last = r
			took := time.Since(r.began)
			r.mu.Lock()
			r.took = append(r.took, took)
			r.mu.Unlock()
		}
	}
}

func (c *crowd) close() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.readers.Wait()
}

// insert adds an order and returns how long each listener took to get it.
func (c *crowd) insert(t *testing.T, conn *pgx.Conn, i int) []time.Duration {
	t.Helper()
	mark := fmt.Sprintf("crowd-%d.", i)
	r := &crowdRound{mark: []byte(mark), began: time.Now()}
	c.round.Store(r)
	apptest.Execute(t, conn, "INSERT INTO orders (createtime, users_id, goods_name) VALUES ('2016-12-02', 1, $1)", mark)
	apptest.Await(t, "all listeners have the new order", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.took) == len(c.conns)
	})
	return r.took
}

// TestLiveCrowd inserts orders that many listeners get. With SPILLWAY_LISTENERS=10000 it
// reports how long that takes and what it costs.
func TestLiveCrowd(t *testing.T) {
	t.Parallel()
	count, rounds, pause := 200, 2, time.Duration(0)
	if text := os.Getenv("SPILLWAY_LISTENERS"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		rounds, pause = 40, 700*time.Millisecond
	}
	url, conn := freightDatabase(t)
	s := apptest.ServePatiently(t, &binary, fmt.Sprintf("http: {connections: %d}\n", count+100)+freightFeed, url)
	before, rate := measureIdle(t, s, conn, pause)
	c := newCrowd(t, s.Addr(), "goodslist", count)
	defer c.close()
	others := watchOthers(t, s, pause > 0)
	busy := apptest.Metric(t, s, "process_cpu_seconds_total")
	var all []time.Duration
	for i := range rounds {
		<-time.After(rand.N(pause + 1)) // any time between two refreshes
		all = append(all, c.insert(t, conn, i)...)
	}
	busy = apptest.Metric(t, s, "process_cpu_seconds_total") - busy
	waits := others()
	after, rateWith := measureIdle(t, s, conn, pause)
	slices.Sort(all)
	at := func(d []time.Duration, q float64) time.Duration {
		if len(d) == 0 {
			return 0
		}
		return d[int(q*float64(len(d)-1))].Round(100 * time.Microsecond)
	}
	t.Logf("%d listeners, %d orders: p50 %s, p99 %s, max %s; transactions/s %.1f, with listeners %.1f; RSS %.1f MiB, with listeners %.1f MiB, %.1f KiB each; CPU %.1f us per event; other requests meanwhile p50 %s, p99 %s, max %s",
		count, rounds, at(all, 0.5), at(all, 0.99), at(all, 1), rate, rateWith, before/(1<<20), after/(1<<20), (after-before)/1024/float64(count), busy*1e6/float64(count*rounds),
		at(waits, 0.5), at(waits, 0.99), at(waits, 1))
	if lost, windows := c.lost.Load(), apptest.Metric(t, s, `spillway_feed_windows{feed="/goodslist"}`); lost > 0 || windows != 1 {
		t.Errorf("%d listeners lost, %v windows", lost, windows)
	}
}

// measureIdle returns the resident memory of a server with an active window, and the
// transactions per second of its database meanwhile.
func measureIdle(t *testing.T, s *apptest.Spillway, conn *pgx.Conn, pause time.Duration) (resident, perSecond float64) {
	t.Helper()
	count := func() (n float64) {
		if err := conn.QueryRow(t.Context(), "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	first, began := count(), time.Now()
	for done := false; !done; done = time.Since(began) > 15*pause {
		apptest.Fetch(t, s.URL("goodslist"))
		<-time.After(pause / 2)
	}
	return apptest.Metric(t, s, "process_resident_memory_bytes"), (count() - first) / time.Since(began).Seconds()
}

// watchOthers sends requests over one connection until the returned function is called, which
// returns their times in order.
func watchOthers(t *testing.T, s *apptest.Spillway, watch bool) func() []time.Duration {
	t.Helper()
	if !watch {
		return func() []time.Duration { return nil }
	}
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	var done sync.WaitGroup
	var ended atomic.Bool
	done.Go(func() {
		buffer := make([]byte, 16<<10)
		for !ended.Load() {
			began := time.Now()
			if _, err := io.WriteString(conn, "GET /goodslist?limit=1 HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
				t.Error(err)
				return
			}
			if _, err := conn.Read(buffer); err != nil {
				t.Error(err)
				return
			}
			took = append(took, time.Since(began))
			<-time.After(5 * time.Millisecond)
		}
	})
	return func() []time.Duration {
		ended.Store(true)
		done.Wait()
		_ = conn.Close()
		slices.Sort(took)
		return took
	}
}
