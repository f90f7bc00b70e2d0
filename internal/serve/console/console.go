// Package console is the pages of the admin listener for operators and marketers.
//
// Who calls what: a browser asks for / and for paths below /console/. A handler checks the session and where a change comes
// from, calls the admin API in the same process as the session's caller, and renders the answer with html/template. So the
// API decides what is valid and permitted, and whatever a person can click can be scripted.
//
// State: sessions and failed log-ins, in memory, both bounded. Everything else is in the API. A session ends after
// SessionTime, or with the process. The viewer's time zone and the session's id are cookies.
//
// What can fail, each with a page that says what to do:
//
//   - no session or an expired one: the log-in page, then back; 429 after too many failed log-ins
//   - a change from another origin, or beyond the role: 403
//   - a campaign that somebody else has changed: 409, with both changes
//   - a database that does not answer: 503
//
// Pages work without JavaScript, except for charts and live updates. Nothing is loaded from elsewhere.
package console

import (
	"bytes"
	"embed"
	"errors"
	"html/template"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"spillway/internal/serve/admin"
)

//go:embed assets pages
var files embed.FS

// Config is what the pages show and change. All fields are required but Popups.
type Config struct {
	Access *admin.Access
	Popups bool // there are campaigns
	Log    *slog.Logger
}

// Console answers for pages. Its methods may be called concurrently.
type Console struct {
	cfg      Config
	pages    map[string]*template.Template
	assets   map[string]*asset
	sessions *sessions
	live     atomic.Int64 // open event streams
	mux      *http.ServeMux
}

// New returns the pages.
func New(cfg Config) *Console {
	c := &Console{cfg: cfg, pages: make(map[string]*template.Template), assets: readAssets(), sessions: newSessions(time.Now)}
	shared := template.Must(template.New("").Funcs(template.FuncMap{"asset": c.assetURL}).ParseFS(files, "pages/shared/*.html"))
	names, err := fs.Glob(files, "pages/*.html")
	if err != nil {
		panic("bug: pages: " + err.Error())
	}
	for _, name := range names {
		page := template.Must(template.Must(shared.Clone()).ParseFS(files, name))
		c.pages[strings.TrimSuffix(strings.TrimPrefix(name, "pages/"), ".html")] = page
	}
	c.mux = c.routes()
	return c
}

// routes returns the paths of all pages.
func (c *Console) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /console/assets/{name}", c.serveAsset)
	mux.HandleFunc("GET /console/login", c.open((*request).login))
	mux.HandleFunc("POST /console/login", c.open((*request).logIn))
	mux.HandleFunc("/console/", c.closed((*request).notFound))
	pages := map[string]func(*request) error{
		"GET /{$}":                            (*request).overview,
		"GET /console/{$}":                    (*request).overview,
		"GET /console/live":                   (*request).follow,
		"GET /console/traffic":                func(q *request) error { return q.pass("/figures/traffic?" + q.r.URL.RawQuery) }, // for charts
		"POST /console/logout":                (*request).logOut,
		"GET /console/reads":                  (*request).reads,
		"GET /console/reads/one":              (*request).read,
		"POST /console/reads/{work}":          (*request).changeRead,
		"GET /console/streams":                (*request).streams,
		"GET /console/spools/{spool}/dead":    (*request).letters,
		"GET /console/spools/{spool}/export":  (*request).export,
		"POST /console/spools/{spool}/{work}": (*request).order,
		"GET /console/configuration":          (*request).configuration,
		"POST /console/reload":                (*request).reload,
		"GET /console/changes":                (*request).changes,
	}
	if c.cfg.Popups {
		maps.Copy(pages, map[string]func(*request) error{
			"GET /console/campaigns":                (*request).campaigns,
			"GET /console/campaigns/new":            (*request).newCampaign,
			"POST /console/campaigns/new":           (*request).saveCampaign,
			"POST /console/campaigns/check":         (*request).checkCampaign,
			"GET /console/campaigns/{id}":           (*request).editCampaign,
			"POST /console/campaigns/{id}":          (*request).saveCampaign,
			"POST /console/campaigns/{id}/move":     (*request).moveCampaign,
			"POST /console/campaigns/{id}/{action}": (*request).setStatus,
			"GET /console/campaigns/{id}/report":    (*request).report,
			"GET /console/campaigns/{id}/history":   (*request).history,
			"POST /console/campaigns/{id}/restore":  (*request).restore,
			"GET /console/lists":                    (*request).lists,
			"POST /console/lists":                   (*request).uploadList,
			"POST /console/lists/delete":            (*request).deleteList,
			"GET /console/users":                    (*request).user,
			"POST /console/users/test":              (*request).testDraft,
			"POST /console/users/forget":            (*request).forget,
		})
	}
	for path, handle := range pages {
		mux.HandleFunc(path, c.closed(handle))
	}
	return mux
}

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // with no-referrer, forms would send no origin
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	if r.URL.Path != "/console/lists" { // where lists are uploaded, by those who may
		r.Body = http.MaxBytesReader(w, r.Body, formBytesMax)
	}
	c.mux.ServeHTTP(w, r)
}

