package popup

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// users yields ids.
func users(ids ...string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, id := range ids {
			if !yield(id, nil) {
				return
			}
		}
	}
}

// Lists agree with plain sets. Lists that were built before do not change.
func TestLists(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := map[string][]string{}
		var lists, before *Lists
		var beforeNames []string
		for range rapid.IntRange(1, 10).Draw(t, "changes") {
			name := pick(t, "a", "b", "c")
			before, beforeNames = lists, lists.Names()
			if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
				lists = lists.Without(name)
				delete(want, name)
			} else {
				ids := rapid.SliceOf(rapid.StringN(1, 3, UserBytesMax)).Draw(t, "users")
				ids = slices.DeleteFunc(ids, func(id string) bool { return !isText(id) })
				next, err := lists.With(name, users(ids...))
				if err != nil {
					t.Fatal(err)
				}
				lists, want[name] = next, ids
			}
			if !slices.Equal(before.Names(), beforeNames) {
				t.Fatalf("earlier lists %v became %v", beforeNames, before.Names())
			}
		}
		for _, name := range []string{"a", "b", "c"} {
			ids := slices.Compact(slices.Sorted(slices.Values(want[name])))
			if lists.Len(name) != len(ids) {
				t.Fatalf("list %s has %d users, want %d", name, lists.Len(name), len(ids))
			}
			for _, id := range append([]string{"", "x", "zzzz"}, ids...) {
				if lists.Contains(name, id) != slices.Contains(ids, id) {
					t.Fatalf("%q is in list %s: %v", id, name, lists.Contains(name, id))
				}
			}
		}
	})
}

func TestListsRefused(t *testing.T) {
	t.Parallel()
	failed := errors.New("the file is cut")
	for want, build := range map[string]func(l *Lists) (*Lists, error){
		`list "Gold": a name is 1 to 64 lower-case letters, digits and -, not - first`: func(l *Lists) (*Lists, error) { return l.With("Gold", users("7")) },
		"list gold: there are 100 lists, the maximum":                                  func(l *Lists) (*Lists, error) { return l.With("gold", users("7")) },
		"list list-7: user 2 must be UTF-8 text of 1 to 128 bytes without NUL":         func(l *Lists) (*Lists, error) { return l.With("list-7", users("7", "")) },
		"list list-8: user 1 must be UTF-8 text of 1 to 128 bytes without NUL":         func(l *Lists) (*Lists, error) { return l.With("list-8", users(strings.Repeat("x", 129))) },
		"list list-9: read users: the file is cut": func(l *Lists) (*Lists, error) {
			return l.With("list-9", func(yield func(string, error) bool) { yield("", failed) })
		},
	} {
		lists := &Lists{}
		for i := range ListsMax {
			var err error
			if lists, err = lists.With(fmt.Sprintf("list-%d", i), users("7")); err != nil {
				t.Fatal(err)
			}
		}
		got, err := build(lists)
		if got != nil || err == nil || err.Error() != want || errors.Is(err, failed) != strings.Contains(want, "cut") {
			t.Errorf("%v, %v, want %s", got, err, want)
		}
	}
	if _, err := hashUsers(users("1", "2", "2"), 2); err == nil || err.Error() != "more than 2 users" {
		t.Errorf("three users: %v", err)
	}
	if hashes, err := hashUsers(users("1", "2", "2"), 3); err != nil || len(hashes) != 2 {
		t.Errorf("two users: %v, %v", hashes, err)
	}
}

func BenchmarkListsContains(b *testing.B) {
	for _, n := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			lists, err := (*Lists)(nil).With("all", func(yield func(string, error) bool) {
				for i := range n {
					if !yield(fmt.Sprint(i), nil) {
						return
					}
				}
			})
			if err != nil {
				b.Fatal(err)
			}
			names := make([]string, 4096)
			for i := range names {
				names[i] = fmt.Sprint(i * 7919 % n)
			}
			i := 0
			for b.Loop() {
				i++
				if !lists.Contains("all", names[i%len(names)]) {
					b.Fatal("not on the list")
				}
			}
		})
	}
}
