package admin

import (
	_ "embed" // texts of GET /
	"encoding/json"
	"errors"
	"io"
	"log/slog"
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
	"spillway/internal/serve/param"
)

//go:embed index.txt
var index string

//go:embed index_popups.txt
var popupIndex string

// route is a method of a path, and the role that it requires; 0: none. GET includes HEAD.
type route struct {
	method, path string
	role         Role
	handle       handler
}

// handler answers a request. What it returns is the body, as JSON; nil: there is none. An error that is no *Problem means that the
// database does not answer.
type handler func(w http.ResponseWriter, r *http.Request) (answer any, err error)

// created is the answer to a request that has created something.
type created struct{ answer any }

// written is what a handler returns that has written its answer.
type written struct{}

// raw returns a handler that writes its answer.
func raw(handle http.HandlerFunc) handler {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		handle(w, r)
		return written{}, nil
	}
}

// ServeHTTP implements http.Handler.
func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := h(w, r)
	if p, ok := errors.AsType[*Problem](err); ok {
		p.write(w)
		return
	}
	if err != nil {
		later("the database does not answer: " + err.Error()).write(w)
		return
	}
	switch answer := answer.(type) {
	case written:
	case nil:
		w.WriteHeader(http.StatusNoContent)
	case created:
		writeJSON(w, "application/json", http.StatusCreated, answer.answer)
	default:
		writeJSON(w, "application/json", http.StatusOK, answer)
	}
}

// openRoutes returns the routes that need no token.
func (s *Server) openRoutes() []route {
	return []route{
		{"GET", "/livez", 0, raw(func(w http.ResponseWriter, _ *http.Request) { writeText(w, "ok\n") })},
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
		ErrorLog:            slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelError),
		MaxRequestsInFlight: MetricsRequestMax,
		EnableOpenMetrics:   true,
	})
	routes := []route{
		{"GET", "/{$}", RoleRead, raw(s.showIndex)},
		{"GET", "/metrics", RoleRead, raw(metrics.ServeHTTP)},
		{"GET", "/parts", RoleRead, s.showParts},
		{"GET", "/figures", RoleRead, func(http.ResponseWriter, *http.Request) (any, error) { return s.figures(), nil }},
		{"GET", "/figures/traffic", RoleRead, s.showTraffic},
		{"GET", "/changes", RoleRead, s.showChanges},
		{"GET", "/configuration", RoleRead, func(http.ResponseWriter, *http.Request) (any, error) { return s.cfg.Configuration(), nil }},
		{"GET", "/openapi.json", RoleRead, raw(s.showOpenAPI)},
		{"GET", "/debug/pprof/{$}", RoleAdmin, raw(pprof.Index)},
		{"GET", "/debug/pprof/{name}", RoleAdmin, showProfile},
		{"GET", "/debug/pprof/profile", RoleAdmin, raw(pprof.Profile)},
		{"GET", "/debug/pprof/trace", RoleAdmin, raw(pprof.Trace)},
		{"GET", "/debug/pprof/symbol", RoleAdmin, raw(pprof.Symbol)},
		{"POST", "/debug/pprof/symbol", RoleAdmin, raw(pprof.Symbol)},
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

// reload applies the configuration file. The answer comes when it is in force.
func (s *Server) reload(w http.ResponseWriter, r *http.Request) (any, error) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // it takes as long as it takes
	var names []string
	for _, c := range s.cfg.Configuration().Changes {
		names = append(names, c.Setting)
	}
	if err := s.cfg.Reload(r.Context()); err != nil {
		return nil, newProblem(http.StatusConflict, err.Error())
	}
	return changed{detail: strings.Join(names, ", ")}, nil
}

// ownOrigin returns a handler that refuses what pages of other origins may not do. Without a
// token, a page in the operator's browser can send requests here.
func ownOrigin(what string, handle handler) handler {
	own := http.NewCrossOriginProtection()
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		if own.Check(r) != nil {
			return nil, newProblem(http.StatusForbidden, "pages of other origins may not "+what)
		}
		return handle(w, r)
	}
}

