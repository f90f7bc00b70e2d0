package feed

import (
	"slices"
	"sync"

	"spillway/internal/plans"
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
