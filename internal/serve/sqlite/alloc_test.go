//go:build !race

package sqlite_test

import (
	"testing"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/storetest"
)

func TestQueryAllocs(t *testing.T) {
	db, _ := openFreight(t, 10)
	def := feed.Definition{Name: "/order", SQL: "SELECT id, goods_name FROM orders WHERE id = :id", Params: []param.Param{{Name: "id", Type: param.Integer}}}
	storetest.QueryAllocs(t, source(t, db, def), []string{"5"}, 13)
}
