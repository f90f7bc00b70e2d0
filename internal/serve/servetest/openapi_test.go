package servetest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// described is a configuration with all kinds of parts. %[1]s is how the database compares with
// the values of :ids.
const described = `keys: [write-key-0123456789]
auth: {keys: [read-key-0123456789], jwt: {keys: [{key: ` + sharedSecret + `}]}}
http: {rate_per_minute: 60000, rate_burst: 1000}
feeds:
- {path: /things, aliases: [/v1/things], sql: SELECT * FROM secret_things, key: id}
- {path: /by/owner, sql: 'SELECT id, name FROM secret_things WHERE name = :claim.sub', params: {claim.sub: text}, key: id, auth: jwt}
- {path: /by/all, sql: 'SELECT id FROM secret_things WHERE id > :n AND ratio > :x AND active = :b AND at > :t AND name <> :name', key: id,
   params: {n: integer, x: real, b: boolean, t: timestamp, name: text}, auth: key}
- {path: /filtered, sql: 'SELECT * FROM secret_things WHERE id %[1]s', key: id, timestamps: rfc3339, numbers: text,
   params: {ids: {type: integer, list_max: 3, default: [1, 2]}}, filters: {name: text, id: integer}}
- {path: /late, sql: SELECT id FROM late, key: id}
queries:
- {path: /one, aliases: ['/one/{id}'], sql: 'SELECT * FROM secret_things WHERE id = :id', params: {id: integer}, one: true, unknown_params: refuse}
- {path: /some, sql: 'SELECT * FROM secret_things WHERE id %[1]s', params: {ids: {type: integer, list_max: 3, default: [1, 2]}}, rows_max: 2, auth: any}
streams:
- path: /things
  table: readings
  records_max: 3
  columns: {n: {type: integer, required: true, min: 1}, label: {type: text, max_length: 5, default: none}, at: {type: timestamp, default: now}}
- {path: /owned, table: readings, auth: jwt, columns: {n: integer, label: {type: text, claim: sub}}}
- {path: /stamped, table: readings, columns: {n: integer, at: {type: timestamp, format: unix_ms}}}
popups: {path: /popup, user_type: integer, placements: [home, checkout], attributes: {age: integer, tags: texts}}
`

// thingRows has a column of each kind, and a row of NULLs.
var thingRows = []string{
	`CREATE TABLE secret_things (id integer PRIMARY KEY, name text, price numeric, active boolean, at timestamp, day date, doc json, ratio double precision)`,
	`INSERT INTO secret_things VALUES (1, 'a', 1.50, true, '2016-12-01 23:59:57', '2016-12-01', '{"a":[1,null]}', 0.5), (2, 'b', 2, false, '2016-12-01 23:59:57.25', '2016-12-02', '7', 1e300)`,
	`INSERT INTO secret_things (id) VALUES (3)`,
	`CREATE TABLE readings (n bigint, label text, at timestamp)`,
}

// documentCase compares a server with its document.
type documentCase struct {
	*apptest.Spillway
	*apptest.OpenAPI
	t *testing.T
}

// send sends a request to a documented path, and compares the answer with the document.
// headers are pairs.
func (c *documentCase) send(status int, method, path, query, body string, headers ...string) apptest.Answer {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.URL(strings.ReplaceAll(path[1:], "{id}", "1"))+query, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	if response.StatusCode != status {
		c.t.Errorf("%s %s%s: %d %s, want %d", method, path, query, response.StatusCode, text, status)
	}
	c.See(method, path, response, text)
	return apptest.Answer{Status: response.StatusCode, Header: response.Header, Body: text}
}

