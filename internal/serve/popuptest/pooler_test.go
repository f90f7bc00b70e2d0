package popuptest

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
)

// TestPopupsBehindPgBouncer: while popups are served from memory, the pooler closes its connections
// and pauses. Shows continue in the pause. After a kill another process takes over, and knows who
// was shown what.
func TestPopupsBehindPgBouncer(t *testing.T) {
	t.Parallel()
	pg := postgres.Get(t)
	bouncer := apptest.PgBouncer(t, pg, "transaction", "admin_users = postgres")
	url := strings.Replace(pg.CreateDatabase(t), pg.Addr(), bouncer.Addr(), 1)
	config := apptest.PopupConfig(t, "  store: memory\n  keys: [0123456789abcdef0123456789abcdef]\n  timeout: 1m\n")
	first := apptest.Serve(t, binary.Path(t), "--database", url, config)
	first.WaitReady(t)
	second := apptest.Serve(t, binary.Path(t), "--database", url, config)
	apptest.SendCampaign(t, first, http.MethodPost, "/popups/campaigns", apptest.PopupForAll, http.StatusCreated)
	apptest.Await(t, "the campaign is in force", func() bool { a, _ := apptest.AskPopup(t, first, "user=early"); return a.Status == http.StatusOK })

	console := poolerConsole(t, bouncer)
	users := 0
	show := func() {
		t.Helper()
		users++
		if a, _ := apptest.AskPopup(t, first, fmt.Sprintf("user=u%d", users)); a.Status != http.StatusOK {
			t.Errorf("user %d: %d %s", users, a.Status, a.Body)
		}
	}
	for _, command := range []string{"RECONNECT", "WAIT_CLOSE", "PAUSE"} {
		ended := make(chan error, 1)
		go func() { ended <- console(command) }()
		for running := true; running; {
			show()
			select {
			case err := <-ended:
				running = false
				if err != nil {
					t.Fatalf("%s: %v", command, err)
				}
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	show() // in the pause
	if err := console("RESUME"); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the database has all events", func() bool { return apptest.Metric(t, first, "spillway_popup_events_waiting") == 0 })
	if apptest.IsReady(t, second.Admin) {
		t.Error("two processes serve")
	}
	if testing.Short() {
		return // the lease lasts ten seconds more
	}
	first.Kill()
	second.WaitReady(t)
	for i := range users {
		if a, _ := apptest.AskPopup(t, second, fmt.Sprintf("user=u%d", i+1)); a.Status != http.StatusNoContent {
			t.Errorf("user %d is shown a popup again: %d %s", i+1, a.Status, a.Body)
		}
	}
	if a, _ := apptest.AskPopup(t, second, "user=late"); a.Status != http.StatusOK {
		t.Errorf("a new user: %d %s", a.Status, a.Body)
	}
}

// poolerConsole returns a function that runs a command of the pooler's console, for a minute at most.
func poolerConsole(t *testing.T, bouncer *apptest.Server) func(command string) error {
	t.Helper()
	config, err := pgx.ParseConfig(bouncer.URL("pgbouncer"))
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	return func(command string) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		return conn.PgConn().Exec(ctx, command).Close()
	}
}
