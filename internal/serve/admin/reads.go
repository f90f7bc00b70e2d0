package admin

import (
	"fmt"
	"net/http"
	"slices"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

const valuesMax = 200 // of one answer

// Read is a feed or a query.
type Read struct {
	Path     string             `json:"path"`
	Kind     string             `json:"kind"` // feed or query
	Database string             `json:"database"`
	SQL      string             `json:"sql"`     // as in the configuration
	Problem  string             `json:"problem"` // why it is not served; "": it is
	Accepted bool               `json:"plan_accepted"`
	Plans    []feed.CheckedPlan `json:"plans"`
	Values   []feed.Value       `json:"values"`
	All      int                `json:"values_total"`

	Params []param.Param `json:"-"`
	Engine Engine        `json:"-"` // nil: it has not started
}

// Engine has the rows of a feed or a query, as feed.Feed and query.Query do.
type Engine interface {
	Values(text string, most int) ([]feed.Value, int)
	Pause(args []string, paused bool)
	Drop(args []string) bool
}

// readRoutes returns the routes of feeds and queries.
func (s *Server) readRoutes() []route {
	change := func(work string, do func(e Engine, args []string) bool) route {
		return route{"POST", "/reads/" + work, RoleAdmin, ownOrigin("change feeds and queries", s.changeValue(work, do))}
	}
	pause := func(paused bool) func(Engine, []string) bool {
		return func(e Engine, args []string) bool {
			e.Pause(args, paused)
			return true
		}
	}
	show := route{"GET", "/reads", RoleRead, s.showRead}
	return []route{show, change("pause", pause(true)), change("resume", pause(false)), change("drop", Engine.Drop)}
}

// find returns the feed or the query of a path.
func (s *Server) find(path string) (*Read, error) {
	if of := s.cfg.Read(path); of != nil {
		return of, nil
	}
	return nil, newProblem(http.StatusNotFound, "there is no feed and no query of this path; /parts lists all")
}

func (s *Server) showRead(_ http.ResponseWriter, r *http.Request) (any, error) {
	query := r.URL.Query()
	of, err := s.find(query.Get("path"))
	if err != nil {
		return nil, err
	}
	if of.Engine != nil {
		of.Values, of.All = of.Engine.Values(query.Get("contains"), valuesMax)
	}
	of.Values = append([]feed.Value{}, of.Values...) // [] in JSON, not null
	return of, nil
}

// valueOrder names a value of a feed or a query.
type valueOrder struct {
	Path      string              `json:"path"`
	Arguments map[string][]string `json:"arguments"`
}

// args returns the arguments of the parameters in their order, and what is wrong with the order.
func (o *valueOrder) args(params []param.Param) (args []string, flaws []Flaw) {
	for name := range o.Arguments {
		if !slices.ContainsFunc(params, func(p param.Param) bool { return p.Name == name }) {
			flaws = append(flaws, Flaw{Field: name, Message: name + " is not a parameter of " + o.Path})
		}
	}
	for _, p := range params {
		arg, err := param.Argument(p, o.Arguments[p.Name]...)
		if err != nil {
			flaws = append(flaws, Flaw{Field: p.Name, Message: err.Error()})
		}
		args = append(args, arg)
	}
	return args, flaws
}

// changeValue returns a handler that changes a value, which the body names. do reports false if there are no rows to change.
func (s *Server) changeValue(work string, do func(e Engine, args []string) bool) handler {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		o, err := readObject[valueOrder](w, r, "path and arguments")
		if err != nil {
			return nil, err
		}
		of, err := s.find(o.Path)
		if err != nil {
			return nil, err
		}
		args, flaws := o.args(of.Params)
		switch {
		case len(flaws) > 0:
			return nil, flawed(http.StatusBadRequest, flaws...)
		case of.Engine == nil:
			return nil, later("it has not started")
		case !do(of.Engine, args):
			return nil, newProblem(http.StatusNotFound, "no rows of this value are kept")
		}
		s.cfg.Log.Info("value of a feed or a query changed", "work", work, "path", o.Path, "arguments", o.Arguments, "by", callerOf(r).Name)
		return changed{detail: fmt.Sprint(o.Path, " ", o.Arguments)}, nil
	}
}
