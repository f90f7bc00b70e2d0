//go:build browser

package browser

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// tokens are those of the console by role.
var tokens = map[string]string{"admin": "token-of-the-admin", "edit": "token-of-a-marketer", "read": "token-of-a-reader"}

const shop = `admin:
  token: token-of-the-admin
  tokens: [{name: Ann, token: token-of-a-marketer, role: edit}, {name: Bob, token: token-of-a-reader}]
feeds:
  - {path: /orders, sql: "SELECT id, name FROM orders", key: id}
streams:
  - {path: /orders, table: orders, ack: spool, columns: {id: integer, name: text}}
popups:
  path: /popup
  user_type: integer
  placements: [home, side]
  attributes: {city: text, age: integer}
`

// startShop serves a shop with a dead letter.
func startShop(t *testing.T) *apptest.Spillway {
	t.Helper()
	return startShopOn(t, storetest.SQLiteDatabase(t))
}

func startShopOn(t *testing.T, db storetest.Database) *apptest.Spillway {
	t.Helper()
	db.Query(t, "CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT CHECK (name <> '<b>bad</b>'))")
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	if err := os.WriteFile(file, []byte(shop), 0o600); err != nil {
		t.Fatal(err)
	}
	s := apptest.Serve(t, binary.Path(t), "--database", db.URL, file)
	s.WaitReady(t)
	apptest.Post(t, s.URL("orders"), `{"id": 1, "name": "<b>bad</b>"}`)
	apptest.Fetch(t, s.URL("orders"))
	return s
}

// logIn logs in from the page of a path.
func (b *tab) logIn(s *apptest.Spillway, path, token string) {
	b.t.Helper()
	b.run(chromedp.Navigate(s.Admin + path))
	b.set("#token", token)
	b.run(chromedp.Click("form.card button"), chromedp.WaitVisible("header .who form button"))
}

const headline = "document.querySelector('h1').textContent"

// A reader looks at everything and may change nothing.
func TestConsoleReader(t *testing.T) {
	s := startShop(t)
	b := open(t)
	b.expect("status of 40") // the wrong token, and what is forbidden
	b.run(chromedp.Navigate(s.Admin + "/"))
	b.set("#token", "wrong")
	b.run(chromedp.Click("form.card button"))
	b.until("document.querySelector('.notice.bad[role=alert]:not([hidden])') !== null")
	b.inEachLook("log-in")
	b.logIn(s, "/console/streams", tokens["read"])
	b.until(headline + " === 'Streams'")
	b.inEachLook("streams")
	for _, c := range []struct{ path, body string }{
		{"campaigns/new", "name=x"},
		{"spools/streams/retry", "which=all"},
		{"spools/streams/discard", "which=all&confirm=1"},
		{"reads/pause", "path=/orders&arguments={}"},
		{"reads/drop", "path=/orders&arguments={}"},
		{"lists/delete", "list=vip&confirm=vip"},
	} {
		const ask = "fetch('/console/%s', {method: 'POST', headers: {'Content-Type': 'application/x-www-form-urlencoded'}, body: '%s'}).then(r => r.status)"
		if status := eval[int](b, fmt.Sprintf(ask, c.path, c.body)); status != 403 {
			t.Errorf("a reader may post to %s: %d", c.path, status)
		}
	}
	b.run(chromedp.Navigate(s.Admin + "/"))
	b.until("document.querySelector('[data-piece=headline] h1') !== null && document.querySelectorAll('[data-chart] canvas').length === 3")
	apptest.Fetch(t, s.URL("orders")) // the page is live
	b.until("[...document.querySelectorAll('[data-piece=routes] tbody tr')].some(r => r.cells[0].textContent === '/orders' && Number(r.cells[2].textContent) >= 2)")
	b.inEachLook("overview")
	weight := b.weight()
	if t.Logf("the first pages of the console weigh %d bytes", weight); weight == 0 || weight > 150_000 {
		t.Errorf("the console weighs %d bytes", weight)
	}

	b.expect("ERR_")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	b.until("!document.getElementById('lost').hidden")
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	b.until("document.getElementById('lost').hidden || " + headline + " === 'Log in'") // its sessions are gone
	b.logIn(s, "/", tokens["read"])
	b.run(chromedp.Click("header .who form button"), chromedp.WaitVisible("#token"))

	b.logIn(s, "/", tokens["read"])
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.run(chromedp.Navigate(s.Admin+"/"), chromedp.WaitVisible("[data-piece=headline] h1"), chromedp.WaitVisible("noscript .fine"))
}

