package popuptest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/exit"
)

// popupReport is a report of a campaign, as far as tests read it.
type popupReport struct {
	Variants []struct {
		Variant                                                 string
		Shows, Users, Clicks, Dismissals, Withheld, Conversions int
		Difference                                              *struct{ To string } `json:"conversion_rate_difference"`
	}
}

// String returns the totals, one variant after the other.
func (r popupReport) String() string {
	var parts []string
	for _, v := range r.Variants {
		to := "-"
		if v.Difference != nil {
			to = v.Difference.To
		}
		parts = append(parts, fmt.Sprintf("%s: shows %d users %d clicks %d withheld %d conversions %d to %s", v.Variant, v.Shows, v.Users, v.Clicks, v.Withheld, v.Conversions, to))
	}
	return strings.Join(parts, "; ")
}

// TestPopupReport: a campaign with variants and a holdout, as a client and a marketer see it,
// and a user who is forgotten by the running process and by the command alone.
func TestPopupReport(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		for range 5 {
			if testPopupReport(t, "sqlite:"+filepath.Join(t.TempDir(), "db"), "") {
				return
			}
		}
		t.Error("the log of shows was late five times")
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		for range 5 {
			if testPopupReport(t, postgres.Get(t).CreateDatabase(t), "redis: "+apptest.Redis(t).URL("")+"\n") {
				return
			}
		}
		t.Error("Redis was late five times")
	})
}

// testPopupReport returns false if it must be repeated: a store that is late on a busy machine
// gets a user 503, and nobody knows what will be in the report.
func testPopupReport(t *testing.T, database, redis string) bool {
	t.Helper()
	more := "  user_type: integer\n"
	if redis != "" {
		more += "  store: redis\n  keys: [0123456789abcdef0123456789abcdef]\n"
	}
	data := filepath.Join(t.TempDir(), "data")
	rest := fmt.Sprintf("data: %s\ndatabase: %q\n%sadmin: {listen: \"127.0.0.1:1\", tokens: [{name: Ed, token: token-of-ed-0123456789, role: admin}]}\n", data, database, redis)
	file := apptest.PopupConfig(t, "  timeout: 1m\n"+more+rest)
	s := apptest.Serve(t, binary.Path(t), "--data", data, file)
	s.WaitReady(t)
	bearer := []string{"Authorization", "Bearer token-of-ed-0123456789"}
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", `{"name":"a","placement":"home","payload":0,"status":"active","holdout":40,
		"variants":[{"name":"big","weight":1,"payload":1},{"name":"small","weight":1,"payload":2}]}`, 201, bearer...)
	counts := map[string]int{}
	for user := range 40 {
		a := apptest.Fetch(t, s.URL(fmt.Sprintf("popup?user=%d", user)))
		if a.Status == 503 {
			t.Logf("user %d: %d %s", user, a.Status, a.Body)
			return false
		}
		var shown struct{ Variant, Show string }
		if a.Status == 200 {
			if err := json.Unmarshal(a.Body, &shown); err != nil {
				t.Fatal(err)
			}
		} else {
			shown.Variant, shown.Show = "(holdout)", a.Header.Get("Spillway-Show")
		}
		if shown.Show == "" {
			t.Fatalf("user %d: %d %v %s, want a popup or a holdout, with a token", user, a.Status, a.Header, a.Body)
		}
		counts[shown.Variant]++
		for range 2 { // the second one is not counted
			postShow(t, s.URL("popup/convert"), shown.Show)
		}
	}
	var parts []string
	for _, name := range []string{"big", "small"} {
		n := counts[name]
		parts = append(parts, fmt.Sprintf("%s: shows %d users %d clicks 0 withheld 0 conversions %d to (holdout)", name, n, n, n))
	}
	n := counts["(holdout)"]
	want := strings.Join(append(parts, fmt.Sprintf("(holdout): shows 0 users %d clicks 0 withheld %d conversions %d to -", n, n, n)), "; ")
	apptest.AwaitState(t, "the report is "+want, func() (string, bool) {
		var got popupReport
		err := json.Unmarshal(popupGet(t, s, "/popups/campaigns/1/report", bearer...), &got)
		return got.String(), err == nil && got.String() == want
	})
	if text := popupGet(t, s, "/popups/campaigns/1/history", bearer...); !strings.Contains(string(text), `"by":"Ed"`) {
		t.Errorf("history: %s", text)
	}
	testPopupForget(t, s, file)
	return true
}

// popupGet returns what the admin listener answers.
func popupGet(t *testing.T, s *apptest.Spillway, path string, headers ...string) []byte {
	t.Helper()
	_, body, _, err := apptest.SendJSON(t.Context(), http.DefaultClient, http.MethodGet, s.Admin+path, "", headers...)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// testPopupForget forgets a user of s, who has a state and two events. Without a process the
// command says what to do.
func testPopupForget(t *testing.T, s *apptest.Spillway, file string) {
	t.Helper()
	forget := func(args ...string) string {
		t.Helper()
		out, errs, code := binary.Run(t, append([]string{"popups", "forget", "--config", file}, args...)...)
		if code != exit.OK {
			t.Fatalf("%v: exit code %d\n%s", args, code, errs)
		}
		return out
	}
	if got := forget("07", "--admin", strings.TrimPrefix(s.Admin, "http://")); got != "user 7: 1 states and 3 rows deleted\n" {
		t.Error(got)
	}
	if reason := decided(t, s, "user=7"); reason != "200 1 first" && reason != "204 0 held-out" {
		t.Errorf("a forgotten user is a new one: %s", reason)
	}
	admin := strings.TrimPrefix(s.Admin, "http://")
	if got := forget("8", "--admin", admin); got != "user 8: 1 states and 3 rows deleted\n" {
		t.Error(got)
	}
	if got := forget("8", "--admin", admin); got != "user 8: 0 states and 0 rows deleted\n" {
		t.Error(got)
	}
	if _, errs, code := binary.Run(t, "popups", "forget", "x", "--config", file, "--admin", admin); code != exit.Usage || !strings.Contains(errs, "whole number") {
		t.Errorf("an id that is no number: exit code %d\n%s", code, errs)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	_, errs, code := binary.Run(t, "popups", "forget", "8", "--config", file, "--admin", admin)
	if code != exit.Usage || !strings.Contains(errs, "no process answers at "+admin+": start the server") || strings.Count(errs, "\n") != 1 {
		t.Errorf("without a process: exit code %d\n%s", code, errs)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	if reason := decided(t, s, "user=8"); reason != "200 1 first" && reason != "204 0 held-out" {
		t.Errorf("a user who was forgotten before it stopped: %s", reason)
	}
	if reason := decided(t, s, "user=9"); reason != "204 0 wait-shown" && reason != "204 0 none-left" {
		t.Errorf("another user: %s", reason)
	}
}
