package apptest

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// ServeText serves the configuration from the database at the URL.
func ServeText(t *testing.T, binary *Binary, text, database string, args ...string) *Spillway {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := Serve(t, binary.Path(t), append([]string{"--database", database, file}, args...)...)
	s.WaitReady(t)
	return s
}

// ServePatiently is ServeText with the timeouts of Patient.
func ServePatiently(t *testing.T, binary *Binary, text, database string, args ...string) *Spillway {
	t.Helper()
	return ServeText(t, binary, Patient(text), database, args...)
}

// SeedFreight creates a small freight data set with 8-digit order ids, like the reference data set.
func SeedFreight(t *testing.T, binary *Binary, server *PostgresServer) (url string, conn *pgx.Conn) {
	t.Helper()
	url = server.CreateDatabase(t)
	if _, stderr, code := binary.Run(t, "seed", "freight", "--database", url, "--users", "1000", "--days", "366", "--per-day",
		"70"); code != 0 {
		t.Fatalf("seed: exit %d\n%s", code, stderr)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	Execute(t, conn, "UPDATE orders SET id = id + 10000000")
	Execute(t, conn, "SELECT setval('orders_id_seq', (SELECT max(id) FROM orders))")
	return url, conn
}

// FreightFeed writes a configuration with the freight feed.
func FreightFeed(t *testing.T, feed string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	text := `feeds:
  - path: /goodslist
    envelope: return_code
    sql: SELECT orders.id, orders.createtime, orders.goods_name, users.nickname, users.mobileno FROM orders JOIN users ON users.id = orders.users_id
    ` + strings.ReplaceAll(feed, "\n", "\n    ") + "\n"
	if err := os.WriteFile(file, []byte(Patient(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Goods is a page of the freight feed.
type Goods struct {
	Code string `json:"return_code"`
	Data []struct {
		ID                                         int64
		Createtime, Goods_name, Nickname, Mobileno string
	}
	Next string
}

// Page requests a page of orders. It waits while the server is busy or counts the rows before it.
func Page(t *testing.T, url string) Goods {
	t.Helper()
	a := Fetch(t, url)
	if a.Status == http.StatusServiceUnavailable {
		Await(t, "a page is served: "+url, func() bool {
			a = Fetch(t, url)
			return a.Status == http.StatusOK
		})
	}
	var g Goods
	if err := json.Unmarshal(a.Body, &g); err != nil || a.Status != http.StatusOK {
		t.Fatalf("%s: %d %s: %v", url, a.Status, a.Body, err)
	}
	return g
}

// Readings is a stream whose table has no unique key, so a record can be stored twice.
const Readings = `streams:
  - path: /readings
    aliases: [/v1/readings]
    table: readings
    columns: {id: {type: integer, required: true}, device: integer, value: {type: real, max: 1000}, note: {type: text, max_length: 10, default: none}}
`

// Execute executes a statement.
func Execute(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
