package console

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway/internal/serve/admin"
	"spillway/internal/serve/popup"
)

func TestOverview(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.want(s.get("/"), http.StatusOK, "Everything serves", "/goodslist", "500 ms old", "spool", "1 GiB")
	s.want(s.do("GET", "/", "", "Accept", "*/*"), http.StatusOK, "Spillway, admin listener")
	index := "the plan sorts orders: run CREATE INDEX orders_by_id ON orders (lower(a), id DESC), or set plan: accept <script>"
	s.parts.Store(&[]admin.Part{
		{Name: "/goodslist", Group: admin.Reads, Reason: "cannot start", Detail: index, Since: time.Now()},
		{Name: "POST /positions", Group: admin.Writes, Serves: true, Reason: "nearly full", Detail: "nearly full: 90 bytes", Since: time.Now()},
	})
	s.want(s.get("/"), http.StatusOK, "1 of 2 parts do not serve", index, "<code>CREATE INDEX orders_by_id ON orders (lower(a), id DESC);</code>",
		"nearly full: 90 bytes")

	request, err := http.NewRequestWithContext(t.Context(), "GET", s.base+"/console/live", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := s.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for want := "1 of 2 parts"; lines.Scan(); {
		text, isData := strings.CutPrefix(lines.Text(), "data: ")
		var event tick
		if !isData {
			continue
		}
		if err := json.Unmarshal([]byte(text), &event); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(event.Pieces["headline"], want) {
			if want == "Everything serves" {
				break
			}
			want = "Everything serves"
			s.parts.Store(&[]admin.Part{})
		}
	}
	if err := lines.Err(); err != nil {
		t.Error(err)
	}
	if s.console.live.Add(liveMax) < liveMax {
		t.Error("the stream is not counted")
	}
	s.want(s.get("/console/live"), http.StatusServiceUnavailable, "Too many pages")
}

func TestLetters(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.want(s.get("/console/spools/streams/dead"), http.StatusOK, "No dead letter matches.")
	s.want(s.get("/console/spools/nothing/dead"), http.StatusNotFound, "there is no such spool")
	long := `["` + strings.Repeat("😀<b>", 10_000) + `"]`
	s.bury("/old", append(numbered(250, `[%d]`), `["?"]`, long)...)
	const list = "/console/spools/streams/dead"
	page := s.get(list)
	s.want(page, http.StatusOK, "no <b>luck</b>", `Refused <span class="badge">251`, `In doubt <span class="badge">1`)
	seen := 0
	for pages := 1; ; pages++ {
		seen += strings.Count(page.body, `name="id"`)
		next := regexp.MustCompile(`<a href="([^"]+)" rel="next"`).FindStringSubmatch(page.body)
		if next == nil {
			if pages != 3 || seen != 251 {
				t.Errorf("%d pages with %d", pages, seen)
			}
			break
		}
		page = s.get(list + next[1])
	}
	s.want(s.get(list+"?in_doubt=true"), http.StatusOK, `[&#34;?&#34;]`, "may store it twice")
	s.want(s.get(list+"?reason=nothing"), http.StatusOK, "No dead letter matches.")
	s.want(s.get(list+"?since=x"), http.StatusBadRequest, "is not a time")
	s.want(s.get(list+"?since=2000-01-01T00:00&until=2000-01-02T00:00:00"), http.StatusOK, "No dead letter matches.")
	if a := s.get("/console/spools/streams/export?reason=luck"); strings.Count(a.body, "\n") != 251 || !strings.HasPrefix(a.header.Get("Content-Disposition"), "attachment") {
		t.Errorf("the export has %d lines, %v", strings.Count(a.body, "\n"), a.header)
	}

	ids := regexp.MustCompile(`name="id" value="(\d+)"`).FindAllStringSubmatch(s.get(list).body, 2)
	some := url.Values{"which": {"selected"}, "id": {ids[0][1], ids[1][1]}}
	const retry, discard = "/console/spools/streams/retry", "/console/spools/streams/discard"
	s.want(s.post(retry, url.Values{"which": {"selected"}}), http.StatusBadRequest, "No dead letter is selected")
	s.want(s.post("/console/spools/streams/move", some), http.StatusNotFound)
	s.want(s.follow(s.post(retry, some)), http.StatusOK, "2 dead letters wait again", `Refused <span class="badge">249`)
	s.want(s.post(discard, some), http.StatusOK, "Discard 0 dead letters?")
	filter := url.Values{"which": {"all"}, "reason": {"luck"}}
	asks := s.post(discard, filter)
	s.want(asks, http.StatusOK, "Discard 249 dead letters?", `name="reason" value="luck"`)
	filter.Set("upto", regexp.MustCompile(`name="upto" value="(\d+)"`).FindStringSubmatch(asks.body)[1])
	s.bury("/late", `["nobody has seen it"]`)
	filter.Set("confirm", "1")
	s.want(s.post(discard, filter), http.StatusOK, "That is not the number", "Type 249 to confirm")
	filter.Set("confirm", "249")
	s.want(s.follow(s.post(discard, filter)), http.StatusOK, "249 dead letters were discarded", `Refused <span class="badge">1`, "nobody has seen it")
	doubt := url.Values{"which": {"all"}, "in_doubt": {"true"}}
	s.want(s.post(retry, doubt), http.StatusOK, "Retry 1 dead letters?", "may be stored twice")
	doubt.Set("confirm", "1")
	s.want(s.follow(s.post(retry, doubt)), http.StatusOK, "1 dead letters wait again", `In doubt <span class="badge">0`)
	s.want(s.get("/console/streams"), http.StatusOK, "Spool of streams", "no stream drains it", "/positions", "schema: 3")
}

// Large dead letters fill a page sooner than 100 of them: the others are on the next one.
func TestLargeLetters(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.bury("/old", slices.Repeat([]string{`["` + strings.Repeat("x", 3<<20) + `"]`}, 4)...)
	page := s.get("/console/spools/streams/dead")
	next := regexp.MustCompile(`<a href="([^"]+)" rel="next"`).FindStringSubmatch(page.body)
	if next == nil {
		t.Fatalf("the page shows %d of 4 dead letters, and leads to no other", strings.Count(page.body, `name="id"`))
	}
	page = s.get("/console/spools/streams/dead" + unescape(next[1]))
	if n := strings.Count(page.body, `name="id"`); n != 2 || strings.Contains(page.body, `rel="next"`) {
		t.Errorf("the next page has %d", n)
	}
}

func campaignValues(name string) url.Values {
	return url.Values{
		"name": {name}, "placement": {"home"}, "target": {"age > 17"}, "payload": {`{"title":"Hi"}`}, "rollout": {"100"}, "holdout": {"0"},
		"priority": {"0"}, "order": {"0"}, "cap": {"0"}, "status": {"draft"},
	}
}

func with(form url.Values, pairs ...string) url.Values {
	for i := 0; i < len(pairs); i += 2 {
		form[pairs[i]] = append(form[pairs[i]][:0:0], pairs[i+1])
	}
	return form
}

// formValues returns what the form of a page would send.
func formValues(page string) url.Values {
	form := url.Values{}
	_, page, _ = strings.Cut(page, `class="sides"`)
	page, _, _ = strings.Cut(page, `<template`)
	for _, m := range regexp.MustCompile(`<input[^>]* name="(\w+)"(?: inputmode="\w+")? value="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		form.Add(m[1], unescape(m[2]))
	}
	for _, m := range regexp.MustCompile(`(?s)<textarea[^>]* name="(\w+)"[^>]*>(.*?)</textarea>`).FindAllStringSubmatch(page, -1) {
		form.Add(m[1], unescape(m[2]))
	}
	for _, m := range regexp.MustCompile(`(?s)<select id="(\w+)".*?<option(?: value="\w+")? selected>(\w+)`).FindAllStringSubmatch(page, -1) {
		form.Add(m[1], m[2])
	}
	return form
}

func unescape(text string) string {
	return strings.NewReplacer("&#34;", `"`, "&lt;", "<", "&gt;", ">", "&#39;", "'", "&#43;", "+", "&amp;", "&").Replace(text)
}

func TestCampaignForm(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.want(s.get("/console/campaigns"), http.StatusOK, "No campaign.")
	s.want(s.get("/console/campaigns/new"), http.StatusOK, "age &gt;= 18", "city == &#34;text&#34;", "Nothing is wrong.")
	s.want(s.get("/console/campaigns/7"), http.StatusNotFound, "there is no campaign 7")
	endless := strings.Repeat("<b>😀", 2500)
	wrong := with(campaignValues(endless), "target", "true &&\n agee > 1", "payload", "{\n}}", "rollout", "many", "start", "soon")
	a := s.post("/console/campaigns/new", wrong)
	s.want(a, http.StatusUnprocessableEntity, "the payload is not JSON: line 2", endless)
	a = s.post("/console/campaigns/new", with(wrong, "payload", "{}"))
	s.want(a, http.StatusUnprocessableEntity, "name must be UTF-8 text", "rollout must be a number", "start must be a time", "agee &gt; 1\n ^", endless)
	checked := s.post("/console/campaigns/check", wrong, "HX-Request", "true")
	if s.want(checked, http.StatusOK, "agee"); strings.Contains(checked.body, "<html") {
		t.Error("the fragment is a page")
	}
	name := `<script>alert(1)</script> 😀 "quoted"`
	made := s.follow(s.post("/console/campaigns/new", with(campaignValues(name), "start", "2026-01-02T03:04:05", "quiet_click", "36h", "payload", `{"title":"<&> \\u0026"}`, "testers", "5\r\n6\r\n")))
	s.want(made, http.StatusOK, "Created.", name, "draft", "Start showing it")
	if strings.Contains(made.body, "<script>alert") {
		t.Error("a name is markup")
	}
	form := formValues(made.body)
	form.Set("tz", "Asia/Shanghai")
	s.want(s.post("/console/campaigns/1", with(form, "add", "1")), http.StatusOK, `value="2026-01-02T03:04:05"`, "In Asia/Shanghai.")
	form.Del("tz")
	form.Del("add")
	for field, want := range map[string]string{
		"start": "2026-01-02T03:04:05", "quiet_click": "36h", "testers": "5\n6", "payload": "{\n  \"title\": \"<&> \\\\u0026\"\n}", "name": name, "placement": "home",
	} {
		if form.Get(field) != want {
			t.Errorf("%s is %q", field, form.Get(field))
		}
	}
	s.want(s.follow(s.post("/console/campaigns/1", form)), http.StatusOK, "Saved.")
	history := s.get("/console/campaigns/1/history")
	s.want(history, http.StatusOK, "Nothing differs.", "Somebody without a token")
	more := s.post("/console/campaigns/1", with(formValues(s.get("/console/campaigns/1").body), "add", "variant"))
	s.want(more, http.StatusOK, `name="variant_weight"`)
	form = formValues(s.get("/console/campaigns/1").body)
	form["variant_name"], form["variant_weight"], form["variant_payload"] = []string{"a", "b", ""}, []string{"1", "3", "1"}, []string{"1", "[2]", ""}
	s.want(s.follow(s.post("/console/campaigns/1", form)), http.StatusOK, "Variant b")
	s.want(s.get("/console/campaigns"), http.StatusOK, "b: 75.0 %")
	s.want(s.get("/console/campaigns/1/report"), http.StatusOK, "Nothing has happened yet.")
}

// Two people edit one campaign: each change is kept, and what both have changed is shown.
func TestConflict(t *testing.T) {
	t.Parallel()
	s := start(t, threeTokens()...)
	s.logIn(tokenOfEdit)
	page := s.follow(s.post("/console/campaigns/new", campaignValues("Spring")))
	mine, theirs := formValues(page.body), formValues(page.body)
	s.logIn(tokenOfAdmin)
	s.follow(s.post("/console/campaigns/1", with(theirs, "name", "Theirs", "target", "age > 20", "cap", "5")))
	s.logIn(tokenOfEdit)
	a := s.post("/console/campaigns/1", with(mine, "name", "Mine", "cap", "5", "rollout", "50"))
	s.want(a, http.StatusConflict, "ada has saved this campaign meanwhile", "Saved by somebody else: <pre>Theirs</pre>")
	merged := formValues(a.body)
	for field, want := range map[string]string{"name": "Mine", "target": "age > 20", "cap": "5", "rollout": "50"} {
		if merged.Get(field) != want {
			t.Errorf("%s is %q", field, merged.Get(field))
		}
	}
	if n := strings.Count(a.body, "Saved by somebody else"); n != 1 {
		t.Errorf("%d conflicts", n)
	}
	s.want(s.follow(s.post("/console/campaigns/1", merged)), http.StatusOK, "Saved.", "Mine")
	s.want(s.post("/console/campaigns/1/pause", url.Values{"version": {mine.Get("version")}}), http.StatusPreconditionFailed, "has been changed meanwhile")

	history := s.get("/console/campaigns/1/history")
	s.want(history, http.StatusOK, "ed", "ada", "before: Theirs", "after: Mine")
	restore := regexp.MustCompile(`name="version" value="(\d+)"><input type="hidden" name="restore" value="(\d+)"`).FindAllStringSubmatch(history.body, -1)
	first := restore[len(restore)-1]
	s.want(s.follow(s.post("/console/campaigns/1/restore", url.Values{"version": {first[1]}, "restore": {first[2]}})), http.StatusOK, "Restored.", "Spring")
}

func TestCampaignStatus(t *testing.T) {
	t.Parallel()
	s := start(t)
	page := s.follow(s.post("/console/campaigns/new", with(campaignValues("A"), "status", "active")))
	version := func() string { return formValues(page.body).Get("version") }
	page = s.follow(s.post("/console/campaigns/1/pause", url.Values{"version": {version()}}))
	s.want(page, http.StatusOK, "It is paused.")
	page = s.follow(s.post("/console/campaigns/1/resume", url.Values{"version": {version()}}))
	s.want(page, http.StatusOK, "It runs now.", "running")
	s.want(s.post("/console/campaigns/1/archive", url.Values{"version": {version()}, "confirm": {"yes"}}), http.StatusBadRequest, "type \"archive\"")
	page = s.follow(s.post("/console/campaigns/1/archive", url.Values{"version": {version()}, "confirm": {"archive"}}))
	s.want(page, http.StatusOK, "It is archived.")
	lost := with(campaignValues("What I typed"), "version", version())
	s.want(s.post("/console/campaigns/1", lost), http.StatusConflict, "Nothing is saved yet: the campaign is archived", `value="What I typed"`)
	s.want(s.get("/console/campaigns"), http.StatusOK, "No campaign.")
	s.want(s.get("/console/campaigns?status=archived"), http.StatusOK, "/console/campaigns/1")
	s.want(s.post("/console/campaigns/1/delete", nil), http.StatusNotFound)
}

func TestLists(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.want(s.follow(s.upload("vip", "1\r\n2\n3\n")), http.StatusOK, "The list was replaced.", "in_list", ">3<")
	s.want(s.upload("vip", "1\nx\n"), http.StatusUnprocessableEntity, "line 2")
	s.want(s.upload("", "1\n"), http.StatusBadRequest, "Name the list")
	s.want(s.post("/console/lists", nil), http.StatusBadRequest, "Choose a file")
	s.want(s.post("/console/lists/delete", url.Values{"list": {"vip"}, "confirm": {"VIP"}}), http.StatusBadRequest, "type the name")
	s.want(s.follow(s.post("/console/lists/delete", url.Values{"list": {"vip"}, "confirm": {"vip"}})), http.StatusOK, "There is none.")
}

// The order of campaigns is changed with buttons, also of 1,000.
func TestMove(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, name := range []string{"A", "B", "C"} {
		s.follow(s.post("/console/campaigns/new", campaignValues(name)))
	}
	order := func(page answered) string {
		var names []string
		for _, m := range regexp.MustCompile(`/console/campaigns/\d+">(\w)<`).FindAllStringSubmatch(page.body, -1) {
			names = append(names, m[1])
		}
		return strings.Join(names, "")
	}
	move := func(id, direction string, headers ...string) answered {
		return s.post("/console/campaigns/"+id+"/move", url.Values{"placement": {"home"}, "direction": {direction}, "page": {"0"}}, headers...)
	}
	fragment := move("3", "up", "HX-Request", "true")
	if s.want(fragment, http.StatusOK, "Moved to place 2."); order(fragment) != "ACB" || strings.Contains(fragment.body, "<html") {
		t.Errorf("%s: %s", order(fragment), fragment.body)
	}
	if page := s.follow(move("1", "down")); order(page) != "CAB" {
		t.Error(order(page))
	}
	if page := s.follow(move("2", "down")); order(page) != "CAB" {
		t.Error("the last one was moved")
	}
	s.want(move("9", "up"), http.StatusNotFound)
}

func TestMoveUp(t *testing.T) {
	for range 2000 {
		all := make([]campaign, 2+rand.IntN(8))
		for i := range all {
			all[i].ID, all[i].Priority, all[i].Order = popup.CampaignID(i+1), rand.Int32N(2), rand.Int32N(3)
		}
		slices.SortFunc(all, compareOrder)
		i := 1 + rand.IntN(len(all)-1)
		want := idsOf(all)
		want[i-1], want[i] = want[i], want[i-1]
		after := slices.Clone(all)
		for _, m := range moveUp(all, i) {
			k := slices.IndexFunc(after, func(c campaign) bool { return c.ID == m.ID })
			after[k].Priority, after[k].Order = m.Priority, m.Order
		}
		if slices.SortFunc(after, compareOrder); !slices.Equal(idsOf(after), want) {
			t.Fatalf("%+v: moved %d, got %v, want %v", all, i, idsOf(after), want)
		}
	}
}

func idsOf(all []campaign) []string {
	var ids []string
	for _, c := range all {
		ids = append(ids, fmt.Sprint(c.ID))
	}
	return ids
}
