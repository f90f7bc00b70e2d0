package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"spillway/internal/lab/sheet"
	"spillway/internal/plans"
)

// Plan is how the database runs a statement.
type Plan struct {
	Lines            []string `json:"lines"`
	ExecutionSeconds *float64 `json:"execution_seconds,omitempty"` // nil: it took longer than allowed
	RowsExamined     int64    `json:"rows_examined"`
	Buffers          int64    `json:"buffers,omitempty"` // pages of 8 KiB, PostgreSQL's
	Sorts            bool     `json:"sorts"`
	Costs            []string `json:"costs,omitempty"` // what is expensive in it

	indexes []string // by which it finds or orders rows
}

// uses reports whether the plan reads an index.
func (p *Plan) uses(index string) bool { return slices.Contains(p.indexes, index) }

// newPlan describes a plan that was read.
func newPlan(plan *plans.Plan) *Plan {
	p := &Plan{ExecutionSeconds: plan.ExecutionSeconds}
	for _, n := range plan.Nodes {
		p.add(n, 0)
	}
	return p
}

// add describes a step and those below it.
func (p *Plan) add(n plans.Node, depth int) {
	line := strings.Repeat("  ", depth) + n.Type
	if n.Index != "" {
		line += " using " + n.Index
	}
	if n.Relation != "" && !strings.Contains(n.Type, n.Relation) {
		line += " on " + n.Relation
	}
	examined := 0.0
	loops := max(1, n.Loops)
	switch {
	case n.ActualRows != nil:
		line += fmt.Sprintf(": %s rows, %s", sheet.Number(*n.ActualRows*loops), sheet.Duration(n.Milliseconds*loops/1000))
		examined = (*n.ActualRows + n.Removed + n.Rechecked) * loops
	case n.Rows > 0:
		line += fmt.Sprintf(": about %s rows", sheet.Number(n.Rows))
	}
	if n.IndexCond != "" {
		line += ", finds by " + masked(n.IndexCond)
	}
	if n.Removed > 0 {
		line += fmt.Sprintf(", discards %s", sheet.Number(n.Removed*loops))
	}
	if n.Extra != "" {
		line += ", " + n.Extra
	}
	p.Lines = append(p.Lines, line)
	// MySQL names several: "a,b" of index_merge, "a|b" of a rowid filter.
	p.indexes = append(p.indexes, strings.FieldsFunc(n.Index, func(r rune) bool { return r == ',' || r == '|' })...)
	if n.Relation != "" && n.Type != "Bitmap Index Scan" {
		p.RowsExamined += int64(examined)
	}
	p.addCosts(n, examined)
	for _, below := range n.Nodes {
		p.add(below, depth+1)
	}
}

// addCosts names what is expensive in a step.
func (p *Plan) addCosts(n plans.Node, examined float64) {
	const many = 1000
	cost := func(format string, args ...any) { p.Costs = append(p.Costs, fmt.Sprintf(format, args...)) }
	loops := max(1, n.Loops)
	measured := n.ActualRows != nil
	switch {
	case n.Scans() && n.Index != "" && n.Rows > 0:
		cost("reads %s in the order of %s until it has enough (all of it is about %s rows)", n.Relation, n.Index, sheet.Number(n.Rows))
	case n.Scans() && n.Filter != "":
		cost("reads all of %s (%s rows) to keep %s", n.Relation, sheet.Number(max(examined, n.Rows)), sheet.Number(kept(n)))
	case n.Scans() && !measured && n.Rows > 0:
		cost("reads all of %s (about %s rows)", n.Relation, sheet.Number(n.Rows))
	case n.Scans() && !measured:
		cost("reads all of %s", n.Relation)
	case n.Relation != "" && n.Removed*loops >= many && n.Removed*loops > 9*kept(n):
		cost("finds %s rows of %s by an index and discards %s of them", sheet.Number(examined), n.Relation, sheet.Number(n.Removed*loops))
	case n.Relation != "" && n.Loops >= many:
		cost("looks into %s %s times, once for each row of the other table", n.Relation, sheet.Number(n.Loops))
	}
	if strings.Contains(n.Extra, "Using temporary") {
		cost("keeps rows in a temporary table (Using temporary)")
	}
	if !n.Sorts() {
		return
	}
	p.Sorts = true
	switch {
	case len(n.SortKey) == 0:
		cost("sorts what it finds (%s)", strings.TrimSpace(n.Type+" "+n.Extra))
	case n.SortType == "Disk":
		cost("sorts %s rows by %s, on disk (%s): more than work_mem", sheet.Number(sorted(n)), strings.Join(n.SortKey, ", "),
			sheet.Size(n.SortKB<<10))
	default:
		cost("sorts %s rows by %s", sheet.Number(sorted(n)), strings.Join(n.SortKey, ", "))
	}
}

// sorted is how many rows a sort takes.
func sorted(n plans.Node) float64 {
	if len(n.Nodes) == 0 {
		return n.Rows
	}
	return kept(n.Nodes[0])
}

// kept is how many rows a step hands on.
func kept(n plans.Node) float64 {
	if n.ActualRows == nil {
		return n.Rows
	}
	return *n.ActualRows * max(1, n.Loops)
}

// masked hides the values in a condition: a parameter can be a secret.
func masked(condition string) string {
	return regexp.MustCompile(`'(?:[^']|'')*'|\b\d[\w.]*`).ReplaceAllString(condition, "…")
}
