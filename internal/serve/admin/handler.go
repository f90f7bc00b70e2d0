package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	_ "embed" // openapi.json
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	profiles "runtime/pprof"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const index = `Spillway, admin listener

/livez          200 while the process runs
/readyz         200 when ready, else 503 and why
/metrics        Prometheus metrics
/reload         POST: apply the configuration file
/debug/pprof/   profiles: go tool pprof http://ADDRESS/debug/pprof/profile?seconds=10
`

const popupIndex = `
/popups/campaigns   the campaigns: list, create, update, pause, resume, archive
/popups/explain     ?user=...&placement=...: why a user gets each campaign or not
/openapi.json       the campaign API
`

// handler returns the routes, with the checks of host and token.
func (s *Server) handler() http.Handler {
	open := http.NewServeMux() // without the token
	open.HandleFunc("GET /livez", livez)
	open.HandleFunc("GET /readyz", s.readyz)
	open.HandleFunc("/livez", methodNotAllowed)
	open.HandleFunc("/readyz", methodNotAllowed)

	closed := http.NewServeMux()
	closed.HandleFunc("GET /{$}", s.showIndex)
	closed.Handle("GET /metrics", promhttp.HandlerFor(s.cfg.Registry, promhttp.HandlerOpts{
		Registry:            s.cfg.Registry,
		ErrorHandling:       promhttp.ContinueOnError,
		ErrorLog:            metricsLog{s.cfg.Log},
		MaxRequestsInFlight: MetricsRequestMax,
		EnableOpenMetrics:   true,
	}))
	closed.HandleFunc("GET /debug/pprof/", showProfile)
	closed.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	closed.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	closed.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	closed.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	for _, path := range []string{"/{$}", "/metrics", "/debug/pprof/"} {
		closed.HandleFunc(path, methodNotAllowed)
	}
	if s.cfg.Popups != nil {
		s.campaignRoutes(closed)
	}
	if s.cfg.Reload != nil {
		s.reloadRoutes(closed)
	}
	closed.HandleFunc("/", notFound)

	open.Handle("/", s.checkToken(closed))
	return s.checkHost(open)
}

// checkHost rejects requests whose Host is not loopback while no token is set. Otherwise a
// web page whose name resolves to 127.0.0.1 could read metrics and profiles through the
// operator's browser.
func (s *Server) checkHost(next http.Handler) http.Handler {
	if s.cfg.Token != "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]") // no port
		}
		if !isLoopback(host) {
			writeProblem(w, http.StatusMisdirectedRequest,
				"without a token this listener accepts only 127.0.0.1, [::1] and localhost as the host")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// checkToken requires the token, if one is set.
func (s *Server) checkToken(next http.Handler) http.Handler {
	if s.cfg.Token == "" {
		return next
	}
	want := sha256.Sum256([]byte(s.cfg.Token)) // equal lengths: the time of a comparison does not depend on the token's
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(strings.TrimSpace(token)))
		if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Bearer realm="spillway admin"`)
			writeProblem(w, http.StatusUnauthorized, "send the header \"Authorization: Bearer TOKEN\" with the token of admin.token")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func livez(w http.ResponseWriter, _ *http.Request) {
	writeText(w, "ok\n")
}

// readyz reports whether traffic should be sent here, and if not, why.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	answer := struct {
		Ready   bool        `json:"ready"`
		Reasons []Problem   `json:"reasons,omitempty"`
		Streams []StreamAck `json:"streams,omitempty"`
	}{Reasons: s.cfg.Ready()}
	if s.cfg.Acks != nil {
		answer.Streams = s.cfg.Acks()
	}
	answer.Ready = len(answer.Reasons) == 0
	status := http.StatusOK
	if !answer.Ready {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, "application/json", status, answer)
}

func (s *Server) showIndex(w http.ResponseWriter, _ *http.Request) {
	if s.cfg.Popups != nil {
		writeText(w, index+popupIndex)
		return
	}
	writeText(w, index)
}

// showProfile serves the index of profiles, and profiles by name. It does not serve the
// command line, because a database URL there may contain a password.
func showProfile(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/debug/pprof/")
	if name != "" && profiles.Lookup(name) == nil {
		notFound(w, r)
		return
	}
	pprof.Index(w, r)
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	writeProblem(w, http.StatusNotFound, "GET / lists what is here")
}

func methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Allow", "GET, HEAD")
	writeProblem(w, http.StatusMethodNotAllowed, "this path supports GET and HEAD")
}

// writeProblem responds with a problem of RFC 9457. Its type is about:blank, because the
// status is all that a program needs.
func writeProblem(w http.ResponseWriter, status int, detail string) {
	writeJSON(w, "application/problem+json", status, struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{"about:blank", http.StatusText(status), status, detail})
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

// openAPI describes the campaign API.
//
//go:embed openapi.json
var openAPI string

func showOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write([]byte(openAPI)) // if it fails, the client has left
}
