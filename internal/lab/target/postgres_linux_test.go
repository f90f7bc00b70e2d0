package target

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
)

// TestPostgresWire runs the PostgreSQL protocol of a Worker.
func TestPostgresWire(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	url := server.CreateDatabase(t)
	wire := func(sql string, params map[string]string) *Target {
		tg := open(t, Config{URL: url, SQL: sql, Params: values(t, params), Timeout: time.Minute})
		if err := tg.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !tg.EventLoop() {
			t.Fatal("no event loop for an unencrypted connection")
		}
		return tg
	}
	expect := func(tg *Target, n int, kind Kind, class result.ErrorClass, failed bool) []Outcome {
		t.Helper()
		outcomes, counters := drive(t, tg, 3, n)
		for _, o := range outcomes {
			if (o.Err != nil) != failed || failed && Classify(o.Err) != class || !failed && o.Kind != kind {
				t.Fatalf("outcome %+v", o)
			}
		}
		if counters.Connects != 3 {
			t.Errorf("%d connections, want 3", counters.Connects)
		}
		return outcomes
	}
	exchangeAll(t, open(t, Config{URL: url, SQL: "CREATE TABLE t (a bigint PRIMARY KEY, b text)"}), 1)
	expect(wire("INSERT INTO t (a, b) VALUES (:a, :b)", map[string]string{"a": "sequence", "b": "te'xt"}), 100, Write, 0, false)
	expect(wire("SELECT * FROM t WHERE a <= :a", map[string]string{"a": "random(90,100)"}), 100, Read, 0, false)
	expect(wire("WITH x AS (DELETE FROM t WHERE a = :a RETURNING a) INSERT INTO t SELECT a FROM x WHERE false", map[string]string{"a": "sequence"}), 10, Write, 0, false)
	expect(wire("SELECT repeat('x', 10000000)", nil), 6, Read, 0, false)
	for _, o := range expect(wire("SELECT 1/(:a - 5)", map[string]string{"a": "random(5,5)"}), 6, Read, result.StatusError, true) {
		if !strings.Contains(o.Err.Error(), "division by zero (SQLSTATE 22012)") {
			t.Errorf("%v", o.Err)
		}
	}
	killed := wire("SELECT pg_terminate_backend(pg_backend_pid())", nil)
	outcomes, counters := drive(t, killed, 2, 6)
	for _, o := range outcomes {
		if o.Err == nil || Classify(o.Err) != result.Reset || !strings.Contains(o.Err.Error(), "57P01") {
			t.Errorf("%v, want a reset with SQLSTATE 57P01", o.Err)
		}
	}
	if counters.Reconnects != 4 {
		t.Errorf("%+v, want 4 reconnects", counters)
	}
	if err := open(t, Config{URL: url, SQL: "SELECT nothing FROM nowhere"}).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("check of a wrong statement: %v", err)
	}
	const endless = "SELECT pg_sleep(3600)"
	if err := open(t, Config{URL: url, SQL: endless}).Check(t.Context()); err != nil { // which does not run it
		t.Fatal(err)
	}
	slow := open(t, Config{URL: url, SQL: endless, Timeout: 300 * time.Millisecond})
	outcomes, _ = drive(t, slow, 2, 2)
	for _, o := range outcomes {
		if o.Err == nil || Classify(o.Err) != result.Timeout {
			t.Errorf("%v, want a timeout", o.Err)
		}
	}
	testConnect(t, wire("SELECT 1", nil), server.Kill)
}

// testConnect opens connections ahead, and then with the server gone.
func testConnect(t *testing.T, tg *Target, kill func()) {
	for _, up := range []bool{true, false} {
		ended := 0
		w, err := tg.NewWorker(0, 5, func(o *Outcome) {
			if ended++; (o.Err == nil) != up || o.Connected != 0 {
				t.Errorf("server up %v: %+v", up, o)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(w.Connect(t.Context())); (n == 5) != up || (n == 0) == up {
			t.Errorf("server up %v: %d of 5 connections", up, n)
		}
		now := tg.config.Clock.Now()
		for range 5 {
			w.Start(now, now)
		}
		for ended < 5 {
			if err := w.Wait(tg.config.Clock.Now() + int64(time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if up {
			kill()
		}
	}
}

// Of several hosts, a connection goes to the first that is up, at the beginning and whenever one goes away.
func TestPostgresHosts(t *testing.T) {
	t.Parallel()
	a, b := apptest.Postgres(t), apptest.Postgres(t)
	config := Config{
		URL:     "postgres://postgres@" + a.Addr() + "," + b.Addr() + "/postgres?sslmode=disable",
		SQL:     "SELECT repeat('x', inet_server_port())", // as many bytes as the port's number
		Timeout: time.Minute,
	}
	expect := func(tg *Target, server *apptest.PostgresServer) {
		t.Helper()
		outcomes, _ := exchangeAll(t, tg, 1)
		driven, _ := drive(t, tg, 2, 4)
		port, err := strconv.Atoi(server.Addr()[strings.LastIndexByte(server.Addr(), ':')+1:])
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range append(outcomes, driven...) {
			if o.Err != nil || o.BytesReceived < int64(port) || o.BytesReceived > int64(port)+500 {
				t.Errorf("%d bytes, want %d and a header: %v", o.BytesReceived, port, o.Err)
			}
		}
		if _, address := tg.Address(); address != server.Addr() {
			t.Errorf("address %s, want %s", address, server.Addr())
		}
	}
	config.URL += "&connect_timeout=60"
	tg := open(t, config)
	if err := tg.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(tg, a)
	a.Kill()
	expect(tg, b)
	tg = open(t, config)
	if err := tg.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(tg, b)
	b.Kill()
	if err := open(t, config).Check(t.Context()); err == nil || strings.Count(err.Error(), "refused") < 2 {
		t.Errorf("without a server: %v", err)
	}
}
