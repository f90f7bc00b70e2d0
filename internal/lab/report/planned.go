package report

import (
	"bytes"
	"fmt"

	"spillway/internal/lab/plan"
)

// A pagePlan is the section of a page with a plan.
type pagePlan struct {
	plan.Sheet
	NeedTable, BreakTable *pageTable
}

// newPagePlan returns nil without a plan.
func newPagePlan(p *plan.Plan) *pagePlan {
	if p == nil {
		return nil
	}
	s := p.Sheet()
	return &pagePlan{Sheet: s, NeedTable: newPageTable(s.Needs, ""), BreakTable: newPageTable(s.Breaks, s.Beyond)}
}

// writeMarkdownPlan writes nothing without a plan.
func writeMarkdownPlan(out *bytes.Buffer, p *plan.Plan) {
	if p == nil {
		return
	}
	s := p.Sheet()
	fmt.Fprintf(out, "\n## %s\n\n", escapeMarkdown(s.Title))
	list := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		if title != "" {
			fmt.Fprintf(out, "%s:\n\n", title)
		}
		for _, line := range lines {
			fmt.Fprintf(out, "- %s\n", escapeMarkdown(line))
		}
		out.WriteString("\n")
	}
	list("", s.Grounds)
	markdownTable(out, s.Needs, 2)
	out.WriteString("\nBreaks first as the load grows:\n\n")
	markdownTable(out, s.Breaks, 2)
	if s.Beyond != "" {
		fmt.Fprintf(out, "\n%s\n", escapeMarkdown(s.Beyond))
	}
	out.WriteString("\n")
	list("Not measured", s.NotMeasured)
	list("", s.Notes)
}
