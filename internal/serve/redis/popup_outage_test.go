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

var errAway = errors.New("connection refused")

// Two processes with one Redis and two databases: the second one reads nothing and takes no
// events, until it has its own prefix. The mark is set again after FLUSHALL.
func TestPopupTwoDatabases(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	tables := []*popupTable{newPopupTable(), newPopupTable()}
	tables[1].id = "of a neighbour"
	config := func(i int) redis.PopupConfig {
		return redis.PopupConfig{Table: tables[i], DatabaseName: fmt.Sprint("postgres://db/", i)}
	}
	first := startPopups(t, server.URL(""), config(0)).waitReady(t)
	second := startPopups(t, server.URL(""), config(1))
	apptest.Await(t, "the second is refused", func() bool { return errors.Is(second.Ready(), redis.ErrPopupDatabase) })
	for _, text := range []string{"postgres://db/0", "postgres://db/1", "popups.redis_prefix"} {
		if !strings.Contains(second.Ready().Error(), text) {
			t.Errorf("%q is not in: %s", text, second.Ready())
		}
	}
	showTo(t, first, 20)
	apptest.Await(t, "all events are in the first database", func() bool {
		return tables[0].has(popup.KindShow) == 20 && tables[0].has(popup.KindClick) == 20
	})
	if n := tables[1].has(popup.KindShow) + tables[1].has(popup.KindClick); n > 0 {
		t.Errorf("%d events went to the other database", n)
	}
	if answer := second.ask(t, "user 1", popupDay); answer.Reason != popup.Unavailable {
		t.Errorf("the second: %+v", answer)
	}
	second.stop()
	command(t, server.Addr(), "FLUSHALL")
	apptest.Await(t, "the mark is set again", func() bool {
		return command(t, server.Addr(), "HEXISTS {spillway:popup}:database id") == ":1" && command(t, server.Addr(), "EXISTS {spillway:popup}:ready") == ":1"
	})
	prefixed := config(1)
	prefixed.Namespace = "other"
	if answer := startPopups(t, server.URL(""), prefixed).waitReady(t).answer(t, "user 1", popupDay); answer.Reason != popup.First {
		t.Errorf("with another prefix: %+v", answer)
	}
	tables[0].fail(errAway)
	if _, err := openPopups(t.Context(), server.URL(""), redis.Patient(config(0))); !errors.Is(err, errAway) {
		t.Errorf("without the database: %v", err)
	}
}

// If Redis is restarted while the database is away, nobody is answered until the states are compared.
func TestPopupRestartedAlone(t *testing.T) {
	t.Parallel()
	for _, ttl := range []time.Duration{0, time.Hour} {
		t.Run(ttl.String(), func(t *testing.T) {
			t.Parallel()
			server := apptest.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
			table := newPopupTable()
			r := startPopups(t, server.URL(""), redis.PopupConfig{Table: table, StateTTL: ttl}).waitReady(t)
			showTo(t, r, 3)
			apptest.Await(t, "in the database", func() bool { return table.has(popup.KindClick) == 3 })
			table.fail(errAway)
			server.Kill()
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			apptest.Await(t, "the restart is noticed", func() bool { return strings.Contains(fmt.Sprint(r.Ready()), errAway.Error()) })
			for _, user := range []string{"user 2", "new"} {
				if answer := r.ask(t, user, popupDay); answer.Reason != popup.Unavailable {
					t.Errorf("%s: %+v", user, answer)
				}
			}
			table.fail(nil)
			apptest.Await(t, "compared", func() bool { return r.Stats().Rebuilds == 2 && r.Ready() == nil })
			if answer := r.answer(t, "user 2", popupDay); answer.Reason != popup.WaitClicked {
				t.Errorf("a known user: %+v", answer)
			}
			if answer := r.answer(t, "new", popupDay); answer.Reason != popup.First {
				t.Errorf("a new user: %+v", answer)
			}
		})
	}
}

