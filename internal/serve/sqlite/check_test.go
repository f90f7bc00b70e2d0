package sqlite_test

import (
	"strings"
	"testing"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// TestCheck judges feeds over 12,000 orders and 2,000 users; the latter are few enough
// to be sorted or scanned.
func TestCheck(t *testing.T) {
	t.Parallel()
	db, run := openFreight(t, 12_000)
	run(`CREATE TABLE goods (name TEXT NOT NULL, weight INTEGER NOT NULL);
		INSERT INTO goods SELECT goods_name, id FROM orders;
		CREATE TABLE "Big Table" ("select" TEXT NOT NULL, n INTEGER NOT NULL);
		INSERT INTO "Big Table" SELECT goods_name, id FROM orders;
		ALTER TABLE orders ADD COLUMN state INTEGER NOT NULL DEFAULT 1;
		CREATE VIEW recent AS SELECT o.id, o.createtime AS at, o.goods_name FROM orders AS o`)
	userOrders := newestFirst("SELECT id, createtime, goods_name FROM orders WHERE users_id = :user", "goods_name", "id")
	userOrders.Params = []param.Param{{Name: "user", Type: param.Integer}}
	open := newestFirst("SELECT id, createtime, goods_name FROM orders WHERE state = :state", "goods_name", "id")
	open.Params = []param.Param{{Name: "state", Type: param.Integer}}
	mixed := newestFirst("SELECT id, createtime FROM orders", "createtime", "id")
	mixed.Key[1].Ascending = true
	const sorts = "would sort all rows of orders, more than 10000"
	tests := []struct {
		name string
		def  feed.Definition
		want []string // parts of the error; none: no error
	}{
		{"freight", newestFirst(selectFreight, "id"), nil},
		{"freight by time", newestFirst(selectFreight, "createtime", "id"), nil},
		{"freight by name", newestFirst(selectFreight, "goods_name"), []string{"check feed /goodslist", sorts, "INDEX orders_goods_name ON orders (goods_name DESC)"}},
		{"mixed directions, few rows with one time", mixed, nil},
		{"one user's few, by name", userOrders, nil},
		{"those of a state, by name", open, []string{"CREATE INDEX orders_state_goods_name_id ON orders (state, goods_name DESC, id DESC)"}},
		{"small table sorted", newestFirst("SELECT id, nickname FROM users", "nickname"), nil},
		{"small table joined by a scan", newestFirst("SELECT o.id, u.nickname FROM orders o JOIN users u ON u.nickname > o.goods_name", "id"), nil},
		{
			"join without an index", newestFirst("SELECT o.id, g.weight FROM orders o LEFT JOIN goods g ON g.name = o.goods_name", "id"),
			[]string{"would read all rows of goods", "CREATE INDEX goods_name ON goods (name)"},
		},
		{"join by a scan that ends early", newestFirst("SELECT o.id, g.weight FROM orders AS o LEFT JOIN goods AS g ON g.name <> o.goods_name", "id"), nil},
		{
			"join by a scan", newestFirst("SELECT o.id, g.weight FROM orders AS o LEFT JOIN goods AS g ON g.name || '' = o.goods_name", "id"),
			[]string{"would read all rows of goods", "add an index on the columns of goods"},
		},
		{
			"subquery by a scan", newestFirst("SELECT o.id, (SELECT max(weight) FROM goods WHERE name <> o.goods_name) AS w FROM orders o", "id"),
			[]string{"would read all rows of goods"},
		},
		{"computed key", newestFirst("SELECT id + 0 AS k FROM orders", "k"), []string{sorts, "of several tables or computed"}},
		{"grouped", newestFirst("SELECT users_id, count(*) AS n FROM orders GROUP BY users_id", "users_id"), []string{sorts}},
		{"key of two tables", newestFirst(selectFreight, "mobileno", "createtime"), []string{"of several tables or computed"}},
		{"view", newestFirst("SELECT * FROM recent", "at", "id"), nil},
		{"view by name", newestFirst("SELECT * FROM recent", "goods_name"), []string{sorts, "ON orders (goods_name DESC)"}},
		{"renamed column", newestFirst("SELECT goods_name AS title FROM orders", "title"), []string{sorts, `add an index of orders on the columns shown as "title"`}},
		{
			"names to quote", newestFirst(`SELECT * FROM "Big Table" b`, "select"),
			[]string{`CREATE INDEX "Big Table_select" ON "Big Table" ("select" DESC)`},
		},
		{"merged", newestFirst("SELECT id, goods_name FROM orders UNION ALL SELECT id, nickname FROM users", "id"), nil},
		{"index not used", newestFirst("SELECT id, users_id FROM orders NOT INDEXED", "users_id"), []string{sorts, "although an index on (users_id DESC) exists"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := source(t, db, test.def)
			err := f.Check(t.Context(), 200)
			if test.want == nil && err != nil {
				t.Errorf("refused: %v", err)
			}
			for _, part := range test.want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("got %v, want %s", err, part)
				}
			}
		})
	}
}

// TestCheckAdvice adds the index that each refusal names: the feed then passes.
func TestCheckAdvice(t *testing.T) {
	t.Parallel()
	db, run := openFreight(t, 12_000)
	run("CREATE TABLE goods (name TEXT NOT NULL, weight INTEGER NOT NULL); INSERT INTO goods SELECT goods_name, id FROM orders")
	mixed := newestFirst(selectFreight, "createtime", "goods_name", "id")
	mixed.Key[1].Ascending = true
	user := newestFirst("SELECT id, createtime FROM orders WHERE users_id = :user", "createtime", "id")
	user.Params = []param.Param{{Name: "user", Type: param.Integer}}
	defs := []feed.Definition{
		mixed,
		user,
		newestFirst(selectFreight, "goods_name", "id"),
		newestFirst("SELECT g.name, g.weight, o.id FROM goods g LEFT JOIN orders o ON o.goods_name = g.name", "weight", "name"),
		newestFirst("SELECT o.id, g.weight FROM orders o JOIN goods g ON g.name = o.goods_name", "id"),
	}
	for _, def := range defs {
		f := source(t, db, def)
		err := f.Check(t.Context(), 200)
		for range 3 { // one index may not be all that is missing
			if err == nil {
				break
			}
			_, advice, found := strings.Cut(err.Error(), "CREATE INDEX ")
			if !found {
				t.Fatalf("%v: no advice in %q", def.Key, err)
			}
			run("CREATE INDEX " + advice)
			err = f.Check(t.Context(), 200)
		}
		if err != nil {
			t.Errorf("%v: still refused: %v", def.Key, err)
		}
	}
}
