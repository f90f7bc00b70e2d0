//go:build browser

package browser

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"spillway/internal/apptest"
)

// press clicks the first button, link or summary with a text.
func (b *tab) press(text string) {
	b.t.Helper()
	const find = "[...document.querySelectorAll('main button, main a, main summary, header nav a')].find(e => e.textContent.trim() === %s && e.offsetParent)"
	found := fmt.Sprintf(find, quote(text))
	b.until(found + " !== undefined")
	b.run(chromedp.Evaluate[chromedp.Void](found + ".click()"))
}

// says waits until the page has a text.
func (b *tab) says(text string) {
	b.t.Helper()
	b.until("document.querySelector('main').innerText.includes(" + quote(text) + ")")
}

// A marketer who has the URL and a token tries an A/B campaign on themselves, starts it, and reads which variant is better.
func TestMarketersTrial(t *testing.T) {
	s := startShop(t)
	b := open(t)
	begin := time.Now()
	step := func(what string) { t.Logf("%5.1f s  %s", time.Since(begin).Seconds(), what) }
	b.logIn(s, "/", tokens["edit"])
	step("logged in")
	b.press("Campaigns")
	b.press("New campaign")
	b.set("#name", "Spring offer")
	b.set("#target", `city == "Oslo"`)
	b.set("#holdout", "20")
	for i, title := range []string{"Save 10 %", "Free delivery"} {
		b.press("Add a variant")
		b.until(fmt.Sprintf("document.querySelectorAll('#campaign .variant').length === %d", i+1))
		eval[bool](b, fmt.Sprintf("document.querySelectorAll('#campaign .variant')[%d].id = 'variant%d'; true", i, i))
		row := fmt.Sprintf("#variant%d ", i)
		b.set(row+"[name=variant_name]", []string{"discount", "delivery"}[i])
		b.set(row+"[name=variant_payload]", fmt.Sprintf(`{"title": %q}`, title))
	}
	b.set("#try #user", "7")
	b.says("does not hold")
	b.press("Attributes that the app sends")
	b.set("#try [name='attribute.city']", "Oslo")
	b.says("The user gets it: variant")
	b.inEachLook("explained draft")
	b.run(chromedp.Click("#campaign .actions button.main"))
	b.says("Created.")
	step("created a draft with two variants and a holdout, and saw who would get it")

	b.press("Users")
	b.set("#user", "7")
	b.press("Explain")
	b.says("none of its testers")
	b.press("Test on this user")
	b.says("tester of the draft now")
	b.inEachLook("user")
	if a := apptest.Fetch(t, s.URL("popup?user=7")); a.Status != 200 || !strings.Contains(string(a.Body), "title") {
		t.Errorf("the tester gets %d %s", a.Status, a.Body)
	}
	step("tested it on user 7")

	b.press("Spring offer")
	b.press("Start showing it")
	b.until("document.querySelector('.badge').textContent === 'running'")
	step("started it")
	showAll(t, s)
	b.press("Report")
	b.until("location.pathname.endsWith('/report') && document.readyState === 'complete'")
	for ready := false; !ready; b.run(chromedp.Sleep(100 * time.Millisecond)) {
		b.run(chromedp.Navigate(s.Admin + eval[string](b, "location.pathname")))
		ready = eval[bool](b, "[...document.querySelectorAll('tbody tr')].some(r => r.cells[0].textContent === 'delivery' && Number(r.cells[6].textContent) >= 30)")
	}
	b.until("document.querySelector('[data-chart] canvas') !== null")
	b.inEachLook("report of two variants")
	b.says("delivery")
	step("read the report:\n" + eval[string](b, "document.querySelector('main').innerText"))
	b.press("Campaigns")
	b.inEachLook("running campaigns")
	keys(t, b, s)
	step("moved it with keys")
	b.press("Changes")
	b.says("started a campaign")
	b.inEachLook("changes")
	b.press("Configuration")
	b.says("In force")
	b.inEachLook("configuration")
}

// showAll has users in Oslo see the popup. Those of the variant delivery buy more often.
func showAll(t *testing.T, s *apptest.Spillway) {
	t.Helper()
	var all sync.WaitGroup
	users := make(chan int)
	for range 8 {
		all.Go(func() {
			for user := range users {
				showTo(t, s, user)
			}
		})
	}
	for user := range 600 {
		users <- 1000 + user
	}
	close(users)
	all.Wait()
}

func showTo(t *testing.T, s *apptest.Spillway, user int) {
	a, err := apptest.TryFetch(t.Context(), http.DefaultClient, s.URL(fmt.Sprintf("popup?user=%d&city=Oslo", user)))
	if err != nil {
		t.Error(err)
		return
	}
	var shown struct {
		Show    string
		Payload struct{ Title string }
	}
	if a.Status != http.StatusNoContent {
		_ = json.Unmarshal(a.Body, &shown)
	}
	if shown.Show == "" {
		return
	}
	limit := map[string]int{"Free delivery": 30, "Save 10 %": 12}[shown.Payload.Title]
	for path, most := range map[string]int{"click": limit + 20, "convert": limit} {
		if user%100 < most {
			if _, err := apptest.TryPost(t.Context(), http.DefaultClient, s.URL("popup/"+path), `{"show":`+quote(shown.Show)+`}`); err != nil {
				t.Error(err)
			}
		}
	}
}

// keys moves the second campaign up and down with the keyboard.
func keys(t *testing.T, b *tab, s *apptest.Spillway) {
	t.Helper()
	b.press("New campaign")
	b.set("#name", "Second")
	b.set("#payload", "{}")
	b.run(chromedp.Click("#campaign .actions button.main"))
	b.says("Created.")
	b.run(chromedp.Navigate(s.Admin + "/console/campaigns?placement=" + url.QueryEscape("default")))
	const order = "[...document.querySelectorAll('#list tbody td:nth-child(2) a')].map(a => a.textContent).join()"
	b.until(order + " === 'Spring offer,Second'")
	const press = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: %q, altKey: true, bubbles: true, cancelable: true}))"
	eval[bool](b, "document.querySelectorAll('#list tbody a')[1].focus() === undefined")
	eval[bool](b, fmt.Sprintf(press, "ArrowUp"))
	b.until(order + " === 'Second,Spring offer' && document.activeElement.textContent === 'Second'")
	eval[bool](b, fmt.Sprintf(press, "ArrowDown"))
	b.until(order + " === 'Spring offer,Second' && document.activeElement.textContent === 'Second'")
}
