package storetest

import (
	"errors"
	"testing"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// A key that an outer join makes NULL in some rows ends in an error: at start, in the first page, or on the last.
func testNullKeys(t *testing.T, b Backend) {
	db := b.Open(t, database.Pool{})
	for _, sql := range []string{
		"CREATE TABLE items (id " + b.Types[Integer] + " NOT NULL PRIMARY KEY, grp " + b.Types[Integer] + ")",
		"CREATE TABLE groups_of (id " + b.Types[Integer] + " NOT NULL PRIMARY KEY)",
		"INSERT INTO groups_of VALUES (1), (2), (3), (4)",
		"INSERT INTO items VALUES (11, 1), (12, 2), (13, 3), (14, 4)",
	} {
		db.exec(t, sql)
	}
	open := func(ascending bool) feed.Source {
		return db.source(t, feed.Definition{
			Name: "/test", SQL: "SELECT g.id AS grp, i.id AS item FROM items i LEFT JOIN groups_of g ON g.id = i.grp",
			Key: []feed.KeyColumn{{Name: "grp", Ascending: ascending}},
		})
	}
	pages := func(source feed.Source) (rows int, err error) {
		r := feed.Range{Limit: 3}
		for {
			read := new(feed.Rows)
			if err := source.Read(t.Context(), r, read); err != nil || read.Len() == 0 {
				return rows, err
			}
			rows += read.Len()
			r.After = read.Keys[read.Len()-1]
		}
	}
	for _, source := range []feed.Source{open(false), open(true)} {
		if err := source.Check(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		if rows, err := pages(source); rows != 4 || err != nil {
			t.Errorf("%d rows of 4, %v", rows, err)
		}
	}
	db.exec(t, "INSERT INTO items VALUES (10, NULL)")
	for i, source := range []feed.Source{open(false), open(true)} {
		if err := source.Check(t.Context(), 3); err == nil || !errors.Is(err, feed.ErrNullKey) {
			t.Errorf("checked: %v", err)
		}
		// One has rows with NULL on its first page, the other behind the last.
		if rows, err := pages(source); err == nil || !errors.Is(err, feed.ErrNullKey) {
			t.Errorf("%d rows of 5, ascending %v: %v", rows, i == 1, err)
		}
	}
}