// request is a request of a caller who may read.
type request struct {
	*Console
	w      http.ResponseWriter
	r      *http.Request
	caller admin.Caller
	zone   *time.Location // of the viewer
}

// open returns a handler for whoever asks.
func (c *Console) open(handle func(*request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := &request{Console: c, w: w, r: r, zone: zoneOf(r)}
		if !isSafe(r.Method) && !sameOrigin(r) {
			q.fail(&failure{Status: http.StatusForbidden, Detail: "The request does not come from a page of this console. Open it and try again."})
			return
		}
		if err := handle(q); err != nil {
			q.fail(err)
		}
	}
}

// closed returns a handler for callers with a session, or for all if there are no tokens.
func (c *Console) closed(handle func(*request) error) http.HandlerFunc {
	return c.open(func(q *request) error {
		known := true
		q.caller = admin.Caller{Role: admin.RoleAdmin}
		if len(c.cfg.Access.Tokens) > 0 {
			q.caller, known = c.sessions.find(q.r)
		}
		switch {
		case known:
			return handle(q)
		case q.r.Header.Get("HX-Request") != "":
			q.w.Header().Set("HX-Redirect", "/console/login")
			q.w.WriteHeader(http.StatusUnauthorized)
			return nil
		case q.r.Header.Get("Accept") == "text/event-stream":
			q.w.WriteHeader(http.StatusUnauthorized)
			return nil
		case isSafe(q.r.Method):
			return q.redirect("/console/login?next=" + url.QueryEscape(q.r.URL.RequestURI()))
		}
		const expired = "The session has expired, and nothing has changed. Log in and try again."
		return &failure{Status: http.StatusUnauthorized, Detail: expired}
	})
}

func isSafe(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// failure is an error of which a page tells.
type failure = admin.Problem

// fail answers with the page of an error, or for htmx with its text.
func (q *request) fail(err error) {
	if q.r.Context().Err() != nil {
		return // the client has left
	}
	var f *failure
	if !errors.As(err, &f) {
		q.cfg.Log.Error("page of the console failed", "path", q.r.URL.Path, "error", err)
		f = &failure{Status: http.StatusInternalServerError, Detail: "The page could not be made. The log says why."}
	}
	if q.r.Header.Get("HX-Request") != "" {
		http.Error(q.w, f.Detail, f.Status)
		return
	}
	if err := q.render(f.Status, "error", http.StatusText(f.Status), f); err != nil {
		q.cfg.Log.Error("page of the console failed", "path", q.r.URL.Path, "error", err)
	}
}

func (q *request) notFound() error {
	return &failure{Status: http.StatusNotFound, Detail: "There is no such page."}
}

// redirect answers a form: the browser gets a page that can be reloaded.
func (q *request) redirect(path string) error {
	q.w.Header().Set("Location", path)
	q.w.Header().Set("Cache-Control", "no-store")
	q.w.WriteHeader(http.StatusSeeOther)
	return nil
}

// view is what a template gets.
type view struct {
	Title   string
	Path    string // of the request, for the navigation
	Query   url.Values
	Caller  admin.Caller
	Tokens  bool
	Popups  bool
	Edit    bool // the caller may edit
	Admin   bool
	Known   bool // the caller has passed the log-in
	Process admin.Process
	Links   []admin.Link
	Data    any

	zone *time.Location
}

// render answers with a page.
func (q *request) render(status int, page, title string, data any) error {
	return q.execute(status, page, "page", q.view(title, data))
}

// fragment answers with a part of a page.
func (q *request) fragment(page, name string, data any) error {
	return q.execute(http.StatusOK, page, name, q.view("", data))
}

func (q *request) execute(status int, page, name string, v *view) error {
	var out bytes.Buffer
	if err := q.pages[page].ExecuteTemplate(&out, name, v); err != nil {
		return err
	}
	q.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	q.w.Header().Set("Cache-Control", "no-store")
	q.w.WriteHeader(status)
	_, _ = q.w.Write(out.Bytes()) // if it fails, the client has left
	return nil
}

func (q *request) view(title string, data any) *view {
	v := &view{Title: title, Path: q.r.URL.Path, Query: q.r.URL.Query(), Caller: q.caller, Data: data, zone: q.zone}
	v.Tokens, v.Popups, v.Known = len(q.cfg.Access.Tokens) > 0, q.cfg.Popups, q.caller.Role > 0
	v.Edit, v.Admin = q.caller.Role >= admin.RoleEdit, q.caller.Role >= admin.RoleAdmin
	if v.Known {
		about := q.cfg.Access.About
		v.Process, v.Links = about.Process, about.Links
	}
	return v
}

// zoneOf returns the time zone that the viewer's browser has told; UTC if it has not.
func zoneOf(r *http.Request) *time.Location {
	if cookie, err := r.Cookie("spillway_zone"); err == nil {
		return loadZone(cookie.Value, time.UTC)
	}
	return time.UTC
}

// loadZone returns a zone by its name, or another one if there is none of that name.
func loadZone(name string, other *time.Location) *time.Location {
	zone, err := time.LoadLocation(name)
	if err != nil || name == "" || name == "Local" || len(name) > 64 {
		return other
	}
	return zone
}
