package redis_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"spillway/internal/apptest"
	"spillway/internal/serve/audit"
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
		return redis.PopupConfig{Table: tables[i], DatabaseAddress: fmt.Sprint("address ", i), DatabaseName: fmt.Sprint("postgres://db/", i)}
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
		return command(t, server.Addr(), "HEXISTS {spillway:popup:00}:database id") == ":1" && command(t, server.Addr(), "EXISTS {spillway:popup:15}:ready") == ":1"
	})
	prefixed := config(1)
	prefixed.Namespace = "other"
	if answer := startPopups(t, server.URL(""), prefixed).waitReady(t).answer(t, "user 1", popupDay); answer.Reason != popup.First {
		t.Errorf("with another prefix: %+v", answer)
	}
	first.stop()

	// Away, the address decides.
	for i, table := range tables {
		table.fail(errAway)
		r := startPopups(t, server.URL(""), config(i))
		if i == 0 {
			apptest.Await(t, "a known address", func() bool { return r.Ready() == nil })
			continue
		}
		apptest.Await(t, "an unknown address", func() bool {
			return strings.Contains(fmt.Sprint(r.Ready()), "is not known to be postgres://db/1")
		})
	}
}

// If Redis is restarted while the database is away, users are answered whose states it has, and
// others are not. When the database is back, states are compared.
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
			var shown popup.Answer
			apptest.Await(t, "a known user who is due is shown a popup", func() bool {
				shown = r.ask(t, "user 2", popupDay.Add(2*time.Second))
				return shown.Reason == popup.Next
			})
			if answer := r.answer(t, "user 1", popupDay); answer.Reason != popup.WaitClicked {
				t.Errorf("a known user who waits: %+v", answer)
			}
			if answer := r.ask(t, "new", popupDay); answer.Reason != popup.Unavailable {
				t.Errorf("a user who may be in the database: %+v", answer)
			}
			if err := r.engine.Click(t.Context(), shown.Token, "user 2", popupDay.Add(3*time.Second)); err != nil {
				t.Error(err)
			}
			if n := r.Stats().Rebuilds; n != 1 {
				t.Errorf("%d restores", n)
			}
			table.fail(nil)
			apptest.Await(t, "compared", func() bool { return r.Stats().Rebuilds == 2 && r.Ready() == nil })
			apptest.Await(t, "a new user", func() bool { return r.ask(t, "new", popupDay).Reason == popup.First })
			if answer := r.answer(t, "user 2", popupDay.Add(3*time.Second)); answer.Reason != popup.WaitClicked {
				t.Errorf("who clicked meanwhile: %+v", answer)
			}
			apptest.Await(t, "the database has the events of the outage", func() bool { return table.has(popup.KindClick) == 4 })
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

// Campaigns in Redis are complete, whatever fields they have, and those of a newer version
// replace older ones.
func TestPopupCampaignCopy(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	database := &campaignTable{version: 7, all: []popup.StoredCampaign{fullCampaign(t), {Campaign: popup.Campaign{ID: 2, Payload: []byte("1")}}}}
	table := newPopupTable()
	campaigns := redis.NewCampaignCopy(database)
	cfg := redis.PopupConfig{Table: table, DatabaseAddress: "a", Campaigns: campaigns}
	if _, _, err := campaigns.Campaigns(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := startPopups(t, server.URL(""), cfg).waitReady(t)
	has := func(version string) {
		t.Helper()
		apptest.Await(t, "Redis has version "+version, func() bool {
			return strings.HasSuffix(command(t, server.Addr(), "HSTRLEN {spillway:popup:00}:campaigns version"), version)
		})
	}
	has("1") // one digit
	command(t, server.Addr(), "FLUSHALL")
	has("1")
	database.version = 12
	if _, _, err := campaigns.Campaigns(t.Context()); err != nil {
		t.Fatal(err)
	}
	has("2")
	r.stop()

	table.fail(errAway)
	late := redis.NewCampaignCopy(database)
	late.SetAway(true)
	if _, _, err := late.Campaigns(t.Context()); err == nil {
		t.Error("campaigns without Redis")
	}
	cfg.Campaigns, cfg.Log = late, slog.New(slog.DiscardHandler)
	p, err := openPopups(t.Context(), server.URL(""), redis.Patient(cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	version, all, err := late.Campaigns(t.Context())
	if err != nil || version != 12 {
		t.Fatalf("version %d, %v", version, err)
	}
	if diff := cmp.Diff(database.all, all, cmpopts.IgnoreUnexported(popup.Campaign{})); diff != "" {
		t.Errorf("the copy differs: %s", diff)
	}
	if _, err := late.Version(t.Context()); err == nil {
		t.Error("a version without the database")
	}
}

// campaignTable is a database of campaigns.
type campaignTable struct {
	version int64
	all     []popup.StoredCampaign
}

func (d *campaignTable) Version(context.Context) (int64, error) { return d.version, nil }

func (d *campaignTable) Campaigns(context.Context) (int64, []popup.StoredCampaign, error) {
	return d.version, d.all, nil
}

func (d *campaignTable) SaveCampaign(_ context.Context, c popup.StoredCampaign, _ int64, _ audit.Author) (popup.StoredCampaign, error) {
	return c, nil
}

// fullCampaign returns a campaign without a zero field, so that no field is forgotten.
func fullCampaign(t *testing.T) popup.StoredCampaign {
	t.Helper()
	var c popup.StoredCampaign
	fill(t, reflect.ValueOf(&c).Elem(), "StoredCampaign")
	c.Payload = []byte(`{"n":1.50,"html":"<b>&</b> ü"}`)
	return c
}

// fill sets all fields of a value.
func fill(t *testing.T, v reflect.Value, name string) {
	t.Helper()
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC)))
		return
	case popup.Period:
		v.Set(reflect.ValueOf(popup.Forever))
		return
	case json.RawMessage:
		v.SetBytes([]byte(`"x"`))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				continue // what made the campaign invalid
			}
			fill(t, v.Field(i), name+"."+v.Type().Field(i).Name)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i), name)
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, key, name)
		fill(t, value, name)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), name)
	case reflect.String:
		v.SetString("ü \"x\"")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(-7)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(0.1)
	default:
		t.Fatalf("%s is a %s", name, v.Kind())
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
