package feed

import (
	"encoding/base64"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"spillway/internal/plans"
	"spillway/internal/serve/param"
)

// CheckedPlan is what a check has found of a statement.
type CheckedPlan struct {
	SQL     string  `json:"sql"` // as it was explained
	Plan    string  `json:"plan"`
	Reads   float64 `json:"rows_read"` // as expected or counted; 0: not known
	Problem string  `json:"problem"`   // "": nothing is wrong with it
}

// PlanLog keeps the last plan of each statement. Nil keeps nothing. Its methods may be called concurrently.
type PlanLog struct {
	mu    sync.Mutex
	plans []CheckedPlan
}

// Add adds a plan, and what is wrong with it.
func (l *PlanLog) Add(p *plans.Plan, problem error) {
	if l == nil {
		return
	}
	one := CheckedPlan{SQL: p.SQL, Plan: p.Text(), Reads: p.Reads}
	if problem != nil {
		one.Problem = problem.Error()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.IndexFunc(l.plans, func(other CheckedPlan) bool { return other.SQL == one.SQL }); i >= 0 {
		l.plans[i] = one
	} else {
		l.plans = append(l.plans, one)
	}
}

// All returns the plans in the order in which their statements were found.
func (l *PlanLog) All() []CheckedPlan {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]CheckedPlan{}, l.plans...)
}

// Samples returns arguments to try a feed's statement with, and the columns that its parameters are compared
// with. The arguments are values that rows have. Of the filters, the one at a position has one. There are
// no arguments if the column of a parameter is not known.
func (d *Definition) Samples(c plans.Check, filter int) (args [][]string, compared []plans.Compared, err error) {
	r, err := plans.NewReader(d.SQL, c.Catalog.Dialect)
	if err != nil {
		return nil, nil, err
	}
	compared = r.Compared()
	if filter >= 0 {
		name := d.Params[filter].Name
		compared = append(compared, plans.Compared{Column: plans.ColumnRef{Name: name}, Param: param.Absent + name, Equal: true})
	}
	sets, err := c.Values(compared)
	if err != nil {
		return nil, nil, err
	}
	for _, set := range sets {
		list := make([]string, len(d.Params))
		known := true
		for i, p := range d.Params {
			name := p.Name
			if p.Filter {
				name = param.Absent + name
			}
			text, found := set[name]
			if p.Filter && i != filter {
				list[i] = param.Absent
				continue
			}
			list[i], err = param.Parse(p, printed(p.Type, text))
			known = known && found && err == nil
		}
		if known {
			args = append(args, list)
		}
	}
	return args, compared, nil
}

// printed returns a database's text as a request would pass it.
func printed(t param.Type, text string) string {
	switch t {
	case param.Timestamp:
		return strings.TrimSuffix(strings.Replace(text, " ", "T", 1), "Z") + "Z"
	case param.Bytes:
		return base64.StdEncoding.EncodeToString([]byte(text))
	}
	return text
}

// Judged returns a function that keeps a plan in Plans, and logs how many rows its statement reads.
func (d *Definition) Judged(log *slog.Logger) func(*plans.Plan, error) {
	return func(p *plans.Plan, problem error) {
		log.Debug("judged what a statement reads", "feed", d.Name, "rows", p.Reads)
		d.Plans.Add(p, problem)
	}
}
