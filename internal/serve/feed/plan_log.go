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

// PlanLog keeps the plans of the last check. Nil keeps nothing. Its methods may be called concurrently.
type PlanLog struct {
	mu    sync.Mutex
	plans []CheckedPlan
}

// Reset forgets the plans before the next check.
func (l *PlanLog) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.plans = nil
}

// Add adds a plan, unless one of the same statement is there already.
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
	i := slices.IndexFunc(l.plans, func(other CheckedPlan) bool { return other.SQL == one.SQL })
	switch {
	case i < 0:
		l.plans = append(l.plans, one)
	case one.Reads > l.plans[i].Reads || one.Problem > l.plans[i].Problem: // with another value
		l.plans[i] = one
	}
}

// All returns the plans in the order in which they were found.
func (l *PlanLog) All() []CheckedPlan {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.plans)
}
