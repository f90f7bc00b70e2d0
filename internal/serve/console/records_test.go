package console

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"spillway/internal/serve/admin"
	"spillway/internal/serve/audit"
	"spillway/internal/serve/popup"
)

// A marketer sees why one user gets a campaign before it is active, and tests it on the user.
func TestUser(t *testing.T) {
	t.Parallel()
	s := start(t, threeTokens()...)
	s.logIn(tokenOfEdit)
	s.want(s.get("/console/users"), http.StatusOK, "One user", "attribute.city")
	s.want(s.get("/console/users?user=x"), http.StatusBadRequest, "user must be")
	s.want(s.get("/console/users?user=7&attribute.age=y&at=z"), http.StatusBadRequest, "age must be", "at must be")
	s.want(s.get("/console/users?user=7"), http.StatusOK, "Nothing was shown to this user yet", "At checkout", "There is no campaign")
	form := campaignValues("Spring <b>")
	s.follow(s.post("/console/campaigns/new", form))
	check := func(age, want string) {
		t.Helper()
		asked := with(formValues(s.get("/console/campaigns/1").body), "user", "7", "attribute.age", age)
		s.want(s.post("/console/campaigns/check", asked, "HX-Request", "true"), http.StatusOK, "User 7, if it were active: "+want)
		s.want(s.get("/console/campaigns/1?user=7&attribute.age="+age), http.StatusOK, "User 7, if it were active: "+want)
	}
	check("18", "The user gets it.")
	check("17", "Its target does not match: age > 17 does not hold.")
	s.want(s.post("/console/campaigns/check", with(form, "user", "x")), http.StatusOK, "user must be")

	page := s.get("/console/users?user=7&attribute.age=17&at=2026-01-02T03:04")
	s.want(page, http.StatusOK, "It is a draft, and the user is none of its testers. If it were active, this user would not get it either: age > 17 does not hold.")
	version := regexp.MustCompile(`name="version" value="(\d+)"`)
	test := func(page answered) answered {
		t.Helper()
		return s.post("/console/users/test", url.Values{"user": {"7"}, "campaign": {"1"}, "version": {version.FindStringSubmatch(page.body)[1]}})
	}
	next := s.follow(test(page))
	s.want(next, http.StatusOK, "tester of the draft now", "The user gets it.", "Stop the test")
	s.want(test(page), http.StatusPreconditionFailed, "has been changed meanwhile")
	a := s.popups.Popup.Attributes()
	defer s.popups.Popup.Release(a)
	shown, err := s.popups.Popup.Ask(t.Context(), popup.Key{User: "7", Placement: "home"}, a, time.Now())
	if err != nil || shown.Reason != popup.Test {
		t.Fatalf("%+v, %v", shown, err)
	}
	if err := s.popups.Popup.Click(t.Context(), shown.Token, "7", time.Now()); err != nil {
		t.Fatal(err)
	}
	page = s.get("/console/users?user=7")
	s.want(page, http.StatusOK, "The last popup was of campaign 1", "and clicked at", "The user clicked it at", "it does not start over", "click at")
	s.want(s.follow(test(page)), http.StatusOK, "no tester any more")

	s.logIn(tokenOfAdmin)
	s.want(s.get("/console/users?user=7"), http.StatusOK, "Forget this user")
	s.want(s.post("/console/users/forget", url.Values{"user": {"7"}, "confirm": {"8"}}), http.StatusBadRequest, "type the id")
	s.want(s.follow(s.post("/console/users/forget", url.Values{"user": {"7"}, "confirm": {"7"}})), http.StatusOK, "All that was known")
	s.want(s.get("/console/changes"), http.StatusOK, "created a campaign", "changed a campaign", "deleted what was known about a user", "Spring <b>", "127.0.0.1")
}

