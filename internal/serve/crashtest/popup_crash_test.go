package crashtest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// popupCrashRounds is the number of rounds of TestPopupCrash per database.
// SPILLWAY_CRASH_ROUNDS overrides it.
const popupCrashRounds = 3

// popupUsers are users who get the only popup, close it forever and return, each time to a random replica.
type popupUsers struct {
	replicas []*apptest.Spillway
	clicks   atomic.Int64

	mu         sync.Mutex
	closed     []string // users whose click was acknowledged
	shownAgain []string // users who were shown it after that
}

// run sends one new user after another until ctx ends.
func (d *popupUsers) run(ctx context.Context, worker int) {
	client := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	random := rand.New(rand.NewPCG(uint64(worker), 8))
	for i := 0; ctx.Err() == nil; i++ {
		user := fmt.Sprintf("w%d-%d", worker, i)
		switch show, err := d.ask(ctx, client, user, random); {
		case err != nil || show == "": // something is down; the user does not return
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
			}
		case d.click(ctx, client, user, show, random):
			d.clicks.Add(1)
		}
		d.returnUser(ctx, client, random)
	}
}

// ask requests a popup and returns the token of the show; "" if nothing was shown.
func (d *popupUsers) ask(ctx context.Context, client *http.Client, user string, random *rand.Rand) (string, error) {
	a, err := apptest.TryFetch(ctx, client, d.replicas[random.IntN(len(d.replicas))].URL("popup?user="+user))
	if err != nil || a.Status != http.StatusOK {
		return "", err
	}
	var shown apptest.ShownPopup
	err = json.Unmarshal(a.Body, &shown)
	return shown.Show, err
}

func (d *popupUsers) click(ctx context.Context, client *http.Client, user, show string, random *rand.Rand) bool {
	to := d.replicas[random.IntN(len(d.replicas))].URL("popup/click")
	status, _, _, err := apptest.SendJSON(ctx, client, http.MethodPost, to, apptest.ShowToken(show))
	if err != nil || status != http.StatusNoContent {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = append(d.closed, user)
	return true
}

// returnUser requests a popup for a user who has closed it.
func (d *popupUsers) returnUser(ctx context.Context, client *http.Client, random *rand.Rand) {
	d.mu.Lock()
	if len(d.closed) == 0 {
		d.mu.Unlock()
		return
	}
	user := d.closed[random.IntN(len(d.closed))]
	d.mu.Unlock()
	if show, err := d.ask(ctx, client, user, random); err == nil && show != "" {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.shownAgain = append(d.shownAgain, user)
	}
}

// TestPopupCrash kills replicas, Redis and the database with kill -9 under load, one or two
// at a time. Each acknowledged click must be stored once, no user may have two clicks, and a
// closed campaign must not be shown again.
func TestPopupCrash(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	rounds := popupCrashRounds
	if text := os.Getenv("SPILLWAY_CRASH_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil || rounds < 1 {
			t.Fatalf("SPILLWAY_CRASH_ROUNDS is %q, want a number of at least 1", text)
		}
	}
	t.Run("postgres", func(t *testing.T) {
		server := apptest.Postgres(t)
		db := storetest.PostgresDatabase(t, server)
		popupCrash(t, server.Server, db.URL, "0s", rounds, func() storetest.Database { return db })
	})
	t.Run("mysql", func(t *testing.T) {
		server := apptest.MySQL(t, "--innodb-flush-log-at-trx-commit=1")
		open := func() storetest.Database { return storetest.MariaDatabase(t, server) } // a new connection, because the server was restarted
		popupCrash(t, server, open().URL, "1h", rounds, open)
	})
}

