package redis_test

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/redis"
)

// showTo shows users their first popup and clicks it.
func showTo(t *testing.T, r *popupReplica, users int) {
	t.Helper()
	for i := range users {
		user := fmt.Sprint("user ", i)
		answer := r.answer(t, user, popupDay)
		if answer.Token == "" {
			t.Fatalf("%s: %+v", user, answer)
		}
		if err := r.engine.Click(t.Context(), answer.Token, user, popupDay); err != nil {
			t.Fatal(err)
		}
	}
}

// If the server loses all states, they are restored from the database. Nothing is shown twice:
// a swap before the loss is detected fails too.
func TestPopupFlush(t *testing.T) {
	t.Parallel()
	for _, ttl := range []time.Duration{0, time.Hour} {
		t.Run(ttl.String(), func(t *testing.T) {
			t.Parallel()
			server := apptest.Redis(t)
			table := newPopupTable()
			const users, stored = 300, 2100 // together more than one batch
			table.fill(stored, "stored ")
			cfg := redis.PopupConfig{Table: table, StateTTL: ttl}
			replicas := []*popupReplica{startPopups(t, server.URL(""), cfg).waitReady(t), startPopups(t, server.URL(""), cfg).waitReady(t)}
			showTo(t, replicas[0], users)
			apptest.Await(t, "all in the database", func() bool { return table.has(popup.KindClick) == users })
			rounds := 3
			if testing.Short() {
				rounds = 1
			}
			for round := range rounds {
				rebuilds := replicas[0].Stats().Rebuilds + replicas[1].Stats().Rebuilds
				table.fail(errors.New("the database is down")) // delays the restore
				command(t, server.Addr(), "FLUSHALL")
				for i := range 200 { // before and after the loss is detected
					if answer := replicas[i%2].ask(t, fmt.Sprint("user ", i), popupDay); answer.Token != "" {
						t.Fatalf("round %d: shown again: %+v", round, answer)
					}
				}
				table.fail(nil)
				apptest.Await(t, "rebuilt", func() bool { return replicas[0].Stats().Rebuilds+replicas[1].Stats().Rebuilds > rebuilds })
				for i, r := range replicas { // the database is asked again half a second after it failed
					apptest.Await(t, "states are read again", func() bool { return r.ask(t, fmt.Sprint("user ", i), popupDay).Reason == popup.WaitClicked })
				}
				for i := range users {
					r := replicas[i%2].waitReady(t)
					if answer := r.answer(t, fmt.Sprint("user ", i), popupDay); answer.Reason != popup.WaitClicked {
						t.Fatalf("after the rebuild: %+v", answer)
					}
				}
				for i := 0; i < stored; i += 10 {
					if answer := replicas[0].answer(t, fmt.Sprint("stored ", i), popupDay); answer.Reason != popup.WaitClicked {
						t.Fatalf("after the rebuild, a user from before the start: %+v", answer)
					}
				}
			}
			if answer := replicas[0].answer(t, "new", popupDay); answer.Reason != popup.First {
				t.Errorf("a new user: %+v", answer)
			}
			if reads := table.readStates(); ttl == 0 && reads > 0 || ttl > 0 && reads < rounds*users {
				t.Errorf("%d states were read one by one", reads)
			}
		})
	}
}

// States that expired are read from the database when their users return.
func TestPopupExpired(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	table := newPopupTable()
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: table, StateTTL: time.Hour}).waitReady(t)
	showTo(t, r, 20)
	apptest.Await(t, "all in the database", func() bool { return table.has(popup.KindClick) == 20 })
	keys := scanKeys(t, server.Addr(), "*:state:*")
	if len(keys) != 20 {
		t.Fatalf("%d states in Redis", len(keys))
	}
	for _, key := range keys {
		if ttl := command(t, server.Addr(), `PTTL "`+key+`"`); len(ttl) != len(":3600000") {
			t.Errorf("%s expires after %s", key, ttl)
		}
		command(t, server.Addr(), `DEL "`+key+`"`)
	}
	var tabs sync.WaitGroup
	for i := range 400 {
		tabs.Go(func() {
			if answer := r.answer(t, fmt.Sprint("user ", i%20), popupDay); answer.Reason != popup.WaitClicked {
				t.Errorf("came back: %+v", answer)
			}
		})
	}
	tabs.Wait()
	table.fail(errors.New("the database is down"))
	if answer := r.answer(t, "user 3", popupDay.Add(2*time.Second)); answer.Reason != popup.Next {
		t.Errorf("a known user without the database: %+v", answer)
	}
	if answer := r.ask(t, "new", popupDay); answer.Reason != popup.Unavailable {
		t.Errorf("a new user without the database: %+v", answer)
	}
	table.fail(nil)
	if answer := r.answer(t, "new", popupDay); answer.Reason != popup.First {
		t.Errorf("a new user: %+v", answer)
	}
}

