package doctor

import (
	"fmt"
	"io"
	"strings"

	"spillway/internal/lab/sheet"
	"spillway/internal/plans"
)

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error { return r.Sheet().WriteText(w) }

// Sheet is the report for people: findings in groups, worst first, then the query.
func (r *Report) Sheet() *sheet.Sheet {
	s := &sheet.Sheet{}
	if h := r.Host; h != nil {
		host := fmt.Sprintf("Linux %s, %s, %s", h.Kernel, sheet.Plural(h.Cores, "core"), sheet.Size(h.Memory()))
		s.Facts = append(s.Facts, sheet.Fact{Name: "host", Value: host})
	}
	if d := r.Database; d != nil {
		s.Facts = append(s.Facts, sheet.Fact{Name: "database", Value: d.Address + " " + d.Version})
	}
	group := ""
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Group != group {
			group = f.Group
			s.Sections = append(s.Sections, sheet.Section{Title: r.title(group)})
		}
		last := &s.Sections[len(s.Sections)-1]
		last.Facts = append(last.Facts, f.fact())
	}
	if r.Query != nil {
		s.Sections = append(s.Sections, r.Query.sections()...)
	}
	s.Sections = append(s.Sections, sheet.Section{Note: r.summary()})
	return s
}

func (r *Report) title(group string) string {
	if group == "prediction" && r.Prediction != nil {
		return "prediction for " + r.Prediction.Workload
	}
	return group
}

func (f *Finding) fact() sheet.Fact {
	why := f.Why
	if f.Arithmetic != "" {
		why = f.Arithmetic + "; " + why
	}
	fact := sheet.Fact{Name: fmt.Sprintf("%-4s  %s", f.Status, f.Name), Value: f.Observed, More: []string{why}}
	if f.Fix != "" {
		fact.More = append(fact.More, "fix: "+f.Fix)
	}
	if f.OldAdvice != "" {
		fact.More = append(fact.More, "outdated advice: "+f.OldAdvice)
	}
	return fact
}

// summary counts the findings by status.
func (r *Report) summary() string {
	counts := map[Status]int{}
	for _, f := range r.Findings {
		counts[f.Status]++
	}
	return fmt.Sprintf("%d failed, %s, %s, %d ok", counts[Fail], sheet.Plural(counts[Warn], "warning"),
		sheet.Plural(counts[Note], "note"), counts[OK])
}

func (q *Query) sections() []sheet.Section {
	section := sheet.Section{Title: "query on " + q.Database, Text: []string{strings.Join(strings.Fields(q.Statement), " ")}}
	for _, param := range q.Params {
		section.Text = append(section.Text, "parameter "+param.Name+": "+param.From)
	}
	add := func(name, value string, lines []string) {
		if len(lines) > 0 {
			section.Facts = append(section.Facts, sheet.Fact{Name: name, Value: value, More: lines})
		}
	}
	add("plan", q.Plan.took(), q.Plan.Lines)
	add("expensive", "", q.Plan.Costs)
	var candidates []string
	for _, c := range q.Candidates {
		candidates = append(candidates, fmt.Sprintf("%s (%s): %s", c.Table, plans.ColumnList(c.Columns), c.Reason))
	}
	add("candidates", "", candidates)
	add("there already", "", q.Covered)
	add("not for an index", "", q.Notes)
	sections := []sheet.Section{section}
	if n := len(q.Measured); n > 0 {
		sections = append(sections, sheet.Section{
			Title: "measured on copies of " + sheet.Plural(q.Measured[n-1].RowsCopied, "row"), Nested: true, Table: measuredTable(q.Measured),
		})
	}
	verdict := sheet.Section{Text: []string{q.Verdict}}
	for _, winner := range q.Winners {
		verdict.Text = append(verdict.Text, winner.Create+";")
	}
	return append(sections, verdict)
}

// took says how long the statement took, and what it read.
func (p *Plan) took() string {
	if p.ExecutionSeconds == nil {
		return "longer than was allowed; the plan is the planner's estimate"
	}
	took := sheet.Duration(*p.ExecutionSeconds)
	if p.RowsExamined > 0 {
		took += ", " + sheet.Plural(p.RowsExamined, "row") + " examined"
	}
	if p.Buffers > 0 {
		took += ", " + sheet.Plural(p.Buffers, "buffer")
	}
	return took
}

// measuredTable has a row per variant.
func measuredTable(variants []Measurement) *sheet.Table {
	t := &sheet.Table{
		Heads: []string{"index", "build", "size", "median", "range", "runs", "speed-up", "rows examined", "buffers", "sorts", "in the plan"},
		Left:  []int{0},
	}
	for _, m := range variants {
		build, size, used, buffers := "-", "-", "-", "-"
		if len(m.candidates) > 0 {
			used, build, size = yes(m.IndexesUsed), sheet.Duration(m.BuildSeconds), sheet.Size(m.IndexBytes)
			if m.IndexBytesEstimated {
				size = "~" + size
			}
		}
		if m.Buffers > 0 {
			buffers = sheet.Integer(m.Buffers)
		}
		median, spread := sheet.Duration(m.MedianSeconds), sheet.Duration(m.MinSeconds)+" to "+sheet.Duration(m.MaxSeconds)
		if m.TooLong {
			median, spread = "> "+median, "-"
		}
		t.Add(
			"", m.Variant, build, size, median, spread, sheet.Integer(m.Runs), sheet.Number(m.SpeedUp)+" x", sheet.Integer(m.RowsExamined),
			buffers, yes(m.Sorts), used,
		)
	}
	return t
}

func yes(v bool) string {
	if v {
		return "yes"
	}
	return "no"
}
