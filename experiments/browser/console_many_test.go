//go:build browser

package browser

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// ask sends a request with the token of the admin, and returns its answer.
func ask(t *testing.T, method, url string, body []byte, kind string) []byte {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+tokens["admin"])
	r.Header.Set("Content-Type", kind)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode >= 300 {
		t.Fatalf("%s %s: %d %s, %v", method, url, response.StatusCode, text, err)
	}
	return text
}

// post returns the status of a form that a page of the console sends.
func (b *tab) post(path, body string) int {
	b.t.Helper()
	const send = "fetch('/console/%s', {method: 'POST', headers: {'Content-Type': 'application/x-www-form-urlencoded'}, body: '%s'}).then(r => r.status)"
	return eval[int](b, fmt.Sprintf(send, path, body))
}

// hostile is a name that pages must show as text.
const hostile = `<img src=x onerror="alert(1)"> 🚚 '"&amp;`

// An admin pauses, resumes and drops the value of a feed, and sees its plan.
func TestConsoleReads(t *testing.T) {
	s := startShop(t)
	b := open(t)
	b.logIn(s, "/console/reads", tokens["admin"])
	b.until("document.querySelector('tbody th a').textContent === '/orders'")
	b.inEachLook("feeds and queries")
	b.run(chromedp.Click("tbody th a"), chromedp.WaitVisible("table form button"))
	b.until("document.querySelector('details summary').textContent.includes('orders')")
	b.run(chromedp.Click("details summary"))
	b.inEachLook("feed")
	for _, step := range []struct{ button, state, done string }{
		{"pause", "paused", "Nothing of this value is read"}, {"resume", "idle", "It is read again."}, {"drop", "", "Its rows are forgotten."},
	} {
		b.run(chromedp.Click("button[formaction$=" + step.button + "]"))
		b.until("document.querySelector('.notice.good')?.textContent.includes(" + quote(step.done) + ")")
		b.until("(document.querySelector('tbody .badge')?.textContent ?? '') === " + quote(step.state))
	}
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	apptest.Fetch(t, s.URL("orders"))
	b.run(chromedp.Navigate(s.Admin+"/console/reads/one?path=/orders"), chromedp.Click("button[formaction$=pause]"), chromedp.WaitVisible("button[formaction$=resume]"))
}

