package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/spool"
)

// refusing is a destination that refuses every entry, and stores no group whose payload is "held".
// An entry that begins with "?" is in doubt.
type refusing struct{}

func (refusing) StoreGroups(_ context.Context, groups []queue.Group) (queue.Stored, error) {
	stored := queue.Stored{Groups: len(groups)}
	for _, g := range groups {
		for _, e := range g.Entries {
			if string(e.Payload) == "held" {
				return queue.Stored{}, errors.New("the database is away")
			}
			stored.Dead = append(stored.Dead, queue.DeadLetter{
				Name: g.Name, Sequence: g.Sequence, At: e.At, Rows: e.Rows, Reason: "no luck", Payload: e.Payload, InDoubt: e.Payload[0] == '?',
			})
		}
	}
	return stored, nil
}

// startSpool serves a spool in which /old has the dead letters 1, ?2 and 3, /moved has a record that
// waits and belongs to /old, and the drain of /held is retrying.
func startSpool(t *testing.T, tokens ...Token) (base string, open *spool.Spool) {
	t.Helper()
	return startSpoolWith(t, Config{Tokens: tokens})
}

// startSpoolWith is startSpool with other settings of the listener.
func startSpoolWith(t *testing.T, config Config) (base string, open *spool.Spool) {
	t.Helper()
	cfg := spool.Config{Bytes: 1 << 30, QueueBytes: 1 << 20, GroupBytes: 1 << 20, Log: slog.New(slog.DiscardHandler)}
	open, err := spool.Open(t.Context(), filepath.Join(t.TempDir(), "s.db"), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{}, 2)
	drain := func(name string) {
		go func() {
			_ = open.Drain(ctx, name, 1<<20, refusing{})
			ended <- struct{}{}
		}()
	}
	t.Cleanup(func() {
		stop()
		<-ended
		<-ended
		if err := open.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, e := range [][2]string{{"/old", "1"}, {"/old", "?2"}, {"/old", "3"}, {"/moved", "4"}, {"/held", "held"}} {
		entry, err := open.Begin(t.Context(), e[0], queue.Entry{Payload: []byte(e[1]), Rows: 1}, nil)
		if err == nil {
			_, err = entry.Appended(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	drain("/old")
	drain("/held")
	apptest.Await(t, "the drains have tried", func() bool {
		names := open.Status()
		return names[0].State == spool.DrainRetrying && names[2].Dead == 3
	})
	if _, err := open.Do(t.Context(), spool.Order{Work: spool.WorkMove, Filter: spool.Filter{Stream: "/moved"}, To: "/old", Waiting: true}); err != nil {
		t.Fatal(err)
	}
	of := &Spool{
		Open: func() *spool.Spool { return open },
		Do:   func(ctx context.Context, s *spool.Spool, o spool.Order) (spool.Done, error) { return s.Do(ctx, o) },
		Decode: func(p []byte) ([]json.RawMessage, error) {
			text, err := json.Marshal(string(p))
			return []json.RawMessage{text}, err
		},
	}
	config.Spools = map[string]*Spool{"streams": of}
	return start(t, config), open
}

// spools provokes every status of the spools.
func (w *walk) spools(t *testing.T) {
	t.Helper()
	w.servers["spool"], _ = startSpool(t)
	const of, at = "/spools/{spool}", "/spools/streams"
	foreign := []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}
	for _, path := range []string{"", "/waiting", "/dead", "/dead/export"} {
		w.send("spool", "GET", of+path, at+path, "")
		w.send("spool", "GET", of+path, at+path+"?in_doubt=x&since=x", "")
	}
	for _, path := range []string{"/retry", "/move", "/discard"} {
		w.send("spool", "POST", of+path, at+path, `{"dry_run":true,"to":"/b"}`)
		w.send("spool", "POST", of+path, at+path, `{"to":""}`)
		w.send("spool", "POST", of+path, at+path, `{"stream":"/old","waiting":true}`)
		w.send("spool", "POST", of+path, at+path, `{"dry_run":true}`)
		for _, wrong := range []string{`{"streem":"/old"}`, "null", "[]", "{}{}", "{}}"} {
			if status, _ := w.send("spool", "POST", of+path, at+path, wrong); status != http.StatusBadRequest {
				t.Errorf("%s %s: %d", path, wrong, status)
			}
		}
		w.send("spool", "POST", of+path, at+path, `{}`, foreign...)
	}
}

// The client does over HTTP what the spool does: list, filter, export, retry, discard and move.
func TestSpoolAPI(t *testing.T) {
	base, open := startSpool(t, Token{"ann", "secret", RoleAdmin}, Token{"bob", "other", RoleEdit})
	ask := func(path, want string) {
		t.Helper()
		if status, _, body := get(t, base+"/spools/streams"+path, http.Header{"Authorization": {"Bearer secret"}}); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want %s", path, status, body, want)
		}
	}
	ask("/dead?limit=1&after=1", `{"dead_letters":[{"id":2,"stream":"/old","sequence":2,`)
	ask("/dead?limit=1&after=1", `"reason":"no luck","in_doubt":true,"damaged":false,"records":["?2"]}],"next":2}`)
	ask("/dead?in_doubt=false&until=2000-01-01T00:00:00Z", `{"dead_letters":[]}`)
	ask("/dead/export?in_doubt=true", `"reason":"no luck","in_doubt":true,"record":"?2"}`)
	ask("", `"drain":"none","moved_to":"/old"}`)

	out := &bytes.Buffer{}
	client := SpoolClient{Address: strings.TrimPrefix(base, "http://"), Token: "secret", Name: "streams"}
	command := spool.Command{Remote: client, Out: out}
	editor := command
	editor.Remote = SpoolClient{Address: client.Address, Token: "other", Name: "streams"}
	stranger := command
	stranger.Remote = SpoolClient{Address: client.Address, Name: "streams"}
	for _, step := range []struct {
		does func() error
		want string
	}{
		{func() error { return stranger.Status(t.Context(), false) }, "it requires a token: name its configuration with --config"},
		{func() error { return command.Status(t.Context(), false) }, "moved to /old none"},
		{func() error { return command.Export(t.Context(), spool.Filter{Stream: "/moved"}, false) }, `"record":"4"}`},
		{func() error { return editor.Discard(t.Context(), spool.Filter{}, true) }, "requires a token with the role admin; that of bob has the role edit"},
		{func() error { return editor.Move(t.Context(), "/old", "/b") }, "nothing has changed: a stream drains the records of /old"},
		{func() error { return editor.Retry(t.Context(), spool.Filter{Reason: "luck"}, false) }, "2 dead letters put back"},
		{func() error { return editor.Move(t.Context(), "/moved", "/b") }, "1 record and 0 dead letters of /moved belong to /b"},
		{func() error { return command.Discard(t.Context(), spool.Filter{}, false) }, "would be deleted: export them, then say --yes"},
	} {
		out.Reset()
		if err := step.does(); !strings.Contains(fmt.Sprint(out, err), step.want) {
			t.Errorf("%s, %v, want %s", out, err, step.want)
		}
	}
	apptest.Await(t, "what was retried is refused again", func() bool { return open.Status()[3].Dead == 3 })
	done, err := client.Do(t.Context(), spool.Order{Work: spool.WorkDiscard, Filter: spool.Filter{Since: time.Now().Add(-time.Hour), IDs: []int64{2, 5}}})
	if err != nil || done.Letters != 2 {
		t.Errorf("%+v, %v", done, err)
	}
}
