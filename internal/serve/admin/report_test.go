package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/serve/popup"
)

// A report has the hours and the totals of each variant, and compares it with the holdout.
func TestReport(t *testing.T) {
	t.Parallel()
	c := startCampaigns(t)
	const one = `{"name":"a","placement":"home","payload":0,"variants":[{"name":"a","weight":1,"payload":1},{"name":"b","weight":1,"payload":2}]}`
	c.send(t, "POST", "/popups/campaigns", one, 201)
	hour := time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)
	add := func(hours int, variant uint8, kind popup.Kind, events, users uint64) {
		at := hour.Add(time.Duration(hours) * time.Hour)
		c.tables.hours = append(c.tables.hours, popup.Hour{Variant: variant, Kind: kind, Hour: at, Events: events, Users: users})
	}
	add(0, 1, popup.KindShow, 100, 70)
	add(0, 1, popup.KindClick, 20, 0)
	add(0, 1, popup.KindDismiss, 5, 0)
	add(2, 1, popup.KindConvert, 56, 0)
	add(1, 2, popup.KindShow, 10, 10)
	add(1, 7, popup.KindShow, 1, 1)
	add(0, popup.VariantWithheld, popup.KindWithhold, 240, 80) // it started over twice
	add(3, popup.VariantWithheld, popup.KindConvert, 48, 0)
	add(100, 1, popup.KindShow, 1000, 1000) // after the report
	got, _ := c.send(t, "GET", "/popups/campaigns/1/report?from=2026-05-01T10:59:00Z&to=2026-05-01T21:30:00%2B08:00", "", 200)
	if got["from"] != "2026-05-01T10:00:00Z" || got["to"] != "2026-05-01T14:00:00Z" {
		t.Errorf("from %v to %v", got["from"], got["to"])
	}
	var hours []string
	for _, h := range got["hours"].([]any) {
		h := h.(map[string]any)
		hours = append(hours, fmt.Sprint(h["hour"], h["variant"], h["shows"], h["users"], h["clicks"], h["dismissals"], h["withheld"], h["conversions"]))
	}
	want := []string{
		"2026-05-01T10:00:00Z(holdout)0 80 0 0 240 0", "2026-05-01T10:00:00Za100 70 20 5 0 0", "2026-05-01T11:00:00Z#71 1 0 0 0 0",
		"2026-05-01T11:00:00Zb10 10 0 0 0 0", "2026-05-01T12:00:00Za0 0 0 0 0 56", "2026-05-01T13:00:00Z(holdout)0 0 0 0 0 48",
	}
	if diff := cmp.Diff(want, hours); diff != "" {
		t.Errorf("hours (-want +got):\n%s", diff)
	}
	var names []string
	for _, v := range got["variants"].([]any) {
		names = append(names, v.(map[string]any)["variant"].(string))
	}
	if diff := cmp.Diff([]string{"a", "b", "#7", "(holdout)"}, names); diff != "" {
		t.Errorf("variants (-want +got):\n%s", diff)
	}
	a, held := got["variants"].([]any)[0].(map[string]any), got["variants"].([]any)[3].(map[string]any)
	near := func(name string, value any, rate, low, high float64) {
		t.Helper()
		s, _ := value.(map[string]any)
		for key, want := range map[string]float64{"rate": rate, "low": low, "high": high} {
			if x, ok := s[key].(float64); !ok || math.Abs(x-want) > 0.0001 {
				t.Errorf("%s: %s is %v, want %g", name, key, s[key], want)
			}
		}
	}
	near("clicks", a["click_rate"], 0.2, 0.1334, 0.2888)
	near("conversions", a["conversion_rate"], 0.8, 0.6918, 0.8770)
	near("of the holdout", held["conversion_rate"], 0.6, 0.4905, 0.7004)
	near("difference", a["conversion_rate_difference"], 0.2, 0.0524, 0.3339) // Newcombe 1998, table II, case a
	if to := a["conversion_rate_difference"].(map[string]any)["to"]; to != "(holdout)" || held["conversion_rate_difference"] != nil || held["click_rate"] != nil || held["difference_to_first"] != nil || a["difference_to_first"] != nil {
		t.Errorf("compared with %v; the holdout: %v", to, held)
	}
	c.tables.hours = c.tables.hours[:6]
	testReportRest(t, c)
}