// TestOpenAPI compares answers with the document, on PostgreSQL and on SQLite: their status,
// media type, headers and columns. Each documented operation is tried.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		db  storetest.Database
		ids string
	}{"postgres": {storetest.PostgresDatabase(t, postgres.Get(t)), "= ANY(:ids)"}, "sqlite": {storetest.SQLiteDatabase(t), "IN (:ids)"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, sql := range thingRows {
				test.db.Query(t, sql)
			}
			file := filepath.Join(t.TempDir(), "spillway.yaml")
			if err := os.WriteFile(file, []byte(apptest.Patient(fmt.Sprintf(described, test.ids))), 0o600); err != nil {
				t.Fatal(err)
			}
			s := apptest.Serve(t, binary.Path(t), "--database", test.db.URL, file)
			apptest.Await(t, "all parts but one serve", func() bool {
				return strings.Count(string(apptest.Fetch(t, s.Admin+"/readyz").Body), `"serves":false`) == 1
			})
			document := apptest.Fetch(t, s.URL("openapi.json"))
			for _, secret := range []string{"SELECT", "secret_things", "readings", "postgres:", "sqlite:", "key-0123456789", sharedSecret} {
				if bytes.Contains(document.Body, []byte(secret)) {
					t.Errorf("the document contains %q", secret)
				}
			}
			for name, schema := range apptest.NewOpenAPI(t, document.Body).Document["components"].(map[string]any)["schemas"].(map[string]any) {
				if strings.HasPrefix(name, "row_") && name != "row_late" && schema.(map[string]any)["properties"] == nil {
					t.Errorf("%s has no columns", name)
				}
			}
			c := &documentCase{s, apptest.NewOpenAPI(t, document.Body), t}
			c.send(304, "GET", "/openapi.json", "", "", "If-None-Match", document.Header.Get("ETag"))
			c.reads()
			c.writes()
			c.popups()
			c.late(test.db)
			tried := map[string]bool{}
			for status := range c.Statuses {
				tried[status[:strings.LastIndexByte(status, ' ')]] = true
			}
			for path, methods := range c.Document["paths"].(map[string]any) {
				for method := range methods.(map[string]any) {
					if operation := strings.ToUpper(method) + " " + path; !tried[operation] {
						t.Errorf("%s is documented and was not tried", operation)
					}
				}
			}
		})
	}
}

// reads asks feeds and queries.
func (c *documentCase) reads() {
	const all, rest = "/by/all", "?x=-1e9&b=true&t=2000-01-01T00:00:00Z&name=x&n="
	key := []string{"Authorization", "Bearer read-key-0123456789"}
	user := bearerOf(c.t, jwt.SigningMethodHS256, "", []byte(sharedSecret), "a", nil)
	for _, path := range []string{"/things", "/v1/things"} {
		page := c.send(200, "GET", path, "?limit=2", "")
		c.send(304, "GET", path, "?limit=2", "", "If-None-Match", page.Header.Get("ETag"))
		c.send(200, "GET", path, "?offset=9&X-Request-Id=a", "", "X-Request-Id", "a")
		c.send(400, "GET", path, "?before=x", "")
		c.send(400, "GET", path, "?limit=0", "")
		c.send(413, "GET", path, "", strings.Repeat("x", 5000))
		c.send(431, "GET", path, "", "", "X-Long", strings.Repeat("x", 20000))
	}
	c.send(401, "GET", "/by/owner", "", "")
	c.send(200, "GET", "/by/owner", "", "", user...)
	c.send(400, "GET", "/by/owner", "?claim.sub=b", "", user...)
	c.send(403, "GET", "/by/owner", "", "", bearerOf(c.t, jwt.SigningMethodHS256, "", []byte(sharedSecret), "a", jwt.MapClaims{"sub": nil})...)
	c.send(401, "GET", all, rest+"1", "")
	c.send(200, "GET", all, rest+"0", "", key...)
	c.send(400, "GET", all, rest+"x", "", key...)
	c.send(400, "GET", all, "", "", key...)
	formatted := c.send(200, "GET", "/filtered", "?fields=id,price,at", "")
	for _, text := range []string{`"price":"1.5`, `"at":"2016-12-01T23:59:57.250000Z"`} {
		if !bytes.Contains(formatted.Body, []byte(text)) {
			c.t.Errorf("%s has no %s", formatted.Body, text)
		}
	}
	c.send(200, "GET", "/filtered", "?ids=3&ids=1&name=a&id=1", "")
	c.send(400, "GET", "/filtered", "?ids=1&ids=2&ids=3&ids=4", "")
	c.send(400, "GET", "/filtered", "?id=x", "")
	one := c.send(200, "GET", "/one", "?id=1", "")
	c.send(304, "GET", "/one", "?id=1", "", "If-None-Match", one.Header.Get("ETag"))
	c.send(200, "GET", "/one", "?id=3", "")
	c.send(404, "GET", "/one", "?id=9", "")
	c.send(400, "GET", "/one", "", "")
	c.send(200, "GET", "/one/{id}", "?fields=id", "")
	for _, query := range []string{"?id=1", "?feilds=id"} {
		if a := c.send(400, "GET", "/one/{id}", query, ""); !bytes.Contains(a.Body, []byte("fields")) {
			c.t.Errorf("%s: %s", query, a.Body)
		}
	}
	c.send(401, "GET", "/some", "", "")
	c.send(200, "GET", "/some", "", "", key...)
	c.send(200, "GET", "/some", "?ids=7", "", user...)
	c.send(400, "GET", "/some", "?ids=1&ids=2&ids=3&ids=4", "", key...)
	c.send(500, "GET", "/some", "?ids=1&ids=2&ids=3", "", key...)
}

