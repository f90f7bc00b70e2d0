package popuptest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// popupList uploads a list of users and expects a status.
func popupList(t *testing.T, s *apptest.Spillway, name, ids string, want int) string {
	t.Helper()
	status, body, _, err := apptest.SendJSON(t.Context(), http.DefaultClient, http.MethodPut, s.Admin+"/popups/lists/"+name, ids, "Content-Type", "text/plain")
	if err != nil || status != want {
		t.Fatalf("list %s: %d %s, %v", name, status, body, err)
	}
	return string(body)
}

// TestPopupLists: a list that is uploaded to one replica decides on both, in the database's
// latest version. A list by SQL follows its table on each.
func TestPopupLists(t *testing.T) {
	t.Parallel()
	database, store := postgres.Get(t).CreateDatabase(t), apptest.Redis(t)
	query := storetest.PostgresQuery(database)
	query(t, "CREATE TABLE members (id text)")
	query(t, "INSERT INTO members VALUES ('007'), (NULL), ('x')")
	const lists = "  lists: {member: SELECT id FROM members}\n  lists_refresh: 1s\n"
	var replicas []*apptest.Spillway
	for range 2 {
		s := apptest.Serve(t, binary.Path(t), "--database", database, "--redis", store.URL(""), apptest.PopupConfig(t, popupRedis+"  user_type: integer\n"+lists))
		s.WaitReady(t)
		replicas = append(replicas, s)
	}
	first, second := replicas[0], replicas[1]
	const campaign = `{"name":"vip","placement":"home","payload":1,"status":"active","target":"in_list(\"vip\")"}`
	apptest.SendCampaign(t, first, "POST", "/popups/campaigns", campaign, 422)
	if body := popupList(t, first, "vip", "7\n\nx\n", 422); !strings.Contains(body, `"line":3`) {
		t.Errorf("a wrong id: %s", body)
	}
	if body := popupList(t, first, "vip", "007\r\n8\n", 200); !strings.HasPrefix(body, `{"name":"vip","version":1,"users":2,"replaced_at":"`) {
		t.Errorf("%s", body)
	}
	apptest.SendCampaign(t, first, "POST", "/popups/campaigns", campaign, 201)
	expect := func(s *apptest.Spillway, user int, want string, more ...string) {
		t.Helper()
		expectReason(t, s, fmt.Sprint("user=", user)+strings.Join(more, ""), want)
	}
	expect(second, 7, "200 1 first")
	expect(second, 9, "204 0 none-suits")
	popupList(t, second, "vip", "9\n", 200)
	expect(first, 9, "200 1 first")
	expect(first, 8, "204 0 none-suits")
	if n := apptest.Metric(t, first, `spillway_popup_list_users{list="vip"}`); n != 1 {
		t.Errorf("%v users", n)
	}
	apptest.SendCampaign(t, second, "DELETE", "/popups/lists/vip", "", 409)
	if text := string(popupGet(t, second, "/popups/lists")); !strings.Contains(text, `{"name":"vip","version":3,"users":1,"replaced_at":"`) {
		t.Errorf("%s", text)
	}
	apptest.SendCampaign(t, first, "POST", "/popups/campaigns", `{"name":"member","placement":"checkout","payload":1,"status":"active","target":"in_list(\"member\")"}`, 201)
	expect(second, 7, "200 2 first", "&placement=checkout")
	expect(first, 5, "204 0 none-suits", "&placement=checkout")
	query(t, "UPDATE members SET id = '5'")
	expect(first, 5, "200 2 first", "&placement=checkout")
	if body := popupList(t, first, "member", "8\n", 422); !strings.Contains(body, "popups.lists") {
		t.Errorf("an upload of a list by SQL: %s", body)
	}
}
