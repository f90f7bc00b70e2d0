package servetest

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// TestWalkOnTwoReplicas pages by cursor, alternating between two replicas, while rows are
// inserted, and kills one replica midway. No row may be repeated or skipped.
func TestWalkOnTwoReplicas(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	url, conn := freightDatabase(t)
	replicas := []*apptest.Spillway{
		apptest.Serve(t, binary.Path(t), "--database", url),
		apptest.Serve(t, binary.Path(t), "--database", url),
	}
	for _, r := range replicas {
		r.WaitReady(t)
	}
	var newest, count int64
	if err := conn.QueryRow(t.Context(), "SELECT max(id), count(*) FROM orders").Scan(&newest, &count); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	defer writer.Wait()
	defer stop()
	writer.Go(func() { insertSteadily(ctx, t, url) })

	var walked, last int64
	for i, query := 0, "goodslist?limit=100"; query != ""; i++ {
		if i == 50 {
			replicas[1].Kill()
			if err := replicas[1].Start(); err != nil {
				t.Fatal(err)
			}
			replicas[1].WaitReady(t)
		}
		g := apptest.Page(t, replicas[i%2].URL(query))
		for _, row := range g.Data {
			if last != 0 && row.ID >= last {
				t.Fatalf("row %d after row %d", row.ID, last)
			}
			if last = row.ID; row.ID <= newest {
				walked++
			}
		}
		if query = ""; g.Next != "" {
			query = "goodslist?limit=100&before=" + g.Next
		}
	}
	if walked != count {
		t.Errorf("%d of the %d initial rows were read", walked, count)
	}
}

// insertSteadily inserts about 1,000 orders per second until ctx ends.
func insertSteadily(ctx context.Context, t *testing.T, url string) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close(context.Background())
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_, err := conn.Exec(ctx, `INSERT INTO orders (createtime, users_id, goods_name) SELECT now(), i, md5(i::text) FROM generate_series(1, 10) AS i`)
		if err != nil && ctx.Err() == nil {
			t.Error(err)
			return
		}
	}
}

// TestStopUnderLoad begins when each client has had its first answers.
const loadClients, warmRequests = 16, 20

// TestStopUnderLoad stops the process with SIGTERM under load. It must answer every accepted
// request and exit with 0.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	app := apptest.ServePatiently(t, &binary, plainFeed, storetest.SQLiteDatabase(t).URL)
	var clients sync.WaitGroup
	var answered, lost atomic.Int64
	warm := make(chan struct{}, loadClients)
	for range loadClients {
		clients.Go(func() {
			if !askUntilClosed(app.Addr(), &answered, warm) {
				lost.Add(1)
			}
		})
	}
	for range loadClients {
		<-warm
	}
	if err := app.Stop(); err != nil { // an exit code other than 0 is an error
		t.Errorf("stop: %v\n%s", err, app.Log(t))
	}
	clients.Wait()
	if lost.Load() > 0 || answered.Load() < loadClients*warmRequests {
		t.Errorf("%d answered, want at least %d; %d clients lost a request, want none", answered.Load(), loadClients*warmRequests, lost.Load())
	}
}

// askUntilClosed sends requests over one connection until the server announces its close. It
// returns false if a request was not answered.
func askUntilClosed(address string, answered *atomic.Int64, warm chan<- struct{}) bool {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	defer c.Close()
	r := bufio.NewReader(c)
	for n := 0; ; n++ {
		if n == warmRequests {
			warm <- struct{}{}
		}
		if _, err := io.WriteString(c, "GET /numbers HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			return false
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return false
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			return false
		}
		if answered.Add(1); resp.Close {
			return true
		}
	}
}

// TestIdleConnections opens 10,000 connections that send nothing. Other requests must be
// served as usual.
func TestIdleConnections(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	app := storetest.SQLiteDatabase(t).ServeReadings(t, &binary, apptest.Patient("probes: true\nhttp: {read_timeout: 1h}\n"+apptest.Readings+"feeds: [{path: /numbers, sql: SELECT 1 AS n, key: n}]\n"))
	const idle = 10_000
	conns := make([]net.Conn, 0, idle)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range idle {
		c, err := net.Dial("tcp", app.Addr())
		if err != nil {
			t.Fatalf("connection %d: %v (the test needs 10,000 open files: ulimit -n)", len(conns), err)
		}
		conns = append(conns, c)
	}
	for range 100 {
		if a := apptest.Fetch(t, app.URL("numbers")); a.Status != http.StatusOK {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	for _, c := range conns[:100] { // slow clients that send half a body
		if _, err := io.WriteString(c, "POST /readings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n["); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		if a := apptest.Post(t, app.URL("readings"), `{"id":1}`); a.Status != http.StatusOK {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	if _, err := io.WriteString(conns[5000], "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conns[5000]), nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("a request over an idle connection: %v", err)
	}
	resp.Body.Close()
}
