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
	route.handle = func(w http.ResponseWriter, r *http.Request) (any, error) {
		answer, err := handle(w, r)
		c := audit.Change{Author: authorOf(r), At: time.Now()}
		if route.path == "/popups/users/{user}" {
			c.Request = r.Method + " " + route.path // who was forgotten is not kept
		}
		if of, ok := answer.(changed); ok {
			if answer, c.Detail = of.answer, of.detail; of.same {
				return answer, err
			}
		}
		if err != nil {
			return nil, err
		}
		if err = s.cfg.Changes.Record(context.WithoutCancel(r.Context()), c); err != nil {
			s.cfg.Log.Error("change made but not recorded", "by", c.By, "address", c.Address, "request", c.Request, "detail", c.Detail, "error", err)
			const detail = "it is done, but who did it could not be recorded, except in the log: "
			err = newProblem(http.StatusInternalServerError, detail+err.Error())
		}
		return answer, err
	}
	return route
}

// changed is an answer with a detail for the record of the change.
type changed struct {
	answer any
	detail string
	same   bool // nothing has changed
}

const (
	changesMax   = 500    // of one answer
	changesUsual = 100    // without a limit
	changesRead  = 10_000 // in which a filter selects
)

// showChanges answers who changed what, the newest first.
func (s *Server) showChanges(_ http.ResponseWriter, r *http.Request) (any, error) {
	query := r.URL.Query()
	filter, flaws := readFilter(r)
	limit := changesUsual
	if text := query.Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > changesMax {
			flaws = append(flaws, Flaw{Field: "limit", Message: fmt.Sprintf("limit must be a number from 1 to %d", changesMax)})
		}
	}
	if len(flaws) > 0 {
		return nil, flawed(http.StatusBadRequest, flaws...)
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
		return nil, err
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
	return answer, nil
}
