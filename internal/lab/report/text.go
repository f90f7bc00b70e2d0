package report

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"spillway/internal/lab/plan"
	"spillway/internal/lab/result"
)

func writeText(w io.Writer, r *run, planned *plan.Plan) error {
	var out bytes.Buffer
	if r != nil {
		if err := writeTextRun(&out, r); err != nil {
			return err
		}
	}
	if r != nil && planned != nil {
		out.WriteString("\n")
	}
	if planned != nil {
		if err := planned.WriteText(&out); err != nil {
			return err
		}
	}
	return emit(w, &out)
}

func writeTextRun(out *bytes.Buffer, r *run) error {
	h := r.headline()
	fmt.Fprintf(out, "%s\n", printable(r.label))
	fmt.Fprintf(out, "%s\n", printable(h.Text))
	if h.Caveat != "" {
		fmt.Fprintf(out, "%s\n", printable(h.Caveat))
	}
	for _, note := range r.Header.Notes {
		fmt.Fprintf(out, "%s\n", printable(note))
	}
	if err := writeTextSearch(out, r); err != nil {
		return err
	}
	if r.usage == nil {
		out.WriteString("\n")
		rows, left := stepTable(r.columns(), r.steps)
		textTable(out, rows, left)
		if rows, left := labelTable(r); rows != nil {
			out.WriteString("\n")
			textTable(out, rows, left)
		}
	}
	for k := range r.steps {
		for _, line := range r.steps[k].remarks() {
			fmt.Fprintf(out, "  %s: %s\n", r.steps[k].load(), printable(line))
		}
	}
	writeTextWatch(out, r)
	if len(r.steps) > 0 {
		fmt.Fprintf(out, "\n%s\n", strings.ReplaceAll(r.tableNote(), ". ", ".\n"))
	}
	return nil
}

// writeTextWatch writes the resources that were used.
func writeTextWatch(out *bytes.Buffer, r *run) {
	for _, b := range r.usageSummaries() {
		fmt.Fprintf(out, "\n%s\n", printable(b.Title))
		width := 0
		for _, line := range b.Lines {
			width = max(width, utf8.RuneCountInString(printable(line.Name)))
		}
		for _, line := range b.Lines {
			name := printable(line.Name)
			fmt.Fprintf(out, "  %s%s  %s\n", name, strings.Repeat(" ", width-utf8.RuneCountInString(name)), printable(line.Value))
		}
	}
	for _, line := range r.watchRemarks() {
		fmt.Fprintf(out, "  %s\n", printable(line))
	}
	if rows := r.watchTable(); len(rows) > 2 { // the lines above cover a single step
		out.WriteString("\nUsed in each step\n")
		textTable(out, rows, -1)
		fmt.Fprintf(out, "%s\n", strings.ReplaceAll(watchTableNote, ". ", ".\n"))
	}
}

// stepTable returns the rows of a table of steps, heads first, and the index of the column that is aligned left.
func stepTable(cols []column, steps []step) (rows [][]string, left int) {
	left = -1
	heads := make([]string, len(cols))
	for c := range cols {
		heads[c] = cols[c].name
		if cols[c].left {
			left = c
		}
	}
	rows = [][]string{heads}
	for k := range steps {
		row := make([]string, len(cols))
		for c := range cols {
			row[c] = cols[c].value(&steps[k])
		}
		rows = append(rows, row)
	}
	return rows, left
}

