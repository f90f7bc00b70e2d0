package plans

import (
	"maps"
	"strings"
)

// Understood is a statement as MySQL or MariaDB rewrote it: every column has the
// alias of its table, views and derived tables are merged where that is
// possible.
type Understood struct {
	reader
	inner int // the first token of the second SELECT; 0: there is none
}

// AliasedTable is a table that a statement reads, and what it calls it.
type AliasedTable struct {
	TableName
	Alias string
}

// ReadUnderstood reads the text of the note 1003 that EXPLAIN leaves. Names are
// in backticks or, with ANSI_QUOTES, in double quotes. What is after a
// mistake in the text is not read.
func ReadUnderstood(text string) Understood {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "?"), "?")
	tokens, _ := Lex(text, MySQL|BackslashEscapes|ANSIQuotes) // the server wrote it; a part is better than nothing
	u := Understood{reader: reader{src: text}}
	for _, t := range tokens {
		switch {
		case t.Kind != Comment:
			u.tokens = append(u.tokens, t)
		case t.Text == "/* select#2 */" && u.inner == 0:
			u.inner = len(u.tokens)
		}
	}
	return u
}

// path reads names joined by dots from a token on.
func (u Understood) path(at int) (names []string, next int) {
	for next = at; next < len(u.tokens) && u.tokens[next].Kind == Name; next += 2 {
		names = append(names, u.tokens[next].Text)
		if next+1 >= len(u.tokens) || !u.tokens[next+1].symbol(".") {
			return names, next + 1
		}
	}
	return names, next
}

// column reads a column from a token on: with the schema and the alias of its
// table, or within views with the alias alone.
func (u Understood) column(at int) (c ColumnRef, next int, ok bool) {
	names, next := u.path(at)
	if n := len(names); n == 2 || n == 3 {
		return ColumnRef{Table: names[n-2], Name: names[n-1]}, next, true
	}
	return c, next, false
}

// Tables returns what may be a table: names of two parts, with or without an
// alias. Columns of views and derived tables look the same.
func (u Understood) Tables() []AliasedTable {
	var list []AliasedTable
	seen := map[AliasedTable]bool{}
	for at := 0; at < len(u.tokens); {
		names, next := u.path(at)
		if len(names) == 2 {
			t := AliasedTable{TableName: TableName{Schema: names[0], Name: names[1]}, Alias: names[1]}
			if next < len(u.tokens) && u.tokens[next].Kind == Name {
				t.Alias = u.tokens[next].Text
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
func (u Understood) Outputs() map[string]ColumnRef {
	outputs := u.selectList(0)
	if u.inner > 0 {
		maps.Copy(outputs, u.selectList(u.inner))
	}
	return outputs
}

// selectList returns the columns of the first SELECT from a token on.
func (u Understood) selectList(at int) map[string]ColumnRef {
	outputs := map[string]ColumnRef{}
	for at < len(u.tokens) && !u.tokens[at].is("SELECT") {
		at++
	}
	first := min(at+1, len(u.tokens))
	end := first
	for depth := 0; end < len(u.tokens) && (depth > 0 || !u.tokens[end].is("FROM")); end++ {
		depth += nesting(u.tokens[end])
	}
	for _, item := range u.split(span{first, end}, isComma) {
		for item.first < item.end && u.tokens[item.first].isAny("STRAIGHT_JOIN", "DISTINCT") {
			item.first++
		}
		c, next, ok := u.column(item.first)
		if ok && next+2 == item.end && u.tokens[next].is("AS") && u.tokens[next+1].Kind == Name {
			outputs[u.tokens[next+1].Text] = c
		}
	}
	return outputs
}

// equalities returns the comparisons of the statement for the table of an
// alias: the columns that must equal a constant, and those that must equal a
// column of another table.
func (u Understood) equalities(alias string) (constant, join []string) {
	add := func(list []string, c ColumnRef) []string {
		if c.Table != alias || containsFold(list, c.Name) {
			return list
		}
		return append(list, c.Name)
	}
	for i, t := range u.tokens {
		if !t.symbol("=") || i == 0 || i+1 == len(u.tokens) {
			continue
		}
		left, isLeft := u.columnBefore(i)
		right, _, isRight := u.column(i + 1)
		switch {
		case isLeft && isRight:
			join = add(add(join, left), right)
		case isLeft && isLiteral(u.tokens[i+1]):
			constant = add(constant, left)
		case isRight && isLiteral(u.tokens[i-1]):
			constant = add(constant, right)
		}
	}
	return constant, join
}

// columnBefore reads the column that ends in front of a token.
func (u Understood) columnBefore(end int) (ColumnRef, bool) {
	first := end - 1
	for first >= 2 && u.tokens[first].Kind == Name && u.tokens[first-1].symbol(".") {
		first -= 2
	}
	c, next, ok := u.column(first)
	return c, ok && next == end
}

func isLiteral(t Token) bool {
	return t.Kind == String || t.Kind == Number || t.Kind == Param || t.symbol("-") || t.isAny("NULL", "TRUE", "FALSE", "CAST")
}

// ChecksJSON reports whether a CHECK constraint of MariaDB says that a column
// contains JSON: json_valid(`column`).
func ChecksJSON(clause, column string) bool {
	t := ReadUnderstood(clause).tokens
	return len(t) == 4 && t[0].is("json_valid") && t[1].symbol("(") && t[2].Kind == Name && t[2].Text == column && t[3].symbol(")")
}
