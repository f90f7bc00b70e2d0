package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"spillway/internal/serve/popup"
)

// The click rate is clicks for each show; a cap that comes later says what it does not
// count; and a campaign that cannot be shown is explained as such.
func TestCampaignCounts(t *testing.T) {
	c := startCampaigns(t)
	const plain = `{"name":"all","placement":"home","payload":1,"status":"active"`
	if created, _ := c.send(t, "POST", "/popups/campaigns", plain+"}", 201); created["click_rate"] != 0.0 || created["note"] != nil {
		t.Errorf("created: %v", created)
	}
	place, now := c.popup.Set().Placement("home"), time.Now()
	a := c.popup.Attributes()
	defer c.popup.Release(a)
	var events []popup.Event
	for user := range 4 {
		key := popup.Key{User: fmt.Sprint(user), Placement: "home"}
		state, event, err := popup.Show(place, key, popup.State{}, popup.Decide(place, popup.State{}, a, now), now)
		if err != nil {
			t.Fatal(err)
		}
		if events = append(events, event); user == 0 {
			_, event, err = popup.Click(place, state, popup.Token{Key: key, Campaign: 1, Version: 1, At: event.ShownAt}, now)
			if events = append(events, event); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.tables.Apply(t.Context(), popup.Mark{}, events); err != nil {
		t.Fatal(err)
	}
	got, _ := c.send(t, "GET", "/popups/campaigns/1", "", 200)
	if got["shows"] != 4.0 || got["clicks"] != 1.0 || got["click_rate"] != 0.25 {
		t.Errorf("%v shows, %v clicks, rate %v", got["shows"], got["clicks"], got["click_rate"])
	}
	capped, header := c.send(t, "PUT", "/popups/campaigns/1", plain+`,"cap":2}`, 200, "If-Match", `"1"`)
	if note, _ := capped["note"].(string); !strings.Contains(note, "the 4 shows before it do not count") {
		t.Errorf("a cap on a campaign that was shown: %v", capped)
	}
	if again, _ := c.send(t, "PUT", "/popups/campaigns/1", plain+`,"cap":3}`, 200, "If-Match", header.Get("ETag")); again["note"] != nil {
		t.Errorf("another cap: %v", again)
	}
	set, _ := popup.UsableSet(c.schema, []popup.Campaign{{ID: 1, Name: "a", Placement: "home", Payload: []byte("1"), Status: popup.Active, Target: "gone"}})
	if err := c.popup.Replace(set); err != nil {
		t.Fatal(err)
	}
	explained, _ := c.send(t, "GET", "/popups/explain?user=7", "", 200)
	if one := explained["campaigns"].([]any)[0].(map[string]any); one["verdict"] != "problem" || one["problem"] != "target: 1:1: unknown name gone" {
		t.Errorf("explained: %v", one)
	}
}
