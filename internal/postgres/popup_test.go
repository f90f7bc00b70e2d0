package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/storetest"
)

func TestPopupConformance(t *testing.T) {
	storetest.Popup(t, popupBackend(apptest.Postgres(t, hostileSettings...), nil))
}

// Through PgBouncer in transaction mode, the lock included.
func TestPopupConformancePgBouncer(t *testing.T) {
	pg := apptest.Postgres(t, hostileSettings...)
	bouncer := apptest.PgBouncer(t, pg, "transaction")
	b := popupBackend(pg, func(url string) string { return strings.Replace(url, pg.Addr(), bouncer.Addr(), 1) })
	open := b.Open
	b.Open = func(t testing.TB) storetest.PopupDB {
		db := open(t)
		db.Kill, db.Start = nil, nil // the pooler's errors after a restart are tested with streams
		return db
	}
	storetest.Popup(t, b)
}

func BenchmarkPopupApply(b *testing.B) {
	storetest.PopupApply(b, popupBackend(apptest.Postgres(b, "fsync=on", "synchronous_commit=on"), nil))
}

func popupBackend(pg *apptest.PostgresServer, via func(string) string) storetest.PopupBackend {
	return storetest.PopupBackend{
		Open: func(t testing.TB) storetest.PopupDB {
			url := pg.CreateDatabase(t)
			reached := url
			if via != nil {
				reached = via(url)
			}
			return storetest.PopupDB{
				Tables: func(t testing.TB) storetest.PopupTables { return open(t, reached, database.Pool{}).Popups() },
				Rows:   func(ctx context.Context, sql string) ([][]string, error) { return streamRows(ctx, url, sql) },
				Kill:   pg.Kill, Start: pg.Start,
			}
		},
		Millis: func(column string) string { return fmt.Sprintf("(extract(epoch FROM %s) * 1000)::bigint", column) },
	}
}
