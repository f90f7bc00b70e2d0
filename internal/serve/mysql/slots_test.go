package mysql

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
)

// While the server grants two connections, more statements wait for them. Soon after it grants more, all are used.
func TestFewConnections(t *testing.T) {
	t.Parallel()
	server := plainServer(t)
	url := freshDatabase(t, server)
	user := url[strings.LastIndex(url, "/fresh_")+1:]
	user, _, _ = strings.Cut(user, "?")
	mustExecute(t, url, "CREATE USER "+user+"@'%' IDENTIFIED BY 'x' WITH MAX_USER_CONNECTIONS 2", "GRANT SELECT ON "+user+".* TO "+user+"@'%'")
	db := open(t, strings.Replace(url, "root@", user+":x@", 1), database.Pool{Max: 6})
	burst := func() {
		var clients sync.WaitGroup
		for range 24 {
			clients.Go(func() {
				err := db.withSession(t.Context(), func(ctx context.Context, se *session) error {
					_, err := se.Query(ctx, "SELECT SLEEP(0.02)")
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
	mustExecute(t, url, "ALTER USER "+user+"@'%' WITH MAX_USER_CONNECTIONS 0")
	apptest.AwaitState(t, "all are used again", func() (string, bool) {
		burst()
		return fmt.Sprint(db.slots.Limit()), db.slots.Limit() == 6
	})
}