// writes sends records.
func (c *documentCase) writes() {
	send := func(status int, path, body string, headers ...string) {
		c.t.Helper()
		c.send(status, "POST", path, "", body, append([]string{"Content-Type", "application/json", "Authorization", "Bearer write-key-0123456789"}, headers...)...)
	}
	send(200, "/things", `{"n":1,"label":null}`)
	send(200, "/things", `[{"n":1},{"n":0}]`, "Idempotency-Key", "a")
	send(200, "/things", `[{"n":1},{"n":0}]`, "Idempotency-Key", "a")
	send(409, "/things", `{"n":2}`, "Idempotency-Key", "a")
	send(200, "/things", "{\"n\":1}\n{\"n\":2}", "Content-Type", "application/x-ndjson")
	send(400, "/things", `{`)
	send(400, "/things", `{"n":1}`, "Idempotency-Key", strings.Repeat("k", 256))
	send(401, "/things", `{"n":1}`, "Authorization", "Bearer other")
	send(413, "/things", `[{"n":1},{"n":2},{"n":3},{"n":4}]`)
	send(415, "/things", `{"n":1}`, "Content-Type", "text/plain")
	send(415, "/things", `{"n":1}`, "Content-Encoding", "br")
	send(422, "/things", `{"label":"abcdef"}`)
	send(200, "/stamped", `[{"n":"7","at":1480636797123},{"n":8,"at":"2016-12-01 23:59:57"}]`)
	send(422, "/stamped", `{"at":1480636797}`)
	send(401, "/owned", `{"n":1}`)
	send(200, "/owned", `{"n":1}`, bearerOf(c.t, jwt.SigningMethodHS256, "", []byte(sharedSecret), "a", nil)...)
	send(403, "/owned", `{"n":1}`, bearerOf(c.t, jwt.SigningMethodHS256, "", []byte(sharedSecret), "a", jwt.MapClaims{"sub": nil})...)
}

// popups shows a campaign.
func (c *documentCase) popups() {
	apptest.Post(c.t, c.Admin+"/popups/campaigns", `{"name":"x","placement":"home","payload":{"a":1},"status":"active"}`, "Content-Type", "application/json")
	shown := c.send(200, "GET", "/popup", "?user=1&age=7&tags=a&tags=b", "")
	c.send(204, "GET", "/popup", "?user=1", "")
	c.send(204, "GET", "/popup", "?user=1&placement=checkout", "")
	c.send(400, "GET", "/popup", "", "")
	c.send(400, "GET", "/popup", "?user=1&age=x", "")
	_, token, _ := strings.Cut(string(shown.Body), `"show":`)
	body := `{"show":` + token
	c.send(403, "POST", "/popup/click", "?user=2", body)
	c.send(204, "POST", "/popup/click", "", body)
	c.send(204, "POST", "/popup/convert", "", body)
	for _, path := range []string{"/popup/click", "/popup/dismiss", "/popup/convert"} {
		if path != "/popup/convert" {
			c.send(409, "POST", path, "", body)
		}
		c.send(400, "POST", path, "", `{"show":"x"}`)
		c.send(400, "POST", path, "", `{}`)
		c.send(413, "POST", path, "", strings.Repeat("x", 5000))
	}
}

// late has a part start that could not: the document then has its columns.
func (c *documentCase) late(db storetest.Database) {
	c.send(503, "GET", "/late", "", "")
	before := apptest.Fetch(c.t, c.URL("openapi.json"))
	db.Query(c.t, "CREATE TABLE late (id integer PRIMARY KEY)")
	var after apptest.Answer
	apptest.Await(c.t, "the part has started", func() bool {
		after = apptest.Fetch(c.t, c.URL("openapi.json"))
		return after.Header.Get("ETag") != before.Header.Get("ETag")
	})
	c.send(200, "GET", "/late", "", "")
	for document, known := range map[string]bool{string(before.Body): false, string(after.Body): true} {
		row, _ := apptest.NewOpenAPI(c.t, []byte(document)).At("/components/schemas/row_late/properties/id/type")
		if (row == "integer") != known {
			c.t.Errorf("the type of the column is %v, known %v", row, known)
		}
	}
}

// Without http.openapi there is no document, and the path is free.
func TestOpenAPIOff(t *testing.T) {
	t.Parallel()
	db := storetest.SQLiteDatabase(t)
	db.Query(t, "CREATE TABLE n (id integer PRIMARY KEY)")
	s := apptest.ServePatiently(t, &binary, "http: {openapi: false}\nfeeds: [{path: /n, sql: SELECT id FROM n, key: id}]\n", db.URL)
	if a := apptest.Fetch(t, s.URL("openapi.json")); a.Status != http.StatusNotFound {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}
