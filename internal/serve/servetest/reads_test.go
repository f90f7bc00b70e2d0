package servetest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/storetest"
)

const cityOrders = `feeds:
  - {path: /orders, sql: "SELECT id, city FROM orders WHERE city = :city", key: id, params: {city: text}}
queries:
  - {path: /order, sql: "SELECT id, city FROM orders WHERE id = :id", params: {id: integer}, ttl: 1h}
`

// On each database, the plans of the check are kept, and a value of a feed or a query is listed, paused, dropped and resumed.
func TestReads(t *testing.T) {
	t.Parallel()
	for name, db := range map[string]storetest.Database{
		"postgres": storetest.PostgresDatabase(t, postgres.Get(t)), "mariadb": storetest.MariaDatabase(t, mariadb.Get(t)),
		"sqlite": storetest.SQLiteDatabase(t),
	} {
		t.Run(name, func(t *testing.T) {
			db.Query(t, "CREATE TABLE orders (id INTEGER PRIMARY KEY, city VARCHAR(20) NOT NULL)")
			db.Query(t, "INSERT INTO orders VALUES (1, 'Oslo'), (2, 'Oslo')")
			s := apptest.ServeText(t, &binary, cityOrders, db.URL)
			s.WaitReady(t)
			testRead(t, s, "/orders", "/orders?city=Oslo", `{"city": ["Oslo"]}`)
			testRead(t, s, "/order", "/order?id=2", `{"id": ["2"]}`)
		})
	}
}

func testRead(t *testing.T, s *apptest.Spillway, path, request, arguments string) {
	t.Helper()
	want := func(a apptest.Answer, status int, text string) {
		t.Helper()
		if a.Status != status || !strings.Contains(string(a.Body), text) {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
	fetch := func() apptest.Answer { return apptest.Fetch(t, s.URL(strings.TrimPrefix(request, "/"))) }
	want(fetch(), 200, "Oslo")
	look := func() (r admin.Read) {
		a := apptest.Fetch(t, s.Admin+"/reads?path="+path)
		if err := json.Unmarshal(a.Body, &r); err != nil || a.Status != 200 {
			t.Fatalf("%d %s: %v", a.Status, a.Body, err)
		}
		return r
	}
	r := look()
	if len(r.Plans) == 0 || !strings.Contains(r.Plans[0].SQL, "orders") || r.Plans[0].Plan == "" || r.Plans[0].Problem != "" {
		t.Errorf("plans: %+v", r.Plans)
	}
	text, _ := json.Marshal(r.Values[0].Arguments) // never fails
	if got := strings.ReplaceAll(string(text), ":", ": "); len(r.Values) != 1 || got != arguments || r.Values[0].ReadSeconds == 0 || r.Values[0].AgeSeconds == nil {
		t.Errorf("values: %s %+v", got, r.Values)
	}
	change := func(work string) {
		t.Helper()
		body := fmt.Sprintf(`{"path": %q, "arguments": %s}`, path, arguments)
		if a := apptest.Post(t, s.Admin+"/reads/"+work, body); a.Status != 204 {
			t.Errorf("%s: %d %s", work, a.Status, a.Body)
		}
	}
	change("pause")
	want(fetch(), 200, "Oslo")
	change("drop")
	want(fetch(), 503, "an operator has paused the reading of these rows")
	if r := look(); !r.Values[0].Paused {
		t.Errorf("%+v", r.Values)
	}
	change("resume")
	apptest.Await(t, "rows again", func() bool { return fetch().Status == 200 })
}
