package redis_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/redis"
)

// What the documents say that users of Redis need.
const (
	connects   = "-@all +hello +auth +select +ping "
	queryUser  = connects + "+get +set +evalsha +eval +pexpire +del"
	popupUser  = queryUser + " +script|load +client|tracking +info +time +mget +exists +hget +hmget +hset +xadd +xlen +xrange +xdel"
	popupsKeys = "~{spillway:popup}:*"
)

// limited returns the URL of a user of the server with these rights, and sets them again.
func limited(t *testing.T, server *apptest.Server, rights string) string {
	t.Helper()
	if answer := command(t, server.Addr(), "ACL SETUSER limited reset on >secret &* "+rights); answer != "+OK" {
		t.Fatal(rights, answer)
	}
	return strings.Replace(server.URL("0"), "redis://", "redis://limited:secret@", 1)
}

// The store names all rights that its user lacks, and works as soon as they are granted.
func TestPopupRights(t *testing.T) {
	t.Parallel()
	renamed := apptest.Redis(t, "--rename-command", "XLEN", "", "--rename-command", "HSET", "other")
	server := apptest.Redis(t)
	for name, c := range map[string]struct {
		server *apptest.Server
		rights string
		want   []string // in the reason; none: it is ready
	}{
		"documented":   {server, popupUser + " " + popupsKeys, nil},
		"no dangerous": {server, "~* +@all -@dangerous", []string{"permit +info with"}},
		"few":          {server, popupUser + " -xadd -xlen -info -mget " + popupsKeys, []string{"+mget +xlen +xadd +info"}},
		"no scripts":   {server, "~* +@all -@scripting", []string{"permit +evalsha +eval with"}},
		"other keys":   {server, "~app:* +@all", []string{"permit " + popupsKeys + " with"}},
		"some keys":    {server, "~{spillway:popup}:state:* +@all", []string{"permit " + popupsKeys + " with"}},
		"no set":       {server, "~* +@all -set", []string{"permit +set with"}},
		"renamed":      {renamed, "~* +@all", []string{"XLEN, HSET", "renamed"}},
	} {
		t.Run(name, func(t *testing.T) {
			var log popupLog
			table := newPopupTable()
			r := startPopups(t, limited(t, c.server, c.rights), redis.PopupConfig{Table: table, Log: slog.New(slog.NewTextHandler(&log, nil))})
			apptest.AwaitState(t, "the reason is known", func() (string, bool) {
				err := r.Ready()
				_, refused := errors.AsType[*redis.DeniedError](err)
				return fmt.Sprint(err), refused == (c.want != nil) && (refused || err == nil)
			})
			for _, want := range c.want {
				if err := fmt.Sprint(r.Ready()); !strings.Contains(err, want) || !strings.Contains(log.String(), want) {
					t.Errorf("%s\n%s\nwithout %q", err, log.String(), want)
				}
			}
			if strings.Contains(log.String(), "does not answer") {
				t.Error(log.String())
			}
			if c.server == renamed {
				return
			}
			limited(t, c.server, popupUser+" "+popupsKeys)
			r.waitReady(t)
			if answer := r.answer(t, "user of "+name, popupDay); answer.Reason != popup.First {
				t.Errorf("%+v", answer)
			}
			apptest.Await(t, "the event is in the database", func() bool { return table.has(popup.KindShow) == 1 })
		})
	}
}

// A shared cache needs no scripts, and names what else its user lacks.
func TestCacheRights(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	const key = "app:query:{1}"
	for name, c := range map[string]struct{ rights, want string }{
		"documented":                 {queryUser + " ~app:*", ""},
		"no scripts":                 {queryUser + " -eval -evalsha ~app:*", ""},
		"no dangerous":               {"~* +@all -@dangerous", ""},
		"other keys":                 {queryUser + " ~spillway:*", "permit ~app:* with"},
		"no reads":                   {queryUser + " -get ~app:*", "permit +get with"},
		"no writes":                  {queryUser + " -set ~app:*", "permit +set with"},
		"a script without a command": {queryUser + " -pexpire ~app:*", "permit +pexpire with"},
		"no DEL and no scripts":      {queryUser + " -del -eval -evalsha ~app:*", "permit +del with"},
	} {
		t.Run(name, func(t *testing.T) {
			command(t, server.Addr(), "FLUSHALL")
			db := open(t, limited(t, server, c.rights))
			calls := func() (first error) {
				var errs [6]error
				var claimed, again, held, other bool
				errs[0] = db.Put(t.Context(), key, []byte("value"), time.Hour)
				claimed, errs[1] = db.Claim(t.Context(), key+":claim", "one", time.Hour)
				again, errs[2] = db.Claim(t.Context(), key+":claim", "two", time.Hour)
				other, errs[3] = db.Hold(t.Context(), key+":claim", "two", time.Hour)
				held, errs[4] = db.Hold(t.Context(), key+":claim", "one", time.Hour)
				errs[5] = errors.Join(db.Release(t.Context(), key+":claim", "two"), db.Release(t.Context(), key+":claim", "one"))
				err := errors.Join(errs[:]...)
				if err == nil && (!claimed || again || !held || other || command(t, server.Addr(), "EXISTS "+key+":claim") != ":0") {
					t.Errorf("claimed %t, again %t, held %t, by another %t", claimed, again, held, other)
				}
				value, _, getErr := db.Get(t.Context(), key)
				if err == nil && string(value) != "value" {
					t.Errorf("%q", value)
				}
				return errors.Join(err, getErr)
			}
			err := calls()
			if c.want == "" {
				if err != nil || db.Denied("app") != nil {
					t.Errorf("%v; %v", err, db.Denied("app"))
				}
				return
			}
			if denied := fmt.Sprint(db.Denied("app")); !strings.Contains(err.Error(), c.want) || !strings.Contains(denied, c.want) {
				t.Errorf("%v; %s", err, denied)
			}
			if db.Denied("spillway") != nil {
				t.Errorf("other keys: %v", db.Denied("spillway"))
			}
			limited(t, server, queryUser+" ~app:*")
			command(t, server.Addr(), "FLUSHALL")
			if err := calls(); err != nil || db.Denied("app") != nil {
				t.Errorf("with all rights: %v; %v", err, db.Denied("app"))
			}
		})
	}
}
