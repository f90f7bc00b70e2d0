package console

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"spillway/internal/serve/admin"
)

const tokenOfAdmin, tokenOfEdit, tokenOfRead = "0123456789admin", "0123456789edit", "0123456789read"

func threeTokens() []admin.Token {
	return []admin.Token{
		{Name: "ada", Token: tokenOfAdmin, Role: admin.RoleAdmin},
		{Name: "ed", Token: tokenOfEdit, Role: admin.RoleEdit},
		{Name: "rea", Token: tokenOfRead, Role: admin.RoleRead},
	}
}

func TestLogIn(t *testing.T) {
	t.Parallel()
	s := start(t, threeTokens()...)
	s.want(s.do("GET", "/", ""), http.StatusUnauthorized, `"status":401`) // curl
	if a := s.get("/"); a.status != http.StatusSeeOther || a.location != "/console/login?next=%2F" {
		t.Errorf("%+v", a)
	}
	s.want(s.get("/console/login?next=/console/streams"), http.StatusOK, `name="next" value="/console/streams"`)
	for _, path := range []string{"/console/live", "/console/traffic", "/console/campaigns/1", "/console/spools/streams/export"} {
		if a := s.get(path); a.status != http.StatusSeeOther || !strings.HasPrefix(a.location, "/console/login") {
			t.Errorf("%s: %d to %s", path, a.status, a.location)
		}
	}
	s.want(s.post("/console/campaigns/new", nil), http.StatusUnauthorized, "The session has expired")
	a := s.post("/console/login", url.Values{"token": {tokenOfEdit}, "next": {"/console/streams"}})
	if cookie := a.header.Get("Set-Cookie"); a.location != "/console/streams" || !regexp.MustCompile(
		`^spillway_session_\d+=\w{26}; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax$`).MatchString(cookie) {
		t.Errorf("%s, %s", a.location, cookie)
	}
	s.want(s.get("/"), http.StatusOK, "ed (edit)", "host-<7>, process 7", `href="https://grafana.example/d"`)
	s.console.sessions.mu.Lock()
	s.console.sessions.now = func() time.Time { return time.Now().Add(SessionTime) }
	s.console.sessions.mu.Unlock()
	if a := s.get("/console/streams"); a.status != http.StatusSeeOther {
		t.Errorf("expired: %d", a.status)
	}
	s.logIn(tokenOfRead)
	s.follow(s.post("/console/logout", nil))
	if a := s.get("/"); a.status != http.StatusSeeOther {
		t.Errorf("signed out: %d", a.status)
	}
	if a := s.post("/console/login", url.Values{"token": {tokenOfRead}}, "Origin", "https://"+strings.TrimPrefix(s.base, "http://")); !strings.Contains(a.header.Get("Set-Cookie"), "; Secure") {
		t.Error("behind a proxy with TLS the cookie is not secure")
	}
}

func TestFailedLogIns(t *testing.T) {
	t.Parallel()
	s := start(t, threeTokens()...)
	for range failuresMax {
		s.want(s.post("/console/login", url.Values{"token": {"wrong"}}), http.StatusUnauthorized, "No such token.")
	}
	for range 3 {
		a := s.post("/console/login", url.Values{"token": {"wrong"}})
		if s.want(a, http.StatusTooManyRequests, "too many failed log-ins"); a.header.Get("Retry-After") == "" {
			t.Errorf("%v", a.header)
		}
		s.logIn(tokenOfAdmin) // which others do not keep out
		s.client = newClient(t)
	}
	s.console.sessions.mu.Lock()
	s.console.sessions.now = func() time.Time { return time.Now().Add(failureWait) }
	s.console.sessions.mu.Unlock()
	s.want(s.post("/console/login", url.Values{"token": {"wrong"}}), http.StatusUnauthorized, "No such token.")

	all := newSessions(time.Now)
	for i := range addressesMax + 10 {
		r := httptest.NewRequest("GET", "/", http.NoBody)
		r.RemoteAddr = fmt.Sprintf("[2001:db8:%x::1]:1", i)
		all.failed(addressOf(r))
	}
	if len(all.failures) > addressesMax {
		t.Errorf("%d addresses", len(all.failures))
	}
}

