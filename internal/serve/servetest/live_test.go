package servetest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// liveFeeds are feeds whose listeners the tests are. Each statement for /orders counts itself.
const liveFeeds = `pool: {max: 5}
http: {write_timeout: 5s, cors_origins: ["https://app.example"]}
feeds:
  - {path: /orders, aliases: [/v1/orders], sql: "SELECT id, note FROM orders, (SELECT nextval('reads')) AS counted", key: id, limit: 3, window: 20, refresh: 50ms, idle_after: 200ms}
  - {path: /by, sql: 'SELECT id, note FROM orders WHERE v = :v', key: id, params: {v: integer}, windows_max: 3, live_max: 2, idle_after: 200ms}
  - {path: /quiet, sql: 'SELECT id FROM orders WHERE v = :v', key: id, params: {v: integer}}
  - {path: /quiet/filter, sql: 'SELECT id, v FROM orders', key: id, filters: {v: integer}}
  - {path: /where, sql: 'SELECT id, v, note FROM orders WHERE v = ANY(:vs)', key: id, params: {vs: {type: integer, list_max: 3, default: [1, 2]}}, filters: {v: integer}, windows_max: 4, live_max: 3, idle_after: 200ms}
  - {path: /short, sql: 'SELECT id FROM orders', key: id, window: 2}
`

// ordersDatabase creates the table of liveFeeds with 30 orders.
func ordersDatabase(t *testing.T) (url string, conn *pgx.Conn) {
	t.Helper()
	url = postgres.Get(t).CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	apptest.Execute(t, conn, "CREATE TABLE orders (id bigint PRIMARY KEY, v bigint NOT NULL, note text NOT NULL)")
	apptest.Execute(t, conn, "CREATE SEQUENCE reads")
	apptest.Execute(t, conn, "INSERT INTO orders SELECT n, n % 4, 'note ' || n FROM generate_series(1, 30) AS n")
	return url, conn
}

// listener is a client of an event stream.
type listener struct {
	*http.Response
	lines *bufio.Scanner
	leave context.CancelFunc
}

type liveEvent struct{ id, data string }

// listen connects as an EventSource does.
func listen(t *testing.T, url string, headers ...string) *listener {
	t.Helper()
	ctx, leave := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(leave)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	l := &listener{resp, bufio.NewScanner(resp.Body), leave}
	l.lines.Buffer(nil, 1<<20)
	return l
}

// next returns the next event; false at the end of the stream.
func (l *listener) next() (e liveEvent, ok bool) {
	for l.lines.Scan() {
		name, value, _ := strings.Cut(l.lines.Text(), ": ")
		switch {
		case name == "id":
			e.id = value
		case name == "data":
			e.data += value
		case name == "" && e.data != "":
			return e, true
		}
	}
	return e, false
}

// await returns the first event whose data contains a text.
func (l *listener) await(t *testing.T, text string) liveEvent {
	t.Helper()
	for {
		e, ok := l.next()
		if !ok {
			t.Fatalf("the stream ended before %q: %v", text, l.lines.Err())
		}
		if strings.Contains(e.data, text) {
			return e
		}
	}
}

// awaitEnd returns when the stream has ended.
func (l *listener) awaitEnd(t *testing.T) {
	t.Helper()
	for ok := true; ok; {
		_, ok = l.next()
	}
	if err := l.lines.Err(); err != nil {
		t.Errorf("the stream broke: %v", err)
	}
}

// TestLive has listeners of a feed get each change of its first page, and nothing else.
func TestLive(t *testing.T) {
	t.Parallel()
	url, conn := ordersDatabase(t)
	s := apptest.ServePatiently(t, &binary, liveFeeds, url)
	add := func(id int) {
		t.Helper()
		apptest.Execute(t, conn, "INSERT INTO orders VALUES ($1, $2, $3)", id, id%4, fmt.Sprint("note ", id))
	}
	t.Run("change", func(t *testing.T) { testLiveChange(t, s, add) })
	t.Run("statements", func(t *testing.T) { testLiveStatements(t, s, conn) })
	t.Run("refused", func(t *testing.T) { testLiveRefused(t, s) })
	t.Run("values", func(t *testing.T) { testLiveValues(t, s, add) })
	t.Run("slow reader", func(t *testing.T) { testLiveSlowReader(t, s, conn) })
	t.Run("filters", func(t *testing.T) { testLiveFilters(t, s, add) })
	apptest.Await(t, "the clients that left are forgotten", func() bool {
		return apptest.Metric(t, s, `spillway_feed_listeners{feed="/orders"}`) == 0 && apptest.Metric(t, s, `spillway_http_connections`) < 5
	})
}

