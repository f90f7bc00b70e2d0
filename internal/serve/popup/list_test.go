package popup

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"spillway/internal/serve/audit"
)

// hashesOf returns the sorted hashes of users.
func hashesOf(ids ...string) []uint64 {
	b := listBuilder{limit: len(ids)}
	for _, id := range ids {
		if err := b.add(id); err != nil {
			panic(err)
		}
	}
	return b.sorted()
}

// without returns lists without one.
func (l *Lists) without(name string) *Lists {
	return l.only(slices.DeleteFunc(l.Names(), func(other string) bool { return other == name }))
}

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
				lists = lists.without(name)
				delete(want, name)
			} else {
				ids := rapid.SliceOf(rapid.StringN(1, 3, UserBytesMax)).Draw(t, "users")
				ids = slices.DeleteFunc(ids, func(id string) bool { return !isText(id) })
				lists, want[name] = lists.with(name, hashesOf(ids...)), ids
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
	l := openListed(t)
	for i := range ListsMax {
		l.set(fmt.Sprintf("list-%d", i), "7")
	}
	for want, upload := range map[string]struct {
		name  string
		users iter.Seq2[string, error]
	}{
		`the list is refused: a name is 1 to 64 lower-case letters, digits and -, not - first`: {"Gold", users("7")},
		"the list is refused: there are 100 lists, the maximum":                                {"gold", users("7")},
		"the list is refused: user 2 must be UTF-8 text of 1 to 128 bytes without zero bytes":  {"list-7", users("7", "")},
		"the list is refused: user 1 must be UTF-8 text of 1 to 128 bytes without zero bytes":  {"list-8", users(strings.Repeat("x", 129))},
		"the list is refused: user 3 must be UTF-8 text of 1 to 128 bytes without zero bytes":  {"list-8", users("1", "2", "a\x00")},
		"the list is refused: user 4 must be UTF-8 text of 1 to 128 bytes without zero bytes":  {"list-8", users("1", "2", "3", "\xff")},
		"read users of the list: the file is cut":                                              {"list-9", func(yield func(string, error) bool) { yield("", failed) }},
	} {
		_, err := l.campaigns.ReplaceList(t.Context(), upload.name, upload.users, audit.Author{})
		if err == nil || err.Error() != want || errors.Is(err, failed) == errors.Is(err, ErrList) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if version, _ := l.Version(t.Context()); version != 1+ListsMax {
		t.Errorf("version %d: a refused list changed something", version)
	}
	b := listBuilder{limit: 2}
	if err := errors.Join(b.add("1"), b.add("2")); err != nil {
		t.Error(err)
	}
	if err := b.add("2"); !errors.Is(err, ErrList) || !strings.HasSuffix(err.Error(), "more than 2 users") {
		t.Errorf("three users: %v", err)
	}
	if got := hashesOf("1", "2", "2"); len(got) != 2 {
		t.Errorf("two users: %v", got)
	}
}

// A second upload waits for the first, also if that is slow, and its client can give up.
func TestListUploadsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := openListed(t)
		more, done := make(chan struct{}), make(chan error)
		go func() {
			_, err := l.campaigns.ReplaceList(t.Context(), "vip", func(yield func(string, error) bool) {
				<-more
				yield("7", nil)
			}, audit.Author{})
			done <- err
		}()
		synctest.Wait()
		ctx, leave := context.WithTimeout(t.Context(), time.Minute)
		defer leave()
		if _, err := l.campaigns.ReplaceList(ctx, "gold", users("8"), audit.Author{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("beside another upload: %v", err)
		}
		close(more)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := l.campaigns.ReplaceList(t.Context(), "gold", users("8"), audit.Author{}); err != nil {
			t.Error(err)
		}
		if lists := l.popup.Lists(); !lists.Contains("vip", "7") || !lists.Contains("gold", "8") {
			t.Errorf("lists %v", lists.Names())
		}
	})
}

func BenchmarkListsContains(b *testing.B) {
	for _, n := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ids := make([]string, n)
			for i := range ids {
				ids[i] = fmt.Sprint(i)
			}
			lists := (*Lists)(nil).with("all", hashesOf(ids...))
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
