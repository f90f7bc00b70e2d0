package sheet

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// WriteText writes the sheet for a terminal.
func (s *Sheet) WriteText(w io.Writer) error {
	var out bytes.Buffer
	for _, line := range []string{s.Title, s.Verdict, s.Caveat} {
		if line != "" {
			fmt.Fprintf(&out, "%s\n", Printable(line))
		}
	}
	for _, line := range s.Findings {
		fmt.Fprintf(&out, "  %s\n", Printable(line))
	}
	if len(s.Facts) > 0 && out.Len() > 0 {
		out.WriteString("\n")
	}
	textFacts(&out, s.Facts)
	for i := range s.Sections {
		if out.Len() > 0 {
			out.WriteString("\n")
		}
		s.Sections[i].writeText(&out)
	}
	return Emit(w, &out)
}

func (s *Section) writeText(out *bytes.Buffer) {
	if s.Title != "" {
		fmt.Fprintf(out, "%s\n", Printable(s.Title))
	}
	for _, line := range s.Text {
		fmt.Fprintf(out, "  %s\n", Printable(line))
	}
	if len(s.Text) > 0 && s.Table != nil {
		out.WriteString("\n")
	}
	textFacts(out, s.Facts)
	s.Table.writeText(out)
	for _, line := range s.Lines {
		fmt.Fprintf(out, "  %s\n", Printable(line))
	}
	if s.Note != "" {
		if s.Table != nil || len(s.Facts)+len(s.Lines) > 0 {
			out.WriteString("\n")
		}
		fmt.Fprintf(out, "%s\n", strings.ReplaceAll(Printable(s.Note), ". ", ".\n"))
	}
}

// textFacts writes the values in a column, or each below its name if one has more.
func textFacts(out *bytes.Buffer, facts []Fact) {
	width := 0
	more := slices.ContainsFunc(facts, func(f Fact) bool { return len(f.More) > 0 })
	for _, f := range facts {
		width = max(width, utf8.RuneCountInString(Printable(f.Name)))
	}
	for _, f := range facts {
		if !more {
			fmt.Fprintf(out, "  %-*s  %s\n", width, Printable(f.Name), Printable(f.Value))
			continue
		}
		fmt.Fprintln(out, strings.TrimRight("  "+Printable(f.Name)+": "+Printable(f.Value), " "))
		for _, line := range f.More {
			fmt.Fprintf(out, "      %s\n", Printable(line))
		}
	}
}

func (t *Table) writeText(out *bytes.Buffer) {
	if t == nil {
		return
	}
	rows := append([][]string{t.Heads}, t.Rows...)
	widths := make([]int, len(t.Heads))
	for _, row := range rows {
		for c, cell := range row {
			widths[c] = max(widths[c], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for c, cell := range row {
			pad := strings.Repeat(" ", widths[c]-utf8.RuneCountInString(cell))
			if t.left(c) {
				line.WriteString("  " + Printable(cell) + pad)
				continue
			}
			line.WriteString("  " + pad + Printable(cell))
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

// Emit writes a report.
func Emit(w io.Writer, out *bytes.Buffer) error {
	if _, err := out.WriteTo(w); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