func testLiveChange(t *testing.T, s *apptest.Spillway, add func(id int)) {
	t.Helper()
	listeners := []*listener{listen(t, s.URL("orders")), listen(t, s.URL("v1/orders")), listen(t, s.URL("orders"), "Last-Event-ID", "0123456789abcdef")}
	plain := apptest.Fetch(t, s.URL("orders"))
	var current string
	for _, l := range listeners {
		e := l.await(t, "note 30")
		if e.data != string(plain.Body) || `"`+e.id+`"` != plain.Header.Get("ETag") || l.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("event %+v with %v; the page is %s with %v", e, l.Header, plain.Body, plain.Header)
		}
		current = e.id
	}
	same := listen(t, s.URL("orders"), "Last-Event-ID", current)
	add(31)
	first, ok := same.next()
	if !ok || !strings.Contains(first.data, "note 31") || first.id == current {
		t.Errorf("a listener that has the current page gets %+v first", first)
	}
	for _, l := range listeners {
		if e := l.await(t, "note 31"); e != first {
			t.Errorf("%+v, another listener got %+v", e, first)
		}
	}
	// Nobody else asks. The window is refreshed all the same.
	before := apptest.Metric(t, s, `spillway_feed_refreshes_total{feed="/orders"}`)
	apptest.Await(t, "the window is refreshed while it has listeners", func() bool {
		return apptest.Metric(t, s, `spillway_feed_refreshes_total{feed="/orders"}`) > before+20
	})
	add(32)
	same.await(t, "note 32")
	if got := apptest.Metric(t, s, `spillway_feed_listeners{feed="/orders"}`); got != 4 {
		t.Errorf("%v listeners, want 4", got)
	}
	for _, l := range append(listeners, same) {
		l.leave()
	}
}

// testLiveStatements counts what reaches the database for one listener and for 100.
func testLiveStatements(t *testing.T, s *apptest.Spillway, conn *pgx.Conn) {
	t.Helper()
	for _, count := range []int{1, 100} {
		var all []*listener
		for range count {
			l := listen(t, s.URL("orders"))
			l.await(t, "note 32")
			all = append(all, l)
		}
		reads := func() (n int) {
			if err := conn.QueryRow(t.Context(), "SELECT last_value FROM reads").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		begin := time.Now()
		before := reads()
		apptest.Await(t, "ten reads", func() bool { return reads() >= before+10 })
		read, most := reads()-before, int(time.Since(begin)/(50*time.Millisecond))+2
		if read > most {
			t.Errorf("%d statements for %d listeners within %s, refresh is 50ms", read, count, time.Since(begin))
		}
		for _, l := range all {
			l.leave()
		}
	}
}

func testLiveRefused(t *testing.T, s *apptest.Spillway) {
	t.Helper()
	for _, path := range []string{"orders?limit=2", "orders?offset=1", "orders?before=abc", "quiet?v=1", "quiet/filter", "short", "by", "by?v=x"} {
		l := listen(t, s.URL(path), "Origin", "https://app.example")
		body, _ := io.ReadAll(l.Body)
		if l.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "urn:spillway:problem:bad-request") || l.Header.Get("Access-Control-Allow-Origin") == "" {
			t.Errorf("%s: %d %v %s", path, l.StatusCode, l.Header, body)
		}
	}
	for _, headers := range [][]string{{"Accept", "application/json, text/event-stream"}, {"Accept", "*/*"}, {"Accept", "text/event-stream;q=0"}} {
		if a, err := apptest.Get(t.Context(), s.URL("orders"), headers...); err != nil || a.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %v %v", headers, a.Header, err)
		}
	}
	head, err := http.NewRequestWithContext(t.Context(), http.MethodHead, s.URL("orders"), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	head.Header.Set("Accept", "text/event-stream")
	if resp, err := http.DefaultClient.Do(head); err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("HEAD: %v, %v", resp, err)
	}
}

// testLiveValues listens to more values of a parameter than may have listeners.
func testLiveValues(t *testing.T, s *apptest.Spillway, add func(id int)) {
	t.Helper()
	one, two := listen(t, s.URL("by?v=1")), listen(t, s.URL("by?v=2"))
	one.await(t, "note 29")
	two.await(t, "note 30")
	third := listen(t, s.URL("by?v=3"))
	if body, _ := io.ReadAll(third.Body); third.StatusCode != http.StatusServiceUnavailable || third.Header.Get("Retry-After") == "" || !strings.Contains(string(body), "live_max") {
		t.Errorf("%d %v %s", third.StatusCode, third.Header, body)
	}
	again := listen(t, s.URL("by?v=1"))
	again.await(t, "note 29")
	for i := range 30 { // more values than windows; those with listeners keep theirs
		if a := apptest.Fetch(t, s.URL(fmt.Sprint("by?v=", 3+i%5))); a.Status != http.StatusOK {
			t.Errorf("a page of another value: %d %s", a.Status, a.Body)
		}
	}
	add(33)
	one.await(t, "note 33")
	again.await(t, "note 33")
	one.leave()
	again.leave()
	apptest.Await(t, "another value may have listeners", func() bool {
		l := listen(t, s.URL("by?v=3"))
		defer l.leave()
		return l.StatusCode == http.StatusOK
	})
	two.leave()
}

