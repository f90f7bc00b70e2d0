package storetest

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"

	"spillway/internal/serve/popup"
)

// listOf yields users.
func listOf(users ...string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, user := range users {
			if !yield(user, nil) {
				return
			}
		}
	}
}

// usersOf returns the users of a list in the order in which they are read.
func usersOf(t *testing.T, tables PopupTables, name string) []string {
	t.Helper()
	var users []string
	if err := tables.ListUsers(t.Context(), name, func(user string) error { users = append(users, user); return nil }); err != nil {
		t.Fatal(err)
	}
	return users
}

// A list is what was uploaded last, and its rows are the only ones.
func testPopupLists(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	other := db.Tables(t)
	none := func(string) error { return errors.New("a user of no list") }
	if err := errors.Join(tables.ListUsers(t.Context(), "vips", none)); !errors.Is(err, popup.ErrNoList) {
		t.Errorf("users of no list: %v", err)
	}
	if err := tables.DeleteList(t.Context(), "vips"); !errors.Is(err, popup.ErrNoList) {
		t.Errorf("delete no list: %v", err)
	}
	many := []string{"it's ü 🚚 ", "IT'S ü 🚚 ", strings.Repeat("x", popup.UserBytesMax), " ", "😀", "￿"}
	for i := range 4500 { // several batches, with repeats within one and across
		many = append(many, fmt.Sprint(i*7919%4000))
	}
	first, err := tables.ReplaceList(t.Context(), "vips", listOf(many...))
	if err != nil || first.Size != 4006 || first.Version != 1 {
		t.Fatalf("%+v, %v", first, err)
	}
	want := slices.Compact(slices.Sorted(slices.Values(many)))
	if got := usersOf(t, other, "vips"); !slices.Equal(got, want) {
		t.Errorf("%d users, want %d", len(got), len(want))
	}
	second, err := other.ReplaceList(t.Context(), "empty", listOf())
	if err != nil || second.Size != 0 || len(usersOf(t, tables, "empty")) != 0 {
		t.Errorf("an empty list: %+v, %v", second, err)
	}
	testPopupListErrors(t, db, tables)
	if all, err := other.Lists(t.Context()); err != nil || !slices.Equal(all, []popup.ListVersion{second, first}) {
		t.Errorf("lists: %v, %v", all, err)
	}
	if got := usersOf(t, tables, "vips"); len(got) != 4006 {
		t.Errorf("%d users after uploads that failed", len(got))
	}
	// A list that is replaced while it is read.
	err = tables.ListUsers(t.Context(), "vips", func(user string) error {
		if user != want[0] {
			return nil
		}
		_, err := other.ReplaceList(t.Context(), "vips", listOf("a", "b"))
		return err
	})
	if !errors.Is(err, popup.ErrListChanged) {
		t.Errorf("replaced while it is read: %v", err)
	}
	if got := usersOf(t, tables, "vips"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("users after the replacement: %q", got)
	}
	if n := db.number(t, "SELECT COUNT(*) FROM popup_list_users"); n != "2" {
		t.Errorf("%s rows of users are left, want 2", n)
	}
	if err := errors.Join(other.DeleteList(t.Context(), "vips"), other.DeleteList(t.Context(), "empty")); err != nil {
		t.Error(err)
	}
	if all, err := tables.Lists(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("lists: %v, %v", all, err)
	}
	if rows := db.number(t, "SELECT COUNT(*) FROM popup_list_users") + db.number(t, "SELECT COUNT(*) FROM popup_lists"); rows != "00" {
		t.Errorf("rows of users and lists that are left: %s", rows)
	}
	if version, err := tables.Version(t.Context()); err != nil || version != 5 {
		t.Errorf("version %d after 5 changes, %v", version, err)
	}
}

// testPopupListErrors makes uploads that fail, which change nothing.
func testPopupListErrors(t *testing.T, db PopupDB, tables PopupTables) {
	for _, user := range []string{"", strings.Repeat("x", popup.UserBytesMax+1), "a\x00", "\xff"} {
		if _, err := tables.ReplaceList(t.Context(), "vips", listOf("a", user)); !errors.Is(err, popup.ErrList) {
			t.Errorf("user %q: %v", user, err)
		}
	}
	for _, name := range []string{"", "A", "a b", "it's"} {
		if _, err := tables.ReplaceList(t.Context(), name, listOf("a")); !errors.Is(err, popup.ErrList) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	broken := errors.New("the upload broke off")
	_, err := tables.ReplaceList(t.Context(), "vips", func(yield func(string, error) bool) {
		for i := range 3000 {
			if !yield(fmt.Sprint(i), nil) {
				return
			}
		}
		yield("", broken)
	})
	if !errors.Is(err, broken) {
		t.Errorf("an upload that breaks off: %v", err)
	}
	_, err = tables.ReplaceList(t.Context(), "vips", func(yield func(string, error) bool) {
		for i := range 5000 {
			if i == 3000 {
				db.run(t, fmt.Sprintf("UPDATE popup_lists SET state = %d WHERE state = %d", popup.ListDropped, popup.ListLoading))
			}
			if !yield(fmt.Sprint(i), nil) {
				return
			}
		}
	})
	if !errors.Is(err, popup.ErrListAbandoned) {
		t.Errorf("an upload that was given up: %v", err)
	}
}

// Of concurrent replacements of a list the last one wins. Readers see one of them completely.
func testPopupListRace(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	const writers, replacements, size = 3, 4, 2500
	var writing, reading sync.WaitGroup
	done := make(chan struct{})
	for w := range writers {
		mine := db.Tables(t)
		writing.Go(func() {
			for i := range replacements {
				var users []string
				for n := range size + w {
					users = append(users, fmt.Sprint(w, "-", i, "-", n))
				}
				if _, err := mine.ReplaceList(t.Context(), "vips", listOf(users...)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	complete := func() (found bool) {
		var users []string
		err := tables.ListUsers(t.Context(), "vips", func(user string) error { users = append(users, user); return nil })
		if errors.Is(err, popup.ErrNoList) || errors.Is(err, popup.ErrListChanged) {
			return false
		}
		var w, i, n int
		if _, scan := fmt.Sscanf(users[0], "%d-%d-%d", &w, &i, &n); errors.Join(err, scan) != nil || len(users) != size+w {
			t.Errorf("%d users, the first is %s: %v, %v", len(users), users[0], err, scan)
		}
		for _, user := range users {
			if !strings.HasPrefix(user, fmt.Sprint(w, "-", i, "-")) {
				t.Errorf("%s is in one list with %s", user, users[0])
				break
			}
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
