package popuptables

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"spillway/internal/serve/popup"
	"spillway/internal/serve/tables"
)

// between is a database with a list of two parts, which changes after its first part is read.
type between struct {
	Database
	change func(*between)
	rows   []tables.Row // of the list; none: it does not exist
}

func (b *between) Read(ctx context.Context, work func(context.Context, tables.Session) error) error {
	return work(ctx, b)
}

func (b *between) Exec(context.Context, string, ...any) (int64, error) {
	return 0, errors.New("a reader writes")
}

func (b *between) Rows(context.Context, string, ...any) ([]tables.Row, error) {
	rows := b.rows
	b.change(b)
	return rows, nil
}

func partRow(version, size string, hashes ...uint64) []tables.Row {
	return []tables.Row{{"vips", version, size, "", string(encodePart(hashes)), "0"}}
}

// Parts of two lists are not mixed.
func TestListChangedBetweenParts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*between)
		want   error
	}{
		"replaced":            {func(b *between) { b.rows = partRow("2", "4", 7, 8) }, popup.ErrListChanged},
		"a user is forgotten": {func(b *between) { b.rows = partRow("2", "3", 7) }, popup.ErrListChanged},
		"deleted":             {func(b *between) { b.rows = nil }, popup.ErrNoList},
		"shorter":             {func(b *between) { b.rows = []tables.Row{{"vips", "2", "1", "", "", ""}} }, popup.ErrListChanged},
		"not replaced":        {func(b *between) { b.rows = partRow("1", "4", 7, 8) }, nil},
	} {
		list, hashes, err := New(&between{rows: partRow("1", "4", 1, 2), change: test.change}, tables.Dialect{}).ListUsers(t.Context(), "vips")
		if !errors.Is(err, test.want) || err == nil && (list.Size != 4 || len(hashes) != 4) {
			t.Errorf("%s: %+v, %v, %v, want %v", name, list, hashes, err, test.want)
		}
		found, listed, err := New(&between{rows: partRow("1", "4", 1, 2), change: test.change}, tables.Dialect{}).findPart(t.Context(), "vips", 8)
		switch {
		case errors.Is(test.want, popup.ErrNoList) && err == nil && !listed:
		case test.want == nil && err == nil && listed && found.part == 1:
		case test.want == nil || !errors.Is(err, test.want):
			t.Errorf("%s: part %+v, %v, %v, want %v", name, found, listed, err, test.want)
		}
	}
}

// A part whose users were all forgotten is empty, and not missing.
func TestEmptyPart(t *testing.T) {
	t.Parallel()
	next := func(b *between) { b.rows = partRow("1", "2", 7, 8) }
	list, hashes, err := New(&between{rows: partRow("1", "2"), change: next}, tables.Dialect{}).ListUsers(t.Context(), "vips")
	if err != nil || list.Size != 2 || !slices.Equal(hashes, []uint64{7, 8}) {
		t.Errorf("%+v, %v, %v", list, hashes, err)
	}
	found, listed, err := New(&between{rows: partRow("1", "2"), change: next}, tables.Dialect{}).findPart(t.Context(), "vips", 8)
	if err != nil || !listed || found.part != 1 {
		t.Errorf("part %+v, %v, %v", found, listed, err)
	}
	missing := []tables.Row{{"vips", "1", "2", "", "", ""}}
	_, _, err = New(&between{rows: missing, change: func(*between) {}}, tables.Dialect{}).ListUsers(t.Context(), "vips")
	if err == nil || !strings.Contains(err.Error(), "part 0 of the list vips is missing") {
		t.Errorf("a part that is not there: %v", err)
	}
}
