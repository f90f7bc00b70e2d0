package streamtest

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/serve/storetest"
)

// TestFreightOnMariaDB serves the freight app from MariaDB.
func TestFreightOnMariaDB(t *testing.T) {
	t.Parallel()
	server := apptest.MariaDB(t, "--sql-mode=", "--default-time-zone=+08:00", "--character-set-server=latin1")
	url := server.URL("test")
	if _, stderr, code := binary.Run(t, "seed", "freight", "--database", url, "--users", "1000", "--days", "366", "--per-day", "70"); code != 0 {
		t.Fatalf("seed: exit %d\n%s", code, stderr)
	}
	query := storetest.MariaDBQuery(t, url)
	query("UPDATE orders SET id = id + 10000000 ORDER BY id DESC")
	query("ALTER TABLE orders AUTO_INCREMENT = 20000000")
	app := apptest.Serve(t, binary.Path(t), "--database", url)
	app.WaitReady(t)

	g := apptest.Page(t, app.URL("openapi/goodslist"))
	a := apptest.Fetch(t, app.URL("goodslist"))
	if size := len(a.Body) - len(`,"next":""`) - len(g.Next); len(g.Data) != 10 || size != 1524 {
		t.Errorf("%d rows are %d bytes without next, the reference is 1524 for ten:\n%s", len(g.Data), size, a.Body)
	}
	row := query("SELECT o.id, o.createtime, goods_name, nickname FROM orders o JOIN users u ON u.id = o.users_id ORDER BY o.id DESC LIMIT 1")[0]
	if r := g.Data[0]; strconv.FormatInt(r.ID, 10) != row[0] || r.Createtime != row[1] || r.Goods_name != row[2] || r.Nickname != row[3] || r.Mobileno != row[3] {
		t.Errorf("first row %+v, the database says %v", r, row)
	}
	query("INSERT INTO orders (createtime, users_id, goods_name) VALUES ('2016-12-02', 1, 'new')")
	apptest.Await(t, "a new order is on page 1", func() bool { return apptest.Page(t, app.URL("goodslist")).Data[0].ID == 20_000_000 })
	for _, offset := range []int{150, 195, 900, 18_000} {
		want := query("SELECT id FROM orders ORDER BY id DESC LIMIT 1 OFFSET " + strconv.Itoa(offset))[0][0]
		if g := apptest.Page(t, app.URL("goodslist?offset="+strconv.Itoa(offset))); strconv.FormatInt(g.Data[0].ID, 10) != want {
			t.Errorf("offset %d begins with %d, want %s", offset, g.Data[0].ID, want)
		}
	}
	if a := apptest.Fetch(t, app.URL("goodslist?offset=0;drop%20table%20users")); a.Status != http.StatusBadRequest {
		t.Errorf("injection: %d %s", a.Status, a.Body)
	}
	if a := apptest.Fetch(t, app.URL("probe/database")); a.Status != http.StatusOK {
		t.Errorf("probe: %d %s", a.Status, a.Body)
	}
	walkAll(t, app, query("SELECT COUNT(*) FROM orders")[0][0])
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "pages come again by themselves", func() bool { return apptest.Fetch(t, app.URL("goodslist?offset=5000")).Status == http.StatusOK })
}

// walkAll reads the whole feed by cursor and compares the number of rows.
func walkAll(t *testing.T, app *apptest.Spillway, want string) {
	t.Helper()
	walked := 0
	for query := "goodslist?limit=100"; query != ""; {
		g := apptest.Page(t, app.URL(query))
		walked += len(g.Data)
		if query = ""; g.Next != "" {
			query = "goodslist?limit=100&before=" + g.Next
		}
	}
	if strconv.Itoa(walked) != want {
		t.Errorf("%d rows walked, want %s", walked, want)
	}
}

// On MariaDB, as on PostgreSQL, a plan that sorts is refused, and so is a URL with an
// unsupported option.
func TestRefusedOnMariaDB(t *testing.T) {
	t.Parallel()
	url := mariaDatabase(t, "refused").URL
	if _, stderr, code := binary.Run(t, "seed", "freight", "--database", url, "--users", "1000", "--days", "366", "--per-day", "70"); code != 0 {
		t.Fatalf("seed: exit %d\n%s", code, stderr)
	}
	file := apptest.FreightFeed(t, "key: [goods_name, id]")
	_, stderr, code := binary.Run(t, "serve", "--strict", file, "--database", url, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	if code != exit.Usage || !strings.Contains(stderr, "CREATE INDEX orders_goods_name_id ON orders (goods_name DESC, id DESC)") {
		t.Errorf("exit %d:\n%s", code, stderr)
	}
	_, stderr, code = binary.Run(t, "serve", "--database", url+"?charset=gbk", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	if code != exit.Usage || !strings.Contains(stderr, "charset must be utf8mb4") {
		t.Errorf("exit %d:\n%s", code, stderr)
	}
}
