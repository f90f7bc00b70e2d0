package servetest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

const compressed = `feeds:
  - path: /list
    sql: SELECT id, device, note FROM readings
    key: id
    limit: 50
    s_maxage: 5s
    stale_while_revalidate: 30s
queries: [{path: /all, sql: "SELECT id, device FROM readings ORDER BY id", ttl: 1h}]
`

// sendAccept sends a GET with further headers and returns the response and its plain body.
func sendAccept(t *testing.T, s *apptest.Spillway, path, headers string) (*http.Response, string) {
	t.Helper()
	resp, body := raw(t, s.Addr(), "GET "+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\n"+headers+"\r\n")
	plain := new(strings.Builder)
	var err error
	switch resp.Header.Get("Content-Encoding") {
	case "gzip":
		r, failed := gzip.NewReader(strings.NewReader(body))
		if failed != nil {
			t.Fatal(failed)
		}
		_, err = r.WriteTo(plain)
	case "zstd":
		r, failed := zstd.NewReader(strings.NewReader(body))
		if failed != nil {
			t.Fatal(failed)
		}
		defer r.Close()
		_, err = r.WriteTo(plain)
	default:
		plain.WriteString(body)
	}
	if err != nil {
		t.Fatalf("GET %s with %q: %v", path, headers, err)
	}
	return resp, plain.String()
}

// TestCompression: two replicas send the same content under the same tags in each coding, and a
// client that has it from one gets 304 from the other until the rows change.
func TestCompression(t *testing.T) {
	t.Parallel()
	db := storetest.SQLiteDatabase(t)
	replicas := []*apptest.Spillway{db.ServeReadings(t, &binary, compressed), apptest.ServePatiently(t, &binary, compressed, db.URL)}
	db.Query(t, `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
		INSERT INTO readings (id, device, note) SELECT i, i % 7, 'a reading' FROM n`)
	const control = "public, max-age=0, s-maxage=5, stale-while-revalidate=30"
	tags := map[string]string{}
	for _, s := range replicas {
		apptest.Await(t, "the rows are there", func() bool {
			_, plain := sendAccept(t, s, "/list", "")
			return strings.Count(plain, "a reading") == 50
		})
	}
	for i, s := range replicas {
		_, plain := sendAccept(t, s, "/list", "")
		for headers, coding := range map[string]string{
			"": "", "Accept-Encoding: gzip, deflate, br, zstd\r\n": "zstd", "Accept-Encoding: br\r\nAccept-Encoding: gzip;q=0.1\r\n": "gzip",
		} {
			resp, body := sendAccept(t, s, "/list", headers)
			tag := resp.Header.Get("ETag")
			if i == 0 {
				tags[coding] = tag
			}
			if resp.Header.Get("Content-Encoding") != coding || body != plain || tag == "" || tag != tags[coding] || resp.Header.Get("Cache-Control") != control {
				t.Errorf("replica %d, %q: %v, want the tag %s", i, headers, resp.Header, tags[coding])
			}
			again, _ := sendAccept(t, replicas[1-i], "/list", headers+"If-None-Match: "+tag+"\r\n")
			if again.StatusCode != http.StatusNotModified || again.Header.Get("ETag") != tag || again.Header.Get("Vary") != "Accept-Encoding, Accept" {
				t.Errorf("replica %d, %q again: %s %v", 1-i, headers, again.Status, again.Header)
			}
		}
		apptest.AwaitState(t, "the forms are in memory", func() (string, bool) { // those that nobody asks for leave it
			sendAccept(t, s, "/list", "Accept-Encoding: zstd\r\n")
			n := apptest.Metric(t, s, "spillway_http_compressed_bytes")
			return fmt.Sprintf("replica %d has %v bytes of them, want 1 to 2000", i, n), n > 0 && n <= 2000
		})
		old, _ := sendAccept(t, s, "/list?offset=190&limit=5", "")
		if tag := old.Header.Get("ETag"); tag == "" || tag == tags[""] {
			t.Errorf("an old page: %v", old.Header)
		}
		_, first := sendAccept(t, s, "/all", "Accept-Encoding: gzip\r\n")
		if resp, body := sendAccept(t, s, "/all", "Accept-Encoding: gzip\r\n"); resp.Header.Get("Content-Encoding") != "gzip" || body != first {
			t.Errorf("a cached answer: %v", resp.Header)
		}
	}
	db.Query(t, "DELETE FROM readings WHERE id = 200")
	for i, s := range replicas {
		apptest.Await(t, "the page has changed", func() bool {
			resp, body := sendAccept(t, s, "/list", "Accept-Encoding: zstd\r\nIf-None-Match: "+tags["zstd"]+"\r\n")
			return resp.StatusCode == http.StatusOK && strings.Contains(body, `{"id":199,`) && !strings.Contains(body, `{"id":200,`)
		})
		if n := apptest.Metric(t, s, "spillway_http_compress_refused_total"); n != 0 {
			t.Errorf("replica %d sent %v bodies plain", i, n)
		}
	}
}
