package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/apptest"
	"spillway/internal/database"
)

// While the server grants two connections, more statements wait for them. Soon after it grants more, all are used.
func TestFewConnections(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	url := pg.CreateDatabase(t)
	role := fmt.Sprintf("few_%x", rand.Uint64())
	mustExecute(t, url, "CREATE ROLE "+role+" LOGIN CONNECTION LIMIT 2")
	db := open(t, strings.Replace(url, "postgres@", role+"@", 1), database.Pool{Max: 6})
	burst := func() {
		var clients sync.WaitGroup
		for range 24 {
			clients.Go(func() {
				err := db.ask(t.Context(), func(ctx context.Context, conn *pgconn.PgConn) error {
					_, err := database.PostgresTexts(ctx, conn, "SELECT pg_sleep(0.02)")
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		clients.Wait()
	}
	burst()
	if n := db.slots.Limit(); n < 1 || n > 3 {
		t.Errorf("%d slots for 2 connections", n)
	}
	mustExecute(t, url, "ALTER ROLE "+role+" CONNECTION LIMIT -1")
	apptest.AwaitState(t, "all are used again", func() (string, bool) {
		burst()
		return fmt.Sprint(db.slots.Limit()), db.slots.Limit() == 6
	})
}
