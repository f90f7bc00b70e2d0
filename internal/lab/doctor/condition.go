package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// constants are words that stand for values.
var constants = []string{
	"NULL", "TRUE", "FALSE", "CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_TIME", "LOCALTIMESTAMP", "INTERVAL",
	"DATE", "TIMESTAMP", "TIME", "NOT", "CASE", "EXISTS", "SELECT",
}

// readConditions reads conditions joined by AND. A part that no index serves
// is noted, and the others still count.
func (s *selection) readConditions(part span, clause string) {
	if s.holds(part, "OR") || s.holds(part, "XOR") {
		s.note(clause, part, "conditions joined by OR need an index each; write a UNION of them, or measure one at a time")
		return
	}
	for _, item := range s.conjuncts(part) {
		s.readCondition(item, clause)
	}
}

// holds reports whether a keyword occurs outside parentheses.
func (s *selection) holds(part span, keyword string) bool {
	depth := 0
	for i := part.first; i < part.behind; i++ {
		depth += nesting(s.tokens[i])
		if depth == 0 && s.tokens[i].is(keyword) {
			return true
		}
	}
	return false
}

// conjuncts cuts at AND, but not at that of BETWEEN.
func (s *selection) conjuncts(part span) []span {
	between := false
	return s.separate(part, func(t token) bool {
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

func (s *selection) note(clause string, part span, why string) {
	s.unused = append(s.unused, fmt.Sprintf("%s %s: %s", clause, s.text(part), why))
}

// readCondition reads one condition, in parentheses or not.
func (s *selection) readCondition(part span, clause string) {
	if inner, ok := s.unwrap(part); ok {
		s.readConditions(inner, clause)
		return
	}
	if column, at, ok := s.readColumn(part.first, part.behind); ok {
		s.compare(part, clause, column, at)
		return
	}
	// value = column
	for i := part.first + 1; i < part.behind; i++ {
		column, next, ok := s.readColumn(i+1, part.behind)
		if mirrored, is := mirror[s.tokens[i].text]; is && s.tokens[i].kind == symbolToken && ok && next == part.behind && s.isValue(span{part.first, i}) {
			s.add(part, clause, column, mirrored, span{part.first, i})
			return
		}
	}
	s.note(clause, part, "no plain column on one side: a function or an expression needs an index on that expression")
}

// mirror turns comparisons round.
var mirror = map[string]string{"=": "=", "<=>": "<=>", "<": ">", "<=": ">=", ">": "<", ">=": "<=", "<>": "<>", "!=": "!="}

// unwrap takes parentheses off that hold the whole condition.
func (s *selection) unwrap(part span) (span, bool) {
	if part.behind-part.first < 3 || !s.tokens[part.first].symbol("(") {
		return part, false
	}
	depth := 0
	for i := part.first; i < part.behind; i++ {
		depth += nesting(s.tokens[i])
		if depth == 0 && i < part.behind-1 {
			return part, false
		}
	}
	inner := span{part.first + 1, part.behind - 1}
	return inner, !s.tokens[inner.first].is("SELECT")
}

// compare reads what follows a column.
func (s *selection) compare(part span, clause string, column columnRef, at int) {
	if at >= part.behind {
		s.note(clause, part, "a bare column")
		return
	}
	rest := span{at + 1, part.behind}
	t := s.tokens[at]
	switch {
	case t.kind == symbolToken && mirror[t.text] != "":
		if other, next, ok := s.readColumn(rest.first, rest.behind); ok && next == rest.behind {
			s.join(part, clause, column, t.text, other)
			return
		}
		s.add(part, clause, column, t.text, rest)
	case t.is("IS") && rest.behind-rest.first == 1 && s.tokens[rest.first].is("NULL"):
		s.conditions = append(s.conditions, condition{column: column, usage: equal})
	case t.is("IN") && s.isValue(rest):
		s.conditions = append(s.conditions, condition{column: column, usage: among})
		s.bind(rest, column, false)
	case t.is("BETWEEN"):
		s.between(part, clause, column, rest)
	case t.is("LIKE") || t.is("ILIKE"):
		s.note(clause, part, "whether an index serves LIKE depends on the pattern and the collation")
	default:
		s.note(clause, part, "no index finds the rows by it")
	}
}

// between reads low AND high.
func (s *selection) between(part span, clause string, column columnRef, rest span) {
	for i := rest.first; i < rest.behind; i++ {
		low, high := span{rest.first, i}, span{i + 1, rest.behind}
		if s.tokens[i].is("AND") && s.isValue(low) && s.isValue(high) {
			s.conditions = append(s.conditions, condition{column: column, usage: ordered})
			s.bind(rest, column, false)
			return
		}
	}
	s.note(clause, part, "the bounds are no plain values")
}

// add takes column <operator> value.
func (s *selection) add(part span, clause string, column columnRef, operator string, right span) {
	if !s.isValue(right) {
		s.note(clause, part, "the other side is no plain value")
		return
	}
	if operator == "=" && s.tokens[right.first].is("ANY") {
		s.conditions = append(s.conditions, condition{column: column, usage: among})
		s.bind(right, column, false)
		return
	}
	switch operator {
	case "=", "<=>":
		s.conditions = append(s.conditions, condition{column: column, usage: equal})
	case "<>", "!=":
		s.note(clause, part, "all values but one: an index does not find the rows by it, it only tells them apart as it goes")
	default:
		s.conditions = append(s.conditions, condition{column: column, usage: ordered})
	}
	s.bind(right, column, operator == "=" || operator == "<=>")
}

// join takes column = column.
func (s *selection) join(part span, clause string, a columnRef, operator string, b columnRef) {
	if operator != "=" {
		s.note(clause, part, "compares two columns")
		return
	}
	s.conditions = append(s.conditions, condition{column: a, usage: joined, other: b}, condition{column: b, usage: joined, other: a})
}

// isValue reports whether tokens hold no column: literals, parameters, and
// functions, casts and arithmetic of such.
func (s *selection) isValue(part span) bool {
	if part.first >= part.behind {
		return false
	}
	for i := part.first; i < part.behind; i++ {
		t := s.tokens[i]
		function := i+1 < part.behind && s.tokens[i+1].symbol("(")
		cast := i > part.first && s.tokens[i-1].symbol("::")
		constant := slices.ContainsFunc(constants, t.is) && !t.is("SELECT") && !t.is("EXISTS")
		switch {
		case t.kind == nameToken && !cast, t.is("SELECT"):
			return false
		case t.kind == wordToken && !function && !cast && !constant:
			return false
		case t.symbol("*") && i == part.first:
			return false
		}
	}
	return true
}

// findParams lists the parameters in order of appearance.
func (s *selection) findParams(parts map[string]span) {
	for i, t := range s.tokens {
		if t.kind != paramToken {
			continue
		}
		p := param{name: t.text, token: i}
		for _, clause := range []string{"LIMIT", "OFFSET", "FETCH"} {
			part, ok := parts[clause]
			p.count = p.count || ok && i >= part.first && i < part.behind
		}
		if p.name == "" {
			p.name = fmt.Sprint(len(s.params) + 1)
		}
		s.params = append(s.params, p)
	}
}

// bind tells the parameters among tokens which column they are compared with.
// A ? that is all of the value is called like the column.
func (s *selection) bind(part span, column columnRef, isEqual bool) {
	for i := range s.params {
		p := &s.params[i]
		if p.token < part.first || p.token >= part.behind {
			continue
		}
		p.column = column
		p.equal = isEqual && part.behind-part.first == 1
		taken := slices.ContainsFunc(s.params, func(other param) bool { return strings.EqualFold(other.name, column.name) })
		if s.tokens[p.token].text == "" && !taken {
			p.name = column.name
		}
	}
}

// render writes the statement with placeholders for parameters, and with other
// tables in place of some, by their place in FROM.
func (s *selection) render(placeholder func(i int) string, tables map[int]string) string {
	var b strings.Builder
	at, number := 0, 0
	for i, t := range s.tokens {
		for n, table := range s.tables {
			if replaced, ok := tables[n]; ok && table.first == i {
				b.WriteString(s.src[at:t.start])
				b.WriteString(replaced)
				at = s.tokens[table.behind-1].end
			}
		}
		if t.kind == paramToken {
			number++
			b.WriteString(s.src[at:t.start])
			b.WriteString(placeholder(number))
			at = t.end
		}
	}
	b.WriteString(s.src[at:])
	return b.String()
}
