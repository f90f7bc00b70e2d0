package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
)

// PopupCampaigns keeps campaigns.
type PopupCampaigns interface {
	Version(ctx context.Context) (int64, error)
	Campaigns(ctx context.Context) (int64, []popup.StoredCampaign, error)
	SaveCampaign(ctx context.Context, c popup.StoredCampaign, checked int64, by string) (popup.StoredCampaign, error)
}

// PopupEvents keeps events.
type PopupEvents interface {
	Apply(ctx context.Context, mark *queue.Mark, events []popup.Event) error
	Mark(ctx context.Context, queue [16]byte) (uint64, error)
	Counts(ctx context.Context) (map[popup.CampaignID]popup.Counts, error)
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
	EnsureTables(ctx context.Context) error
}

// PopupBackend is the database under test of Popup.
type PopupBackend struct {
	// Open opens a new, empty database through the adapter. It registers the
	// clean-up with t.
	Open func(t testing.TB) PopupDB
	// Millis writes an expression that is a column's time in milliseconds since 1970.
	Millis func(column string) string
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
	t.Run("Campaigns", func(t *testing.T) { testPopupCampaigns(t, b) })
	t.Run("CampaignRace", func(t *testing.T) { testPopupCampaignRace(t, b) })
	t.Run("Columns", func(t *testing.T) { testPopupColumns(t, b) })
	t.Run("AnyOrder", func(t *testing.T) { testPopupAnyOrder(t, b) })
	t.Run("AtOnce", func(t *testing.T) { testPopupAtOnce(t, b) })
	t.Run("Many", func(t *testing.T) { testPopupMany(t, b) })
	t.Run("Mark", func(t *testing.T) { testPopupMark(t, b) })
	t.Run("Lock", func(t *testing.T) { testPopupLock(t, b) })
	t.Run("LockForgotten", func(t *testing.T) { testPopupLockForgotten(t, b) })
	t.Run("Crash", func(t *testing.T) { testPopupCrash(t, b) })
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

// popupDay is when popup histories begin.
var popupDay = time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)

// popupPlaces returns two placements with campaigns, some with a cap, some with quiet
// periods that never end.
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
			Status: popup.Active, RepeatAfter: time.Hour, QuietClick: time.Duration(i) * time.Hour, QuietDismiss: popup.Forever,
		}
		if i < 4 {
			c.Cap, c.QuietDismiss = 3, 0
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
	var state popup.State
	var events []popup.Event
	for range steps {
		now = now.Add(time.Duration(random.IntN(120)-30) * time.Minute) // clocks of replicas differ
		next, event, err := popupStep(place, key, state, attributes, random.IntN(3), now)
		if err != nil {
			continue
		}
		events = append(events, event)
		if random.IntN(5) > 0 {
			state = next
		}
	}
	return events
}

// popupStep makes a user do one thing. It returns an error if that is not possible.
func popupStep(place *popup.Placement, key popup.Key, state popup.State, a *popup.Attributes, what int, now time.Time) (popup.State, popup.Event, error) {
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
	rows, err := db.Rows(ctx, "SELECT COUNT(*) FROM popup_events")
	if err != nil || rows[0][0] != fmt.Sprint(len(m.events)) {
		return fmt.Errorf("popup_events has %v rows, want %d: %w", rows, len(m.events), err)
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
			next, event, err := popup.Show(place, key, state, popup.Decide(place, popup.State{}, noAttributes(b), popupDay), popupDay.Add(time.Duration(n)*time.Second))
			if err != nil {
				b.Fatal(err)
			}
			states[key] = next
			events = append(events, event)
		}
		b.StartTimer()
		if err := tables.Apply(b.Context(), &queue.Mark{Spool: [16]byte{1}, Last: uint64(n)}, events); err != nil {
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
