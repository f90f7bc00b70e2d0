package redis_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/redis"
)

// popupTable is a database in memory that applies events like the adapters.
type popupTable struct {
	mu     sync.Mutex
	err    error  // of every call, while it is set
	stuck  bool   // Apply fails
	id     string // of the database
	during func() // called once when Restore has yielded all
	events map[[16]byte]popup.Event
	newest map[popup.Key]popup.Event
	reads  int
	asked  int // for its identity
}

func newPopupTable() *popupTable {
	return &popupTable{events: make(map[[16]byte]popup.Event), newest: make(map[popup.Key]popup.Event)}
}

// fill adds states of users who have clicked, without events.
func (d *popupTable) fill(users int, prefix string) {
	for i := range users {
		d.newest[popup.Key{User: fmt.Sprint(prefix, i), Placement: "home"}] = popup.Event{State: popup.State{
			Version: 2, Phase: popup.Clicked, Campaign: 1, Shown: popupDay.UnixMilli(), Answered: popupDay.UnixMilli(), Until: popupDay.UnixMilli(),
		}}
	}
}

func (d *popupTable) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func (d *popupTable) Apply(_ context.Context, events []popup.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stuck {
		return errors.New("stuck")
	}
	for _, e := range events {
		if d.err != nil {
			return d.err
		}
		d.events[e.ID] = e
		if old, ok := d.newest[e.Key]; !ok || popup.CompareAge(&old, &e) < 0 {
			d.newest[e.Key] = e
		}
	}
	return nil
}

func (d *popupTable) Restore(_ context.Context, yield func(popup.Key, popup.State) error) error {
	d.mu.Lock()
	err, newest, during := d.err, maps.Clone(d.newest), d.during
	d.during = nil
	d.mu.Unlock()
	for key, e := range newest {
		err = cmp.Or(err, yield(key, e.State))
	}
	if during != nil {
		during()
	}
	return err
}

func (d *popupTable) Identity(context.Context) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	return "database " + d.id, d.err
}

func (d *popupTable) States(_ context.Context, keys []popup.Key) ([]popup.State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reads += len(keys)
	out := make([]popup.State, len(keys))
	for i, key := range keys {
		out[i] = d.newest[key].State
	}
	return out, d.err
}

// readStates returns how many states were read one by one.
func (d *popupTable) readStates() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reads
}

// stick makes Apply fail, or no longer.
func (d *popupTable) stick(stuck bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stuck = stuck
}

// has returns how many events the database has of a kind.
func (d *popupTable) has(kind popup.Kind) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, e := range d.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// popupReplica is one process: a store that runs, and the engine on top.
type popupReplica struct {
	*redis.Popups
	engine *popup.Popup
	stop   func()
}

func openPopups(ctx context.Context, url string, cfg redis.PopupConfig) (*redis.Popups, error) {
	p := redis.NewPopups(cfg)
	return p, p.Open(ctx, fixed(url))
}

func startPopups(t testing.TB, url string, cfg redis.PopupConfig) *popupReplica {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Cache == nil {
		cfg.Cache = popup.NewCache(100_000)
	}
	p, err := openPopups(t.Context(), url, redis.Patient(cfg))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	stop := sync.OnceFunc(func() {
		cancel()
		running.Wait()
		p.Close()
	})
	t.Cleanup(stop)
	return &popupReplica{Popups: p, engine: popupEngine(t, p, cfg.Cache), stop: stop}
}

