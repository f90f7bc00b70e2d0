package servetest

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// largeAnswers is a query and a feed with pages of 0.97 MB.
const largeAnswers = `pool: {statement_timeout: 30s, acquire_timeout: 30s}
queries:
  - path: /large
    sql: SELECT i AS id, note FROM notes ORDER BY i
    ttl: 10m
    timeout: 30s
  - path: /small
    sql: SELECT 1 AS one
    ttl: 10m
feeds:
  - path: /notes
    sql: SELECT i, note FROM notes
    key: i
    window: 1000
    limit: 10
    limit_max: 1000
`

// TestMemoryOfLargeAnswers: idle connections keep nothing of a large answer, and slow readers
// share it.
func TestMemoryOfLargeAnswers(t *testing.T) {
	apptest.Long(t)
	db := storetest.SQLiteDatabase(t)
	db.Query(t, "CREATE TABLE notes (i integer PRIMARY KEY, note text NOT NULL)")
	db.Query(t, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) INSERT INTO notes SELECT i, printf('%0950d', i) FROM n")
	s := apptest.ServePatiently(t, &binary, largeAnswers, db.URL)
	const connections = 400
	var conns []*bufio.ReadWriter
	for range connections {
		conns = append(conns, apptest.Dial(t, s.Addr()))
	}
	ask := func(path string) { askAll(t, conns, path) }
	read := func(least int64) { readAll(t, conns, least) }
	ask("/small")
	read(10)
	ask("/notes?limit=1")
	read(900)
	before, residentBefore := heapInUse(t, s)
	for _, path := range []string{"/large", "/notes?limit=999"} {
		// The answer itself, what the runtime keeps, and up to 16 KiB per connection.
		limit := before + 8e6 + connections*16<<10
		small := func(what string) {
			t.Helper()
			apptest.AwaitState(t, path+": the heap is small "+what, func() (string, bool) {
				heap, resident := heapInUse(t, s)
				state := fmt.Sprintf("%.1f MB of at most %.1f MB, before it was asked %.1f MB; resident %.0f MB, before %.0f MB", heap/1e6, limit/1e6, before/1e6, resident/1e6, residentBefore/1e6)
				if heap <= limit {
					t.Logf("%s, %s: %s", path, what, state)
				}
				return state, heap <= limit
			})
		}
		ask(path)
		small("while the answer is written")
		read(960_000)
		small("afterwards")
	}
}