// There are 1,000 campaigns with hostile names and payloads of 10,000 characters, and a list of a million ids.
func TestConsoleManyCampaigns(t *testing.T) {
	db := storetest.SQLiteDatabase(t)
	s := startShopOn(t, db)
	body, err := json.Marshal(map[string]any{
		"name": hostile, "placement": "home", "status": "paused", "payload": map[string]string{"title": strings.Repeat("<b>🚚</b> ", 1100)},
	})
	if err != nil {
		t.Fatal(err)
	}
	ask(t, http.MethodPost, s.Admin+"/popups/campaigns", body, "application/json")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	db.Query(t, `WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
		INSERT INTO popup_campaigns (id, name, placement, status, version, campaign)
		SELECT i, name || ' ' || i, iif(i % 2, 'side', 'home'), status, version, campaign FROM popup_campaigns, n WHERE id = 1`)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	b := open(t)
	b.logIn(s, "/console/campaigns", tokens["edit"])
	b.until("document.querySelectorAll('tbody tr').length >= 50")
	b.until("document.body.textContent.includes(" + quote(hostile) + ") && document.querySelector('main img') === null")
	b.inEachLook("many campaigns")
	b.run(chromedp.Click("tbody th a, tbody td a"), chromedp.WaitVisible("#payload"))
	b.until("document.getElementById('payload').value.length > 10000 && document.querySelector('main img') === null")
	b.run(chromedp.NavigateBack())
	b.until("document.querySelectorAll('tbody tr').length >= 50")

	var ids bytes.Buffer
	for i := range 1_000_000 {
		fmt.Fprintln(&ids, i+1)
	}
	file := filepath.Join(t.TempDir(), "vip.csv")
	if err := os.WriteFile(file, ids.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	b.run(chromedp.Navigate(s.Admin+"/console/lists"), chromedp.WaitVisible("#name"))
	b.set("#name", "vip")
	b.run(chromedp.SetUploadFiles("#file", []string{file}), chromedp.Click("form button.main"))
	b.until("document.body.textContent.includes('1,000,000')")
}

// Of 100,000 dead letters, an operator finds some by their reason, pages through them, and discards all.
func TestConsoleManyLetters(t *testing.T) {
	const letters = 100_000
	s := startShop(t)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	t.Cleanup(client.CloseIdleConnections)
	var group sync.WaitGroup
	for part := range 64 {
		group.Go(func() {
			for i := part; i < letters-1; i += 64 { // startShop makes one
				body := fmt.Sprintf(`{"id": %d, "name": "<b>bad</b>"}`, i+2)
				if a, err := apptest.TryPost(t.Context(), client, s.URL("orders"), body); err != nil || a.Status != 200 && a.Status != 202 {
					t.Errorf("%d %s, %v", a.Status, a.Body, err)
					return
				}
			}
		})
	}
	group.Wait()
	b := open(t)
	b.logIn(s, "/console/spools/streams/dead", tokens["admin"])
	b.until("fetch('/console/spools/streams/dead').then(r => r.text()).then(t => t.includes('Refused <span class=\"badge\">100,000'))")
	b.run(chromedp.Navigate(s.Admin + "/console/spools/streams/dead"))
	b.until("document.querySelectorAll('table.letters tbody tr').length === 100 && document.querySelector('table.letters b') === null")
	first := eval[string](b, "document.querySelector('input[name=id]').value")
	b.run(chromedp.Click("a[rel=next]"))
	b.until("document.querySelector('input[name=id]')?.value !== " + quote(first) + " && document.querySelector('a[rel=next]') !== null")
	b.run(chromedp.NavigateBack())
	b.until("document.querySelector('input[name=id]')?.value === " + quote(first))
	b.run(chromedp.Click("button[formaction$=discard][value=all]"), chromedp.WaitVisible("#confirm"))
	b.until("document.querySelector('h1').textContent.includes('100000')")
	b.run(chromedp.Reload()) // which sends the form again, and asks again
	b.run(chromedp.WaitVisible("#confirm"))
	b.set("#confirm", "100000")
	b.run(chromedp.Click("button.bad"))
	b.until("document.body.textContent.includes('100000 dead letters were discarded')")
}

// Nothing that was typed is sent when a form is reloaded or its session has ended, and the browser asks before it is left.
func TestConsoleForms(t *testing.T) {
	s := startShop(t)
	b := open(t)
	b.expect("status of 4") // the expired session, and what htmx checks with it
	b.logIn(s, "/console/campaigns/new", tokens["edit"])
	b.set("#name", hostile)
	guarded := eval[bool](b, "!window.dispatchEvent(new Event('beforeunload', {cancelable: true}))")
	if !guarded {
		t.Error("a form that was changed is left without a question")
	}
	eval[bool](b, "document.querySelector('form#campaign').dispatchEvent(new Event('submit', {cancelable: true})), true") // which ends the guard
	b.run(chromedp.Reload())
	b.until("document.getElementById('name')?.value === ''")
	if list := string(ask(t, http.MethodGet, s.Admin+"/popups/campaigns", nil, "")); strings.Contains(list, "onerror") {
		t.Errorf("a reload has saved the form: %s", list)
	}
	b.set("#name", strings.Repeat(hostile, 250)) // more than 10,000 characters
	b.set("#payload", `{"title": "Hi"}`)
	b.run(chromedp.Click("form#campaign .actions button.main"))
	b.until("[...document.querySelectorAll('.flaw')].some(f => f.textContent.includes('200 characters'))")
	b.until("document.getElementById('name').value.length >= 10000 && document.querySelector('main img') === null")
	b.run(chromedp.Navigate(s.Admin + "/console/campaigns/new"))
	b.until("document.getElementById('name')?.value === ''")
	b.set("#name", hostile)
	b.set("#payload", `{"title": "Hi"}`)
	call(b, network.ClearBrowserCookies, cdp.Empty{}) // as if it had expired
	eval[bool](b, "document.querySelector('form#campaign .actions button.main').click(), true")
	b.until("document.body.textContent.includes('The session has expired')")
	b.run(chromedp.NavigateBack())
	b.until("document.getElementById('name') === null || document.getElementById('name').value === " + quote(hostile))
	b.run(chromedp.Navigate(s.Admin+"/console/streams"), chromedp.WaitVisible("#token"))
	b.logIn(s, "/console/streams", tokens["edit"])
	b.until(headline + " === 'Streams'")
	for _, path := range []string{"spools/streams/discard", "reads/pause", "reads/resume", "reads/drop"} {
		if status := b.post(path, "path=/orders&arguments={}&which=all&confirm=1"); status != 403 {
			t.Errorf("a marketer may post to %s: %d", path, status)
		}
	}
}
