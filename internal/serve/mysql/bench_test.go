package mysql

import (
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// BenchmarkFeedRead reads the window of the freight list: 200 rows of a join.
func BenchmarkFeedRead(b *testing.B) {
	url := apptest.MySQL(b).URL("test")
	mustExecute(b, url,
		"CREATE TABLE users (id int PRIMARY KEY, nickname varchar(64) NOT NULL, mobileno varchar(32) NOT NULL)",
		"CREATE TABLE orders (id int PRIMARY KEY, createtime datetime NOT NULL, users_id int NOT NULL, goods_name varchar(64) NOT NULL)",
		"INSERT INTO users SELECT seq, CONCAT('user ', seq), 13000000000 + seq FROM seq_1_to_10000",
		"INSERT INTO orders SELECT seq, '2016-01-01' + INTERVAL seq * 3 SECOND, 1 + (seq * 7919) % 10000, MD5(seq) FROM seq_1_to_100000",
		"ANALYZE TABLE users, orders")
	db := open(b, url, database.Pool{})
	source := mustFeed(b, db, `SELECT orders.id, orders.createtime, orders.goods_name, users.nickname, users.mobileno
		FROM orders JOIN users ON users.id = orders.users_id`, "id")
	var rows feed.Rows
	for _, bench := range []struct {
		name string
		r    feed.Range
	}{
		{"rows=200", feed.Range{Limit: 200}},
		{"rows=10/after=deep", feed.Range{After: key('i', "5000"), Limit: 10}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rows.Reset()
				if err := source.Read(b.Context(), bench.r, &rows); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(len(rows.Data)))
		})
	}
	b.Run("keys=1000", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := source.Keys(b.Context(), feed.Range{Limit: 1000}, 100); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkProbe(b *testing.B) {
	db := open(b, apptest.MySQL(b).URL("test"), database.Pool{})
	b.ReportAllocs()
	for b.Loop() {
		if err := db.Probe(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
