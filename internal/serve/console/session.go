package console

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"spillway/internal/serve/admin"
)

// Bounds of sessions and log-ins.
const (
	SessionTime = 12 * time.Hour
	sessionsMax = 20 // of one token; beyond, its oldest is ended

	failuresMax   = 5 // of one address until it must wait; a token that is right need not
	failureWait   = time.Minute
	addressesMax  = 10_000
	tokenBytesMax = 4096
)

// sessions are the log-ins of this process.
type sessions struct {
	now func() time.Time

	mu       sync.Mutex // guards what follows
	open     map[[sha256.Size]byte]session
	failures map[netip.Prefix]failures
}

type session struct {
	caller admin.Caller
	until  time.Time
}

// failures are the failed log-ins of an address.
type failures struct {
	count int
	last  time.Time
}

func newSessions(now func() time.Time) *sessions {
	return &sessions{now: now, open: make(map[[sha256.Size]byte]session), failures: make(map[netip.Prefix]failures)}
}

// cookieName is that of the session. Browsers send cookies to all ports of a host, where other processes may listen.
func cookieName(r *http.Request) string {
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		return "spillway_session"
	}
	return "spillway_session_" + port
}

// find returns who has the session of a request.
func (s *sessions) find(r *http.Request) (c admin.Caller, known bool) {
	cookie, err := r.Cookie(cookieName(r))
	if err != nil {
		return c, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	one, known := s.open[sha256.Sum256([]byte(cookie.Value))]
	return one.caller, known && s.now().Before(one.until)
}

// begin begins a session and returns its id.
func (s *sessions) begin(c admin.Caller) string {
	id := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest [sha256.Size]byte
	own := 0
	for key, one := range s.open {
		if one.caller != c {
			continue
		}
		if own++; own == 1 || one.until.Before(s.open[oldest].until) {
			oldest = key
		}
	}
	if own >= sessionsMax {
		delete(s.open, oldest)
	}
	s.open[sha256.Sum256([]byte(id))] = session{c, s.now().Add(SessionTime)}
	return id
}

// end ends the session of a request.
func (s *sessions) end(r *http.Request) {
	if cookie, err := r.Cookie(cookieName(r)); err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, sha256.Sum256([]byte(cookie.Value)))
	}
}

// failed notes a failed log-in of an address, and returns how long the address must wait after too many; 0: it need not.
func (s *sessions) failed(address netip.Prefix) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if len(s.failures) >= addressesMax {
		for other, f := range s.failures {
			if now.Sub(f.last) >= failureWait || len(s.failures) >= addressesMax {
				delete(s.failures, other)
			}
		}
	}
	f := s.failures[address]
	switch {
	case now.Sub(f.last) >= failureWait:
		f.count = 0
	case f.count >= failuresMax:
		return f.last.Add(failureWait).Sub(now)
	}
	s.failures[address] = failures{f.count + 1, now}
	return 0
}

// addressOf returns the client's address, of IPv6 the network that one client has.
func addressOf(r *http.Request) netip.Prefix {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{} // a Unix socket
	}
	bits := 32
	if at.Addr().Unmap().Is6() {
		bits = 64
	}
	prefix, _ := at.Addr().Unmap().WithZone("").Prefix(bits) // never fails
	return prefix
}

// sameOrigin reports whether a request comes from a page of this listener. Browsers say so in one of the two headers for
// every change, and pages cannot set them. A proxy may change Host, and then the first one decides.
func sameOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin":
		return true
	case "":
		origin, err := url.Parse(r.Header.Get("Origin"))
		return err == nil && origin.Host != "" && strings.EqualFold(origin.Host, r.Host) && origin.User == nil
	}
	return false
}

// login shows the log-in page.
func (q *request) login() error {
	if len(q.cfg.Access.Tokens) == 0 {
		return q.redirect("/")
	}
	return q.showLogin(http.StatusOK, "")
}

func (q *request) showLogin(status int, problem string) error {
	next := q.r.URL.Query().Get("next")
	if q.r.Method == http.MethodPost {
		next = q.r.PostFormValue("next")
	}
	return q.render(status, "login", "Log in", struct{ Next, Problem string }{nextPage(next), problem})
}

// nextPage returns the page to show after the log-in: one of this console.
func nextPage(path string) string {
	if strings.HasPrefix(path, admin.PagesPath) && !strings.HasPrefix(path, "/console/log") {
		return path
	}
	return "/"
}

// logIn begins a session with a token.
func (q *request) logIn() error {
	if len(q.cfg.Access.Tokens) == 0 {
		return q.redirect("/")
	}
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, tokenBytesMax)
	caller, known := q.cfg.Access.Identify(strings.TrimSpace(q.r.PostFormValue("token")))
	if !known {
		if wait := q.sessions.failed(addressOf(q.r)); wait > 0 {
			seconds := int(wait/time.Second) + 1
			q.w.Header().Set("Retry-After", strconv.Itoa(seconds))
			const tooMany = "No such token, and too many failed log-ins from your address. Wait %d seconds."
			return q.showLogin(http.StatusTooManyRequests, fmt.Sprintf(tooMany, seconds))
		}
		q.cfg.Log.Warn("log-in to the console failed", "address", q.r.RemoteAddr)
		return q.showLogin(http.StatusUnauthorized, "No such token. It is admin.token or one of admin.tokens in the configuration.")
	}
	q.cfg.Log.Info("log-in to the console", "by", caller.Name, "role", caller.Role.String(), "address", q.r.RemoteAddr)
	q.setCookie(q.sessions.begin(caller), int(SessionTime/time.Second))
	return q.redirect(nextPage(q.r.PostFormValue("next")))
}

// logOut ends the session.
func (q *request) logOut() error {
	q.sessions.end(q.r)
	q.setCookie("", -1)
	return q.redirect("/console/login")
}

func (q *request) setCookie(value string, seconds int) {
	http.SetCookie(q.w, &http.Cookie{
		Name: cookieName(q.r), Value: value, Path: "/", MaxAge: seconds, HttpOnly: true, SameSite: http.SameSiteLaxMode,
		Secure: q.r.TLS != nil || strings.HasPrefix(q.r.Header.Get("Origin"), "https://"), // the listener may be behind a proxy with TLS
	})
}
