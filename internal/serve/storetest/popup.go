package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"spillway/internal/serve/audit"
	"spillway/internal/serve/popup"
)

// PopupCampaigns keeps campaigns.
type PopupCampaigns interface {
	Version(ctx context.Context) (int64, error)
	Campaigns(ctx context.Context) (int64, []popup.StoredCampaign, error)
	SaveCampaign(ctx context.Context, c popup.StoredCampaign, checked int64, by audit.Author) (popup.StoredCampaign, error)
	History(ctx context.Context, id popup.CampaignID, limit int) ([]popup.CampaignChange, error)
	Now(ctx context.Context) (time.Time, error)
	audit.Store
}

// PopupEvents keeps events.
type PopupEvents interface {
	Apply(ctx context.Context, events []popup.Event) error
	Counts(ctx context.Context) (map[popup.CampaignID]popup.Counts, error)
	Hours(ctx context.Context, campaign popup.CampaignID, from, to time.Time) ([]popup.Hour, error)
	DeleteEvents(ctx context.Context, before time.Time, limit int) (deleted int, err error)
	Forget(ctx context.Context, user string) (rows int64, err error)
}

// PopupLists keeps lists of users.
type PopupLists interface {
	Lists(ctx context.Context) ([]popup.ListVersion, error)
	ListUsers(ctx context.Context, name string) (popup.ListVersion, []uint64, error)
	ReplaceList(ctx context.Context, name string, hashes []uint64, by audit.Author) (popup.ListVersion, error)
	DeleteList(ctx context.Context, name string, by audit.Author) error
}

// PopupStates keeps the states that follow from events.
type PopupStates interface {
	Restore(ctx context.Context, yield func(popup.Key, popup.State) error) error
	States(ctx context.Context, keys []popup.Key) ([]popup.State, error)
	Lock(ctx context.Context, holder string) (*popup.Lock, error)
}

// PopupTables are an adapter's tables for popups.
type PopupTables interface {
	PopupCampaigns
	PopupEvents
	PopupStates
	PopupLists
	EnsureTables(ctx context.Context) error
	Identity(ctx context.Context) (string, error)
}

// PopupBackend is the database under test of Popup.
type PopupBackend struct {
	// Open opens a new, empty database through the adapter. It registers the
	// clean-up with t.
	Open func(t testing.TB) PopupDB
	// Millis writes an expression that is a column's time in milliseconds since 1970.
	Millis func(column string) string
	// Newer are statements that create a table popup_history of format 2.
	Newer []string
	// Pooled: a pooler that loses prepared statements and session state is in between. With
	// go test -short only the tests that it can break run.
	Pooled bool
}

// PopupDB is one open database.
type PopupDB struct {
	Tables func(t testing.TB) PopupTables                            // as another process would open them
	Rows   func(ctx context.Context, sql string) ([][]string, error) // on a connection that is not the adapter's; NULL is "NULL"
	// Kill ends the server as in a crash, Start starts it again; nil: there is no server.
	Kill  func()
	Start func() error
}

// Popup tests the adapter's tables of popups.
func Popup(t *testing.T, b PopupBackend) {
	runParts(t, b, b.Pooled, []part[PopupBackend]{
		{"Campaigns", testPopupCampaigns, breaks},
		{"Identity", testPopupIdentity, keeps},
		{"CampaignRace", testPopupCampaignRace, keeps},
		{"Columns", testPopupColumns, keeps},
		{"AnyOrder", testPopupAnyOrder, keeps},
		{"AtOnce", testPopupAtOnce, breaks},
		{"Many", testPopupMany, keeps},
		{"Tables", testPopupTables, keeps},
		{"LargeState", testPopupLargeState, keeps},
		{"UnreadableState", testPopupUnreadableState, keeps},
		{"Lists", testPopupLists, breaks},
		{"ListForget", testPopupListForget, keeps},
		{"ListRace", testPopupListRace, keeps},
		{"Forget", testPopupForget, keeps},
		{"DeleteEvents", testPopupDeleteEvents, keeps},
		{"Cancelled", testPopupCancelled, breaks},
		{"Lock", testPopupLock, breaks},
		{"LockForgotten", testPopupLockForgotten, keeps},
		{"Crash", testPopupCrash, keeps},
	})
}

