package plans

import (
	"slices"
	"strings"
)

// usage says how a condition can use an index.
type usage int

const (
	unusable usage = iota
	equal          // column = value, column IS NULL
	among          // column IN (…)
	ordered        // column < value, BETWEEN
	joined         // column = column of another table
)

// ColumnRef is a column as a statement writes it. Table is "" without a
// qualifier.
type ColumnRef struct{ Table, Name string }

// String writes the column with its qualifier.
func (c ColumnRef) String() string {
	if c.Table == "" {
		return c.Name
	}
	return c.Table + "." + c.Name
}

// condition is one of the conditions that AND joins.
type condition struct {
	column ColumnRef
	usage  usage
	other  ColumnRef     // of a join
	reason string        // why no index serves it
	part   span          // all of it
	value  span          // what the column is compared with
	either [][]condition // of OR, one list per branch; column and usage are zero
}

// span is a run of tokens.
type span struct{ first, end int }

// reader reads parts of a statement from its tokens.
type reader struct {
	src     string
	dialect Dialect
	tokens  []Token // without comments
}

func newReader(src string, d Dialect) (reader, error) {
	tokens, err := Lex(src, d)
	tokens = slices.DeleteFunc(tokens, func(t Token) bool { return t.Kind == Comment })
	return reader{src: src, dialect: d, tokens: tokens}, err
}

func (r reader) all() span { return span{0, len(r.tokens)} }

// text returns the source of some tokens.
func (r reader) text(part span) string {
	if part.first >= part.end {
		return ""
	}
	return r.src[r.tokens[part.first].Start:r.tokens[part.end-1].End]
}

func nesting(t Token) int {
	switch {
	case t.symbol("("):
		return 1
	case t.symbol(")"):
		return -1
	}
	return 0
}

// split cuts a run of tokens where cut says so, outside parentheses.
func (r reader) split(part span, cut func(Token) bool) []span {
	var items []span
	depth, first := 0, part.first
	for i := part.first; i < part.end; i++ {
		depth += nesting(r.tokens[i])
		if depth == 0 && cut(r.tokens[i]) {
			items = append(items, span{first, i})
			first = i + 1
		}
	}
	if part.end > part.first {
		items = append(items, span{first, part.end})
	}
	return items
}

func isComma(t Token) bool { return t.symbol(",") }

// conjuncts cuts at AND, but not at that of BETWEEN.
func (r reader) conjuncts(part span) []span {
	between := false
	return r.split(part, func(t Token) bool {
		switch {
		case t.is("BETWEEN"):
			between = true
		case t.is("AND") && between:
			between = false
		case t.is("AND"):
			return true
		}
		return false
	})
}

// unwrap removes parentheses around all of a condition.
func (r reader) unwrap(part span) (span, bool) {
	if part.end-part.first < 3 || !r.tokens[part.first].symbol("(") {
		return part, false
	}
	depth := 0
	for i := part.first; i < part.end; i++ {
		depth += nesting(r.tokens[i])
		if depth == 0 && i < part.end-1 {
			return part, false
		}
	}
	inner := span{part.first + 1, part.end - 1}
	return inner, depth == 0 && !r.tokens[inner.first].is("SELECT")
}

// conditions reads conditions joined by AND. Those that no index serves are in
// the list with a reason.
func (r reader) conditions(part span) []condition {
	if inner, ok := r.unwrap(part); ok {
		return r.conditions(inner)
	}
	if branches := r.split(part, func(t Token) bool { return t.isAny("OR", "XOR") }); len(branches) > 1 {
		return []condition{r.either(part, branches)}
	}
	items := r.conjuncts(part)
	var list []condition
	for _, item := range items {
		if _, wrapped := r.unwrap(item); wrapped {
			list = append(list, r.conditions(item)...)
			continue
		}
		c := r.condition(item)
		c.part = item
		list = append(list, c)
		if c.usage == joined {
			list = append(list, condition{column: c.other, usage: joined, other: c.column, part: item})
		}
	}
	return list
}

// either reads conditions joined by OR. Indexes serve it if each branch has a condition on a column of the same table.
func (r reader) either(part span, branches []span) condition {
	c := condition{part: part}
	for _, branch := range branches {
		served := slices.DeleteFunc(r.conditions(branch), func(c condition) bool {
			return c.usage != equal && c.usage != among && c.usage != ordered
		})
		c.either = append(c.either, served)
	}
	exclusive := len(r.split(part, func(t Token) bool { return t.is("XOR") })) > 1
	if exclusive || slices.ContainsFunc(c.either, func(branch []condition) bool { return len(branch) == 0 }) {
		return condition{part: part, reason: "conditions joined by OR need an index each, and a part of this one has none"}
	}
	return c
}

// constants are words that stand for values.
func isConstant(t Token) bool {
	return t.isAny("NULL", "TRUE", "FALSE", "CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_TIME", "LOCALTIMESTAMP", "INTERVAL",
		"DATE", "TIMESTAMP", "TIME", "NOT", "CASE")
}

