package admin

import (
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"path"
	profiles "runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"spillway/internal/netstat"
)

const index = `Spillway, admin listener

/livez          200 while the process runs
/readyz         200 while a part of the process serves; /readyz/reads, /readyz/writes and
                /readyz/popups are of feeds and queries, streams, and popups
                ?parts=/PATH,... asks about these paths alone
/parts          all parts, and the errors of those that do not serve
/figures        requests, freshness, queues, pools and disk now; /figures/traffic: the last hour
/reads?path=/PATH   a feed or a query: statement, plans, and the values in use; below it
                POST pause, resume, drop of a value
/metrics        Prometheus metrics
/openapi.json   this listener, in OpenAPI 3.1
/configuration  the configuration in force, and what a reload would change
/reload         POST: apply the configuration file
/changes        who changed what in the last 90 days; ?by=, text=, since=, until=, limit=
/spools/NAME    what waits in a spool (streams or popups); below it: waiting, dead, dead/export,
                and POST retry, discard, move
/debug/pprof/   profiles: go tool pprof http://ADDRESS/debug/pprof/profile?seconds=10
`

const popupIndex = `
/popups/campaigns   the campaigns: list, create, update, pause, resume, archive;
                    below each: report, history; POST campaigns/check: what is wrong
/popups/attributes  what targets may name
/popups/lists       the lists of users that targets name
/popups/lists/NAME  PUT: replace, one id per line; DELETE
/popups/users/USER  DELETE: delete all that is known about a user
/popups/explain     ?user=...&placement=...&at=...: why a user gets each campaign or not
`

// route is a method of a path, and the role that it requires; 0: none. GET includes HEAD.
type route struct {
	method, path string
	role         Role
	handle       http.HandlerFunc
}

// openRoutes returns the routes that need no token.
func (s *Server) openRoutes() []route {
	return []route{
		{"GET", "/livez", 0, livez},
		{"GET", "/readyz", 0, s.readyz("")},
		{"GET", "/readyz/reads", 0, s.readyz(Reads)},
		{"GET", "/readyz/writes", 0, s.readyz(Writes)},
		{"GET", "/readyz/popups", 0, s.readyz(Shows)},
	}
}

// closedRoutes returns the routes that need a token, if there are any.
func (s *Server) closedRoutes() []route {
	metrics := promhttp.HandlerFor(s.cfg.Registry, promhttp.HandlerOpts{
		Registry:            s.cfg.Registry,
		ErrorHandling:       promhttp.ContinueOnError,
		ErrorLog:            metricsLog{s.cfg.Log},
		MaxRequestsInFlight: MetricsRequestMax,
		EnableOpenMetrics:   true,
	})
	routes := []route{
		{"GET", "/{$}", RoleRead, s.showIndex},
		{"GET", "/metrics", RoleRead, metrics.ServeHTTP},
		{"GET", "/parts", RoleRead, s.showParts},
		{"GET", "/figures", RoleRead, s.showFigures},
		{"GET", "/figures/traffic", RoleRead, s.showTraffic},
		{"GET", "/changes", RoleRead, s.showChanges},
		{"GET", "/configuration", RoleRead, s.showConfiguration},
		{"GET", "/openapi.json", RoleRead, s.showOpenAPI},
		{"GET", "/debug/pprof/{$}", RoleAdmin, pprof.Index},
		{"GET", "/debug/pprof/{name}", RoleAdmin, showProfile},
		{"GET", "/debug/pprof/profile", RoleAdmin, pprof.Profile},
		{"GET", "/debug/pprof/trace", RoleAdmin, pprof.Trace},
		{"GET", "/debug/pprof/symbol", RoleAdmin, pprof.Symbol},
		{"POST", "/debug/pprof/symbol", RoleAdmin, pprof.Symbol},
		{"POST", "/reload", RoleAdmin, ownOrigin("reload the configuration", s.reload)},
	}
	if s.cfg.Popups != nil {
		routes = append(routes, s.cfg.Popups.routes()...)
	}
	routes = append(append(routes, s.spoolRoutes()...), s.readRoutes()...)
	for i, route := range routes {
		routes[i] = s.recorded(route)
	}
	return routes
}

// Configuration is the configuration of the process.
type Configuration struct {
	File      string          `json:"file"`              // "": the built-in one, which cannot be reloaded
	Effective string          `json:"effective"`         // as YAML, with all defaults and without secrets
	Changes   []SettingChange `json:"changes"`           // by what the file differs from it
	Problem   string          `json:"problem,omitempty"` // why the file cannot be applied
}

// SettingChange is a setting that differs in the file. Now and Next do not tell secrets.
type SettingChange struct {
	Setting string `json:"setting"`
	Fixed   bool   `json:"fixed"` // it cannot change while the process runs
	Now     string `json:"now"`
	Next    string `json:"next"`
}

func (s *Server) showConfiguration(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, "application/json", http.StatusOK, s.cfg.Configuration())
}

// reload applies the configuration file. The answer comes when it is in force.
func (s *Server) reload(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // it takes as long as it takes
	var names []string
	for _, c := range s.cfg.Configuration().Changes {
		names = append(names, c.Setting)
	}
	if err := s.cfg.Reload(r.Context()); err != nil {
		writeProblem(w, http.StatusConflict, err.Error())
		return
	}
	noteChange(w, strings.Join(names, ", "), false)
	w.WriteHeader(http.StatusNoContent)
}

// ownOrigin returns a handler that refuses what pages of other origins may not do. Without a
// token, a page in the operator's browser can send requests here.
func ownOrigin(what string, handle http.HandlerFunc) http.HandlerFunc {
	own := http.NewCrossOriginProtection()
	own.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, http.StatusForbidden, "pages of other origins may not "+what)
	}))
	return own.Handler(handle).ServeHTTP
}

