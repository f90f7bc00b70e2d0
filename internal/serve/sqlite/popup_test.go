package sqlite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/storetest"
)

func TestPopupConformance(t *testing.T) { storetest.Popup(t, popupBackend()) }

func BenchmarkPopupApply(b *testing.B) { storetest.PopupApply(b, popupBackend()) }

func popupBackend() storetest.PopupBackend {
	return storetest.PopupBackend{
		Open: func(t testing.TB) storetest.PopupDB {
			file := filepath.Join(t.TempDir(), "popup.db")
			db := openFile(t, file, database.Pool{})
			reader := openWriter(t, file)
			return storetest.PopupDB{
				Tables: func(t testing.TB) storetest.PopupTables {
					p := db.Popups()
					t.Cleanup(func() {
						if err := p.Close(); err != nil {
							t.Errorf("close: %v", err)
						}
					})
					return p
				},
				Rows: func(_ context.Context, sql string) ([][]string, error) { return streamRows(reader, sql) },
			}
		},
		Millis: func(column string) string { return column + " / 1000" },
		Newer:  []string{"CREATE TABLE popup_history (id INTEGER -- spillway format 2\n)"},
	}
}

// A process whose lock was removed takes it again, or learns that another process has it.
func TestPopupLockRemoved(t *testing.T) {
	t.Parallel()
	db := popupBackend().Open(t)
	first, err := db.Tables(t).Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	rows, err := db.Rows(t.Context(), "SELECT file FROM pragma_database_list")
	if err != nil {
		t.Fatal(err)
	}
	file := rows[0][0] + "-popups.lock"
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the lock is taken again", func() bool { text, _ := os.ReadFile(file); return string(text) == "a\n" })
	for {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		second, err := db.Tables(t).Lock(t.Context(), "b")
		if err == nil {
			defer second.Close()
			break
		}
		if !errors.As(err, new(*popup.LockedError)) { // the first took it again at that moment
			t.Fatal(err)
		}
	}
	apptest.Receive(t, "the news that the lock is lost", first.Lost())
}