// testLiveFilters listens with an optional list and with a filter.
func testLiveFilters(t *testing.T, s *apptest.Spillway, add func(id int)) {
	t.Helper()
	all, ones, threes := listen(t, s.URL("where")), listen(t, s.URL("where?v=1")), listen(t, s.URL("where?vs=3&vs=0&v=3"))
	all.await(t, "note 30")
	ones.await(t, "note 29")
	threes.await(t, "note 31")
	if refused := listen(t, s.URL("where?v=2")); refused.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a fourth value: %d", refused.StatusCode)
	}
	same := listen(t, s.URL("where?vs=2&vs=1&vs=2")) // the default
	same.await(t, "note 30")
	for i, v := range []int{2, 1, 3} {
		add(4*(10+i) + v)
	}
	if a, b := all.await(t, "note 45"), same.await(t, "note 45"); a != b {
		t.Errorf("%+v, and with the default's values %+v", a, b)
	}
	for l, want := range map[*listener]string{ones: "1", threes: "3"} {
		e := l.await(t, "note "+map[string]string{"1": "45", "3": "51"}[want])
		if other := strings.ReplaceAll(e.data, `"v":`+want+`,`, ""); strings.Contains(other, `"v":`) || e.data == other {
			t.Errorf("rows of other values than %s: %s", want, e.data)
		}
	}
	for _, l := range []*listener{all, ones, threes, same} {
		l.leave()
	}
}

