package doctor

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"spillway/internal/plans"
)

// WriteText writes the report for people: findings in groups, worst first, then
// the query.
func (r *Report) WriteText(w io.Writer) error {
	p := &printer{w: w}
	if h := r.Host; h != nil {
		p.line("Linux %s, %s, %s", h.Kernel, plural(h.Cores, "core", "cores"), size(h.memory()))
	}
	if d := r.Database; d != nil {
		p.line("%s %s", d.Address, d.Version)
	}
	group := ""
	for _, f := range r.Findings {
		if f.Group != group {
			group = f.Group
			p.line("")
			p.line("%s", r.title(group))
		}
		p.finding(f)
	}
	if r.Query != nil {
		p.query(r.Query)
	}
	p.line("")
	p.line("%s", r.summary())
	return p.err
}

// printer writes lines until one goes wrong.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	_, err := fmt.Fprintf(p.w, format+"\n", args...)
	p.err = errors.Join(p.err, err)
}

func (r *Report) title(group string) string {
	if group == "prediction" && r.Prediction != nil {
		return "prediction for " + r.Prediction.Workload
	}
	return group
}

func (p *printer) finding(f Finding) {
	p.line("  %-4s  %s: %s", f.Status, f.Name, f.Observed)
	why := f.Why
	if f.Arithmetic != "" {
		why = f.Arithmetic + "; " + why
	}
	p.line("        %s", why)
	if f.Fix != "" {
		p.line("        fix: %s", f.Fix)
	}
	if f.OldAdvice != "" {
		p.line("        outdated advice: %s", f.OldAdvice)
	}
}

// summary counts the findings by status.
func (r *Report) summary() string {
	counts := map[Status]int{}
	for _, f := range r.Findings {
		counts[f.Status]++
	}
	return fmt.Sprintf("%d failed, %s, %s, %d ok", counts[Fail], plural(counts[Warn], "warning", "warnings"),
		plural(counts[Note], "note", "notes"), counts[OK])
}

func (p *printer) query(q *Query) {
	p.line("")
	p.line("query on %s", q.Database)
	p.line("  %s", strings.Join(strings.Fields(q.Statement), " "))
	for _, param := range q.Params {
		p.line("  parameter %s: %s", param.Name, param.From)
	}
	p.plan(q.Plan)
	p.list("candidates", len(q.Candidates), func(i int) string {
		c := q.Candidates[i]
		return fmt.Sprintf("%s (%s): %s", c.Table, plans.ColumnList(c.Columns), c.Reason)
	})
	p.list("there already", len(q.Covered), func(i int) string { return q.Covered[i] })
	p.list("not for an index", len(q.Notes), func(i int) string { return q.Notes[i] })
	if len(q.Measured) > 0 {
		p.measured(q.Measured)
	}
	p.line("")
	p.line("  %s", q.Verdict)
	for _, winner := range q.Winners {
		p.line("  %s;", winner.Create)
	}
}

func (p *printer) plan(plan *Plan) {
	took := "longer than was allowed; the plan is the planner's estimate"
	if plan.ExecutionSeconds != nil {
		took = duration(*plan.ExecutionSeconds)
		if plan.RowsExamined > 0 {
			took += fmt.Sprintf(", %d rows examined", plan.RowsExamined)
		}
		if plan.Buffers > 0 {
			took += fmt.Sprintf(", %d buffers", plan.Buffers)
		}
	}
	p.line("  plan (%s)", took)
	for _, line := range plan.Lines {
		p.line("    %s", line)
	}
	p.list("expensive", len(plan.Costs), func(i int) string { return plan.Costs[i] })
}

func (p *printer) list(title string, n int, item func(i int) string) {
	if n == 0 {
		return
	}
	p.line("  %s", title)
	for i := range n {
		p.line("    %s", item(i))
	}
}

// measured is the table of variants.
func (p *printer) measured(rows []Measurement) {
	p.line("  measured on copies of %d rows", rows[len(rows)-1].RowsCopied)
	table := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "    index\tbuild\tsize\tmedian\tmin .. max\truns\tspeed-up\trows examined\tbuffers\tsorts\tin the plan")
	for _, m := range rows {
		build, bytes, used := "-", "-", "-"
		if len(m.candidates) > 0 {
			used = yes(m.IndexesUsed)
			build, bytes = duration(m.BuildSeconds), size(m.IndexBytes)
			if m.IndexBytesEstimated {
				bytes = "~" + bytes
			}
		}
		times := fmt.Sprintf("%s\t%s .. %s", duration(m.MedianSeconds), duration(m.MinSeconds), duration(m.MaxSeconds))
		if m.TooLong {
			times = "> " + duration(m.MedianSeconds) + "\t-"
		}
		fmt.Fprintf(table, "    %s\t%s\t%s\t%s\t%d\t%s x\t%d\t%s\t%s\t%s\n", m.Variant, build, bytes, times, m.Runs, figure(m.SpeedUp),
			m.RowsExamined, dash(m.Buffers), yes(m.Sorts), used)
	}
	p.err = errors.Join(p.err, table.Flush())
}

func yes(v bool) string {
	if v {
		return "yes"
	}
	return "no"
}

func dash(n int64) string {
	if n == 0 {
		return "-"
	}
	return digits(n)
}