// popupEngine returns an engine with one campaign for all users and a quiet period of one second.
func popupEngine(t testing.TB, store popup.Store, cache *popup.Cache) *popup.Popup {
	t.Helper()
	schema, err := popup.NewSchema(nil)
	if err != nil {
		t.Fatal(err)
	}
	var campaigns []popup.Campaign
	for i := range 3 {
		campaigns = append(campaigns, popup.Campaign{
			ID: popup.CampaignID(i + 1), Name: "c", Placement: "home", Order: int32(i), Payload: []byte("{}"), Status: popup.Active, Rollout: 100, QuietClick: popup.Period(time.Second),
		})
	}
	set, err := popup.NewSet(schema, campaigns)
	if err != nil {
		t.Fatal(err)
	}
	signer := popup.NewSigner([][]byte{[]byte("0123456789abcdef0123456789abcdef")}, time.Hour)
	engine, err := popup.Open(popup.Config{Store: store, Cache: cache, Signer: signer, Log: slog.New(slog.DiscardHandler)}, set)
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

// ask requests a popup for a user at a time.
func (r *popupReplica) ask(t testing.TB, user string, at time.Time) popup.Answer {
	t.Helper()
	a := r.engine.Attributes()
	defer r.engine.Release(a)
	answer, err := r.engine.Ask(t.Context(), popup.Key{User: user, Placement: "home"}, a, at)
	if err != nil {
		t.Errorf("ask: %v", err)
	}
	return answer
}

// answer is ask until the popup is available. A read of the database that takes long, as on a
// slow machine, counts as failed for a moment, before anything is swapped.
func (r *popupReplica) answer(t testing.TB, user string, at time.Time) popup.Answer {
	t.Helper()
	var answer popup.Answer
	apptest.AwaitState(t, "the popup of "+user+" is available", func() (string, bool) {
		answer = r.ask(t, user, at)
		return fmt.Sprintf("%+v", answer), answer.Reason != popup.Unavailable
	})
	return answer
}

func (r *popupReplica) waitReady(t testing.TB) *popupReplica {
	t.Helper()
	apptest.AwaitState(t, "the replica is ready", func() (string, bool) {
		err := r.Ready()
		return fmt.Sprint(err), err == nil
	})
	return r
}

var popupDay = time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)

// The store works on a server in cluster mode: no script has keys in two slots.
func TestPopupStore(t *testing.T) {
	t.Parallel()
	for _, cluster := range []bool{false, true} {
		t.Run(fmt.Sprint("cluster ", cluster), func(t *testing.T) {
			t.Parallel()
			var server *apptest.Server
			if cluster { // its default port for the cluster, 10000 above, may be in use
				server = redisWithPort(t, func(port string) []string { return []string{"--cluster-enabled", "yes", "--cluster-port", port} })
				command(t, server.Addr(), "CLUSTER ADDSLOTSRANGE 0 16383")
				apptest.AwaitState(t, "the cluster accepts writes", func() (string, bool) {
					answer := command(t, server.Addr(), "SET x y")
					return answer, strings.HasPrefix(answer, "+OK")
				})
			} else {
				server = apptest.Redis(t)
			}
			table := newPopupTable()
			r := startPopups(t, server.URL(""), redis.PopupConfig{Table: table}).waitReady(t)
			const users = 200
			for i := range users {
				user := fmt.Sprint("user ü ", i)
				answer := r.ask(t, user, popupDay)
				if answer.Reason != popup.First || answer.Token == "" {
					t.Fatalf("first: %+v", answer)
				}
				if again := r.answer(t, user, popupDay.Add(time.Minute)); again.Reason != popup.WaitShown {
					t.Fatalf("again: %+v", again)
				}
				if err := r.engine.Click(t.Context(), answer.Token, user, popupDay.Add(time.Minute)); err != nil {
					t.Fatal(err)
				}
				if err := r.engine.Click(t.Context(), answer.Token, user, popupDay.Add(time.Minute)); !errors.Is(err, popup.ErrRepeated) {
					t.Fatalf("second click: %v", err)
				}
			}
			apptest.Await(t, "all in the database", func() bool { return table.has(popup.KindShow) == users && table.has(popup.KindClick) == users })
			apptest.Await(t, "forgotten", func() bool { return command(t, server.Addr(), "XLEN {spillway:popup}:events") == ":0" })
		})
	}
}

// A show to a new user needs no GET, if states do not expire.
func TestPopupNewUsers(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: newPopupTable()}).waitReady(t)
	const users = 500
	before := reads(t, server.Addr())
	for i := range users {
		if answer := r.ask(t, fmt.Sprint(i), popupDay); answer.Reason != popup.First {
			t.Fatalf("a new user: %+v", answer)
		}
	}
	if n := reads(t, server.Addr()) - before; n > users/2 { // the server is also checked
		t.Errorf("%d keys were read", n)
	}
	if again := r.ask(t, "0", popupDay); again.Reason != popup.WaitShown {
		t.Errorf("a known user: %+v", again)
	}
	if redis.NewPopups(redis.PopupConfig{StateTTL: time.Hour, Table: newPopupTable()}).Keeps() {
		t.Error("a state that has expired is in the database")
	}
}

