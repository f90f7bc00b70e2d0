//go:build browser

package browser

import (
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"spillway/internal/apptest"
)

// A visitor of the demo places an order, sees trucks move, answers a popup, and loses the connection.
func TestDemo(t *testing.T) {
	app := apptest.Serve(t, binary.Path(t))
	app.WaitReady(t)
	b := open(t)
	b.run(chromedp.Navigate(app.URL("")))
	b.until("document.querySelectorAll('#orders tr').length === 10 && document.getElementById('orders-state').textContent === 'live'")
	weight := 0
	for _, path := range []string{"", "demo.js", "demo.css"} {
		weight += b.bytes[app.URL(path)]
	}
	painted := eval[float64](b, "performance.getEntriesByName('first-contentful-paint')[0].startTime")
	t.Logf("the page weighs %d bytes; it is first painted after %.0f ms", weight, painted)
	if weight == 0 || weight > 150_000 {
		t.Errorf("the page weighs %d bytes", weight)
	}
	for _, goods := range []string{`<img src=x onerror=alert(1)>`, "🚚 12 t", strings.Repeat("long ", 51)} {
		b.run(chromedp.SetValue("input[name=goods]", goods), chromedp.Click("#order button"))
		b.until("document.getElementById('order-result').textContent.startsWith('stored')")
		text := strings.TrimSpace(goods)
		b.until("document.querySelector('#orders tr.new td:nth-child(2)')?.textContent.trim() === " + quote(text))
		b.until("document.getElementById('visible').textContent.includes('ms after you placed it')")
	}
	b.expect("status of 422")
	eval[bool](b, "document.getElementById('order').noValidate = true")
	b.run(chromedp.SetValue("#order input[name=user]", "0"), chromedp.Click("#order button"))
	b.until("document.getElementById('order-result').textContent.includes('users_id')")

	b.until("document.querySelectorAll('#map circle:not(.city)').length >= 20")
	at := eval[string](b, "document.querySelector('#map circle:not(.city)').getAttribute('cx')")
	b.until("document.querySelector('#map circle:not(.city)').getAttribute('cx') !== " + quote(at))

	b.run(chromedp.Click("#ask button"), chromedp.Click("#popup .card button:first-of-type"))
	b.until("document.getElementById('popup').textContent.startsWith('Recorded: click')")
	b.run(chromedp.Click("#ask button"))
	b.until("document.getElementById('popup').textContent.startsWith('No popup: wait-clicked')")
	b.until("document.querySelectorAll('#costs tr').length === 5 && document.querySelector('#costs td').textContent !== ''")
	if console := eval[string](b, "document.getElementById('console').href"); console != app.Admin+"/" {
		t.Errorf("the console is at %s, not %s", console, app.Admin)
	}
	b.inEachLook("demo")
	b.run(chromedp.Navigate(app.Admin + "/"))
	b.until("document.querySelectorAll('[data-chart] canvas').length === 3")
	b.inEachLook("console of the demo")
	b.run(chromedp.NavigateBack())
	b.until("document.querySelectorAll('#orders tr').length === 10")

	b.expect("ERR_") // requests to a server that has stopped
	if err := app.Restart(); err != nil {
		t.Fatal(err)
	}
	app.WaitReady(t)
	b.run(chromedp.SetValue("#order input[name=user]", "7"), chromedp.SetValue("input[name=goods]", "after the restart"), chromedp.Click("#order button"))
	b.until("document.querySelector('#orders tr td:nth-child(2)').textContent === 'after the restart'")

	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.run(chromedp.Navigate(app.URL("")), chromedp.WaitVisible("noscript .notice"))
}