// scanKeys returns the keys that match, with plain characters only.
func scanKeys(t *testing.T, addr, pattern string) []string {
	t.Helper()
	var keys []string
	for i := range 20 {
		key := fmt.Sprintf("{spillway:popup}:state:home:user %d", i)
		if command(t, addr, `EXISTS "`+key+`"`) == ":1" {
			keys = append(keys, key)
		}
	}
	return keys
}

// If a replica cannot store events, or dies before it has, another replica stores them.
func TestPopupDeadReplica(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	dead, table := newPopupTable(), newPopupTable()
	first := startPopups(t, server.URL(""), redis.PopupConfig{Table: dead}).waitReady(t)
	dead.fail(errors.New("no way to the database"))
	showTo(t, first, 300)
	second := startPopups(t, server.URL(""), redis.PopupConfig{Table: table}).waitReady(t)
	apptest.Await(t, "the second has stored all", func() bool {
		return table.has(popup.KindShow) == 300 && table.has(popup.KindClick) == 300
	})
	apptest.Await(t, "none waits", func() bool { return second.Stats().Backlog == 0 })
	first.stop()
	command(t, server.Addr(), "SET {spillway:popup}:drainer another PX 1000") // a process that was killed
	second.answer(t, "late", popupDay)
	apptest.Await(t, "stored after the end of its lease", func() bool { return table.has(popup.KindShow) == 301 })
	if n := dead.has(popup.KindShow); n > 0 {
		t.Errorf("the first has stored %d events", n)
	}
}

// restart kills the server, starts it again with a table that does not fail, and waits until
// the replica is ready. Before it has noticed the restart it may still look ready.
func (r *popupReplica) restart(t *testing.T, server *apptest.Server, table *popupTable) {
	t.Helper()
	rebuilds := r.Stats().Rebuilds
	server.Kill()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	table.fail(nil)
	apptest.Await(t, "the restart is noticed", func() bool { return r.Stats().Rebuilds > rebuilds })
	r.waitReady(t)
}

// count returns the number of keys.
func count(m *sync.Map) (n int) {
	m.Range(func(any, any) bool { n++; return true })
	return n
}

// With appendfsync always, a server that is killed under load keeps each acknowledged click.
// Calls are answered again after its states were compared with those of the database.
func TestPopupKilledServer(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t, "--appendonly", "yes", "--appendfsync", "always", "--aof-load-truncated", "yes")
	table := newPopupTable()
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: table}).waitReady(t)
	if text, err := r.Durability(t.Context()); err != nil || text != "" {
		t.Errorf("durability: %q, %v", text, err)
	}
	apptest.Await(t, "the metric says that events are durable", func() bool { return r.Stats().Durable })
	table.fail(errors.New("not yet")) // so that acknowledged events are in Redis only
	var shown, clicked sync.Map
	var clicks atomic.Int64
	var clients sync.WaitGroup
	stop := make(chan struct{})
	for client := range 8 {
		clients.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				user := fmt.Sprint(client, "-", i)
				answer := r.ask(t, user, popupDay)
				if answer.Reason == popup.Unavailable {
					<-time.After(5 * time.Millisecond) // leaves the processor to the server that starts
				}
				if answer.Token != "" {
					shown.Store(user, true)
					if r.engine.Click(t.Context(), answer.Token, user, popupDay) == nil {
						clicked.Store(user, true)
						clicks.Add(1)
					}
				}
			}
		})
	}
	rounds, each := 2, int64(300)
	if testing.Short() {
		rounds, each = 1, 100
	}
	for range rounds {
		before := clicks.Load()
		apptest.Await(t, "clients have clicked", func() bool { return clicks.Load() > before+each })
		r.restart(t, server, table)
		table.fail(errors.New("not yet"))
	}
	close(stop)
	clients.Wait()
	table.fail(nil)
	r.waitReady(t)
	apptest.Await(t, "all acknowledged in the database", func() bool {
		return table.has(popup.KindClick) >= count(&clicked) && table.has(popup.KindShow) >= count(&shown)
	})
	clicked.Range(func(user, _ any) bool {
		e := table.newest[popup.Key{User: user.(string), Placement: "home"}]
		if e.Kind != popup.KindClick || e.Sequence != 2 {
			t.Errorf("%s clicked, and the database has %s %d", user, e.Kind, e.Sequence)
		}
		if answer := r.answer(t, user.(string), popupDay); answer.Reason != popup.WaitClicked {
			t.Errorf("%s clicked and gets %+v", user, answer)
		}
		return true
	})
	t.Logf("%d shows and %d clicks acknowledged, %d and %d in the database", count(&shown), count(&clicked), table.has(popup.KindShow), table.has(popup.KindClick))
}