// Whoever begins many sessions with a token ends no others.
func TestSessionsOfOneToken(t *testing.T) {
	t.Parallel()
	s := start(t, threeTokens()...)
	s.logIn(tokenOfRead)
	reader := s.client
	for i := range 2 * sessionsMax {
		s.logIn(tokenOfEdit)
		if i == 0 {
			defer func(first *http.Client) {
				if s.client = first; s.get("/").status != http.StatusSeeOther {
					t.Error("the oldest session of the token has not ended")
				}
			}(s.client)
		}
	}
	s.want(s.get("/"), http.StatusOK, "ed (edit)")
	if s.client = reader; len(s.console.sessions.open) != sessionsMax+1 {
		t.Errorf("%d sessions", len(s.console.sessions.open))
	}
	s.want(s.get("/"), http.StatusOK, "rea (read)")
}

func TestNextPage(t *testing.T) {
	for next, want := range map[string]string{
		"/console/streams?x=1": "/console/streams?x=1", "": "/", "https://evil.example": "/", "//evil.example": "/", `/\evil.example`: "/",
		"/console/login": "/", "/console/logout": "/", "/readyz": "/",
	} {
		if got := nextPage(next); got != want {
			t.Errorf("%q: %q", next, got)
		}
	}
}

// The page of the log-in reads no body, which anybody could send.
func TestLogInReadsNoBody(t *testing.T) {
	s := start(t, threeTokens()...)
	body := "--x\r\nContent-Disposition: form-data; name=\"next\"\r\n\r\n/console/lists\r\n--x--\r\n"
	s.want(s.do("GET", "/console/login", body, "Content-Type", "multipart/form-data; boundary=x"), 200, `name="next" value="/"`)
}

// A change comes from a page of this console, with tokens and without.
func TestOrigin(t *testing.T) {
	t.Parallel()
	s := start(t)
	form := []string{"Content-Type", "application/x-www-form-urlencoded"}
	for _, c := range []struct {
		status  int
		headers []string
	}{
		{http.StatusForbidden, nil},
		{http.StatusForbidden, []string{"Origin", "https://evil.example"}},
		{http.StatusForbidden, []string{"Origin", "null"}},
		{http.StatusForbidden, []string{"Origin", strings.Replace(s.base, "//", "//x@", 1)}},
		{http.StatusForbidden, []string{"Origin", s.base, "Sec-Fetch-Site", "cross-site"}},
		{http.StatusForbidden, []string{"Origin", s.base, "Sec-Fetch-Site", "same-site"}},
		{http.StatusSeeOther, []string{"Origin", s.base}},
		{http.StatusSeeOther, []string{"Origin", "https://proxy.example", "Sec-Fetch-Site", "same-origin"}},
	} {
		for _, path := range []string{"/console/login", "/console/logout"} {
			if a := s.do("POST", path, "", append(form, c.headers...)...); a.status != c.status {
				t.Errorf("%s %v: %d", path, c.headers, a.status)
			}
		}
	}
	s.want(s.do("POST", "/console/campaigns/new", "name=x", form...), http.StatusForbidden, "<!DOCTYPE html>", "does not come from a page of this console")
}

