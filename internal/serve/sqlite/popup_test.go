package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"

	"spillway/internal/database"
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