func popupCrash(t *testing.T, database *apptest.Server, url, ttl string, rounds int, openDatabase func() storetest.Database) {
	store := apptest.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	file := apptest.PopupConfig(t, "  store: redis\n  keys: [0123456789abcdef0123456789abcdef]\n  state_ttl: "+ttl+"\n")
	d := &popupUsers{}
	for range 3 {
		s := apptest.Serve(t, binary.Path(t), "--database", url, "--redis", store.URL(""), file)
		s.WaitReady(t)
		d.replicas = append(d.replicas, s)
	}
	apptest.SendCampaign(t, d.replicas[0], "POST", "/popups/campaigns", strings.Replace(apptest.PopupForAll, `"1h"`, `"forever"`, 1), 201)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	for worker := range 16 {
		load.Go(func() { d.run(ctx, worker) })
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	first := random.IntN(3)
	for round := range rounds {
		before := d.clicks.Load()
		more := 50 + int64(random.IntN(300))
		apptest.Await(t, "clicks are accepted", func() bool { return d.clicks.Load() > before+more })
		victims := [][]*apptest.Server{{d.replicas[random.IntN(3)].Server}, {store}, {database}}[(first+round)%3]
		if random.IntN(3) == 0 {
			victims = append(victims, d.replicas[random.IntN(3)].Server)
		}
		popupCrashAll(t, d, victims)
	}
	before := d.clicks.Load()
	apptest.Await(t, "clicks are accepted after the last round", func() bool { return d.clicks.Load() > before+50 })
	stop()
	load.Wait()
	popupCrashCheck(t, d, store, openDatabase)
}

// popupCrashAll kills servers and restarts them.
func popupCrashAll(t *testing.T, d *popupUsers, victims []*apptest.Server) {
	t.Helper()
	for _, victim := range victims {
		victim.Kill()
	}
	for _, victim := range victims {
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range d.replicas {
		s.WaitReady(t)
	}
}

// popupCrashCheck compares acknowledged clicks with stored ones and with later answers.
func popupCrashCheck(t *testing.T, d *popupUsers, store *apptest.Server, openDatabase func() storetest.Database) {
	t.Helper()
	apptest.EvalRedis(t, store.Addr(), "return redis.call('DEL', '{spillway:popup}:drainer')") // of a process that was killed
	// The metric can be half a second old.
	apptest.Await(t, "no event waits", func() bool {
		return apptest.EvalRedis(t, store.Addr(), "return redis.call('XLEN', '{spillway:popup}:events')") == ":0"
	})
	apptest.Await(t, "the metric says that no event waits", func() bool {
		return d.replicas[0].PID() != 0 && apptest.Metric(t, d.replicas[0], "spillway_popup_events_waiting") == 0
	})
	stored := map[string]int{}
	db := openDatabase()
	for _, row := range db.Query(t, "SELECT user_id FROM popup_events WHERE kind = 2") {
		stored[row[0]]++
	}
	for user, n := range stored {
		if n > 1 {
			t.Errorf("the click of user %s is stored %d times", user, n)
		}
	}
	for _, user := range d.closed {
		if stored[user] != 1 {
			t.Errorf("the acknowledged click of user %s is stored %d times", user, stored[user])
		}
	}
	for _, row := range db.Query(t, "SELECT user_id, COUNT(*), MAX(sequence) FROM popup_events GROUP BY user_id HAVING COUNT(*) <> MAX(sequence)") {
		t.Errorf("user %s has %s events, and the last one has sequence %s", row[0], row[1], row[2])
	}
	random := rand.New(rand.NewPCG(1, 1))
	for _, user := range d.closed {
		if show, err := d.ask(t.Context(), http.DefaultClient, user, random); err != nil || show != "" {
			t.Errorf("user %s closed the popup and gets %q, %v", user, show, err)
		}
	}
	if len(d.shownAgain) > 0 {
		t.Errorf("%d of %d users were shown the popup again after they had closed it: %s", len(d.shownAgain), len(d.closed), d.shownAgain)
	}
	t.Logf("%d clicks acknowledged, %d stored", len(d.closed), len(stored))
}
