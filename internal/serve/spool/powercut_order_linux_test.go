package spool

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/queue"
)

// A page whose rows are in a wrong order, as a torn page may be, is damage. Reading it ends.
func TestRowsOutOfOrder(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	s := openAt(t, file, testConfig())
	for _, text := range []string{"1", "2", "3", "4", "5"} {
		put(t, s, "/a", text)
	}
	root, err := number(s.file.writer, "SELECT rootpage FROM sqlite_schema WHERE name = 'groups'")
	if err == nil {
		err = sqlitex.ExecuteTransient(s.file.writer, "PRAGMA wal_checkpoint(TRUNCATE)", nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	closeSpool(t, s)
	image, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cells := image[(root-1)*pageBytes+8:][:2*5] // the offsets of the rows in the page
	original := make([]uint16, 5)
	for i := range original {
		original[i] = binary.BigEndian.Uint16(cells[2*i:])
	}
	damaged := 0
	permute(original, 0, func(offsets []uint16) {
		for i, offset := range offsets {
			binary.BigEndian.PutUint16(cells[2*i:], offset)
		}
		if err := os.WriteFile(file, image, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := inspectFile(file)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		groups := 0
		err = f.waiting(ctx, "/a", func(queue.Group) error { groups++; return nil })
		switch {
		case errors.Is(err, ErrDamaged):
			damaged++
		case err != nil || groups != 5:
			t.Fatalf("offsets %v: %d groups, %v", offsets, groups, err)
		}
		if _, err := f.flaws(ctx); err != nil {
			t.Fatalf("offsets %v: %v", offsets, err)
		}
		if err := f.close(); err != nil {
			t.Fatal(err)
		}
	})
	if damaged != 119 {
		t.Errorf("%d of 119 wrong orders are damage", damaged)
	}
}

// permute calls yield with each order of the values from an index on.
func permute(values []uint16, from int, yield func([]uint16)) {
	if from == len(values) {
		yield(values)
		return
	}
	for i := from; i < len(values); i++ {
		values[from], values[i] = values[i], values[from]
		permute(values, from+1, yield)
		values[from], values[i] = values[i], values[from]
	}
}
