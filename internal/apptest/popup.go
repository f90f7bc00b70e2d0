package apptest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ShownPopup is a popup in the answer to GET.
type ShownPopup struct {
	Campaign int
	Payload  json.RawMessage
	Show     string
}

// AskPopup requests a popup and returns the answer and the popup in it.
func AskPopup(t *testing.T, s *Spillway, query string) (Answer, ShownPopup) {
	t.Helper()
	a := Fetch(t, s.URL("popup?"+query))
	var shown ShownPopup
	if a.Status == http.StatusOK {
		if err := json.Unmarshal(a.Body, &shown); err != nil {
			t.Fatalf("%s: %v", a.Body, err)
		}
	}
	return a, shown
}

// SendJSON sends JSON and returns the status and the body.
func SendJSON(ctx context.Context, client *http.Client, method, url, body string, headers ...string) (int, []byte, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	var out bytes.Buffer
	_, err = out.ReadFrom(resp.Body)
	return resp.StatusCode, out.Bytes(), resp.Header, err
}

// PostPopup sends JSON and returns the status and the body.
func PostPopup(t *testing.T, url, body string) (int, string) {
	t.Helper()
	status, answer, _, err := SendJSON(t.Context(), http.DefaultClient, http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return status, string(answer)
}

// ShowToken is the body that reports something about a show.
func ShowToken(show string) string { return fmt.Sprintf(`{"show":%q}`, show) }

// SendCampaign sends a campaign to the admin API of a server.
func SendCampaign(t *testing.T, s *Spillway, method, path, body string, want int, headers ...string) map[string]any {
	t.Helper()
	status, answer, _, err := SendJSON(t.Context(), http.DefaultClient, method, s.Admin+path, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	var campaign map[string]any
	if err := json.Unmarshal(answer, &campaign); err != nil || status != want {
		t.Fatalf("%s %s: %d %s %v, want %d", method, path, status, answer, err, want)
	}
	return campaign
}

// PopupConfig writes a configuration with popups. more contains further lines of the block.
func PopupConfig(t *testing.T, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	text := "popups:\n  path: /popup\n  placements: [home, checkout]\n  attributes: {country: text, age: integer, vip: boolean}\n" + more
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// PopupForAll is a campaign that every user gets.
const PopupForAll = `{"name":"all","placement":"home","order":10,"payload":{"n":1},"status":"active","quiet_click":"1h"}`