// openPopups opens a fresh database and creates the tables twice.
func openPopups(t testing.TB, b PopupBackend) (PopupDB, PopupTables) {
	t.Helper()
	db := b.Open(t)
	tables := db.Tables(t)
	for range 2 {
		if err := tables.EnsureTables(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return db, tables
}

// Each database has an id of its own, which all processes see, also if they ask at the same time.
func testPopupIdentity(t *testing.T, b PopupBackend) {
	db, first := openPopups(t, b)
	ids := make([]string, 8)
	var all sync.WaitGroup
	for i := range ids {
		tables := db.Tables(t)
		all.Go(func() {
			var err error
			if ids[i], err = tables.Identity(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, id := range ids {
		if id != ids[0] || len(id) < 16 {
			t.Fatalf("ids of one database: %q", ids)
		}
	}
	if err := first.EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	if id, err := first.Identity(t.Context()); err != nil || id != ids[0] {
		t.Errorf("after EnsureTables: %q, want %q, %v", id, ids[0], err)
	}
	_, other := openPopups(t, b)
	if id, err := other.Identity(t.Context()); err != nil || id == ids[0] {
		t.Errorf("another database: %q, %v", id, err)
	}
}

// popupDay is when popup histories begin.
var popupDay = time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)

// popupPlaces returns two placements with campaigns, some with a cap, some with quiet
// periods that never end, some with variants and a holdout.
func popupPlaces(t testing.TB) []*popup.Placement {
	t.Helper()
	schema, err := popup.NewSchema(nil)
	if err != nil {
		t.Fatal(err)
	}
	var campaigns []popup.Campaign
	for i := range 6 {
		c := popup.Campaign{
			ID: popup.CampaignID(i + 1), Name: "c", Placement: []string{"home", "cart"}[i%2], Order: int32(i), Payload: []byte(`{}`),
			Status: popup.Active, Rollout: 100, RepeatAfter: popup.Period(time.Hour), QuietClick: popup.Period(i) * popup.Period(time.Hour),
			QuietDismiss: popup.Forever,
		}
		if i < 4 {
			c.Cap, c.QuietDismiss = 3, 0
		}
		if i >= 2 {
			c.Holdout, c.Variants = 30, []popup.Variant{{Name: "a", Weight: 1, Payload: []byte("1")}, {Name: "b", Weight: 1, Payload: []byte("2")}}
		}
		campaigns = append(campaigns, c)
	}
	set, err := popup.NewSet(schema, campaigns)
	if err != nil {
		t.Fatal(err)
	}
	return []*popup.Placement{set.Placement("home"), set.Placement("cart")}
}

// popupHistory returns the events of one user at one placement. Some events are forks: the
// recorder kept the event but reported a failure, so the next event has the same sequence.
func popupHistory(t testing.TB, place *popup.Placement, key popup.Key, random *rand.Rand, steps int) []popup.Event {
	t.Helper()
	attributes, now := noAttributes(t), popupDay
	attributes.For(key.User)
	var state popup.State
	var events []popup.Event
	add := func(e popup.Event) {
		for _, other := range events {
			if other.ID == e.ID { // an event that is repeated later; in which hour it counts is not defined
				hour := other.At.Truncate(time.Hour)
				e.At = earlier(later(e.At, hour), hour.Add(time.Hour-time.Millisecond))
				if e.At.Equal(other.At) {
					return
				}
			}
		}
		events = append(events, e)
	}
	for range steps {
		now = now.Add(time.Duration(random.IntN(120)-30) * time.Minute) // clocks of replicas differ
		next, event, err := popupStep(place, key, state, attributes, random.IntN(3), now)
		if err != nil {
			continue
		}
		add(event)
		if event.Kind == popup.KindShow && random.IntN(3) == 0 {
			add(conversionAfter(event, now.Add(time.Duration(random.IntN(300))*time.Minute)))
		}
		if random.IntN(5) > 0 {
			state = next
		}
	}
	return events
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// conversionAfter returns the event of a conversion after a show.
func conversionAfter(show popup.Event, at time.Time) popup.Event {
	e := popup.Event{
		ID: show.ID, Kind: popup.KindConvert, Key: show.Key, Sequence: show.Sequence, Campaign: show.Campaign, Variant: show.Variant,
		ShownAt: show.ShownAt, At: at,
	}
	e.ID[15]++
	return e
}

// popupStep makes a user do one thing. It returns an error if that is not possible.
func popupStep(place *popup.Placement, key popup.Key, state popup.State, a *popup.Attributes, what int, now time.Time) (popup.State,
	popup.Event, error,
) {
	token := popup.Token{Key: key, Campaign: state.Campaign, Version: state.Version, At: time.UnixMilli(state.Shown).UTC()}
	switch {
	case what == 1 && state.Phase == popup.Shown:
		return popup.AnswerShow(place, state, token, popup.KindClick, now)
	case what == 2 && state.Phase == popup.Shown:
		return popup.AnswerShow(place, state, token, popup.KindDismiss, now)
	}
	d := popup.Decide(place, state, a, now)
	if d.Campaign == nil {
		return state, popup.Event{}, errors.New("nothing is due")
	}
	return popup.Show(place, key, state, d, now)
}

// popupModel is the expected content of a database after events in any order.
type popupModel struct {
	newest map[popup.Key]popup.Event
	events map[[16]byte]popup.Event
}

func (m *popupModel) add(events ...popup.Event) {
	if m.newest == nil {
		m.newest, m.events = make(map[popup.Key]popup.Event), make(map[[16]byte]popup.Event)
	}
	for _, e := range events {
		m.events[e.ID] = e
		if e.Kind == popup.KindConvert {
			continue
		}
		if old, ok := m.newest[e.Key]; !ok || popup.CompareAge(&old, &e) < 0 {
			m.newest[e.Key] = e
		}
	}
}

// check compares the states of the model's users.
func (m *popupModel) check(ctx context.Context, tables PopupTables) error {
	keys := []popup.Key{{User: "nobody", Placement: "home"}}
	for key := range m.newest {
		keys = append(keys, key)
	}
	states, err := tables.States(ctx, keys)
	if err != nil {
		return err
	}
	for i, key := range keys {
		if want := m.newest[key].State; states[i] != want {
			return fmt.Errorf("%v: state %+v, want %+v", key, states[i], want)
		}
	}
	return nil
}

// checkAll compares the whole database with the model.
func (m *popupModel) checkAll(ctx context.Context, db PopupDB, tables PopupTables) error {
	if err := m.check(ctx, tables); err != nil {
		return err
	}
	restored := 0
	err := tables.Restore(ctx, func(key popup.Key, state popup.State) error {
		restored++
		if want := m.newest[key].State; state != want {
			return fmt.Errorf("restored %v: %+v, want %+v", key, state, want)
		}
		return nil
	})
	if err != nil || restored != len(m.newest) {
		return fmt.Errorf("%d states restored, want %d: %w", restored, len(m.newest), err)
	}
	want := make(map[popup.CampaignID]popup.Counts)
	for _, e := range m.events {
		c := want[e.Campaign]
		c.Add(e.Kind, 1)
		want[e.Campaign] = c
	}
	counts, err := tables.Counts(ctx)
	if err != nil || len(counts) != len(want) {
		return fmt.Errorf("counts %v, want %v: %w", counts, want, err)
	}
	for id, c := range want {
		if counts[id] != c {
			return fmt.Errorf("counts of campaign %d: %+v, want %+v", id, counts[id], c)
		}
	}
	if err := m.checkHours(ctx, tables); err != nil {
		return err
	}
	rows, err := db.Rows(ctx, "SELECT COUNT(*) FROM popup_events")
	if err != nil || rows[0][0] != fmt.Sprint(len(m.events)) {
		return fmt.Errorf("popup_events has %v rows, want %d: %w", rows, len(m.events), err)
	}
	return nil
}

// checkHours compares the hours of all campaigns with the model.
func (m *popupModel) checkHours(ctx context.Context, tables PopupTables) error {
	want := make(map[popup.CampaignID][]popup.Hour)
	for _, e := range m.events {
		users := uint64(0)
		if e.First {
			users = 1
		}
		one := popup.Hour{Variant: e.Variant, Kind: e.Kind, Hour: e.At.UTC().Truncate(time.Hour), Events: 1, Users: users}
		same := func(h popup.Hour) bool {
			return h.Variant == one.Variant && h.Kind == one.Kind && h.Hour.Equal(one.Hour)
		}
		if i := slices.IndexFunc(want[e.Campaign], same); i >= 0 {
			want[e.Campaign][i].Events++
			want[e.Campaign][i].Users += users
			continue
		}
		want[e.Campaign] = append(want[e.Campaign], one)
	}
	for id, hours := range want {
		slices.SortFunc(hours, func(a, b popup.Hour) int {
			return cmp.Or(a.Hour.Compare(b.Hour), cmp.Compare(a.Variant, b.Variant), cmp.Compare(a.Kind, b.Kind))
		})
		first, last := hours[0].Hour, hours[len(hours)-1].Hour
		got, err := tables.Hours(ctx, id, first, last.Add(time.Millisecond))
		if err != nil || !slices.Equal(got, hours) {
			return fmt.Errorf("hours of campaign %d: %v, want %v: %w", id, got, hours, err)
		}
		got, err = tables.Hours(ctx, id, first.Add(time.Millisecond), last)
		inner := slices.DeleteFunc(slices.Clone(hours), func(h popup.Hour) bool { return h.Hour.Equal(first) || h.Hour.Equal(last) })
		if err != nil || !slices.Equal(got, inner) {
			return fmt.Errorf("inner hours of campaign %d: %v, want %v: %w", id, got, inner, err)
		}
	}
	return nil
}

// PopupApply measures Apply with batches of 1,000 events of different users, half of them
// new.
func PopupApply(b *testing.B, backend PopupBackend) {
	_, tables := openPopups(b, backend)
	place := popupPlaces(b)[0]
	random := rand.New(rand.NewPCG(1, 2))
	states := make(map[popup.Key]popup.State)
	n := 0
	for b.Loop() {
		b.StopTimer()
		var events []popup.Event
		for len(events) < popup.ApplyMax {
			key := popup.Key{User: fmt.Sprint("user-", n+random.IntN(1000)-500), Placement: "home"}
			n++
			state := states[key]
			next, event, err := popup.Show(place, key, state, popup.Decide(place, popup.State{}, noAttributes(b), popupDay),
				popupDay.Add(time.Duration(n)*time.Second))
			if err != nil {
				b.Fatal(err)
			}
			states[key] = next
			events = append(events, event)
		}
		b.StartTimer()
		if err := tables.Apply(b.Context(), events); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}

func noAttributes(t testing.TB) *popup.Attributes {
	schema, err := popup.NewSchema(nil)
	if err != nil {
		t.Fatal(err)
	}
	return schema.New()
}