// While Redis is out of memory, users who wait are answered, and the store says what is wrong.
func TestPopupOutOfMemory(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	table := newPopupTable()
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: table}).waitReady(t)
	showTo(t, r, 1)
	command(t, server.Addr(), "CONFIG SET maxmemory 1")
	if answer := r.ask(t, "new", popupDay); answer.Reason != popup.Unavailable {
		t.Errorf("a new user: %+v", answer)
	}
	if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("after a refused swap: %v", err)
	}
	if answer := r.answer(t, "user 0", popupDay); answer.Reason != popup.WaitClicked {
		t.Errorf("a user who waits: %+v", answer)
	}
	command(t, server.Addr(), "CONFIG SET maxmemory 0")
	r.waitReady(t)
	command(t, server.Addr(), "CONFIG SET maxmemory 1")
	apptest.Await(t, "a check notices it, without a request", func() bool { return r.Ready() != nil })
	command(t, server.Addr(), "CONFIG SET maxmemory 0")
	if answer := r.waitReady(t).answer(t, "new", popupDay); answer.Reason != popup.First {
		t.Errorf("with memory: %+v", answer)
	}
}

// While Redis refuses to write because of its replicas, users who wait are answered, and the log
// says why, without a request.
func TestPopupRefusedWrites(t *testing.T) {
	t.Parallel()
	server, log := apptest.Redis(t), &popupLog{}
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: newPopupTable(), Log: slog.New(slog.NewTextHandler(log, nil))}).waitReady(t)
	showTo(t, r, 1)
	command(t, server.Addr(), "CONFIG SET min-replicas-to-write 1")
	apptest.Await(t, "a check notices it", func() bool { return r.Ready() != nil })
	for range 3 {
		if answer := r.ask(t, "new", popupDay); answer.Reason != popup.Unavailable {
			t.Errorf("a new user: %+v", answer)
		}
	}
	if answer := r.answer(t, "user 0", popupDay); answer.Reason != popup.WaitClicked {
		t.Errorf("a user who waits: %+v", answer)
	}
	command(t, server.Addr(), "CONFIG SET min-replicas-to-write 0")
	if answer := r.waitReady(t).answer(t, "new", popupDay); answer.Reason != popup.First {
		t.Errorf("afterwards: %+v", answer)
	}
	for _, line := range []string{"Redis does not write popup states\" error=", "Redis writes popup states again"} {
		apptest.Await(t, "one line in the log: "+line, func() bool { return strings.Count(log.String(), line) == 1 })
	}
}

// A process whose clock is ten minutes ahead of Redis uses the time of Redis, so it does not
// shorten a quiet period.
func TestPopupClock(t *testing.T) {
	t.Parallel()
	server := apptest.RedisAt(t, -10*time.Minute)
	clock := popup.NewClock()
	log := &popupLog{}
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: newPopupTable(), Clock: clock, Log: slog.New(slog.NewTextHandler(log, nil))}).waitReady(t)
	apptest.Await(t, "the clock of Redis is measured", func() bool { return clock.Skew() != 0 }) // a long round trip does not count
	var seconds int64
	if _, err := fmt.Sscanf(command(t, server.Addr(), "EVAL \"return tonumber(redis.call('TIME')[1])\" 0"), ":%d", &seconds); err != nil {
		t.Fatal(err)
	}
	redisTime := time.Unix(seconds, 0)
	if off := clock.Now().Sub(redisTime); off.Abs() > time.Minute {
		t.Errorf("Redis says %s, the clock %s", redisTime, clock.Now())
	}
	if skew := clock.Skew(); skew < 9*time.Minute || skew > 11*time.Minute {
		t.Errorf("skew %s", skew)
	}
	// Another process, with the time of Redis, records a click. The quiet period is one second.
	shown := r.answer(t, "7", redisTime)
	if err := r.engine.Click(t.Context(), shown.Token, "7", redisTime.Add(5*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if answer := r.answer(t, "7", clock.Now()); answer.Reason != popup.WaitClicked {
		t.Errorf("with the clock of Redis: %+v", answer)
	}
	if answer := r.answer(t, "7", time.Now()); answer.Reason != popup.Next {
		t.Errorf("with its own clock the quiet period should end early, or this test tests nothing: %+v", answer)
	}
	apptest.AwaitState(t, "the log warns", func() (string, bool) {
		text := log.String()
		return text, strings.Contains(text, "the clock of this machine differs") && (strings.Contains(text, "ahead=10m") || strings.Contains(text, "ahead=9m5"))
	})
}
