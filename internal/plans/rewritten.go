package plans

import (
	"maps"
	"strings"
)

// Rewritten is a statement as MySQL or MariaDB rewrote it: every column has the
// alias of its table, views and derived tables are merged where that is
// possible.
type Rewritten struct {
	Reader
	inner int // the first token of the second SELECT; 0: there is none
}

// AliasedTable is a table that a statement reads, and what it calls it.
type AliasedTable struct {
	TableName
	Alias string
}

// ReadRewritten reads the text of the note 1003 that EXPLAIN leaves. Names are
// in backticks or, with ANSI_QUOTES, in double quotes. What is after a
// mistake in the text is not read.
func ReadRewritten(text string) Rewritten {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "?"), "?")
	tokens, _ := Lex(text, MySQL|BackslashEscapes|ANSIQuotes) // the server wrote it; a part is better than nothing
	r := Rewritten{Reader: Reader{Source: text}}
	for _, t := range tokens {
		switch {
		case t.Kind != Comment:
			r.Tokens = append(r.Tokens, t)
		case t.Text == "/* select#2 */" && r.inner == 0:
			r.inner = len(r.Tokens)
		}
	}
	return r
}

// path reads names joined by dots from a token on.
func (r Rewritten) path(at int) (names []string, next int) {
	for next = at; next < len(r.Tokens) && r.Tokens[next].Kind == Name; next += 2 {
		names = append(names, r.Tokens[next].Text)
		if next+1 >= len(r.Tokens) || !r.Tokens[next+1].IsSymbol(".") {
			return names, next + 1
		}
	}
	return names, next
}

// column reads a column from a token on: with the schema and the alias of its
// table, or within views with the alias alone.
func (r Rewritten) column(at int) (c ColumnRef, next int, ok bool) {
	c, next, ok = r.Column(at, len(r.Tokens))
	return c, next, ok && c.Table != ""
}

// Tables returns what may be a table: names of two parts, with or without an
// alias. Columns of views and derived tables look the same.
func (r Rewritten) Tables() []AliasedTable {
	var list []AliasedTable
	seen := map[AliasedTable]bool{}
	for at := 0; at < len(r.Tokens); {
		names, next := r.path(at)
		if len(names) == 2 {
			t := AliasedTable{TableName: TableName{Schema: names[0], Name: names[1]}, Alias: names[1]}
			if next < len(r.Tokens) && r.Tokens[next].Kind == Name {
				t.Alias = r.Tokens[next].Text
				next++
			}
			if !seen[t] {
				seen[t] = true
				list = append(list, t)
			}
		}
		at = max(next, at+1)
	}
	return list
}

// Outputs returns the columns of tables that the statement shows, by the name
// that each is shown under. If the server could not merge a derived table, the
// columns are those of the second SELECT.
func (r Rewritten) Outputs() map[string]ColumnRef {
	outputs := r.selectList(0)
	if r.inner > 0 {
		maps.Copy(outputs, r.selectList(r.inner))
	}
	return outputs
}

// selectList returns the columns of the first SELECT from a token on.
func (r Rewritten) selectList(at int) map[string]ColumnRef {
	outputs := map[string]ColumnRef{}
	for at < len(r.Tokens) && !r.Tokens[at].Is("SELECT") {
		at++
	}
	first := min(at+1, len(r.Tokens))
	end := first
	for depth := 0; end < len(r.Tokens) && (depth > 0 || !r.Tokens[end].Is("FROM")); end++ {
		depth += r.Tokens[end].Nesting()
	}
	for _, item := range r.Split(Span{first, end}, IsComma) {
		for item.First < item.End && r.Tokens[item.First].IsAny("STRAIGHT_JOIN", "DISTINCT") {
			item.First++
		}
		c, next, ok := r.column(item.First)
		if ok && next+2 == item.End && r.Tokens[next].Is("AS") && r.Tokens[next+1].Kind == Name {
			outputs[r.Tokens[next+1].Text] = c
		}
	}
	return outputs
}

// equalities returns the comparisons of the statement for the table of an
// alias: the columns that must equal a constant, and those that must equal a
// column of another table.
func (r Rewritten) equalities(alias string) (constant, join []string) {
	add := func(list []string, c ColumnRef) []string {
		if c.Table != alias || containsFold(list, c.Name) {
			return list
		}
		return append(list, c.Name)
	}
	for i, t := range r.Tokens {
		if !t.IsSymbol("=") || i == 0 || i+1 == len(r.Tokens) {
			continue
		}
		left, isLeft := r.columnBefore(i)
		right, _, isRight := r.column(i + 1)
		switch {
		case isLeft && isRight:
			join = add(add(join, left), right)
		case isLeft && isLiteral(r.Tokens[i+1]):
			constant = add(constant, left)
		case isRight && isLiteral(r.Tokens[i-1]):
			constant = add(constant, right)
		}
	}
	return constant, join
}

// columnBefore reads the column that ends in front of a token.
func (r Rewritten) columnBefore(end int) (ColumnRef, bool) {
	first := end - 1
	for first >= 2 && r.Tokens[first].Kind == Name && r.Tokens[first-1].IsSymbol(".") {
		first -= 2
	}
	c, next, ok := r.column(first)
	return c, ok && next == end
}

func isLiteral(t Token) bool {
	return t.Kind == String || t.Kind == Number || t.Kind == Param || t.IsSymbol("-") || t.IsAny("NULL", "TRUE", "FALSE", "CAST")
}

// ChecksJSON reports whether a CHECK constraint of MariaDB says that a column
// contains JSON: json_valid(`column`).
func ChecksJSON(clause, column string) bool {
	t := ReadRewritten(clause).Tokens
	return len(t) == 4 && t[0].Is("json_valid") && t[1].IsSymbol("(") && t[2].Kind == Name && t[2].Text == column && t[3].IsSymbol(")")
}