// A marketer creates a campaign with a mistake, mends it, and starts it; a second one edits it at the same time.
func TestConsoleMarketer(t *testing.T) {
	s := startShop(t)
	b := open(t)
	b.expect("status of 4") // mistakes
	b.logIn(s, "/console/campaigns", tokens["edit"])
	b.run(chromedp.Click(".title .button"), chromedp.WaitVisible("#name"))
	name := `<script>alert(1)</script> 🚚 ` + strings.Repeat("long", 20)
	b.set("#name", name)
	b.set("#payload", `{"title": "<b>Hello</b>"}`)
	b.set("#target", "city == ")
	b.until("document.querySelector('#check .flaw') !== null")
	b.inEachLook("campaign")
	b.set("#target", `city == "Oslo"`)
	b.until("document.querySelector('#check .good') !== null")
	b.run(chromedp.Click("#campaign .actions button.main"))
	b.until(headline + ".trim() === " + quote(name))
	b.run(chromedp.Click(".actions button.main")) // starts it
	b.until("document.querySelector('.badge').textContent === 'running'")
	if a := apptest.Fetch(t, s.URL("popup?user=7&city=Oslo")); a.Status != 200 || !strings.Contains(string(a.Body), "Hello") {
		t.Errorf("the campaign is not shown: %d %s", a.Status, a.Body)
	}
	other := open(t)
	other.expect("status of 4")
	at := eval[string](b, "location.pathname")
	other.logIn(s, at, tokens["edit"])
	b.set("#rollout", "50")
	b.run(chromedp.Click("#campaign .actions button.main"))
	b.until("document.querySelector('.notice.good') !== null")
	other.set("#rollout", "60")
	other.run(chromedp.Click("#campaign .actions button.main"), chromedp.WaitVisible(".theirs"))
	b.run(chromedp.Navigate(s.Admin + at + "/history"))
	b.until("document.body.textContent.includes('Ann')")
	b.inEachLook("history")
	b.run(chromedp.Navigate(s.Admin + at + "/report"))
	b.until("document.body.textContent.includes('Shows') || document.body.textContent.includes('shows')")
	b.inEachLook("report")
	b.run(chromedp.Navigate(s.Admin + "/console/campaigns"))
	b.inEachLook("campaigns")
	b.run(chromedp.Navigate(s.Admin + "/console/lists"))
	b.inEachLook("lists")
}

// An operator finds a dead letter, retries it, and discards it.
func TestConsoleOperator(t *testing.T) {
	s := startShop(t)
	b := open(t)
	b.expect("status of 4") // the wrong confirmation
	b.logIn(s, "/console/streams", tokens["admin"])
	b.until("fetch('/console/streams').then(r => r.text()).then(t => t.includes('/dead?stream='))")
	b.run(chromedp.Navigate(s.Admin+"/console/spools/streams/dead"), chromedp.WaitVisible("table.letters"))
	if shown := eval[bool](b, "document.querySelector('.record').textContent.includes('bad') && document.querySelector('table.letters b') === null"); !shown {
		t.Error("the record is not shown as text")
	}
	b.inEachLook("dead letters")
	b.run(chromedp.Click("table.letters input[name=id]"), chromedp.Click("button[formaction$=retry][value=selected]"))
	b.until("document.querySelector('.notice.good') !== null")
	b.until("fetch('/console/spools/streams/dead').then(r => r.text()).then(t => t.includes('name=\"id\"'))") // it is refused again
	b.run(chromedp.Navigate(s.Admin+"/console/spools/streams/dead"), chromedp.Click("button[formaction$=discard][value=all]"), chromedp.WaitVisible("#confirm"))
	b.inEachLook("discard")
	b.set("#confirm", "7")
	b.run(chromedp.Click("button.bad"), chromedp.WaitVisible(".notice.bad[role=alert]:not([hidden])"))
	b.set("#confirm", "1")
	b.run(chromedp.Click("button.bad"))
	b.until("document.body.textContent.includes('No dead letter matches')")
}
