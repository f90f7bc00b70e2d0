//go:build browser

package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"spillway/internal/apptest"
)

var (
	binary      apptest.Binary
	axe         = flag.String("axe", "", "file of axe-core; empty: accessibility is not checked")
	screenshots = flag.String("screenshots", "", "directory for pictures of each page; empty: none")
)

func TestMain(m *testing.M) { os.Exit(apptest.Closing(m, &binary).Run()) }

// tab is a page of a browser of its own, and what went wrong in it.
type tab struct {
	context.Context
	t *testing.T

	mu       sync.Mutex
	problems []string       // errors on the console, and requests to other hosts
	bytes    map[string]int // received by URL
	urls     map[network.RequestID]string
	expected []string // parts of errors that are no problem
}

// open opens a browser that reaches no other host than this one.
func open(t *testing.T) *tab {
	t.Helper()
	allocator, end := chromedp.NewExecAllocator(t.Context(), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"))
	t.Cleanup(end)
	b := &tab{t: t, bytes: make(map[string]int), urls: make(map[network.RequestID]string)}
	ctx, closeTab := chromedp.NewContext(allocator)
	t.Cleanup(closeTab)
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	t.Cleanup(cancel)
	b.Context = ctx
	b.run()
	if err := chromedp.Listen(ctx, b.note); err != nil {
		t.Fatal(err)
	}
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	call(b, runtime.Enable, cdp.Empty{})
	t.Cleanup(b.check)
	return b
}

// note notes an event.
func (b *tab) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.urls[e.RequestID] = e.Request.URL
		if u, err := url.Parse(e.Request.URL); err != nil || u.Scheme != "data" && u.Hostname() != "127.0.0.1" {
			b.problems = append(b.problems, "request to "+e.Request.URL)
		}
	case *network.EventLoadingFinished:
		b.bytes[b.urls[e.RequestID]] += int(e.EncodedDataLength)
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, fmt.Sprint("exception ", e.ExceptionDetails.Text, " ", e.ExceptionDetails.URL, ":", e.ExceptionDetails.LineNumber))
	case *log.EventEntryAdded:
		isExpected := func(part string) bool { return strings.Contains(e.Entry.Text, part) }
		if e.Entry.Level == log.EntryLevelError && !slices.ContainsFunc(b.expected, isExpected) {
			b.problems = append(b.problems, e.Entry.Text+" "+e.Entry.URL)
		}
	}
}

// weight returns the bytes of all responses so far, without those of event streams, which have not ended.
func (b *tab) weight() (bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.bytes {
		bytes += n
	}
	return bytes
}

// expect says that errors with this text are no problem from now on.
func (b *tab) expect(part string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = append(b.expected, part)
}

// call runs a command of the protocol.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	result, err := chromedp.Call(b, command, params)
	if err != nil {
		b.t.Fatal(err)
	}
	return result
}

// run runs actions; each that waits for an element ends with the tab's time.
func (b *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// until waits for a JavaScript expression to be true, also on the next page.
func (b *tab) until(expression string) {
	b.t.Helper()
	begin := time.Now()
	for {
		ok, err := chromedp.Run(b, chromedp.Evaluate[bool](expression, chromedp.EvalAwaitPromise))
		if ok {
			return
		}
		if time.Since(begin) > time.Minute {
			text, _ := chromedp.Run(b, chromedp.Evaluate[string]("document.body.innerText"))
			b.t.Fatalf("%s: %v; the page says\n%s", expression, err, text)
		}
		b.run(chromedp.Sleep(50 * time.Millisecond))
	}
}

// set sets the value of a field, as a user who types does.
func (b *tab) set(field, value string) {
	b.t.Helper()
	b.run(chromedp.WaitVisible(field))
	eval[bool](b, fmt.Sprintf("(f => { f.value = %s; return f.dispatchEvent(new Event('input', {bubbles: true})) })(document.querySelector(%s))", quote(value), quote(field)))
}

// eval returns the value of a JavaScript expression.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	value, err := chromedp.Run(b, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatal(err)
	}
	return value
}

// check fails the test for what went wrong in the tab.
func (b *tab) check() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, problem := range b.problems {
		b.t.Error(problem)
	}
}

// inEachLook runs a function in both themes and on a small screen, and looks for barriers in each.
func (b *tab) inEachLook(name string) {
	b.t.Helper()
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{390, 1280} {
			media := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}, {Name: "prefers-reduced-motion", Value: "reduce"}}
			call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: media})
			call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 900, DeviceScaleFactor: 1, Mobile: width < 500})
			b.until("document.documentElement.scrollWidth <= document.documentElement.clientWidth") // charts follow
			b.barriers(fmt.Sprintf("%s, %s, %d px", name, theme, width))
			b.picture(fmt.Sprintf("%s-%s-%d", name, theme, width))
		}
	}
}

// barriers fails the test for what axe-core calls serious or critical.
func (b *tab) barriers(where string) {
	b.t.Helper()
	if *axe == "" {
		return
	}
	source, err := os.ReadFile(*axe)
	if err != nil {
		b.t.Fatal(err)
	}
	eval[bool](b, string(source)+";true")
	found := eval[[]struct {
		ID, Impact string
		Nodes      []struct{ HTML string }
	}](b, "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => ({id: v.id, impact: v.impact, nodes: v.nodes.map(n => ({html: n.html}))})))")
	for _, v := range found {
		if v.Impact == "serious" || v.Impact == "critical" {
			text, _ := json.Marshal(v.Nodes)
			b.t.Errorf("%s: %s %s: %.500s", where, v.Impact, v.ID, text)
		}
	}
}

// picture writes what the tab shows, whole.
func (b *tab) picture(name string) {
	if *screenshots == "" {
		return
	}
	shot := call(b, page.CaptureScreenshot, page.CaptureScreenshotParams{CaptureBeyondViewport: new(true)}).Data
	if err := os.WriteFile(*screenshots+"/"+strings.ReplaceAll(name, " ", "-")+".png", small(b.t, shot), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// small returns a picture with the 256 colors of which it has most, which shows no difference on these pages.
func small(t *testing.T, shot []byte) []byte {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[color.Color]int)
	at := func(x, y int) color.Color {
		r, g, b, _ := full.At(x, y).RGBA()
		return color.RGBA{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8), 255}
	}
	area := full.Bounds()
	for y := range area.Dy() {
		for x := range area.Dx() {
			counts[at(x, y)]++
		}
	}
	most := slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int { return counts[b] - counts[a] })
	reduced := image.NewPaletted(area, color.Palette(most[:min(256, len(most))]))
	nearest := make(map[color.Color]uint8)
	for y := range area.Dy() {
		for x := range area.Dx() {
			c := at(x, y)
			i, known := nearest[c]
			if !known {
				i = uint8(reduced.Palette.Index(c))
				nearest[c] = i
			}
			reduced.SetColorIndex(x, y, i)
		}
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, reduced); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// quote returns a text as JavaScript.
func quote(text string) string {
	literal, _ := json.Marshal(text) // never fails for a string
	return string(literal)
}
