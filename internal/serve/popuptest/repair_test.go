package popuptest

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	driver "zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/apptest"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/spool"
)

// popupRun runs statements on a SQLite file that other processes may have open.
func popupRun(t *testing.T, file, sql string) {
	t.Helper()
	conn, err := driver.OpenConn(file, driver.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetBlockOnBusy()
	if err := errors.Join(sqlitex.ExecuteScript(conn, sql, nil), conn.Close()); err != nil {
		t.Fatal(err)
	}
}

// popupLogged writes shows to users to the event log of a data directory.
func popupLogged(t *testing.T, data string, users ...string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	events, err := spool.Open(t.Context(), popup.SpoolPath(data), spool.Config{Bytes: 1 << 30, QueueBytes: 1 << 20, GroupBytes: 1 << 20, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	memory := popup.NewMemory(10, popup.NewEventLog(events, nil, time.Minute))
	schema, err := popup.NewSchema(nil)
	if err != nil {
		t.Fatal(err)
	}
	set, err := popup.NewSet(schema, []popup.Campaign{{ID: 1, Name: "a", Placement: "home", Payload: []byte("1"), Status: popup.Active, Rollout: 100}})
	if err != nil {
		t.Fatal(err)
	}
	signer := popup.NewSigner([][]byte{make([]byte, popup.KeyBytesMin)}, time.Hour)
	engine, err := popup.Open(popup.Config{Store: memory, Signer: signer, Log: log}, set)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range users {
		attributes := engine.Attributes()
		if a, err := engine.Ask(t.Context(), popup.Key{User: user, Placement: "home"}, attributes, time.Now()); err != nil || a.Campaign == nil {
			t.Fatalf("user %s: %+v, %v", user, a, err)
		}
		engine.Release(attributes)
	}
	if err := events.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestPopupRepair: with a damaged event log the server does not start, and says how to repair
// it. The repair keeps the readable events.
func TestPopupRepair(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	popupLogged(t, data, "anna", "bert", "carl")
	popupRun(t, popup.SpoolPath(data), "UPDATE groups SET payload = x'00' WHERE id & 0xff = 2")
	run := func(code int, want string, args ...string) string {
		t.Helper()
		stdout, stderr, got := binary.Run(t, append(args, "--data", data)...)
		if got != code || !strings.Contains(stdout+stderr, want) {
			t.Errorf("%s: exit %d, want %d and %q:\n%s%s", strings.Join(args, " "), got, code, want, stdout, stderr)
		}
		return stdout
	}
	serve := []string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--database", "sqlite:" + filepath.Join(data, "a.db"), apptest.PopupConfig(t, "")}
	run(3, "spillway spool repair --popups --data "+data, append(serve, "--strict")...)
	run(2, "there is no spool in", "spool", "status")
	run(1, "popups: group 2: bad checksum", "spool", "repair", "--popups")
	run(0, "repaired, 1 flaw given up", "spool", "repair", "--popups", "--yes")
	run(1, "spillway spool export --popups --dead", "spool", "status", "--popups")
	exported := run(0, `"record":{"kind":"show","user":"carl","placement":"home","sequence":1,"campaign":1,"shown_at":`, "spool", "export", "--popups")
	if strings.Count(exported, "\n") != 2 {
		t.Errorf("exported:\n%s", exported)
	}
	s := apptest.Serve(t, binary.Path(t), append(serve[5:], "--data", data)...)
	s.WaitReady(t)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	for user, want := range map[string]string{"anna": "wait-shown", "bert": "first", "carl": "wait-shown"} {
		if a, _ := apptest.AskPopup(t, s, "user="+user); a.Header.Get("Spillway-Reason") != want {
			t.Errorf("user %s: %d %v, want %s", user, a.Status, a.Header, want)
		}
	}
	apptest.Await(t, "the drain continues after the lost events", func() bool { return apptest.Metric(t, s, "spillway_popup_events_waiting") == 0 })
}

// TestPopupRestored: after the database is restored from a backup, the restored campaigns are
// used, with their old statuses.
func TestPopupRestored(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a.db")
	s := apptest.Serve(t, binary.Path(t), "--database", "sqlite:"+file, apptest.PopupConfig(t, ""))
	s.WaitReady(t)
	c := apptest.SendCampaign(t, s, "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	apptest.SendCampaign(t, s, "POST", fmt.Sprintf("/popups/campaigns/%v/pause", c["id"]), "", 200)
	apptest.SendCampaign(t, s, "POST", fmt.Sprintf("/popups/campaigns/%v/resume", c["id"]), "", 200)
	if a, _ := apptest.AskPopup(t, s, "user=before"); a.Status != 200 {
		t.Errorf("before: %d %s", a.Status, a.Body)
	}
	popupRun(t, file, "UPDATE popup_version SET version = 2; UPDATE popup_campaigns SET status = 'paused', version = 2")
	users := 0
	apptest.Await(t, "the restored campaigns are used", func() bool {
		users++
		a, _ := apptest.AskPopup(t, s, fmt.Sprintf("user=after%d", users))
		return a.Status == 204
	})
	if !strings.Contains(s.Log(t), "it was restored") {
		t.Errorf("the log does not say that the database was restored:\n%s", s.Log(t))
	}
}