// readColumn reads name, table.name or schema.table.name. A column in
// parentheses followed by a cast, (name)::type, is read as the column.
func (r reader) readColumn(at, end int) (c ColumnRef, next int, ok bool) {
	if at < end && r.tokens[at].symbol("(") {
		c, next, ok = r.readColumn(at+1, end)
		if !ok || next+1 >= end || !r.tokens[next].symbol(")") || !r.tokens[next+1].symbol("::") {
			return c, at, false
		}
		for next += 2; next < end && r.tokens[next].Kind == Word; next++ {
		}
		return c, next, true
	}
	if at >= end || !r.tokens[at].isName() || isConstant(r.tokens[at]) || r.tokens[at].isAny("EXISTS", "SELECT") {
		return c, at, false
	}
	c.Name = r.tokens[at].Text
	at++
	for at+1 < end && r.tokens[at].symbol(".") && r.tokens[at+1].isName() {
		c.Table, c.Name = c.Name, r.tokens[at+1].Text
		at += 2
	}
	return c, at, at >= end || !r.tokens[at].symbol("(") // else it is a function
}

// mirror returns a comparison with its sides exchanged, "" for other tokens.
func mirror(t Token) string {
	if t.Kind != Symbol {
		return ""
	}
	return map[string]string{"=": "=", "<=>": "<=>", "<": ">", "<=": ">=", ">": "<", ">=": "<=", "<>": "<>", "!=": "!="}[t.Text]
}

// condition reads one condition that is not in parentheses.
func (r reader) condition(part span) condition {
	if column, at, ok := r.readColumn(part.first, part.end); ok {
		return r.compare(column, at, part.end)
	}
	for i := part.first + 1; i < part.end; i++ { // value = column
		column, next, ok := r.readColumn(i+1, part.end)
		value := span{part.first, i}
		if operator := mirror(r.tokens[i]); operator != "" && ok && next == part.end && r.isValue(value) {
			return r.compareValue(column, operator, value)
		}
	}
	return condition{reason: "no plain column on one side: a function or an expression needs an index on that expression"}
}

// compare reads what follows a column.
func (r reader) compare(column ColumnRef, at, end int) condition {
	if at >= end {
		return condition{reason: "a bare column"}
	}
	t, rest := r.tokens[at], span{at + 1, end}
	switch {
	case mirror(t) != "":
		other, next, ok := r.readColumn(rest.first, rest.end)
		switch {
		case ok && next == rest.end && t.symbol("="):
			return condition{column: column, usage: joined, other: other}
		case ok && next == rest.end:
			return condition{reason: "compares two columns"}
		}
		return r.compareValue(column, t.Text, rest)
	case t.is("IS") && rest.end-rest.first == 1 && r.tokens[rest.first].is("NULL"):
		return condition{column: column, usage: equal}
	case t.is("IN") && r.isValue(rest):
		return condition{column: column, usage: among, value: rest}
	case t.is("BETWEEN"):
		for i := rest.first; i < rest.end; i++ {
			if r.tokens[i].is("AND") && r.isValue(span{rest.first, i}) && r.isValue(span{i + 1, rest.end}) {
				return condition{column: column, usage: ordered, value: rest}
			}
		}
		return condition{reason: "the bounds are not plain values"}
	case t.isAny("LIKE", "ILIKE"):
		return condition{reason: "whether an index serves LIKE depends on the pattern and the collation"}
	}
	return condition{reason: "no index finds the rows by it"}
}

// compareValue reads column <operator> value.
func (r reader) compareValue(column ColumnRef, operator string, value span) condition {
	c := condition{column: column, usage: ordered, value: value}
	switch {
	case !r.isValue(value):
		return condition{reason: "the other side is not a plain value"}
	case operator == "=" && r.tokens[value.first].is("ANY"):
		c.usage = among
	case operator == "=", operator == "<=>":
		c.usage = equal
	case operator == "<>", operator == "!=":
		c.usage, c.reason = unusable, "all values but one: an index does not find the rows by it, it only tells them apart as it goes"
	}
	return c
}

// isValue reports whether tokens contain no column: literals, parameters, and
// functions, casts and arithmetic of such.
func (r reader) isValue(part span) bool {
	cast := false // the words of a type are being read
	for i := part.first; i < part.end; i++ {
		t := r.tokens[i]
		cast = cast && t.isName() || t.symbol("::")
		function := i+1 < part.end && r.tokens[i+1].symbol("(")
		switch {
		case cast:
		case t.Kind == Name, t.is("SELECT"):
			return false
		case t.Kind == Word && !function && !isConstant(t):
			return false
		case t.symbol("*") && i == part.first:
			return false
		}
	}
	return part.first < part.end
}

// mentions reports whether a condition is about a column.
func (r reader) mentions(part span, c ColumnRef) bool {
	for i := part.first; i+2 < part.end; i++ {
		if r.tokens[i].isName() && r.tokens[i].Text == c.Table && r.tokens[i+1].symbol(".") && strings.EqualFold(r.tokens[i+2].Text, c.Name) {
			return true
		}
	}
	return false
}