func TestWhy(t *testing.T) {
	v := &view{zone: time.UTC}
	pages := New(Config{}).pages["user"]
	why := func(e popup.Explanation) string {
		t.Helper()
		var out strings.Builder
		if err := pages.ExecuteTemplate(&out, "why", v.Why(e, popup.Active)); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	at := popup.Moment{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	for want, e := range map[string]popup.Explanation{
		"It is archived.": {Verdict: popup.IsArchived}, "Nobody gets it: x.": {Verdict: popup.HasProblem, Problem: "x"},
		"It is paused. If it were active, this user would not get it either: x.":                            {Verdict: popup.IsPaused, Problem: "x"},
		"It ended at 2026-01-02 03:04:05 UTC.":                                                              {Verdict: popup.HasEnded, At: at},
		"The user dismissed it at 2026-01-02 03:04:05 UTC. It starts over at 2026-01-02 03:04:05 UTC.":      {Verdict: popup.WasDismissed, At: at, LastAt: at},
		"The user was shown it 3 times, the most that it allows, and it does not start over for this user.": {Verdict: popup.IsCapped, Shows: 3},
		"It starts at 2026-01-02 03:04:05 UTC.":                                                             {Verdict: popup.NotStarted, At: at},
		"The user is outside its rollout.":                                                                  {Verdict: popup.NotForUser},
		"It matches, but nothing is shown to this user any more: a quiet period without end.":               {Verdict: popup.UserWaits},
		"It matches, but another campaign comes first.":                                                     {Verdict: popup.BehindOthers},
		"It matches, but the user is in its holdout and gets nothing.":                                      {Verdict: popup.IsHeldOut},
		"The user gets it: variant a.":                                                                      {Verdict: popup.IsGiven, Variant: "a"},
		"new-one":                                                                                           {Verdict: "new-one"},
	} {
		if got := why(e); got != want {
			t.Errorf("%s: %q, want %q", e.Verdict, got, want)
		}
	}
	if got := why(popup.Explanation{Verdict: popup.WasWithheld, LastAt: at, At: at}); !strings.Contains(got, "holdout") {
		t.Error(got)
	}
}

func TestConfiguration(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.want(s.get("/console/configuration"), http.StatusOK, "/etc/<b>spillway.yaml", "listen: <b>", "The file says what is in force", ">Reload<")
	change := admin.SettingChange{Setting: "log.level", Now: "info", Next: "debug"}
	fixed := admin.SettingChange{Setting: "listen", Fixed: true, Now: "a", Next: "b"}
	s.pending.Store(&admin.Configuration{File: "f", Changes: []admin.SettingChange{change, fixed}})
	s.want(s.get("/console/configuration"), http.StatusOK, "log.level", "now: info", "in the file: debug", "requires a restart", "disabled>Reload")
	s.pending.Store(&admin.Configuration{File: "f", Problem: "line 3: x"})
	s.want(s.get("/console/configuration"), http.StatusOK, "line 3: x", "disabled>Reload")
	s.pending.Store(&admin.Configuration{File: "f", Changes: []admin.SettingChange{change}})
	s.want(s.follow(s.post("/console/reload", nil)), http.StatusOK, "reloaded: 1 settings have changed")
	s.pending.Store(&admin.Configuration{})
	s.want(s.get("/console/configuration"), http.StatusOK, "the built-in one")
	s.want(s.get("/console/changes"), http.StatusOK, "reloaded the configuration", "log.level", "without a token", "127.0.0.1")
}

func TestChanges(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.want(s.get("/console/changes"), http.StatusOK, "Nothing.")
	for i := range 120 {
		c := audit.Change{At: time.Now().Add(-time.Duration(i) * time.Minute), Author: audit.Author{By: "<b>", Request: "POST /spools/streams/retry"}, Detail: "a"}
		if i == 0 {
			c.Author.Request = "DELETE /popups/lists/vip"
		}
		if err := s.changes.AddChange(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	page := s.get("/console/changes?by=" + url.QueryEscape("<b>"))
	s.want(page, http.StatusOK, "deleted the list vip", "retried dead letters", "<b>")
	next := regexp.MustCompile(`<a href="([^"]+)" rel="next"`).FindStringSubmatch(page.body)
	older := s.get("/console/changes" + unescape(next[1]))
	if first, rest := strings.Count(page.body, "<tr>"), strings.Count(older.body, "<tr>"); first != 101 || rest != 21 || strings.Contains(older.body, "rel=\"next\"") {
		t.Errorf("%d and %d", first, rest)
	}
	s.want(s.get("/console/changes?text=nothing"), http.StatusOK, "Nothing.")
}
