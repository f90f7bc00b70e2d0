//go:build !race

package postgres

import (
	"testing"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/storetest"
)

func TestQueryAllocs(t *testing.T) {
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, "CREATE TABLE allocs (id int PRIMARY KEY, name text NOT NULL); INSERT INTO allocs VALUES (5, 'five')")
	source, err := open(t, url, database.Pool{}).source(feed.Definition{
		Name: "/allocs", SQL: "SELECT id, name FROM allocs WHERE id = :id", Params: []param.Param{{Name: "id", Type: param.Integer}},
	})
	if err != nil {
		t.Fatal(err)
	}
	storetest.QueryAllocs(t, source, []string{"5"}, 27)
}
