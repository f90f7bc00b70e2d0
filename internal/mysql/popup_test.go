package mysql

import (
	"context"
	"fmt"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/storetest"
)

func TestPopupConformance(t *testing.T) {
	storetest.Popup(t, popupBackend(apptest.MariaDB(t, append(hostileSettings, "--innodb-flush-log-at-trx-commit=1")...)))
}

func BenchmarkPopupApply(b *testing.B) {
	storetest.PopupApply(b, popupBackend(apptest.MariaDB(b, "--innodb-flush-log-at-trx-commit=1")))
}

func popupBackend(server *apptest.Server) storetest.PopupBackend {
	fresh := freshDatabases(server)
	return storetest.PopupBackend{
		Open: func(t testing.TB) storetest.PopupDB {
			url := fresh(t)
			return storetest.PopupDB{
				Tables: func(t testing.TB) storetest.PopupTables { return open(t, url, database.Pool{}).Popups() },
				Rows:   func(ctx context.Context, sql string) ([][]string, error) { return streamRows(ctx, url, sql) },
				Kill:   server.Kill, Start: server.Start,
			}
		},
		Millis: func(column string) string { return fmt.Sprintf("CAST(UNIX_TIMESTAMP(%s) * 1000 AS SIGNED)", column) },
	}
}