// handler returns the routes, with the checks of host and token.
func (s *Server) handler() http.Handler {
	open, closed := newMux(s.openRoutes()), newMux(s.closedRoutes())
	closed.HandleFunc("/", notFound)
	open.Handle("/", s.checkToken(closed))
	shown := http.Handler(open)
	if s.cfg.Pages != nil {
		shown = withPages(open, s.cfg.Pages(&Access{s, closed}))
	}
	return s.checkHost(asWritten(shown, s.checkToken(http.HandlerFunc(notFound))))
}

// withPages returns a handler that passes requests below PagesPath to the pages, and those of browsers for /. The names in the
// paths of pages need no escapes.
func withPages(other, pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isPage := strings.HasPrefix(r.URL.Path, PagesPath) && r.URL.Path == r.URL.EscapedPath()
		if r.URL.Path == "/" {
			w.Header().Set("Vary", "Accept")
			isPage = r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html")
		}
		if isPage {
			pages.ServeHTTP(w, r)
			return
		}
		other.ServeHTTP(w, r)
	})
}

// asWritten returns a handler that passes requests to other if their path has an empty segment, "." or "..". A mux would redirect
// them, although a proxy in front has compared its rules with the path as it is written.
func asWritten(next, other http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		written := r.URL.EscapedPath()
		clean := path.Clean(written)
		if strings.HasSuffix(written, "/") && clean != "/" {
			clean += "/"
		}
		if strings.HasPrefix(written, "/") && written != clean {
			other.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// spelled reports whether a request writes the literal segments of a pattern as the pattern does. A mux compares them decoded.
func spelled(pattern string, r *http.Request) bool {
	want, got := strings.Split(pattern, "/"), strings.Split(r.URL.EscapedPath(), "/")
	for i, segment := range want {
		if !strings.HasPrefix(segment, "{") && (i >= len(got) || got[i] != segment) {
			return false
		}
	}
	return true
}

// newMux returns a mux of routes, which answers other methods of their paths with 405.
func newMux(routes []route) *http.ServeMux {
	paths := make(map[string]map[string]http.HandlerFunc)
	add := func(path, method string, handle http.HandlerFunc) {
		if paths[path] == nil {
			paths[path] = make(map[string]http.HandlerFunc)
		}
		paths[path][method] = handle
	}
	for _, r := range routes {
		handle := r.role.require(r.handle)
		add(r.path, r.method, handle)
		if r.method == http.MethodGet {
			add(r.path, http.MethodHead, handle)
		}
	}
	mux := http.NewServeMux()
	for pattern, methods := range paths {
		allow := strings.Join(slices.Sorted(maps.Keys(methods)), ", ")
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			handle := methods[r.Method]
			switch {
			case !spelled(pattern, r):
				notFound(w, r)
				return
			case handle != nil:
				handle(w, r)
				return
			}
			w.Header().Set("Allow", allow)
			writeProblem(w, http.StatusMethodNotAllowed, "this path supports "+allow)
		})
	}
	return mux
}

// checkHost rejects requests whose Host is not loopback while there is no token. Otherwise a
// web page whose name resolves to 127.0.0.1 could read metrics and profiles through the
// operator's browser.
func (s *Server) checkHost(next http.Handler) http.Handler {
	if len(s.cfg.Tokens) > 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]") // no port
		}
		if !netstat.IsLoopback(host) {
			writeProblem(w, http.StatusMisdirectedRequest,
				"without a token this listener accepts only 127.0.0.1, [::1] and localhost as the host")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func livez(w http.ResponseWriter, _ *http.Request) {
	writeText(w, "ok\n")
}

func (s *Server) showIndex(w http.ResponseWriter, _ *http.Request) {
	if s.cfg.Popups != nil {
		writeText(w, index+popupIndex)
		return
	}
	writeText(w, index)
}

// showProfile serves a profile by name. It does not serve the command line, because a
// database URL there may contain a password.
func showProfile(w http.ResponseWriter, r *http.Request) {
	if profiles.Lookup(r.PathValue("name")) == nil {
		notFound(w, r)
		return
	}
	pprof.Index(w, r)
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	writeProblem(w, http.StatusNotFound, "GET / lists what is here")
}

// problem is an error of RFC 9457. Its type is about:blank, because the status is all that a
// program needs.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Errors []flaw `json:"errors,omitempty"` // of fields and parameters
}

// flaw is an error in a field of a body, or in a parameter.
type flaw struct {
	Field   string `json:"field"`
	Line    int    `json:"line,omitempty"` // in an expression or a list
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
}

// writeProblem answers with a problem and the flaws that led to it.
func writeProblem(w http.ResponseWriter, status int, detail string, flaws ...flaw) {
	writeJSON(w, "application/problem+json", status, problem{"about:blank", http.StatusText(status), status, detail, flaws})
}

// writeLater answers 503: the request may succeed soon.
func writeLater(w http.ResponseWriter, detail string) {
	w.Header().Set("Retry-After", "1")
	writeProblem(w, http.StatusServiceUnavailable, detail)
}

// writeFlaws answers with flaws alone.
func writeFlaws(w http.ResponseWriter, status int, flaws ...flaw) {
	messages := make([]string, len(flaws))
	for i, f := range flaws {
		messages[i] = f.Message
	}
	writeProblem(w, status, strings.Join(messages, "; "), flaws...)
}

func writeJSON(w http.ResponseWriter, contentType string, status int, answer any) {
	body, err := json.Marshal(answer)
	if err != nil {
		panic("bug: encode an answer of strings and numbers: " + err.Error())
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // if it fails, the client has left
}

func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = io.WriteString(w, text) // if it fails, the client has left
}