// testReportRest asks for reports without a holdout, and for wrong ones.
func testReportRest(t *testing.T, c *campaignAPI) {
	t.Helper()
	got, _ := c.send(t, "GET", "/popups/campaigns/1/report?from=2026-05-01T10:00:00Z&to=2026-05-01T14:00:00Z", "", 200)
	if b := got["variants"].([]any)[1].(map[string]any); b["conversion_rate_difference"].(map[string]any)["to"] != "a" || b["difference_to_first"].(map[string]any)["to"] != "a" {
		t.Errorf("without a holdout: %v", b)
	}
	for _, query := range []string{"from=x", "to=1", "from=2026-05-01T10:00:00Z&to=2026-05-01T10:00:00Z", "from=2024-05-01T10:00:00Z&to=2026-05-01T10:00:00Z"} {
		c.send(t, "GET", "/popups/campaigns/1/report?"+query, "", 400)
	}
	c.send(t, "GET", "/popups/campaigns/9/report", "", 404)
	if got, _ := c.send(t, "GET", "/popups/campaigns/1/report", "", 200); len(got["hours"].([]any)) != 0 {
		t.Errorf("since it was created: %v", got)
	}
}

// The history says who has changed what, the newest change first.
func TestHistory(t *testing.T) {
	t.Parallel()
	c := startCampaigns(t)
	c.config.Tokens = []Token{{"Ed", "token-of-ed", RoleEdit}}
	c.base = start(t, c.config)
	bearer := []string{"Authorization", "Bearer token-of-ed"}
	c.send(t, "POST", "/popups/campaigns", birthday, 201, bearer...)
	c.send(t, "POST", "/popups/campaigns/1/pause", "", 200, bearer...)
	got, _ := c.send(t, "GET", "/popups/campaigns/1/history", "", 200, bearer...)
	var changes []string
	for _, one := range got["changes"].([]any) {
		one := one.(map[string]any)
		campaign := one["campaign"].(map[string]any)
		if _, counted := campaign["shows"]; counted || campaign["name"] != "birthday" {
			t.Errorf("campaign: %v", campaign)
		}
		changes = append(changes, fmt.Sprintf("%v %v %v", one["version"], one["by"], campaign["status"]))
	}
	if diff := cmp.Diff([]string{"2 Ed paused", "1 Ed active"}, changes); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if got, _ := c.send(t, "GET", "/popups/campaigns/1/history?limit=1", "", 200, bearer...); len(got["changes"].([]any)) != 1 {
		t.Errorf("limit: %v", got)
	}
	c.send(t, "GET", "/popups/campaigns/1/history?limit=0", "", 400, bearer...)
}

// A user is forgotten by the admin role, and by the client of the command.
func TestForgetUser(t *testing.T) {
	t.Parallel()
	c := startCampaigns(t)
	c.config.Tokens = []Token{{"Ed", "token-of-ed", RoleEdit}, {"Ann", "token-of-ann", RoleAdmin}}
	address := strings.TrimPrefix(start(t, c.config), "http://")
	done, err := ForgetUser(t.Context(), address, "token-of-ann", "007")
	if err != nil || done != (Forgotten{User: "7", States: 2, Rows: 31}) {
		t.Errorf("%+v %v", done, err)
	}
	if _, err := ForgetUser(t.Context(), address, "token-of-ed", "7"); err == nil || !strings.Contains(err.Error(), "403 Forbidden: this requires a token with the role admin") {
		t.Errorf("another role: %v", err)
	}
	if _, err := ForgetUser(t.Context(), address, "token-of-ann", "a/b?c"); !errors.Is(err, popup.ErrRequest) {
		t.Errorf("no id: %v", err)
	}
	c.config.Popups.Forget = func(_ context.Context, user string) (Forgotten, error) { return Forgotten{User: user}, nil }
	for _, user := range []string{".", "..", "a/../b", "a//b", " ", "%2e", "ü?#"} {
		if done, err := ForgetUser(t.Context(), address, "token-of-ann", user); err != nil || done.User != user {
			t.Errorf("user %q: %+v %v", user, done, err)
		}
	}
}
