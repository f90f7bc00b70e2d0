package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/serve/audit"
	"spillway/internal/serve/popup"
)

func popupCampaign() popup.StoredCampaign {
	return popup.StoredCampaign{Created: moment(2026, 3, 1, 8, 0, 0, 123_000_000, time.UTC), Campaign: popup.Campaign{
		Name: "spring 🚚 'sale'", Placement: "home", Order: -7, Payload: []byte(`{"text": "it's \"here\" \\ 50 %",  "n": 1.50}`),
		Target: `country == "CN" and level >= 3`, Status: popup.Active,
		Start: moment(2026, 3, 1, 12, 0, 0, 123_456_789, time.FixedZone("", 3600)), End: moment(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC),
		RepeatAfter: popup.Period(24 * time.Hour), QuietClick: popup.Forever, QuietDismiss: popup.Period(1500 * time.Millisecond),
		Cap:      popup.CapMax,
		Priority: -3, Again: popup.Period(time.Hour), Rollout: 12.5, Holdout: 5, Zone: "Asia/Shanghai", Testers: []string{"it's ü 🚚"},
		Variants: []popup.Variant{{Name: "a", Weight: 2, Payload: []byte(`{"n":1.50,"html":"<b>"}`)}},
	}}
}

func moment(year int, month time.Month, day, hour, minute, second, nanosecond int, zone *time.Location) popup.Moment {
	return popup.Moment{Time: time.Date(year, month, day, hour, minute, second, nanosecond, zone)}
}

func testPopupCampaigns(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	other := db.Tables(t)
	last, all, err := tables.Campaigns(t.Context())
	if err != nil || len(all) != 0 {
		t.Fatalf("at first: %v, %v", all, err)
	}
	// changed checks that the version went up, for other processes, too.
	changed := func() {
		t.Helper()
		version, err := other.Version(t.Context())
		if err != nil || version <= last {
			t.Fatalf("version %d after %d, %v", version, last, err)
		}
		last = version
	}
	first, err := tables.SaveCampaign(t.Context(), popupCampaign(), last, ann)
	if err != nil {
		t.Fatal(err)
	}
	changed()
	want := popupCampaign()
	want.ID, want.Version, want.Start = 1, first.Version, moment(2026, 3, 1, 11, 0, 0, 123_000_000, time.UTC)
	want.Payload = []byte(`{"text":"it's \"here\" \\ 50 %","n":1.50}`)
	if diff := cmp.Diff(want, first, sameCampaign); diff != "" {
		t.Errorf("saved: %s", diff)
	}
	plain := popup.StoredCampaign{Campaign: popup.Campaign{
		Name: "plain", Placement: strings.Repeat("p", popup.PlacementBytesMax), Status: popup.Paused, Rollout: 100,
		Payload: []byte(`"` + strings.Repeat("ü", popup.PayloadBytesMax/2-1) + `"`), Target: strings.Repeat("x", 10_000),
	}}
	second, err := tables.SaveCampaign(t.Context(), plain, last, ann)
	if err != nil || second.ID != 2 {
		t.Fatalf("second: %d, %v", second.ID, err)
	}
	changed()
	first.Status, first.Start, first.QuietClick, first.Name = popup.Archived, popup.Moment{}, 0, "renamed"
	updated, err := other.SaveCampaign(t.Context(), first, last, ann)
	if err != nil {
		t.Fatal(err)
	}
	changed()
	if _, err := tables.SaveCampaign(t.Context(), first, last, ann); !errors.Is(err, popup.ErrChanged) {
		t.Errorf("an outdated campaign: %v", err)
	}
	if _, err := tables.SaveCampaign(t.Context(), plain, last-1, ann); !errors.Is(err, popup.ErrOutdated) {
		t.Errorf("a campaign that was checked before another change: %v", err)
	}
	absent := popupCampaign()
	absent.ID = 77
	if _, err := tables.SaveCampaign(t.Context(), absent, last, ann); !errors.Is(err, popup.ErrNoCampaign) {
		t.Errorf("no such campaign: %v", err)
	}
	if _, err := tables.SaveCampaign(t.Context(), plain, last, audit.Author{By: strings.Repeat("ü", popup.ChangedByMax+1)}); err == nil {
		t.Error("too long a name of who changes it was taken")
	}
	bad := popupCampaign()
	bad.Payload = []byte("\"\xff\"")
	if _, err := tables.SaveCampaign(t.Context(), bad, last, ann); err == nil {
		t.Error("a payload that is not UTF-8 was taken")
	}
	version, all, err := other.Campaigns(t.Context())
	if err != nil || version != last {
		t.Fatalf("version %d, want %d, %v: a refused change counts", version, last, err)
	}
	if diff := cmp.Diff([]popup.StoredCampaign{updated, second}, all, sameCampaign); diff != "" {
		t.Errorf("campaigns: %s", diff)
	}
	checkHistory(t, other, []popup.CampaignChange{{StoredCampaign: updated, By: "ann"}, {StoredCampaign: want, By: "ann"}})
}

