package plans

import (
	"slices"
	"strings"
)

// Usage says how a condition can use an index.
type Usage int

// The usages.
const (
	Unusable Usage = iota
	Equal          // column = value, column IS NULL
	Among          // column IN (…)
	Ordered        // column < value, BETWEEN
	Joined         // column = column of another table
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

// Condition is one of the conditions that AND joins.
type Condition struct {
	Column ColumnRef
	Usage  Usage
	Other  ColumnRef     // of a join
	Reason string        // why no index serves it
	Part   Span          // all of it
	Value  Span          // what the column is compared with
	Either [][]Condition // of OR, one list per branch; Column and Usage are zero
}

// Span is a run of tokens, the one at End not included.
type Span struct{ First, End int }

// Reader reads parts of a statement from its tokens.
type Reader struct {
	Source  string
	Dialect Dialect
	Tokens  []Token // without comments
}

// NewReader splits a statement into its tokens. After an error it has those before it.
func NewReader(source string, d Dialect) (Reader, error) {
	tokens, err := Lex(source, d)
	tokens = slices.DeleteFunc(tokens, func(t Token) bool { return t.Kind == Comment })
	return Reader{Source: source, Dialect: d, Tokens: tokens}, err
}

// All returns all tokens.
func (r Reader) All() Span { return Span{0, len(r.Tokens)} }

// Text returns the source of some tokens.
func (r Reader) Text(part Span) string {
	if part.First >= part.End {
		return ""
	}
	return r.Source[r.Tokens[part.First].Start:r.Tokens[part.End-1].End]
}

// Nesting is 1 for an opening parenthesis, -1 for a closing one, and 0 for other tokens.
func (t Token) Nesting() int {
	switch {
	case t.IsSymbol("("):
		return 1
	case t.IsSymbol(")"):
		return -1
	}
	return 0
}

// Split cuts a run of tokens where cut says so, outside parentheses.
func (r Reader) Split(part Span, cut func(Token) bool) []Span {
	var items []Span
	depth, first := 0, part.First
	for i := part.First; i < part.End; i++ {
		depth += r.Tokens[i].Nesting()
		if depth == 0 && cut(r.Tokens[i]) {
			items = append(items, Span{first, i})
			first = i + 1
		}
	}
	if part.End > part.First {
		items = append(items, Span{first, part.End})
	}
	return items
}

// IsComma reports whether a token separates the elements of a list.
func IsComma(t Token) bool { return t.IsSymbol(",") }

// conjuncts cuts at AND, but not at that of BETWEEN.
func (r Reader) conjuncts(part Span) []Span {
	between := false
	return r.Split(part, func(t Token) bool {
		switch {
		case t.Is("BETWEEN"):
			between = true
		case t.Is("AND") && between:
			between = false
		case t.Is("AND"):
			return true
		}
		return false
	})
}

// unwrap removes parentheses around all of a condition.
func (r Reader) unwrap(part Span) (Span, bool) {
	if part.End-part.First < 3 || !r.Tokens[part.First].IsSymbol("(") {
		return part, false
	}
	depth := 0
	for i := part.First; i < part.End; i++ {
		depth += r.Tokens[i].Nesting()
		if depth == 0 && i < part.End-1 {
			return part, false
		}
	}
	inner := Span{part.First + 1, part.End - 1}
	return inner, depth == 0 && !r.Tokens[inner.First].Is("SELECT")
}

// Conditions reads conditions joined by AND. Those that no index serves are in
// the list with a reason.
func (r Reader) Conditions(part Span) []Condition {
	if inner, ok := r.unwrap(part); ok {
		return r.Conditions(inner)
	}
	if branches := r.Split(part, func(t Token) bool { return t.IsAny("OR", "XOR") }); len(branches) > 1 {
		return []Condition{r.either(part, branches)}
	}
	items := r.conjuncts(part)
	var list []Condition
	for _, item := range items {
		if _, wrapped := r.unwrap(item); wrapped {
			list = append(list, r.Conditions(item)...)
			continue
		}
		c := r.condition(item)
		c.Part = item
		list = append(list, c)
		if c.Usage == Joined {
			list = append(list, Condition{Column: c.Other, Usage: Joined, Other: c.Column, Part: item})
		}
	}
	return list
}

// either reads conditions joined by OR. Indexes serve it if each branch has a condition on a column of the same table.
func (r Reader) either(part Span, branches []Span) Condition {
	c := Condition{Part: part}
	for _, branch := range branches {
		served := slices.DeleteFunc(r.Conditions(branch), func(c Condition) bool {
			return c.Usage != Equal && c.Usage != Among && c.Usage != Ordered
		})
		c.Either = append(c.Either, served)
	}
	exclusive := len(r.Split(part, func(t Token) bool { return t.Is("XOR") })) > 1
	if exclusive || slices.ContainsFunc(c.Either, func(branch []Condition) bool { return len(branch) == 0 }) {
		return Condition{Part: part, Reason: "conditions joined by OR need an index each, and a part of this one has none"}
	}
	return c
}

// isConstant reports whether a token is a word that stands for a value.
func isConstant(t Token) bool {
	return t.IsAny("NULL", "TRUE", "FALSE", "CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_TIME", "LOCALTIMESTAMP", "INTERVAL",
		"DATE", "TIMESTAMP", "TIME", "NOT", "CASE")
}

// Column reads name, table.name or schema.table.name. A column in
// parentheses followed by a cast, (name)::type, is read as the column.
func (r Reader) Column(at, end int) (c ColumnRef, next int, ok bool) {
	if at < end && r.Tokens[at].IsSymbol("(") {
		c, next, ok = r.Column(at+1, end)
		if !ok || next+1 >= end || !r.Tokens[next].IsSymbol(")") || !r.Tokens[next+1].IsSymbol("::") {
			return c, at, false
		}
		for next += 2; next < end && r.Tokens[next].Kind == Word; next++ {
		}
		return c, next, true
	}
	if at >= end || !r.Tokens[at].IsName() || isConstant(r.Tokens[at]) || r.Tokens[at].IsAny("EXISTS", "SELECT") {
		return c, at, false
	}
	c.Name = r.Tokens[at].Text
	at++
	for at+1 < end && r.Tokens[at].IsSymbol(".") && r.Tokens[at+1].IsName() {
		c.Table, c.Name = c.Name, r.Tokens[at+1].Text
		at += 2
	}
	return c, at, at >= end || !r.Tokens[at].IsSymbol("(") // else it is a function
}

// mirror returns a comparison with its sides exchanged, "" for other tokens.
func mirror(t Token) string {
	if t.Kind != Symbol {
		return ""
	}
	return map[string]string{"=": "=", "<=>": "<=>", "<": ">", "<=": ">=", ">": "<", ">=": "<=", "<>": "<>", "!=": "!="}[t.Text]
}

// condition reads one condition that is not in parentheses.
func (r Reader) condition(part Span) Condition {
	if column, at, ok := r.Column(part.First, part.End); ok {
		return r.compare(column, at, part.End)
	}
	for i := part.First + 1; i < part.End; i++ { // value = column
		column, next, ok := r.Column(i+1, part.End)
		value := Span{part.First, i}
		if operator := mirror(r.Tokens[i]); operator != "" && ok && next == part.End && r.isValue(value) {
			return r.compareValue(column, operator, value)
		}
	}
	return Condition{Reason: "no plain column on one side: a function or an expression needs an index on that expression"}
}

// compare reads what follows a column.
func (r Reader) compare(column ColumnRef, at, end int) Condition {
	if at >= end {
		return Condition{Reason: "a bare column"}
	}
	t, rest := r.Tokens[at], Span{at + 1, end}
	switch {
	case mirror(t) != "":
		other, next, ok := r.Column(rest.First, rest.End)
		switch {
		case ok && next == rest.End && t.IsSymbol("="):
			return Condition{Column: column, Usage: Joined, Other: other}
		case ok && next == rest.End:
			return Condition{Reason: "compares two columns"}
		}
		return r.compareValue(column, t.Text, rest)
	case t.Is("IS") && rest.End-rest.First == 1 && r.Tokens[rest.First].Is("NULL"):
		return Condition{Column: column, Usage: Equal}
	case t.Is("IN") && r.isValue(rest):
		return Condition{Column: column, Usage: Among, Value: rest}
	case t.Is("BETWEEN"):
		for i := rest.First; i < rest.End; i++ {
			if r.Tokens[i].Is("AND") && r.isValue(Span{rest.First, i}) && r.isValue(Span{i + 1, rest.End}) {
				return Condition{Column: column, Usage: Ordered, Value: rest}
			}
		}
		return Condition{Reason: "the bounds are not plain values"}
	case t.IsAny("LIKE", "ILIKE"):
		return Condition{Reason: "whether an index serves LIKE depends on the pattern and the collation"}
	}
	return Condition{Reason: "no index finds the rows by it"}
}

// compareValue reads column <operator> value.
func (r Reader) compareValue(column ColumnRef, operator string, value Span) Condition {
	c := Condition{Column: column, Usage: Ordered, Value: value}
	switch {
	case !r.isValue(value):
		return Condition{Reason: "the other side is not a plain value"}
	case operator == "=" && r.Tokens[value.First].Is("ANY"):
		c.Usage = Among
	case operator == "=", operator == "<=>":
		c.Usage = Equal
	case operator == "<>", operator == "!=":
		c.Usage, c.Reason = Unusable, "all values but one: an index does not find the rows by it, it only tells them apart as it goes"
	}
	return c
}

// isValue reports whether tokens contain no column: literals, parameters, and
// functions, casts and arithmetic of such.
func (r Reader) isValue(part Span) bool {
	cast := false // the words of a type are being read
	for i := part.First; i < part.End; i++ {
		t := r.Tokens[i]
		cast = cast && t.IsName() || t.IsSymbol("::")
		function := i+1 < part.End && r.Tokens[i+1].IsSymbol("(")
		switch {
		case cast:
		case t.Kind == Name, t.Is("SELECT"):
			return false
		case t.Kind == Word && !function && !isConstant(t):
			return false
		case t.IsSymbol("*") && i == part.First:
			return false
		}
	}
	return part.First < part.End
}

// mentions reports whether a condition is about a column.
func (r Reader) mentions(part Span, c ColumnRef) bool {
	for i := part.First; i+2 < part.End; i++ {
		if r.Tokens[i].IsName() && r.Tokens[i].Text == c.Table && r.Tokens[i+1].IsSymbol(".") && strings.EqualFold(r.Tokens[i+2].Text, c.Name) {
			return true
		}
	}
	return false
}
