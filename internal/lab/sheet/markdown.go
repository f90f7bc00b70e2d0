package sheet

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// WriteMarkdown writes the sheet as GitHub's Markdown.
func (s *Sheet) WriteMarkdown(w io.Writer) error {
	var out bytes.Buffer
	if s.Title != "" {
		fmt.Fprintf(&out, "## %s\n", escape(s.Title))
	}
	if s.Verdict != "" {
		fmt.Fprintf(&out, "\n**%s**%s\n", escape(s.Verdict), strings.TrimRight(" "+escape(s.Caveat), " "))
	}
	markdownLines(&out, s.Findings)
	markdownFacts(&out, s.Facts)
	for i := range s.Sections {
		s.Sections[i].writeMarkdown(&out)
	}
	return Emit(w, bytes.NewBuffer(bytes.TrimLeft(out.Bytes(), "\n")))
}

func (s *Section) writeMarkdown(out *bytes.Buffer) {
	level := "###"
	if s.Nested {
		level = "####"
	}
	if s.Title != "" {
		fmt.Fprintf(out, "\n%s %s\n", level, escape(s.Title))
	}
	if len(s.Text) > 0 {
		fmt.Fprintf(out, "\n%s\n", escape(strings.Join(s.Text, " ")))
	}
	markdownFacts(out, s.Facts)
	if s.Table != nil {
		out.WriteString("\n")
		s.Table.writeMarkdown(out)
	}
	markdownLines(out, s.Lines)
	if s.Note != "" {
		fmt.Fprintf(out, "\n%s\n", escape(s.Note))
	}
}

func markdownLines(out *bytes.Buffer, lines []string) {
	if len(lines) > 0 {
		out.WriteString("\n")
	}
	for _, line := range lines {
		fmt.Fprintf(out, "- %s\n", escape(line))
	}
}

func markdownFacts(out *bytes.Buffer, facts []Fact) {
	if len(facts) > 0 {
		out.WriteString("\n")
	}
	for _, f := range facts {
		fmt.Fprintf(out, "- %s: %s\n", escape(f.Name), escape(f.Value))
		for _, line := range f.More {
			fmt.Fprintf(out, "  - %s\n", escape(line))
		}
	}
}

// Markdown is the table alone.
func (t *Table) Markdown() string {
	var out bytes.Buffer
	t.writeMarkdown(&out)
	return out.String()
}

func (t *Table) writeMarkdown(out *bytes.Buffer) {
	row := func(cells []string) {
		out.WriteString("|")
		for _, cell := range cells {
			fmt.Fprintf(out, " %s |", escape(cell))
		}
		out.WriteString("\n")
	}
	row(t.Heads)
	out.WriteString("|")
	for c := range t.Heads {
		if t.left(c) {
			out.WriteString("---|")
			continue
		}
		out.WriteString("--:|")
	}
	out.WriteString("\n")
	for _, cells := range t.Rows {
		row(cells)
	}
}

// escape escapes Markdown and HTML.
func escape(text string) string {
	return strings.NewReplacer(
		"&", "&amp;", "<", "&lt;", `\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "[", `\[`, "]", `\]`, "|", `\|`, "~", `\~`, "#", `\#`, ">", `\>`,
	).Replace(Printable(text))
}
