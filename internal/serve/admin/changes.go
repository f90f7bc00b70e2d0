package admin

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"spillway/internal/serve/audit"
)

// authorOf returns who sends a request.
func authorOf(r *http.Request) audit.Author {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = "" // a Unix socket
	}
	return audit.Author{By: callerOf(r).Name, Address: host, Request: r.Method + " " + r.URL.Path}
}

// recorded returns a route whose changes are recorded before they are answered. The tables of campaigns and lists record
// their changes themselves.
func (s *Server) recorded(route route) route {
	reads := route.method == http.MethodGet || route.role == RoleRead || strings.HasPrefix(route.path, "/debug/")
	if reads || strings.HasPrefix(route.path, "/popups/campaigns") || strings.HasPrefix(route.path, "/popups/lists") {
		return route
	}
	handle := route.handle
	route.handle = func(w http.ResponseWriter, r *http.Request) {
		c := &changeWriter{ResponseWriter: w, server: s, request: r}
		c.change.Author = authorOf(r)
		if route.path == "/popups/users/{user}" {
			c.change.Request = r.Method + " " + route.path // who was forgotten is not kept
		}
		handle(c, r)
	}
	return route
}

// changeWriter records a change when its answer begins. If that fails, it answers that instead.
type changeWriter struct {
	http.ResponseWriter
	server  *Server
	request *http.Request
	change  audit.Change
	same    bool // nothing changes
	begun   bool
	failed  bool
}

// noteChange adds a detail to the record of a change, or with same says that there is none, for the handler of a recorded route.
func noteChange(w http.ResponseWriter, detail string, same bool) {
	if c, ok := w.(*changeWriter); ok {
		c.change.Detail, c.same = detail, same
	}
}

// WriteHeader implements http.ResponseWriter.
func (c *changeWriter) WriteHeader(status int) {
	c.begun = true
	if status >= 300 || c.same {
		c.ResponseWriter.WriteHeader(status)
		return
	}
	c.change.At = time.Now()
	err := c.server.cfg.Changes.Record(context.WithoutCancel(c.request.Context()), c.change)
	if err == nil {
		c.ResponseWriter.WriteHeader(status)
		return
	}
	c.failed = true
	c.server.cfg.Log.Error("change made but not recorded", "by", c.change.By, "address", c.change.Address, "request", c.change.Request,
		"detail", c.change.Detail, "error", err)
	const detail = "it is done, but who did it could not be recorded, except in the log: "
	writeProblem(c.ResponseWriter, http.StatusInternalServerError, detail+err.Error())
}

// Write implements http.ResponseWriter.
func (c *changeWriter) Write(text []byte) (int, error) {
	if !c.begun {
		c.WriteHeader(http.StatusOK)
	}
	if c.failed {
		return len(text), nil
	}
	return c.ResponseWriter.Write(text)
}

// Unwrap is for http.ResponseController.
func (c *changeWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

const (
	changesMax   = 500    // of one answer
	changesUsual = 100    // without a limit
	changesRead  = 10_000 // in which a filter selects
)

// showChanges answers who changed what, the newest first.
func (s *Server) showChanges(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	filter, flaws := readFilter(r)
	limit := changesUsual
	if text := query.Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > changesMax {
			flaws = append(flaws, flaw{Field: "limit", Message: fmt.Sprintf("limit must be a number from 1 to %d", changesMax)})
		}
	}
	if len(flaws) > 0 {
		writeFlaws(w, http.StatusBadRequest, flaws...)
		return
	}
	from, before := time.Now().Add(-audit.Kept), time.Now().Add(time.Hour) // a database's clock may be ahead
	if filter.Since.After(from) {
		from = filter.Since
	}
	if !filter.Until.IsZero() && filter.Until.Before(before) {
		before = filter.Until
	}
	answer := struct {
		Changes []audit.Change `json:"changes"`
		Next    *time.Time     `json:"next,omitempty"` // until, for the changes before these
	}{Changes: []audit.Change{}}
	by, text, read := query.Get("by"), strings.ToLower(query.Get("text")), limit
	if by+text != "" {
		read = changesRead
	}
	all, err := []audit.Change(nil), error(nil)
	if from.Before(before) {
		all, err = s.cfg.Changes.Changes(r.Context(), from, before, read)
	}
	if err != nil {
		writeDown(w, err)
		return
	}
	for i, c := range all {
		if words := c.Request + " " + c.Detail + " " + c.Address; (by == "" || by == c.By) && strings.Contains(strings.ToLower(words), text) {
			answer.Changes = append(answer.Changes, c)
		}
		if len(answer.Changes) == limit || i == read-1 {
			answer.Next = &c.At
			break
		}
	}
	writeJSON(w, "application/json", http.StatusOK, answer)
}
