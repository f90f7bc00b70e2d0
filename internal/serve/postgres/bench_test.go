package postgres

import (
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// BenchmarkFeedRead reads the window of the freight list: 200 rows of a join.
func BenchmarkFeedRead(b *testing.B) {
	pg := apptest.Postgres(b)
	url := pg.CreateDatabase(b)
	mustExecute(b, url, `CREATE TABLE users (id int PRIMARY KEY, nickname text NOT NULL, mobileno text NOT NULL);
		CREATE TABLE orders (id int PRIMARY KEY, createtime timestamp NOT NULL, users_id int NOT NULL, goods_name text NOT NULL);
		INSERT INTO users SELECT i, 'user ' || i, (13000000000 + i)::text FROM generate_series(1, 10000) i;
		INSERT INTO orders SELECT i, '2016-01-01'::timestamp + i * interval '3 s', 1 + (i * 7919::bigint) % 10000, md5(i::text) FROM generate_series(1, 100000) i;`)
	mustExecute(b, url, "VACUUM ANALYZE")
	db := open(b, url, database.Pool{})
	source := mustFeed(b, db, `SELECT orders.id, orders.createtime, orders.goods_name, users.nickname, users.mobileno
		FROM orders JOIN users ON users.id = orders.users_id`, "id")
	var rows feed.Rows
	for _, bench := range []struct {
		name string
		r    feed.Range
	}{
		{"rows=200", feed.Range{Limit: 200}},
		{"rows=10/after=deep", feed.Range{After: feed.Key(feed.AppendKey(nil, feed.KeyInteger, []byte("5000"))), Limit: 10}},
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
	db := open(b, apptest.Postgres(b).URL("postgres"), database.Pool{})
	b.ReportAllocs()
	for b.Loop() {
		if err := db.Probe(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
