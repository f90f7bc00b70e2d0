package report

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

func writeMarkdown(w io.Writer, runs []run) error {
	var out bytes.Buffer
	for i := range runs {
		r := &runs[i]
		h := r.headline()
		fmt.Fprintf(&out, "## %s\n\n**%s**", plainMarkdown(r.label), plainMarkdown(h.Text))
		if h.Caveat != "" {
			fmt.Fprintf(&out, " %s", plainMarkdown(h.Caveat))
		}
		out.WriteString("\n\n")
		if r.usage == nil {
			writeMarkdownSteps(&out, runs, r)
		}
		writeMarkdownWatch(&out, r)
		for _, fact := range r.manifest() {
			fmt.Fprintf(&out, "- %s: %s\n", fact.Name, plainMarkdown(fact.Value))
		}
		if i < len(runs)-1 {
			out.WriteString("\n")
		}
	}
	if heads, rows := sideBySide(runs); heads != nil {
		out.WriteString("\n## Side by side\n\nOne run of each is no evidence that one is better.\n\n")
		markdownTable(&out, append([][]string{heads}, rows...), -1)
	}
	return emit(w, &out)
}

func writeMarkdownSteps(out *bytes.Buffer, runs []run, r *run) {
	rows, left := stepTable(columns(runs), r.steps)
	markdownTable(out, rows, left)
	out.WriteString("\n")
	for k := range r.steps {
		for _, line := range r.steps[k].remarks() {
			fmt.Fprintf(out, "- %s: %s\n", r.steps[k].load(), plainMarkdown(line))
		}
	}
	fmt.Fprintf(out, "\n%s\n\n", plainMarkdown(tableNote))
}

// writeMarkdownWatch writes what was used.
func writeMarkdownWatch(out *bytes.Buffer, r *run) {
	for _, b := range r.blocks() {
		fmt.Fprintf(out, "%s:\n\n", plainMarkdown(b.Title))
		for _, line := range b.Lines {
			fmt.Fprintf(out, "- **%s** %s\n", plainMarkdown(line.Name), plainMarkdown(line.Value))
		}
		out.WriteString("\n")
	}
	for _, line := range r.watchRemarks() {
		fmt.Fprintf(out, "- %s\n\n", plainMarkdown(line))
	}
	if rows := r.watchTable(); len(rows) > 2 { // one step is told in the lines above
		markdownTable(out, rows, -1)
		fmt.Fprintf(out, "\n%s\n\n", plainMarkdown(watchTableNote))
	}
}

// markdownTable writes rows, heads first, in columns aligned right, but for the one named.
func markdownTable(out *bytes.Buffer, rows [][]string, left int) {
	for i, row := range rows {
		out.WriteString("|")
		for _, cell := range row {
			fmt.Fprintf(out, " %s |", plainMarkdown(cell))
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

// plainMarkdown keeps text from being read as markup, HTML included.
func plainMarkdown(text string) string {
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