// A thousand concurrent requests of one user at three replicas get exactly one show.
// SPILLWAY_POPUP_ROUNDS sets the number of rounds.
func TestPopupTabs(t *testing.T) {
	t.Parallel()
	rounds := 30
	if testing.Short() {
		rounds = 10
	}
	if text := os.Getenv("SPILLWAY_POPUP_ROUNDS"); text != "" {
		if _, err := fmt.Sscan(text, &rounds); err != nil {
			t.Fatal(err)
		}
	}
	server := apptest.Redis(t)
	table := newPopupTable()
	var replicas []*popupReplica
	for range 3 {
		replicas = append(replicas, startPopups(t, server.URL(""), redis.PopupConfig{Table: table}))
	}
	for _, r := range replicas {
		r.waitReady(t)
	}
	for round := range rounds {
		var tabs sync.WaitGroup
		var mu sync.Mutex
		reasons := make(map[popup.Reason]int)
		for tab := range 1000 {
			tabs.Go(func() {
				answer := replicas[tab%3].ask(t, fmt.Sprint("user ", round), popupDay)
				mu.Lock()
				defer mu.Unlock()
				reasons[answer.Reason]++
			})
		}
		tabs.Wait()
		if reasons[popup.First] != 1 || reasons[popup.WaitShown] != 999 {
			t.Fatalf("round %d: %v", round, reasons)
		}
	}
	apptest.Await(t, "one event for each round", func() bool { return table.has(popup.KindShow) == rounds })
	conflicts := uint64(0)
	for _, r := range replicas {
		conflicts += r.engine.Stats().Conflicts
	}
	t.Logf("%d rounds, %d races lost and decided again", rounds, conflicts)
}

// popupLog is what a replica logs.
type popupLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *popupLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *popupLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// An unsuitable server is refused with a message that says what to do.
func TestPopupServerRefused(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t, "--maxmemory-policy", "allkeys-lru")
	cfg := redis.PopupConfig{Table: newPopupTable(), Log: slog.New(slog.DiscardHandler)}
	_, err := openPopups(t.Context(), server.URL(""), redis.Patient(cfg))
	if !errors.Is(err, redis.ErrPopupServer) || !strings.Contains(err.Error(), "CONFIG SET maxmemory-policy noeviction") {
		t.Errorf("allkeys-lru: %v", err)
	}
	command(t, server.Addr(), "CONFIG SET maxmemory-policy noeviction")
	command(t, server.Addr(), "ACL SETUSER limited on >secret ~* &* +@all -client|tracking")
	limited, cached := "redis://limited:secret@"+server.Addr(), cfg
	cached.Cache = popup.NewCache(1000)
	_, err = openPopups(t.Context(), limited, redis.Patient(cached))
	denied, _ := errors.AsType[*redis.DeniedError](err)
	if !errors.Is(err, redis.ErrPopupServer) || denied == nil || !strings.Contains(denied.Error(), "permit +client|tracking with") || strings.Contains(err.Error(), "secret") {
		t.Errorf("no CLIENT TRACKING: %v", err)
	}
	if p, err := openPopups(t.Context(), limited, redis.Patient(cfg)); err != nil {
		t.Errorf("without a cache: %v", err)
	} else {
		p.Close()
	}
	log := &popupLog{}
	cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	r := startPopups(t, server.URL(""), cfg).waitReady(t)
	if text, err := r.Durability(t.Context()); err != nil || !strings.Contains(text, "appendonly = no") {
		t.Errorf("durability: %q, %v", text, err)
	}
	apptest.Await(t, "the log says what a crash costs", func() bool { return strings.Contains(log.String(), "appendonly = no") })
	if r.Stats().Durable {
		t.Error("the metric says that events are durable")
	}
	command(t, server.Addr(), "CONFIG SET maxmemory-policy volatile-lru")
	apptest.Await(t, "the change is noticed", func() bool { return errors.Is(r.Ready(), redis.ErrPopupServer) })
	if answer := r.ask(t, "7", popupDay); answer.Reason != popup.Unavailable {
		t.Errorf("meanwhile: %+v", answer)
	}
}