// handler returns the routes, with the checks of host and token.
func (s *Server) handler() http.Handler {
	open, closed := newMux(s.openRoutes()), newMux(s.closedRoutes())
	closed.Handle("/", handler(notFound))
	open.Handle("/", s.checkToken(closed))
	shown := http.Handler(open)
	if s.cfg.Pages != nil {
		shown = withPages(open, s.cfg.Pages(&Access{s.cfg, s, closed}))
	}
	return s.checkHost(asWritten(shown, s.checkToken(handler(notFound))))
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
	paths := make(map[string]map[string]handler)
	for _, r := range routes {
		if paths[r.path] == nil {
			paths[r.path] = make(map[string]handler)
		}
		paths[r.path][r.method] = r.role.require(r.handle)
		if r.method == http.MethodGet {
			paths[r.path][http.MethodHead] = paths[r.path][r.method]
		}
	}
	mux := http.NewServeMux()
	for pattern, methods := range paths {
		allow := strings.Join(slices.Sorted(maps.Keys(methods)), ", ")
		mux.Handle(pattern, handler(func(w http.ResponseWriter, r *http.Request) (any, error) {
			handle := methods[r.Method]
			switch {
			case !spelled(pattern, r):
				handle = notFound
			case handle == nil:
				w.Header().Set("Allow", allow)
				return nil, newProblem(http.StatusMethodNotAllowed, "this path supports "+allow)
			}
			return handle(w, r)
		}))
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
			newProblem(http.StatusMisdirectedRequest,
				"without a token this listener accepts only 127.0.0.1, [::1] and localhost as the host").write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
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
func showProfile(w http.ResponseWriter, r *http.Request) (any, error) {
	if profiles.Lookup(r.PathValue("name")) == nil {
		return notFound(w, r)
	}
	pprof.Index(w, r)
	return written{}, nil
}

func notFound(http.ResponseWriter, *http.Request) (any, error) {
	return nil, newProblem(http.StatusNotFound, "GET / lists what is here")
}

// Problem is an error of RFC 9457. Its type is about:blank, because the status is all that a
// program needs.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Errors []Flaw `json:"errors,omitempty"` // of fields and parameters
}

// Error returns the detail.
func (p *Problem) Error() string { return p.Detail }

// Flaw is an error in a field of a body, or in a parameter.
type Flaw struct {
	Field   string `json:"field"`
	Line    int    `json:"line,omitempty"` // in an expression or a list
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
}

// newProblem returns a problem and the flaws that led to it.
func newProblem(status int, detail string, flaws ...Flaw) *Problem {
	return &Problem{"about:blank", http.StatusText(status), status, detail, flaws}
}

// later returns a problem of a request that may succeed soon.
func later(detail string) *Problem { return newProblem(http.StatusServiceUnavailable, detail) }

// flawed returns a problem of flaws alone.
func flawed(status int, flaws ...Flaw) *Problem {
	messages := make([]string, len(flaws))
	for i, f := range flaws {
		messages[i] = f.Message
	}
	return newProblem(status, strings.Join(messages, "; "), flaws...)
}

func (p *Problem) write(w http.ResponseWriter) {
	if p.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, "application/problem+json", p.Status, p)
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

// openAPI describes the listener with popups.
//
//go:embed openapi.json
var openAPI []byte

// document returns what describes the listener: without popups, their paths are missing, and
// with popups, their placements are listed.
func (s *Server) document() []byte {
	var all map[string]any
	if err := json.Unmarshal(openAPI, &all); err != nil {
		panic("bug: openapi.json: " + err.Error())
	}
	paths := all["paths"].(map[string]any)
	if p := s.cfg.Popups; p != nil {
		parameters := all["components"].(map[string]any)["schemas"].(map[string]any)
		parameters["Placement"].(map[string]any)["enum"] = p.Placements
		parameters["User"] = userSchema(p.User)
	} else {
		for path := range paths {
			if strings.HasPrefix(path, "/popups/") {
				delete(paths, path)
			}
		}
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		panic("bug: openapi.json: " + err.Error())
	}
	return append(text, '\n')
}

// userSchema returns the schema of a user's id.
func userSchema(t param.Type) map[string]any {
	switch t {
	case param.Integer:
		return map[string]any{"type": "integer", "format": "int64"}
	case param.UUID:
		return map[string]any{"type": "string", "format": "uuid"}
	default:
		return map[string]any{"type": "string", "minLength": 1}
	}
}

func (s *Server) showOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(s.document()) // if it fails, the client has left
}
