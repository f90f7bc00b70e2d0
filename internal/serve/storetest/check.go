package storetest

import (
	"strings"
	"testing"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// testCheck explains feeds over a large table with and without the index that
// they need, and over small ones.
func testCheck(t *testing.T, b Backend) {
	db := b.open(t, database.Pool{})
	check := func(name string, def feed.Definition, want ...string) {
		t.Helper()
		err := db.source(t, def).Check(t.Context(), 200)
		if len(want) == 0 {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			return
		}
		if err == nil {
			t.Errorf("%s: no error", name)
			return
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: error %q does not say %q", name, err, part)
			}
		}
	}
	byID := definition(selectItems, "id")
	byGroup := definition(selectItems, "grp", "id")
	joined := definition("SELECT items.id, items.grp, g.name AS label FROM items JOIN labels g ON g.id = items.grp", "grp", "id")
	db.exec(t, "CREATE TABLE labels (id "+b.Types[Integer]+" NOT NULL PRIMARY KEY, name "+b.Types[Text]+" NOT NULL)")

	check("empty table, key indexed", byID)
	check("empty table, key not indexed", byGroup)
	fillItems(t, db, 20000, 40)
	db.exec(t, "INSERT INTO labels SELECT DISTINCT grp, 'label' FROM items")
	check("large table, key indexed", byID)
	check("large table, key not indexed", byGroup, "items", "CREATE INDEX", "(grp DESC, id DESC)")
	check("large table joined, key not indexed", joined, "items", "CREATE INDEX", "(grp DESC, id DESC)")
	check("large table, first column ascending", definition(selectItems, "grp asc", "id"), "items", "CREATE INDEX", "(grp, id DESC)")
	db.exec(t, "CREATE INDEX items_by_group ON items (grp DESC, id DESC)")
	check("large table, index added", byGroup)
	check("large table joined, index added", joined)
}
