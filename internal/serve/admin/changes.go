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

// noteChange adds a detail to the record of a change, for the handler of a recorded route.
func noteChange(w http.ResponseWriter, detail string) {
	if c, ok := w.(*changeWriter); ok {
		c.change.Detail = detail
	}
}

// noteNoChange says that a request changes nothing, although its route does.
func noteNoChange(w http.ResponseWriter) {
	if c, ok := w.(*changeWriter); ok {
		c.same = true
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
	changesRead  = 10_000 // at most, for those that a filter selects
)

// showChanges answers who changed what, the newest first.
func (s *Server) showChanges(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	now := time.Now()
	from, before, limit, flaws := now.Add(-audit.Kept), now.Add(time.Hour), changesUsual, []flaw(nil) // a database's clock may be ahead
	for name, at := range map[string]*time.Time{"since": &from, "until": &before} {
		if text := query.Get(name); text != "" {
			t, err := time.Parse(time.RFC3339Nano, text)
			if err != nil || t.UTC().Year() < 1970 || t.UTC().Year() > 2150 {
				flaws = append(flaws, flaw{Field: name, Message: name + " must be a time such as 2026-12-01T12:00:00Z"})
			}
			*at = t
		}
	}
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
	if oldest := now.Add(-audit.Kept); from.Before(oldest) {
		from = oldest
	}
	answer := struct {
		Changes []audit.Change `json:"changes"`
		Next    *time.Time     `json:"next,omitempty"` // until, for the changes before these
	}{Changes: []audit.Change{}}
	by, text := query.Get("by"), strings.ToLower(query.Get("text"))
	for seen := 0; len(answer.Changes) < limit; {
		page, err := s.cfg.Changes.Changes(r.Context(), from, before, changesMax)
		if err != nil {
			writeDown(w, err)
			return
		}
		for _, c := range page {
			before = c.At
			words := strings.ToLower(c.Request + " " + c.Detail + " " + c.Address)
			if len(answer.Changes) < limit && (by == "" || by == c.By) && strings.Contains(words, text) {
				if answer.Changes = append(answer.Changes, c); len(answer.Changes) == limit {
					break
				}
			}
		}
		if seen += len(page); len(page) < changesMax && len(answer.Changes) < limit {
			break
		}
		if answer.Next = &before; seen >= changesRead {
			break
		}
	}
	writeJSON(w, "application/json", http.StatusOK, answer)
}
