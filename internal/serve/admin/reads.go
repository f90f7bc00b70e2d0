package admin

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

const (
	valuesUsual = 100 // of one answer, without a limit
	valuesMax   = 1000
	valueBytes  = 64 << 10 // of a body
)

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
	Pause(args []string, paused bool) error
	Drop(args []string) bool
}

// readRoutes returns the routes of feeds and queries.
func (s *Server) readRoutes() []route {
	change := func(path string, do func(e Engine, args []string) error) route {
		return route{"POST", "/reads/" + path, RoleAdmin, ownOrigin("change feeds and queries", s.changeValue(path, do))}
	}
	return []route{
		{"GET", "/reads", RoleRead, s.showRead},
		change("pause", func(e Engine, args []string) error { return e.Pause(args, true) }),
		change("resume", func(e Engine, args []string) error { return e.Pause(args, false) }),
		change("drop", func(e Engine, args []string) error {
			if !e.Drop(args) {
				return errNotKept
			}
			return nil
		}),
	}
}

var errNotKept = errors.New("no rows of this value are kept")

// find returns the feed or the query of a path, or answers that there is none.
func (s *Server) find(w http.ResponseWriter, path string) *Read {
	of := s.cfg.Read(path)
	if of == nil {
		writeProblem(w, http.StatusNotFound, "there is no feed and no query of this path; /parts lists all")
	}
	return of
}

func (s *Server) showRead(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	most := valuesUsual
	if text := query.Get("limit"); text != "" {
		var err error
		if most, err = strconv.Atoi(text); err != nil || most < 1 || most > valuesMax {
			writeFlaws(w, http.StatusBadRequest, flaw{Field: "limit", Message: "limit must be a number from 1 to " + strconv.Itoa(valuesMax)})
			return
		}
	}
	of := s.find(w, query.Get("path"))
	if of == nil {
		return
	}
	if of.Engine != nil {
		of.Values, of.All = of.Engine.Values(query.Get("contains"), most)
	}
	// [] in JSON, not null
	of.Plans, of.Values = append([]feed.CheckedPlan{}, of.Plans...), append([]feed.Value{}, of.Values...)
	writeJSON(w, "application/json", http.StatusOK, of)
}

// valueOrder names a value of a feed or a query.
type valueOrder struct {
	Path      string              `json:"path"`
	Arguments map[string][]string `json:"arguments"`
}

// args returns the arguments of the parameters in their order, and what is wrong with the order.
func (o *valueOrder) args(params []param.Param) (args []string, flaws []flaw) {
	for name := range o.Arguments {
		if !slices.ContainsFunc(params, func(p param.Param) bool { return p.Name == name }) {
			flaws = append(flaws, flaw{Field: name, Message: name + " is not a parameter of " + o.Path})
		}
	}
	for _, p := range params {
		arg, err := param.Argument(p, o.Arguments[p.Name]...)
		if err != nil {
			flaws = append(flaws, flaw{Field: p.Name, Message: err.Error()})
		}
		args = append(args, arg)
	}
	return args, flaws
}

// changeValue returns a handler that changes a value, which the body names.
func (s *Server) changeValue(work string, do func(e Engine, args []string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var o valueOrder
		in := json.NewDecoder(http.MaxBytesReader(w, r.Body, valueBytes))
		in.DisallowUnknownFields()
		err := in.Decode(&o)
		if _, end := in.Token(); err == nil && end != io.EOF {
			err = errors.New("it is not one object")
		}
		if err != nil {
			writeProblem(w, http.StatusBadRequest, "the body must be a JSON object with path and arguments: "+err.Error())
			return
		}
		of := s.find(w, o.Path)
		if of == nil {
			return
		}
		args, flaws := o.args(of.Params)
		if len(flaws) > 0 {
			writeFlaws(w, http.StatusBadRequest, flaws...)
			return
		}
		if of.Engine == nil {
			writeLater(w, "it has not started")
			return
		}
		switch err := do(of.Engine, args); {
		case errors.Is(err, errNotKept):
			writeProblem(w, http.StatusNotFound, err.Error())
		case err != nil:
			writeProblem(w, http.StatusConflict, err.Error())
		default:
			s.cfg.Log.Info("value of a feed or a query changed", "work", work, "path", o.Path, "arguments", o.Arguments, "by", callerOf(r).Name)
			w.WriteHeader(http.StatusNoContent)
		}
	}
}
