package storetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"spillway/internal/serve/popup"
)

// hashesOf returns the sorted hashes of users.
func hashesOf(users ...string) []uint64 {
	var hashes []uint64
	for _, user := range users {
		hashes = append(hashes, popup.UserHash(user))
	}
	slices.Sort(hashes)
	return slices.Compact(hashes)
}

// manyHashes returns n hashes in order, which depend on a seed.
func manyHashes(n int, seed uint64) []uint64 {
	hashes := make([]uint64, n)
	for i := range hashes {
		hashes[i] = uint64(i)<<44 | seed
	}
	return hashes
}

// usersOf returns the users of a list.
func usersOf(t *testing.T, tables PopupTables, name string) []uint64 {
	t.Helper()
	_, users, err := tables.ListUsers(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return users
}

// A list is what was uploaded last, and its rows are the only ones.
func testPopupLists(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	other := db.Tables(t)
	if _, _, err := tables.ListUsers(t.Context(), "vips"); !errors.Is(err, popup.ErrNoList) {
		t.Errorf("users of no list: %v", err)
	}
	if err := tables.DeleteList(t.Context(), "vips", ann); !errors.Is(err, popup.ErrNoList) {
		t.Errorf("delete no list: %v", err)
	}
	many := manyHashes(300_000, 7) // several parts
	many[0], many[299_999] = 0, 1<<64-1
	first, err := tables.ReplaceList(t.Context(), "vips", many, ann)
	if err != nil || first.At.IsZero() || first != (popup.ListVersion{Name: "vips", Version: 1, Size: 300_000, At: first.At}) {
		t.Fatalf("%+v, %v", first, err)
	}
	if list, got, err := other.ListUsers(t.Context(), "vips"); err != nil || list != first || !slices.Equal(got, many) {
		t.Errorf("%+v, %d users, want %d, %v", list, len(got), len(many), err)
	}
	second, err := other.ReplaceList(t.Context(), "empty", nil, ann)
	if err != nil || second.Size != 0 || len(usersOf(t, tables, "empty")) != 0 {
		t.Errorf("an empty list: %+v, %v", second, err)
	}
	if all, err := other.Lists(t.Context()); err != nil || !slices.Equal(all, []popup.ListVersion{second, first}) {
		t.Errorf("lists: %v, %v", all, err)
	}
	for _, n := range []int{partUsers, partUsers + 1, 2} { // a part, one more, few
		want := manyHashes(n, 3)
		if _, err := other.ReplaceList(t.Context(), "vips", want, ann); err != nil || !slices.Equal(usersOf(t, tables, "vips"), want) {
			t.Errorf("%d users: %v", n, err)
		}
	}
	if n := db.number(t, "SELECT COUNT(*) FROM popup_list_parts"); n != "1" {
		t.Errorf("%s parts are left, want 1", n)
	}
	if err := errors.Join(other.DeleteList(t.Context(), "vips", ann), other.DeleteList(t.Context(), "empty", ann)); err != nil {
		t.Error(err)
	}
	if all, err := tables.Lists(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("lists: %v, %v", all, err)
	}
	if rows := db.number(t, "SELECT COUNT(*) FROM popup_list_parts") + db.number(t, "SELECT COUNT(*) FROM popup_lists"); rows != "00" {
		t.Errorf("parts and lists that are left: %s", rows)
	}
	if version, err := tables.Version(t.Context()); err != nil || version != 7 {
		t.Errorf("version %d after 7 changes, %v", version, err)
	}
}

// partUsers is the number of users in a part of a list.
const partUsers = 1 << 17

// Users are forgotten in lists of several parts, also once parts are shorter than others, or
// empty.
func testPopupListForget(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	const users = partUsers + 2
	names := make(map[uint64]string, users)
	for i := range users {
		name := fmt.Sprint("user-", i)
		names[popup.UserHash(name)] = name
	}
	want := slices.Sorted(maps.Keys(names))
	list, err := tables.ReplaceList(t.Context(), "vips", want, ann)
	if err != nil {
		t.Fatal(err)
	}
	// Also where the shorter parts meet, and the last ones.
	for _, i := range []int{0, partUsers - 1, partUsers / 2, partUsers - 2, partUsers - 3} {
		user := names[want[i]]
		if rows, err := tables.Forget(t.Context(), user); err != nil || rows != 1 {
			t.Fatalf("%d rows of the user at %d, want 1, %v", rows, i, err)
		}
		want = slices.Delete(want, i, i+1)
		list.Version, list.Size = list.Version+1, list.Size-1
		if got, hashes, err := tables.ListUsers(t.Context(), "vips"); err != nil || got != list || !slices.Equal(hashes, want) {
			t.Fatalf("%d users of %+v after the user at %d, want %d of %+v, %v", len(hashes), got, i, len(want), list, err)
		}
	}
	want = append(want, manyHashes(partUsers, 1<<63)...)
	slices.Sort(want)
	if _, err := tables.ReplaceList(t.Context(), "vips", want, ann); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(want, func(hash uint64) bool { return names[hash] != "" })
	only := fmt.Sprintf("UPDATE popup_list_parts SET hashes = substr(hashes, %d, 8) WHERE part = 0", 8*i+1)
	db.run(t, only, fmt.Sprintf("UPDATE popup_lists SET size = %d", len(want)-partUsers+1))
	if rows, err := tables.Forget(t.Context(), names[want[i]]); err != nil || rows != 1 {
		t.Fatalf("%d rows of the only user of a part, want 1, %v", rows, err)
	}
	if got := usersOf(t, tables, "vips"); !slices.Equal(got, want[partUsers:]) {
		t.Errorf("%d users behind an empty part, want %d", len(got), len(want)-partUsers)
	}
}

// Of concurrent replacements of a list the last one wins. Readers see one of them completely,
// or that it was replaced.
func testPopupListRace(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	const writers, replacements, size = 3, 4, 140_000
	var writing, reading sync.WaitGroup
	done := make(chan struct{})
	for w := range writers {
		mine := db.Tables(t)
		writing.Go(func() {
			for i := range replacements {
				if _, err := mine.ReplaceList(t.Context(), "vips", manyHashes(size+w, uint64(10*w+i)), ann); err != nil {
					t.Error(err)
				}
			}
		})
	}
	complete := func() (found bool) {
		list, users, err := tables.ListUsers(t.Context(), "vips")
		if errors.Is(err, popup.ErrNoList) || errors.Is(err, popup.ErrListChanged) {
			return false
		}
		if err != nil {
			t.Error(err)
			return true
		}
		seed := users[0]
		if w := int(seed / 10); int(list.Size) != size+w || !slices.Equal(users, manyHashes(size+w, seed)) {
			t.Errorf("%d users, the first is %d, of %+v", len(users), seed, list)
		}
		return true
	}
	reading.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				complete()
			}
		}
	})
	writing.Wait()
	close(done)
	reading.Wait()
	if !complete() {
		t.Error("the list cannot be read")
	}
	if n := db.number(t, "SELECT COUNT(*) FROM popup_lists"); n != "1" {
		t.Errorf("%s lists, want 1", n)
	}
	if version, err := tables.Version(t.Context()); err != nil || version != writers*replacements {
		t.Errorf("version %d, want %d, %v", version, writers*replacements, err)
	}
}
