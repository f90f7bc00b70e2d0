package storetest

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// item is one row of the items table, as its JSON says.
type item struct {
	ID    int     `json:"id"`
	Grp   int     `json:"grp"`
	Name  string  `json:"name"`
	Score float64 `json:"score"`
}

const selectItems = "SELECT id, grp, name, score FROM items"

func decodeItems(t rapid.TB, rows *feed.Rows) []item {
	t.Helper()
	var items []item
	text := "[" + string(rows.Slice(0, rows.Len())) + "]"
	if err := json.Unmarshal([]byte(text), &items); err != nil {
		t.Fatalf("rows are not JSON: %v\n%s", err, text)
	}
	if len(items) != rows.Len() || len(rows.Keys) != rows.Len() {
		t.Fatalf("%d objects, Len %d, %d keys", len(items), rows.Len(), len(rows.Keys))
	}
	return items
}

// before compares two items by the columns of a key, in the feed's order.
func before(key []feed.KeyColumn, a, b item) int {
	for _, column := range key {
		var order int
		switch column.Name {
		case "id":
			order = cmp.Compare(a.ID, b.ID)
		case "grp":
			order = cmp.Compare(a.Grp, b.Grp)
		case "name":
			order = strings.Compare(a.Name, b.Name)
		case "score":
			order = cmp.Compare(a.Score, b.Score)
		}
		if !column.Ascending {
			order = -order
		}
		if order != 0 {
			return order
		}
	}
	return 0
}

// testOrder compares ranges of feeds with many kinds of keys with the same
// ranges of a sorted slice.
func testOrder(t *testing.T, b Backend) {
	db := b.open(t, database.Pool{})
	const n = 97
	fillItems(t, db, n, 9)
	keys := [][]string{
		{"id"},
		{"id asc"},
		{"grp", "id"},
		{"grp asc", "id asc"},
		{"grp", "id asc"},
		{"grp asc", "id"},
		{"name asc", "id"},
		{"score", "name asc", "id asc"},
		{"score asc", "grp asc", "id asc"},
	}
	for _, columns := range keys {
		t.Run(strings.Join(columns, ","), func(t *testing.T) {
			def := definition(selectItems, columns...)
			source := db.source(t, def)
			all := read(t, source, feed.Range{Limit: n + 1})
			items := decodeItems(t, all)
			if len(items) != n {
				t.Fatalf("%d items, want %d", len(items), n)
			}
			if !slices.IsSortedFunc(items, func(a, b item) int { return before(def.Key, a, b) }) {
				t.Fatalf("not in the feed's order: %v", items)
			}
			rapid.Check(t, func(rt *rapid.T) { checkRange(rt, t.Context(), source, items, all.Keys) })
		})
	}
}

// checkRange reads and walks one random range of a feed that holds items, whose
// keys are keys.
func checkRange(t *rapid.T, ctx context.Context, source feed.Source, items []item, keys []feed.Key) {
	index := rapid.IntRange(0, len(items)-1)
	r := feed.Range{
		Skip:  rapid.SampledFrom([]int{0, 0, 0, 1, 15, 16, 17, 40, 200}).Draw(t, "skip"),
		Limit: rapid.OneOf(rapid.IntRange(1, 120), rapid.SampledFrom([]int{1, 10, 16, 64})).Draw(t, "limit"),
	}
	start, end := 0, len(items)
	if rapid.Bool().Draw(t, "has after") {
		i := index.Draw(t, "after")
		r.After = keys[i]
		start = i + 1
	}
	if rapid.Bool().Draw(t, "has until") {
		i := index.Draw(t, "until")
		r.Until = keys[i]
		end = i + 1
	}
	start = min(start+r.Skip, len(items))
	end = max(start, min(end, start+r.Limit))

	var rows feed.Rows
	if err := source.Read(ctx, r, &rows); err != nil {
		t.Fatalf("read: %v", err)
	}
	if got := decodeItems(t, &rows); !slices.Equal(got, items[start:end]) {
		t.Fatalf("read: got %v\nwant %v", got, items[start:end])
	}
	if !slices.Equal(rows.Keys, keys[start:end]) {
		t.Fatalf("keys of the rows read: got %q\nwant %q", rows.Keys, keys[start:end])
	}

	every := rapid.IntRange(1, 30).Draw(t, "every")
	walk, err := source.Keys(ctx, r, every)
	if err != nil {
		t.Fatalf("keys: %v", err)
	}
	want := feed.Walk{Count: end - start}
	for i := start + every - 1; i < end; i += every {
		want.Keys = append(want.Keys, keys[i])
	}
	if end > start {
		want.Last = keys[end-1]
	}
	if walk.Count != want.Count || walk.Last != want.Last || !slices.Equal(walk.Keys, want.Keys) {
		t.Fatalf("keys of each %d-th row: got %+v\nwant %+v", every, walk, want)
	}
}

// testAppend reads two ranges into the same rows, and an empty one.
func testAppend(t *testing.T, b Backend) {
	db := b.open(t, database.Pool{})
	source := db.source(t, definition(selectItems, "id"))
	if rows := read(t, source, feed.Range{Limit: 10}); rows.Len() != 0 || len(rows.Data) != 0 {
		t.Fatalf("an empty table gave %d rows, %q", rows.Len(), rows.Data)
	}
	walk, err := source.Keys(t.Context(), feed.Range{Limit: 10}, 2)
	if err != nil || walk.Count != 0 || walk.Last != "" || len(walk.Keys) != 0 {
		t.Fatalf("an empty table's keys: %+v, %v", walk, err)
	}

	fillItems(t, db, 5, 2)
	rows := read(t, source, feed.Range{Limit: 2})
	if err := source.Read(t.Context(), feed.Range{After: rows.Keys[1], Limit: 2}, rows); err != nil {
		t.Fatal(err)
	}
	var ids []int
	for _, item := range decodeItems(t, rows) {
		ids = append(ids, item.ID)
	}
	if !slices.Equal(ids, []int{5, 4, 3, 2}) {
		t.Fatalf("two reads appended %v", ids)
	}
}
