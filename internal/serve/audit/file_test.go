package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func details(t *testing.T, s interface {
	Changes(context.Context, time.Time, time.Time, int) ([]Change, error)
}, from, before time.Time, limit int,
) (all []string) {
	t.Helper()
	changes, err := s.Changes(t.Context(), from, before, limit)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		all = append(all, c.Detail)
	}
	return all
}

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "changes.jsonl")
	f := NewFile(path)
	now := time.Now()
	add := func(age time.Duration, detail string) {
		t.Helper()
		if err := f.AddChange(t.Context(), Change{At: now.Add(-age), Author: Author{"ann", "::1", "PUT /x"}, Detail: detail}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(want ...string) {
		t.Helper()
		if got := details(t, NewFile(path), now.Add(-2*Kept), now.Add(time.Hour), 10); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	want()
	add(Kept+3*time.Hour, "old")
	add(Kept+2*time.Hour, "old too")
	want("old too", "old")
	add(time.Hour, "a\n🚚")
	want("a\n🚚")
	add(time.Minute, "b")
	want("b", "a\n🚚")
	if got := details(t, f, now.Add(-time.Hour), now.Add(-time.Minute), 10); !slices.Equal(got, []string{"a\n🚚"}) {
		t.Errorf("%q", got)
	}
	if got := details(t, f, now.Add(-time.Hour), now, 1); !slices.Equal(got, []string{"b"}) {
		t.Errorf("%q", got)
	}

	f.most = 4000
	for i := range 100 {
		add(0, fmt.Sprint(i, strings.Repeat("x", 100)))
	}
	size, err := os.Stat(path)
	if err != nil || size.Size() > 4500 || !strings.HasPrefix(details(t, f, now.Add(-Kept), now.Add(time.Hour), 1)[0], "99x") {
		t.Errorf("%v, %v", size, err)
	}
}

// A change that the first store refuses goes to the next one; both are read.
func TestLog(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	gone, kept := filepath.Join(directory, "gone"), filepath.Join(directory, "kept")
	l := Log{NewFile(filepath.Join(gone, "a")), NewFile(kept)}
	now := time.Now()
	if err := l.Record(t.Context(), Change{At: now, Detail: "1"}); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := l.Record(t.Context(), Change{At: now.Add(time.Second), Detail: "2"}); err != nil {
		t.Fatal(err)
	}
	if err := l[1:].Record(t.Context(), Change{At: now.Add(2 * time.Second), Detail: "3"}); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int][]string{2: {"3", "2"}, 9: {"3", "2", "1"}} {
		if got := details(t, l, now, now.Add(time.Hour), limit); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if err := os.RemoveAll(directory); err != nil {
		t.Fatal(err)
	}
	if err := l.Record(t.Context(), Change{At: now}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// What cannot be written leaves the file as it was.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	f := NewFile(filepath.Join(t.TempDir(), "changes.jsonl"))
	now := time.Now()
	if err := f.AddChange(t.Context(), Change{At: now, Detail: "1"}); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", f.path+".new"); err != nil {
		t.Fatal(err)
	}
	if err := f.AddChange(t.Context(), Change{At: now, Detail: "2"}); err == nil {
		t.Error("a full disk took a change")
	}
	if got := details(t, f, now, now.Add(time.Hour), 9); !slices.Equal(got, []string{"1"}) {
		t.Errorf("%q", got)
	}
}