// Whatever a role does not permit answers 403 with a page, by URL too.
func TestRoles(t *testing.T) {
	t.Parallel()
	s := start(t, threeTokens()...)
	s.bury("/old", `[1]`)
	s.logIn(tokenOfEdit)
	s.follow(s.post("/console/campaigns/new", campaignValues("Spring")))
	all := url.Values{"which": {"all"}}
	s.want(s.post("/console/spools/streams/discard", all), http.StatusForbidden, "requires a token with the role admin", "<!DOCTYPE html>")
	for _, path := range []string{"/console/reload", "/console/users/forget"} {
		s.want(s.post(path, url.Values{"user": {"7"}, "confirm": {"7"}}), http.StatusForbidden, "requires a token with the role admin", "<!DOCTYPE html>")
	}
	s.logIn(tokenOfRead)
	version := url.Values{"version": {"1"}, "confirm": {"archive"}, "list": {"archive"}, "restore": {"1"}, "placement": {"home"}, "direction": {"down"}}
	for _, path := range []string{
		"/console/campaigns/new", "/console/campaigns/1", "/console/campaigns/1/pause", "/console/campaigns/1/resume", "/console/campaigns/1/archive",
		"/console/campaigns/1/restore", "/console/lists/delete", "/console/spools/streams/retry", "/console/spools/streams/discard",
		"/console/users/test", "/console/users/forget", "/console/reload", "/console/reads/pause", "/console/reads/resume", "/console/reads/drop",
	} {
		form := campaignValues("Other")
		for name, value := range version {
			form[name] = value
		}
		form.Set("which", "all")
		form.Set("path", "/goodslist")
		form.Set("arguments", "{}")
		form.Set("campaign", "1")
		s.want(s.post(path, form), http.StatusForbidden, "role", "<!DOCTYPE html>")
	}
	s.want(s.upload("vip", "1\n"), http.StatusForbidden, "role")
	s.want(s.get("/console/campaigns/new"), http.StatusForbidden, "role")
	for _, path := range []string{
		"/", "/console/streams", "/console/spools/streams/dead", "/console/campaigns",
		"/console/campaigns/1", "/console/lists", "/console/reads/one?path=/goodslist", "/console/users?user=7", "/console/configuration", "/console/changes",
	} {
		a := s.get(path)
		if s.want(a, http.StatusOK); regexp.MustCompile(`formaction|/move"|New campaign|>Save<|>Upload<|Test on this user|>Reload<|>Forget<`).MatchString(a.body) {
			t.Errorf("%s offers what the role does not permit", path)
		}
	}
}

// The policy of the pages forbids inline scripts and styles, so that there must be none; attributes of htmx must not be evaluated.
func TestPolicy(t *testing.T) {
	t.Parallel()
	s := start(t)
	a := s.get("/")
	if policy := a.header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; style-src 'self';") || strings.Contains(policy, "unsafe") {
		t.Error(policy)
	}
	if a.header.Get("Vary") != "Accept" || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%v", a.header)
	}
	wrong := regexp.MustCompile(`<script(?: [^>]*)?>[^<]|<style|\sstyle=|\son\w+=|hx-on|hx-vals|javascript:|js:|hx-trigger="[^"]*\[|https?://`)
	err := fs.WalkDir(files, "pages", func(path string, _ fs.DirEntry, _ error) error {
		if !strings.HasSuffix(path, ".html") {
			return nil
		}
		text, err := fs.ReadFile(files, path)
		if found := wrong.Find(text); found != nil {
			t.Errorf("%s has %s", path, found)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	weight := len(a.body)
	for _, at := range regexp.MustCompile(`(?:src|href)="(/console/assets/[^"]+)"`).FindAllStringSubmatch(a.body, -1) {
		file := s.do("GET", at[1], "", "Accept-Encoding", "gzip")
		if weight += len(file.body); file.status != http.StatusOK || file.header.Get("Content-Encoding") != "gzip" || !strings.Contains(file.header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d %v", at[1], file.status, file.header)
		}
	}
	if t.Logf("the first page weighs %d bytes", weight); weight > 150_000 {
		t.Errorf("the first page weighs %d bytes", weight)
	}
	s.want(s.get("/console/nothing"), http.StatusNotFound, "There is no such page.")
	for _, path := range []string{"/conso%6ce/streams", "/console/strea%6ds", "/console//streams", "/console/x/../streams"} {
		s.want(s.get(path), http.StatusNotFound, `"status":404`) // a proxy may have compared its rules with the path as written
	}
}
