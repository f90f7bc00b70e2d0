package sqlite

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"zombiezen.com/go/sqlite"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// A connection works on although a client left while the columns of its statement were looked
// up there.
func TestDescribeInterrupted(t *testing.T) {
	t.Parallel()
	url, err := database.Parse("sqlite:" + filepath.Join(t.TempDir(), "test.db"))
	if err != nil {
		t.Fatal(err)
	}
	pool := database.Pool{Max: 1, ConnectTimeout: time.Hour, AcquireTimeout: time.Hour, StatementTimeout: time.Hour}
	db, err := New(url, pool, slog.New(slog.DiscardHandler))
	if err == nil {
		err = db.Ping(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	source, err := db.source(feed.Definition{Name: "/t", SQL: "SELECT 1 AS id", Key: []feed.KeyColumn{{Name: "id"}}})
	if err != nil {
		t.Fatal(err)
	}
	for leaveAt := 1; ; leaveAt++ { // in each step in turn
		ctx, leave := context.WithCancel(t.Context())
		asked := 0
		err = db.read(ctx, func(conn conn) error {
			err := conn.SetAuthorizer(sqlite.AuthorizeFunc(func(sqlite.Action) sqlite.AuthResult {
				if asked++; asked == leaveAt {
					leave()
					<-conn.guard.stop
				}
				return sqlite.AuthResultOK
			}))
			if err == nil {
				_, err = source.declared(conn.Conn)
			}
			return errors.Join(err, conn.SetAuthorizer(nil))
		})
		leave()
		if asked < leaveAt {
			break
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the client left in step %d: %v, want %v", leaveAt, err, context.Canceled)
		}
	}
	rows := new(feed.Rows)
	if err := source.Read(t.Context(), feed.Range{Limit: 1}, rows); err != nil || string(rows.Data) != `{"id":1}` {
		t.Errorf("the next client: %s, %v", rows.Data, err)
	}
}