// A server that returns with old states receives the newer ones from the database.
func TestPopupOldServer(t *testing.T) {
	t.Parallel()
	for _, ttl := range []time.Duration{0, time.Hour} {
		server := apptest.Redis(t, "--save", "3600 1000000", "--dbfilename", "dump.rdb")
		table := newPopupTable()
		r := startPopups(t, server.URL(""), redis.PopupConfig{Table: table, StateTTL: ttl}).waitReady(t)
		first := r.answer(t, "7", popupDay)
		if answer := command(t, server.Addr(), "SAVE"); answer != "+OK" {
			t.Fatal(answer)
		}
		if err := r.engine.Click(t.Context(), first.Token, "7", popupDay); err != nil {
			t.Fatal(err)
		}
		apptest.Await(t, "click in the database", func() bool { return table.has(popup.KindClick) == 1 })
		server.Kill() // the snapshot has the show only
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		apptest.Await(t, "compared", func() bool { return r.Stats().Rebuilds == 2 && r.Ready() == nil })
		if answer := r.answer(t, "7", popupDay); answer.Reason != popup.WaitClicked {
			t.Errorf("TTL %v: %+v", ttl, answer)
		}
	}
}

// A server that returns with newer states than the database keeps them.
func TestPopupOldDatabase(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	table := newPopupTable()
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: table}).waitReady(t)
	first := r.answer(t, "7", popupDay)
	apptest.Await(t, "show in the database", func() bool { return table.has(popup.KindShow) == 1 })
	table.stick(true)
	if err := r.engine.Click(t.Context(), first.Token, "7", popupDay); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "compared", func() bool { return r.Stats().Rebuilds == 2 && r.Ready() == nil })
	if answer := r.answer(t, "7", popupDay); answer.Reason != popup.WaitClicked {
		t.Errorf("%+v", answer)
	}
	table.stick(false)
	apptest.Await(t, "click in the database", func() bool { return table.has(popup.KindClick) == 1 })
}

// States that are lost again during the restore are not considered complete.
func TestPopupFlushDuringRebuild(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	table := newPopupTable()
	const users = 2000 // exactly the batches that are written before the loss
	table.fill(users, "user ")
	flushed := false
	table.during = func() {
		flushed = true
		command(t, server.Addr(), "FLUSHALL")
	}
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: table}).waitReady(t)
	for i := range users {
		if answer := r.answer(t, fmt.Sprint("user ", i), popupDay); answer.Reason != popup.WaitClicked {
			t.Fatalf("%+v", answer)
		}
	}
	if !flushed {
		t.Error("the test flushed nothing")
	}
}

// While the database is down, the number of waiting events is limited. Events that cannot be
// decoded are set aside.
func TestPopupBacklog(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	table := newPopupTable()
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: table, BacklogMax: 160}).waitReady(t)
	table.fail(errors.New("away"))
	refused := 0
	for i := range 400 {
		if answer := r.ask(t, fmt.Sprint(i), popupDay); answer.Reason == popup.Unavailable {
			refused++
		}
	}
	if refused != 240 {
		t.Errorf("%d of 400 refused, %+v", refused, r.Stats())
	}
	table.fail(nil)
	apptest.Await(t, "stored", func() bool { return table.has(popup.KindShow) == 400-refused })
	command(t, server.Addr(), "XADD {spillway:popup}:events * e nonsense")
	apptest.Await(t, "set aside", func() bool { return command(t, server.Addr(), "XLEN {spillway:popup}:bad") == ":1" })
	apptest.Await(t, "counted", func() bool { return r.Stats().Bad == 1 })
}

// A server that is down at start is used when it is up.
func TestPopupLateServer(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	server.Kill()
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: newPopupTable(), Log: slog.New(slog.DiscardHandler)})
	if answer := r.ask(t, "7", popupDay); answer.Reason != popup.Unavailable {
		t.Errorf("down: %+v", answer)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if answer := r.waitReady(t).answer(t, "7", popupDay); answer.Reason != popup.First {
		t.Errorf("up: %+v", answer)
	}
}