// heapInUse returns the heap after a collection, and the resident memory, in bytes.
func heapInUse(t *testing.T, s *apptest.Spillway) (heap, resident float64) {
	t.Helper()
	if a := apptest.Fetch(t, s.Admin+"/debug/pprof/heap?gc=1"); a.Status != http.StatusOK {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	return apptest.Metric(t, s, "go_memstats_heap_alloc_bytes"), apptest.Metric(t, s, "process_resident_memory_bytes")
}

// askAll sends a GET on every connection.
func askAll(t *testing.T, conns []*bufio.ReadWriter, path string) {
	t.Helper()
	for _, c := range conns {
		_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path) // the buffer keeps an error for Flush
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}

// readAll reads an answer of at least so many bytes from every connection.
func readAll(t *testing.T, conns []*bufio.ReadWriter, least int64) {
	t.Helper()
	var readers sync.WaitGroup
	for _, c := range conns {
		readers.Go(func() {
			resp, err := http.ReadResponse(c.Reader, nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if n, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 || n < least {
				t.Errorf("status %d, %d bytes, %v", resp.StatusCode, n, err)
			}
		})
	}
	readers.Wait()
}

// TestProbesAreOff: probes are served only if the configuration says so, and the one of Redis
// reads no key of others.
func TestProbesAreOff(t *testing.T) {
	t.Parallel()
	db, redis := storetest.SQLiteDatabase(t), apptest.Redis(t)
	store := apptest.Dial(t, redis.Addr())
	for key, value := range map[string]string{"session:1": "secret", "spillway:probe:ladder": "rung"} {
		_, _ = fmt.Fprintf(store, "SET %s %s\r\n", key, value)
		if err := store.Flush(); err != nil {
			t.Fatal(err)
		}
		if line, err := store.ReadString('\n'); err != nil || line != "+OK\r\n" {
			t.Fatalf("SET: %q, %v", line, err)
		}
	}
	const one = "queries: [{path: /one, sql: SELECT 1 AS one}]\n"
	off := apptest.ServePatiently(t, &binary, one, db.URL, "--redis", redis.URL("0"))
	for _, path := range []string{"hello", "probe/empty", "probe/database", "probe/redis?key=session:1"} {
		apptest.WantAnswer(t, apptest.Fetch(t, off.URL(path)), 404, "not-found")
	}
	on := apptest.ServePatiently(t, &binary, "probes: true\n"+one, db.URL, "--redis", redis.URL("0"))
	for path, want := range map[string]apptest.Answer{
		"hello": {Status: 200, Body: []byte("hello world!!")}, "probe/empty": {Status: 200, Body: []byte("hello world!!")},
		"probe/database":            {Status: 200, Body: []byte(`{"return_code":"SUCCESS","data":1}`)},
		"probe/redis?key=ladder":    {Status: 200, Body: []byte("rung")},
		"probe/redis?key=session:1": {Status: 204}, "probe/redis?key=spillway:probe:ladder": {Status: 204},
	} {
		apptest.WantAnswer(t, apptest.Fetch(t, on.URL(path)), want.Status, string(want.Body))
	}
}

// raw sends text over a new connection and returns the first response and its body.
func raw(t *testing.T, address, text string) (*http.Response, string) {
	t.Helper()
	c := apptest.Dial(t, address)
	_, _ = c.WriteString(text)
	_ = c.Flush() // the server may answer and close before it has read everything
	resp, err := http.ReadResponse(c.Reader, nil)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

const httpDetails = `log: {access: true}
keys: [one-key-of-sixteen]
http:
  hosts: [api.example, 127.0.0.1]
  cors_origins: ["https://app.example"]
  body_bytes: 2000000
feeds:
  - path: /list
    sql: SELECT id, device FROM readings
    key: id
queries: [{path: /mine, sql: "SELECT :token AS token", params: {token: text}}]
`

// TestHTTPDetails: bodies, entity tags, origins, hosts, the metrics and the access log follow
// the standards.
func TestHTTPDetails(t *testing.T) {
	t.Parallel()
	db := storetest.SQLiteDatabase(t)
	s := db.ServeReadings(t, &binary, httpDetails+apptest.Readings)
	db.Query(t, "INSERT INTO readings (id, device) VALUES (1, 2)")
	padded := `{"id":7}` + strings.Repeat(" ", 99_992)
	for path, status := range map[string]int{
		"/readings": 200, "http://api.example/readings": 200, "/v1/readings?x=//1": 200, "//readings": 404, "/%72eadings": 404, "/a/../readings": 404,
	} {
		if resp, body := sendDetail(t, s, "POST "+path, thingHeaders, padded); resp.StatusCode != status {
			t.Errorf("POST %s: %s %s", path, resp.Status, body)
		}
	}
	if resp, _ := sendDetail(t, s, "POST //nothing", "Content-Length: 100000\r\n", ""); resp.StatusCode != 404 {
		t.Errorf("a body at an unknown path: %s", resp.Status)
	}
	first, _ := sendDetail(t, s, "GET /list", "", "")
	lines := "If-None-Match: \"x\"\r\nIf-None-Match: W/\"y\", " + first.Header.Get("ETag") + "\r\n"
	if resp, _ := sendDetail(t, s, "GET /list", lines, ""); resp.StatusCode != 304 {
		t.Errorf("two lines of If-None-Match: %s", resp.Status)
	}
	t.Run("origins", func(t *testing.T) { testOrigins(t, s) })
	t.Run("hosts", func(t *testing.T) { testHosts(t, s) })
	t.Run("counts", func(t *testing.T) { testCounts(t, s) })
	t.Run("log", func(t *testing.T) { testAccessLog(t, s) })
}

// sendDetail sends a request from a page of the configured origin, with further headers.
func sendDetail(t *testing.T, s *apptest.Spillway, line, headers, body string) (*http.Response, string) {
	t.Helper()
	return raw(t, s.Addr(), line+" HTTP/1.1\r\nHost: api.example:8080\r\nOrigin: https://app.example\r\n"+headers+"\r\n"+body)
}

const thingHeaders = "Authorization: Bearer one-key-of-sixteen\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n"

// testOrigins: every error has the CORS headers, and every response says that it depends on
// the origin.
func testOrigins(t *testing.T, s *apptest.Spillway) {
	for what, request := range map[string]struct {
		line, headers string
		status        int
	}{
		"wrong offset":   {"GET /list?offset=x", "", 400},
		"damaged cursor": {"GET /list?before=x", "", 400},
		"no key":         {"POST /readings", "Content-Length: 100000\r\n", 401},
		"no path":        {"GET /nothing", "", 404},
		"wrong method":   {"DELETE /list", "", 405},
		"large body":     {"POST /readings", strings.Replace(thingHeaders, "100000", "3000000", 1), 413},
		"no type":        {"POST /readings", "Authorization: Bearer one-key-of-sixteen\r\nContent-Length: 0\r\n", 415},
		"ambiguous end":  {"POST /readings", thingHeaders + "Transfer-Encoding: chunked\r\n", 400},
		"large header":   {"GET /list", "X: " + strings.Repeat("x", 20_000) + "\r\n", 431},
	} {
		resp, body := sendDetail(t, s, request.line, request.headers, "")
		if resp.StatusCode != request.status {
			t.Errorf("%s: %s %s", what, resp.Status, body)
		}
		// The origin of a header that is too large is not known.
		if origin := resp.Header.Get("Access-Control-Allow-Origin"); origin != "https://app.example" && request.status != 431 || !strings.HasSuffix(resp.Header.Get("Vary"), "Origin") {
			t.Errorf("%s: origin %q, Vary %q", what, origin, resp.Header.Get("Vary"))
		}
		if what == "ambiguous end" && !resp.Close {
			t.Error("the connection stays open although the end of the request is ambiguous")
		}
	}
	for _, origin := range []string{"", "Origin: https://other.example\r\n"} {
		resp, _ := raw(t, s.Addr(), "GET /list HTTP/1.1\r\nHost: 127.0.0.1\r\n"+origin+"\r\n")
		if resp.StatusCode != 200 || resp.Header.Get("Vary") != "Accept-Encoding, Accept, Origin" || resp.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%q: %v", origin, resp.Header)
		}
	}
}

// testHosts: both listeners refuse requests for other hosts.
func testHosts(t *testing.T, s *apptest.Spillway) {
	for host, status := range map[string]int{"api.example": 200, "API.EXAMPLE:1": 200, "127.0.0.1:80": 200, "evil.example": 421, "api.example.evil": 421, "[::1]": 421} {
		if resp, _ := raw(t, s.Addr(), "GET /list HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); resp.StatusCode != status {
			t.Errorf("Host %s: %s, want %d", host, resp.Status, status)
		}
		resp, _ := raw(t, s.Addr(), "POST /readings HTTP/1.1\r\nHost: "+host+"\r\nContent-Length: 100000\r\n\r\n")
		if refused := resp.StatusCode == 421; refused != (status == 421) {
			t.Errorf("a body for host %s: %s", host, resp.Status)
		}
	}
	if resp, _ := raw(t, s.Addr(), "GET http://evil.example/list HTTP/1.1\r\nHost: api.example\r\n\r\n"); resp.StatusCode != 421 {
		t.Errorf("another host in the request line: %s", resp.Status)
	}
	for host, status := range map[string]int{"localhost:1": 200, "evil.example": 421} {
		if resp, _ := raw(t, strings.TrimPrefix(s.Admin, "http://"), "GET /metrics HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); resp.StatusCode != status {
			t.Errorf("admin listener, Host %s: %s, want %d", host, resp.Status, status)
		}
	}
}

// testCounts: only POST is counted as POST.
func testCounts(t *testing.T, s *apptest.Spillway) {
	sendDetail(t, s, "OPTIONS /readings", "Access-Control-Request-Method: POST\r\n", "")
	sendDetail(t, s, "DELETE /readings", "", "")
	apptest.Await(t, "one request is counted as OPTIONS", func() bool {
		return apptest.Metric(t, s, `spillway_http_requests_total{code="204",route="OPTIONS"}`) == 1
	})
	for _, code := range []string{"204", "405"} {
		if n := apptest.Metric(t, s, `spillway_http_requests_total{code="`+code+`",route="POST /readings"}`); n != 0 {
			t.Errorf("%v requests with status %s are counted as POST", n, code)
		}
	}
}

// testAccessLog: the log has no parameters that may be tokens.
func testAccessLog(t *testing.T, s *apptest.Spillway) {
	sendDetail(t, s, "GET /mine?token=my-secret-token&limit=3", "", "")
	sendDetail(t, s, "GET /mine?another-secret-token", "", "")
	sendDetail(t, s, "GET http://ann:my-secret-password@api.example/list?limit=3", "", "")
	apptest.Await(t, "the requests are in the log", func() bool {
		return strings.Count(s.Log(t), "uri=\"/list?limit=3\"") == 1 && strings.Count(s.Log(t), "/mine?") == 2
	})
	if log := s.Log(t); strings.Contains(log, "secret") || !strings.Contains(log, `uri="/mine?limit=3&…"`) {
		t.Errorf("the access log has a token, or no path:\n%s", log)
	}
}

// TestCursorsAreAccepted walks feeds whose cursors are as long as they may be. One row has a
// longer key, behind which no page can follow.
func TestCursorsAreAccepted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		header, longest int // bytes of headers, and of the cursors
		envelope        string
	}{{1024, 512, "data"}, {16384, 4096, "data"}, {16384, 2048, "none"}} {
		db := storetest.SQLiteDatabase(t)
		db.Query(t, "CREATE TABLE names (name text PRIMARY KEY, n integer) WITHOUT ROWID")
		key := c.longest*3/4 - 12 // the rest of a cursor
		db.Query(t, fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 120)
			INSERT INTO names SELECT printf('%%0*d', %d, i) || CASE WHEN i = 7 THEN 'x' ELSE '' END, i FROM n`, key))
		s := apptest.ServePatiently(t, &binary, fmt.Sprintf("http: {header_bytes: %d}\nfeeds: [{path: /names, sql: 'SELECT name, n FROM names', key: name, window: 50, limit: 1, envelope: %s}]\n", c.header, c.envelope), db.URL)
		for _, limit := range []int{1, 7, 10} {
			walkCursors(t, s, c.envelope, limit, c.longest)
		}
	}
}

// walkCursors reads all pages of 120 rows. Behind the row 7 there is none.
func walkCursors(t *testing.T, s *apptest.Spillway, envelope string, limit, longest int) {
	t.Helper()
	walked := 0
	for before := ""; ; {
		query := fmt.Sprintf("names?limit=%d%s", limit, before)
		a := apptest.Fetch(t, s.URL(query))
		if limit == 1 && walked == 113 {
			if a.Status != 500 || !strings.Contains(string(a.Body), "keys-too-long") {
				t.Errorf("a page behind a longer key: %d %.200s", a.Status, a.Body)
			}
			if a = apptest.Fetch(t, s.URL("names?limit=2"+before)); a.Status == 200 {
				walked++
			}
		}
		if a.Status != 200 {
			t.Fatalf("%s, limit %d, row %d: %d %.200s", envelope, limit, walked, a.Status, a.Body)
		}
		walked += min(limit, strings.Count(string(a.Body), `"n":`))
		_, next, more := strings.Cut(string(a.Body)+a.Header.Get("Link"), map[string]string{"data": `"next":"`, "none": "before="}[envelope])
		if !more {
			break
		}
		next, _, _ = strings.Cut(next, map[string]string{"data": `"}`, "none": `>; rel="next"`}[envelope])
		if len(next) != longest {
			t.Errorf("%s, limit %d: a cursor of %d bytes, want %d", envelope, limit, len(next), longest)
		}
		before = "&before=" + next
	}
	if walked != 120 {
		t.Errorf("%s, limit %d: %d rows walked, want 120", envelope, limit, walked)
	}
}
