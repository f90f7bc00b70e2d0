package server

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// Pages of the configured origins may send the header of the user's token where popups
// are served.
func TestPopupCORS(t *testing.T) {
	for _, header := range []string{"X-User-Token", "authorization"} {
		r := popupRoute(t, nil)
		identity, err := NewIdentity(IdentityConfig{Header: header, Algorithm: "HS256", Key: make([]byte, 32), Claim: "sub"})
		if err != nil {
			t.Fatal(err)
		}
		r.Identity = identity
		url, _ := start(t, &rows{n: 10}, func(c *Config) { c.Popup, c.CORSOrigins = &r, []string{"https://app.example"} })
		for path, want := range map[string]bool{"/popup": true, "/popup/click": true, "/popup/dismiss": true, "/hello": strings.EqualFold(header, "Authorization")} {
			a := request(t, http.MethodOptions, url+path, "Origin", "https://app.example")
			names := strings.Split(strings.ToLower(a.header.Get("Access-Control-Allow-Headers")), ", ")
			if got := slices.Contains(names, strings.ToLower(header)); got != want || !slices.Contains(names, "content-type") || len(slices.Compact(slices.Sorted(slices.Values(names)))) != len(names) {
				t.Errorf("%s at %s: %q", header, path, names)
			}
		}
	}
}
