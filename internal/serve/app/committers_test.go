package app

import (
	"testing"

	"spillway/internal/database"
	"spillway/internal/serve/config"
)

// The streams of a database leave half of its pool to feeds and queries.
func TestCommitters(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pool, asked int
		databases   []config.Address
		driver      database.Driver
		want        int // of the first stream
	}{
		{8, 2, []config.Address{""}, database.Postgres, 2},
		{8, 64, []config.Address{""}, database.Postgres, 4},
		{8, 64, []config.Address{"", "", "mysql://other/db"}, database.MySQL, 2},
		{8, 64, []config.Address{"postgres://top/db", ""}, database.Postgres, 2},
		{1, 2, []config.Address{"", ""}, database.Postgres, 1},
		{8, 4, []config.Address{""}, database.SQLite, 1},
	} {
		a := &app{}
		a.cfg.Database, a.cfg.Pool.Max = "postgres://top/db", test.pool
		for _, d := range test.databases {
			a.cfg.Streams = append(a.cfg.Streams, config.Stream{Database: d, Committers: test.asked})
		}
		st := &store{}
		st.url.Driver = test.driver
		if got := a.committers(&a.cfg.Streams[0], st); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
}