// ann changes things.
var ann = audit.Author{By: "ann", Address: "2001:db8::1", Request: "PUT /something"}

// checkChanges records a change after those of two campaigns, and reads all.
func checkChanges(t *testing.T, tables PopupCampaigns) {
	t.Helper()
	before, err := tables.Version(t.Context())
	if err == nil {
		err = tables.AddChange(t.Context(), audit.Change{Author: ann, Detail: "ü 🚚"})
	}
	now, nowErr := tables.Now(t.Context())
	if err = errors.Join(err, nowErr); err != nil {
		t.Fatal(err)
	}
	if after, err := tables.Version(t.Context()); err != nil || after != before {
		t.Errorf("version %d became %d, %v", before, after, err)
	}
	read := func(from, before time.Time, limit int) (details []string) {
		all, err := tables.Changes(t.Context(), from, before, limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			if c.Author != ann || now.Sub(c.At).Abs() > time.Hour {
				t.Errorf("%+v", c)
			}
			details = append(details, fmt.Sprint(c.Campaign, " ", c.Detail))
		}
		return details
	}
	end := now.Add(time.Second)
	want := []string{"0 ü 🚚", "1 renamed", "2 plain", "1 renamed"}
	if diff := cmp.Diff(want, read(now.Add(-time.Hour), end, 10)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want[:2], read(now.Add(-time.Hour), end, 2)); diff != "" {
		t.Error(diff)
	}
	if got := read(now.Add(-2*time.Hour), now.Add(-time.Hour), 10); got != nil {
		t.Error(got)
	}
}

// sameCampaign compares campaigns by their fields, and payloads as JSON.
var sameCampaign = cmp.Options{
	cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".unread" }, cmp.Ignore()),
}

// checkHistory compares the changes of campaign 1, the newest first.
func checkHistory(t *testing.T, tables PopupTables, want []popup.CampaignChange) {
	t.Helper()
	now, err := tables.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for limit := 1; limit <= len(want)+1; limit++ {
		changes, err := tables.History(t.Context(), 1, limit)
		if err != nil || len(changes) != min(limit, len(want)) {
			t.Fatalf("history up to %d: %v, %v", limit, changes, err)
		}
		for i, c := range changes {
			if age := now.Sub(c.At); age < -time.Second || age > time.Hour || c.At.Location() != time.UTC {
				t.Errorf("change %d was at %v, now is %v", i, c.At, now)
			}
			expected := want[i]
			expected.At = c.At
			var compact bytes.Buffer
			if err := json.Compact(&compact, expected.Payload); err != nil {
				t.Fatal(err)
			}
			expected.Payload = compact.Bytes()
			if diff := cmp.Diff(expected, c, sameCampaign); diff != "" {
				t.Errorf("change %d: %s", i, diff)
			}
		}
	}
	if changes, err := tables.History(t.Context(), 77, 5); err != nil || len(changes) != 0 {
		t.Errorf("history of no campaign: %v, %v", changes, err)
	}
	checkChanges(t, tables)
}

// Concurrent saves of new campaigns get different ids, and one of the concurrent changes
// of a campaign wins.
func testPopupCampaignRace(t *testing.T, b PopupBackend) {
	db, first := openPopups(t, b)
	tables := []PopupTables{first, db.Tables(t)}
	const clients = 8
	var ids sync.Map
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			c, err := saveUntilDone(t.Context(), tables[i%2], popupCampaign())
			if _, twice := ids.LoadOrStore(c.ID, true); err != nil || twice {
				t.Errorf("campaign %d, twice: %t, %v", c.ID, twice, err)
			}
		})
	}
	all.Wait()
	_, campaigns, err := first.Campaigns(t.Context())
	if err != nil || len(campaigns) != clients {
		t.Fatalf("%d campaigns, %v", len(campaigns), err)
	}
	var won atomic.Int32
	for i := range clients {
		all.Go(func() {
			switch _, err := saveUntilDone(t.Context(), tables[i%2], campaigns[0]); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, popup.ErrChanged):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of %d changes won", won.Load(), clients)
	}
}

// saveUntilDone saves a campaign while others are saved.
func saveUntilDone(ctx context.Context, tables PopupTables, c popup.StoredCampaign) (popup.StoredCampaign, error) {
	for {
		version, err := tables.Version(ctx)
		if err != nil {
			return c, err
		}
		saved, err := tables.SaveCampaign(ctx, c, version, audit.Author{})
		if !errors.Is(err, popup.ErrOutdated) {
			return saved, err
		}
	}
}