// textTable writes rows in columns. All are aligned right except column left.
func textTable(out *bytes.Buffer, rows [][]string, left int) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for c := range row {
			row[c] = printable(row[c])
			widths[c] = max(widths[c], utf8.RuneCountInString(row[c]))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for c, cell := range row {
			pad := strings.Repeat(" ", widths[c]-utf8.RuneCountInString(cell))
			if c == left {
				line.WriteString("  " + cell + pad)
				continue
			}
			line.WriteString("  " + pad + cell)
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

// printable replaces control characters by spaces, because a result file may contain terminal escapes.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
}

func emit(w io.Writer, out *bytes.Buffer) error {
	if _, err := out.WriteTo(w); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func writeMarkdown(w io.Writer, r *run, planned *plan.Plan) error {
	var out bytes.Buffer
	if r != nil {
		writeMarkdownRun(&out, r)
	}
	writeMarkdownPlan(&out, planned)
	return emit(w, &out)
}

func writeMarkdownRun(out *bytes.Buffer, r *run) {
	h := r.headline()
	fmt.Fprintf(out, "## %s\n\n**%s**", escapeMarkdown(r.label), escapeMarkdown(h.Text))
	if h.Caveat != "" {
		fmt.Fprintf(out, " %s", escapeMarkdown(h.Caveat))
	}
	out.WriteString("\n\n")
	writeMarkdownSearch(out, r, true)
	if r.usage == nil {
		writeMarkdownSteps(out, r)
	}
	writeMarkdownWatch(out, r)
	for _, fact := range r.manifest() {
		fmt.Fprintf(out, "- %s: %s\n", fact.Name, escapeMarkdown(fact.Value))
	}
}

func writeMarkdownSteps(out *bytes.Buffer, r *run) {
	rows, left := stepTable(r.columns(), r.steps)
	markdownTable(out, rows, left)
	out.WriteString("\n")
	if rows, left := labelTable(r); rows != nil {
		markdownTable(out, rows, left)
		out.WriteString("\n")
	}
	for k := range r.steps {
		for _, line := range r.steps[k].remarks() {
			fmt.Fprintf(out, "- %s: %s\n", r.steps[k].load(), escapeMarkdown(line))
		}
	}
	fmt.Fprintf(out, "\n%s\n\n", escapeMarkdown(r.tableNote()))
}

// writeMarkdownWatch writes the resources that were used.
func writeMarkdownWatch(out *bytes.Buffer, r *run) {
	for _, b := range r.usageSummaries() {
		fmt.Fprintf(out, "%s:\n\n", escapeMarkdown(b.Title))
		for _, line := range b.Lines {
			fmt.Fprintf(out, "- **%s** %s\n", escapeMarkdown(line.Name), escapeMarkdown(line.Value))
		}
		out.WriteString("\n")
	}
	for _, line := range r.watchRemarks() {
		fmt.Fprintf(out, "- %s\n\n", escapeMarkdown(line))
	}
	if rows := r.watchTable(); len(rows) > 2 { // the lines above cover a single step
		markdownTable(out, rows, -1)
		fmt.Fprintf(out, "\n%s\n\n", escapeMarkdown(watchTableNote))
	}
}

// markdownTable writes rows, heads first. All columns are aligned right except column left.
func markdownTable(out *bytes.Buffer, rows [][]string, left int) {
	for i, row := range rows {
		out.WriteString("|")
		for _, cell := range row {
			fmt.Fprintf(out, " %s |", escapeMarkdown(cell))
		}
		out.WriteString("\n")
		if i > 0 {
			continue
		}
		out.WriteString("|")
		for c := range row {
			if c == left {
				out.WriteString("---|")
				continue
			}
			out.WriteString("--:|")
		}
		out.WriteString("\n")
	}
}

// escapeMarkdown escapes Markdown and HTML.
func escapeMarkdown(text string) string {
	var out strings.Builder
	for _, r := range printable(text) {
		switch {
		case r == '&':
			out.WriteString("&amp;")
		case r == '<':
			out.WriteString("&lt;")
		case strings.ContainsRune("\\`*_[]|~#>", r):
			out.WriteRune('\\')
			out.WriteRune(r)
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

// writeSummary writes the verdict, the figures and the reasons of each run as short Markdown, for the summary of a CI job.
func writeSummary(w io.Writer, runs []run) error {
	var out bytes.Buffer
	for i := range runs {
		r := &runs[i]
		h := r.headline()
		fmt.Fprintf(&out, "### %s\n\n**%s** %s\n\n", escapeMarkdown(r.label), escapeMarkdown(h.Text), escapeMarkdown(h.Caveat))
		writeMarkdownSearch(&out, r, false)
		if len(r.steps) == 0 {
			continue
		}
		rows, left := stepTable(r.summaryColumns(), r.steps)
		markdownTable(&out, rows, left)
		out.WriteString("\n")
		for k := range r.steps {
			for _, line := range r.steps[k].remarks() {
				fmt.Fprintf(&out, "- %s: %s\n", r.steps[k].load(), escapeMarkdown(line))
			}
		}
	}
	return emit(w, &out)
}

func (r *run) summaryColumns() []column {
	cols := []column{
		{name: "load", value: (*step).load},
		{name: "requests", value: func(s *step) string { return integer(s.Total.Requests()) }},
		answeredColumn(),
		responseColumn("p50", figureP50),
		responseColumn("p99", figureP99),
		{name: "errors", value: func(s *step) string { return share(s.Total.ErrorShare()) }},
	}
	if r.anyStep(func(s *step) bool { return len(s.Total.SLO) > 0 }) {
		cols = append(cols, column{name: "SLO", value: (*step).sloVerdict})
	}
	return append(cols, column{name: "validity", value: (*step).validity, left: true})
}

// sloVerdict is the verdict on the SLO, which only a valid step supports.
func (s *step) sloVerdict() string {
	switch {
	case len(s.Total.SLO) == 0 || s.Total.Validity == result.Unjudged:
		return "-"
	case !s.valid():
		return "not judged"
	case s.sloMet():
		return "met"
	}
	return "missed"
}
