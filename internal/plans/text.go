package plans

import (
	"fmt"
	"strings"
)

// Text returns the steps, one a line. Those from which a step of PostgreSQL reads are below it, indented.
func (p *Plan) Text() string { return textOf(p.Nodes, "") }

func textOf(nodes []Node, indent string) (text string) {
	for _, n := range nodes {
		text += indent + n.Type
		if n.Relation != "" && !strings.Contains(n.Type, " "+n.Relation) { // SQLite's type has it
			text += " of " + strings.TrimSuffix(n.Relation+" "+n.Alias, " "+n.Relation)
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
				text += part[0] + part[1]
			}
		}
		if n.Rows > 0 {
			text += fmt.Sprintf("; about %.0f rows", n.Rows)
		}
		text += "\n" + textOf(n.Nodes, indent+"  ")
	}
	return text
}