// testLiveSlowReader: a client that does not read is dropped. The others get all.
func testLiveSlowReader(t *testing.T, s *apptest.Spillway, conn *pgx.Conn) {
	t.Helper()
	slow, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if err := slow.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(slow, "GET /orders HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	eager := listen(t, s.URL("orders"))
	eager.await(t, "note")
	n := 0
	apptest.Await(t, "the slow reader is dropped", func() bool {
		n++
		apptest.Execute(t, conn, "UPDATE orders SET note = repeat('x', 100000) || $1 WHERE id = 33", fmt.Sprintf("change %d.", n))
		eager.await(t, fmt.Sprintf("change %d.", n))
		return apptest.Metric(t, s, `spillway_feed_listeners_dropped_total{feed="/orders"}`) == 1
	})
	apptest.Await(t, "one listener is left", func() bool { return apptest.Metric(t, s, `spillway_feed_listeners{feed="/orders"}`) == 1 })
	eager.leave()
}

// TestLiveEnds ends listeners by a reload and by a stop of the process, which do not wait for
// them.
func TestLiveEnds(t *testing.T) {
	t.Parallel()
	r := newReloadedServer(t, "")
	changed, kept := listen(t, r.URL("numbers")), listen(t, r.URL("kept"))
	changed.await(t, `"version":0`)
	kept.await(t, `"n":50`)
	r.write(t, fmt.Sprintf(reloadable, r.db.URL, 1))
	if output, code := r.reload(t); code != 0 {
		t.Fatalf("reload: exit %d, %s", code, output)
	}
	changed.awaitEnd(t)
	kept.awaitEnd(t)
	if log := r.Log(t); strings.Contains(log, "not answered yet") {
		t.Errorf("the reload waited for listeners: %s", log)
	}
	slow, err := net.Dial("tcp", r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := io.WriteString(slow, "GET /numbers HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	var ends sync.WaitGroup
	for range 20 {
		l := listen(t, r.URL("numbers"))
		l.await(t, `"version":1`)
		ends.Go(func() { l.awaitEnd(t) })
	}
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	ends.Wait()
	if log := r.Log(t); strings.Contains(log, "still open") {
		t.Errorf("the stop waited for listeners: %s", log)
	}
}

// TestLiveOutage: while the database is away, listeners stay and new ones get what is cached.
func TestLiveOutage(t *testing.T) {
	t.Parallel()
	url, conn := ordersDatabase(t)
	forward := apptest.NewForward(t, postgres.Get(t).Addr())
	s := apptest.ServePatiently(t, &binary, liveFeeds, strings.Replace(url, postgres.Get(t).Addr(), forward.Addr(), 1))
	l := listen(t, s.URL("orders"))
	l.await(t, "note 30")
	forward.To("127.0.0.1:1")
	apptest.Await(t, "refreshes fail", func() bool { return apptest.Metric(t, s, `spillway_feed_refresh_errors_total{feed="/orders"}`) > 0 })
	late := listen(t, s.URL("orders"))
	late.await(t, "note 30")
	apptest.Execute(t, conn, "INSERT INTO orders VALUES (31, 1, 'note 31')")
	forward.To(postgres.Get(t).Addr())
	l.await(t, "note 31")
	late.await(t, "note 31")
}

// listenUntil listens with a token that ends soon, but not before the server has seen it.
func listenUntil(t *testing.T, url string, headers func(end time.Time) []string) (*listener, time.Time) {
	t.Helper()
	for life := 3 * time.Second; ; life *= 2 {
		end := time.Now().Truncate(time.Second).Add(life)
		l := listen(t, url, headers(end)...)
		if l.StatusCode == http.StatusOK || life > time.Minute {
			return l, end
		}
		l.leave()
	}
}

// TestCookie reads and listens as two users whose tokens are in a cookie.
func TestCookie(t *testing.T) {
	t.Parallel()
	db := storetest.SQLiteDatabase(t)
	createParcels(t, db)
	db.Query(t, "INSERT INTO parcels VALUES (1, 'ann', 10), (2, 'bob', 20), (3, 'ann', 30), (4, 'bob', 40)")
	issuer := newKeyIssuer(t, "one")
	text := strings.NewReplacer("  reads: jwt\n", "  reads: jwt\n  cookie: __Host-token\n", "    window: 3\n", "    live_max: 5\n", "    audience: spillway\n", "    audience: spillway\n    clock_skew: 0s\n").Replace(authenticated)
	s := apptest.ServePatiently(t, &binary, fmt.Sprintf(text, issuer.URL)+"http: {cors_origins: ['https://app.example']}\nlog: {access: true}\n", db.URL)
	cookie := func(user string, change jwt.MapClaims) []string {
		return []string{"Cookie", "theme=dark; __Host-token=" + strings.TrimPrefix(issuer.token(t, "one", user, change)[1], "Bearer "), "Origin", "https://app.example"}
	}
	ann, bob := cookie("ann", nil), cookie("bob", nil)
	for user, headers := range map[string][]string{"ann": ann, "bob": bob} {
		owned(t, s.URL("parcels"), user, 2, headers...)
		owned(t, s.URL("weights?least=1"), user, 2, headers...)
		// Authorization wins.
		other := map[string]string{"ann": "bob", "bob": "ann"}[user]
		owned(t, s.URL("parcels"), other, 2, append(issuer.token(t, "one", other, nil), headers...)...)
		if a, err := apptest.Get(t.Context(), s.URL("parcels"), append([]string{"Authorization", "Bearer x"}, headers...)...); err != nil || a.Status != http.StatusUnauthorized {
			t.Errorf("a wrong token in Authorization: %d %v", a.Status, err)
		}
	}
	a, err := apptest.Get(t.Context(), s.URL("parcels"), ann...)
	if vary := strings.Join(a.Header.Values("Vary"), ", "); err != nil || !strings.Contains(vary, "Cookie") || a.Header.Get("Access-Control-Allow-Credentials") != "true" {
		t.Errorf("%v %v", a.Header, err)
	}
	if a, err := apptest.Get(t.Context(), s.URL("parcels"), ann[0], ann[1], "Origin", "https://evil.example"); err != nil || a.Header.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("%v %v", a.Header, err)
	}
	if a := apptest.Post(t, s.URL("positions"), `{"place":1}`, ann...); a.Status != http.StatusUnauthorized {
		t.Errorf("POST with a cookie: %d %s", a.Status, a.Body)
	}
	passing, soon := listenUntil(t, s.URL("parcels"), func(end time.Time) []string { return cookie("ann", jwt.MapClaims{"exp": end.Unix()}) })
	listening := listen(t, s.URL("parcels"), bob...)
	if e := passing.await(t, "ann"); strings.Contains(e.data, "bob") {
		t.Errorf("ann gets %s", e.data)
	}
	listening.await(t, "bob")
	db.Query(t, "INSERT INTO parcels VALUES (5, 'bob', 50)")
	if e := listening.await(t, `"id":5`); strings.Contains(e.data, "ann") {
		t.Errorf("bob gets %s", e.data)
	}
	passing.awaitEnd(t)
	if early := time.Until(soon); early > 0 {
		t.Errorf("the stream ended %s before the token", early)
	}
	db.Query(t, "INSERT INTO parcels VALUES (6, 'bob', 60)")
	listening.await(t, `"id":6`)
	if log := s.Log(t); strings.Contains(log, "eyJ") || strings.Contains(log, "__Host-token") {
		t.Error("the log has a token")
	}
}
