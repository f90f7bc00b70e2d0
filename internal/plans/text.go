package plans

import (
	"fmt"
	"strings"
)

// Text returns the steps, one a line. Those from which a step of PostgreSQL reads are below it, indented.
func (p *Plan) Text() string {
	var b strings.Builder
	for _, n := range p.Nodes {
		n.write(&b, 0)
	}
	return b.String()
}

func (n Node) write(b *strings.Builder, depth int) {
	b.WriteString(strings.Repeat("  ", depth) + n.Type)
	if n.Relation != "" && !strings.Contains(n.Type, " "+n.Relation) { // SQLite's type has it
		b.WriteString(" of " + n.Relation)
		if n.Alias != "" && n.Alias != n.Relation {
			b.WriteString(" " + n.Alias)
		}
	}
	for _, part := range [][2]string{
		{" with ", n.Index},
		{"; ", n.Extra},
		{"; index condition ", n.IndexCond},
		{"; hash condition ", n.HashCond},
		{"; filter ", n.Filter},
		{"; by ", strings.Join(n.SortKey, ", ")},
	} {
		if part[1] != "" {
			b.WriteString(part[0] + part[1])
		}
	}
	if n.Rows > 0 {
		fmt.Fprintf(b, "; about %.0f rows", n.Rows)
	}
	b.WriteByte('\n')
	for _, child := range n.Nodes {
		child.write(b, depth+1)
	}
}
