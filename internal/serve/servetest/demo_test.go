package servetest

import (
	"bytes"
	"encoding/json"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"spillway/internal/apptest"
)

// The demo's page is at /, all that it loads and asks is served, and its costs count what was stored.
func TestDemoPage(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	own, err := os.ReadFile("../freight/configuration.yaml")
	if err != nil {
		t.Fatal(err)
	}
	others := strings.Replace(string(own), "feeds:\n", "feeds:\n  - {path: /salaries, sql: SELECT id FROM users, key: id}\n", 1)
	if err := os.WriteFile(file, []byte(others), 0o600); err != nil {
		t.Fatal(err)
	}
	app := apptest.Serve(t, binary.Path(t), file)
	app.WaitReady(t)
	page := apptest.Fetch(t, app.URL(""))
	policy := page.Header.Get("Content-Security-Policy")
	if page.Status != 200 || !strings.HasPrefix(page.Header.Get("Content-Type"), "text/html") || strings.Contains(policy, "unsafe") || policy == "" {
		t.Fatalf("%d %v", page.Status, page.Header)
	}
	script := apptest.Fetch(t, app.URL("demo.js"))
	if lines := bytes.Count(script.Body, []byte("\n")); lines >= 300 {
		t.Errorf("demo.js has %d lines", lines)
	}
	asked := regexp.MustCompile(`(?:href|src)="([a-z][^":]*)"`).FindAllSubmatch(page.Body, -1)
	asked = append(asked, regexp.MustCompile(`(?:fetch|listen)\('([^'?]*)'`).FindAllSubmatch(script.Body, -1)...)
	if len(asked) < 7 {
		t.Errorf("the page asks for %q", asked)
	}
	for _, match := range asked {
		if a := apptest.Fetch(t, app.URL(path.Clean(string(match[1])))); a.Status != 200 {
			t.Errorf("%s: %d", match[1], a.Status)
		}
	}
	if a := apptest.Post(t, app.URL("positions"), `[{"device_id": 7, "latitude": 31, "longitude": 121}, {"device_id": 8}]`); a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	var costs struct {
		Console string
		Parts   []struct {
			Path                string
			Answers, Statements int
		}
	}
	if err := json.Unmarshal(apptest.Fetch(t, app.URL("demo/costs")).Body, &costs); err != nil {
		t.Fatal(err)
	}
	if console, err := url.Parse(costs.Console); err != nil || "http://"+console.Host != app.Admin {
		t.Errorf("the console is %s, not %s", costs.Console, app.Admin)
	}
	for _, p := range costs.Parts {
		if p.Path == "POST /positions" && (p.Answers != 2 || p.Statements != 1) {
			t.Errorf("two positions in one request: %+v", p)
		}
	}
	if len(costs.Parts) != 5 { // without /salaries, of which not everybody need know
		t.Errorf("%+v", costs)
	}
	// A user whose id the column cannot have is one without a row.
	if a := apptest.Fetch(t, app.Admin+"/popups/explain?placement=home&user=18446744073709551615"); a.Status != 200 {
		t.Errorf("explain: %d %s", a.Status, a.Body)
	}
}
