//go:build !race

package mysql

import (
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/storetest"
)

func TestQueryAllocs(t *testing.T) {
	url := apptest.MySQL(t).URL("test")
	mustExecute(t, url, "CREATE TABLE allocs (id int PRIMARY KEY, name varchar(64) NOT NULL)", "INSERT INTO allocs VALUES (5, 'five')")
	source, err := open(t, url, database.Pool{}).source(feed.Definition{
		Name: "/allocs", SQL: "SELECT id, name FROM allocs WHERE id = :id", Params: []param.Param{{Name: "id", Type: param.Integer}},
	})
	if err != nil {
		t.Fatal(err)
	}
	storetest.QueryAllocs(t, source, []string{"5"}, 30)
}
