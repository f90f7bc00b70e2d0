package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"spillway/internal/database"
)

// usage says how a condition could use an index.
type usage int

const (
	equal   usage = iota // column = value, column IS NULL
	among                // column IN (…)
	ordered              // column < value, BETWEEN
	joined               // column = column of another table
)

// tableRef is a table of FROM.
type tableRef struct {
	schema, name, alias string
	first, behind       int // its tokens
	aliased             bool
}

// columnRef is a column as the statement writes it; table is "" without a
// qualifier.
type columnRef struct{ table, name string }

func (c columnRef) String() string {
	if c.table == "" {
		return c.name
	}
	return c.table + "." + c.name
}

// condition is a part of WHERE or ON that an index could serve.
type condition struct {
	column columnRef
	usage  usage
	other  columnRef // of a join
}

// sortKey is a column of ORDER BY.
type sortKey struct {
	column columnRef
	desc   bool
	nulls  string // "", "FIRST" or "LAST"
}

// selection is a SELECT as far as indexes are concerned.
type selection struct {
	src        string
	driver     database.Driver
	tokens     []token
	tables     []tableRef
	conditions []condition
	order      []sortKey
	group      []sortKey
	limited    bool
	unused     []string // parts that no index serves, and why
	params     []param
}

// param is a parameter of the statement, in order of appearance.
type param struct {
	name   string    // what --param calls it
	column columnRef // the column it is compared with; name "" when there is none
	equal  bool
	count  bool // of LIMIT or OFFSET: a number
	token  int
}

// errSimple says what the reader takes.
var errSimple = errors.New("doctor reads one plain SELECT … FROM table [JOIN table ON …] [WHERE …] [GROUP BY …] [ORDER BY …] [LIMIT …]")

// clauses begin with these words; each ends the one before.
var clauses = []string{"SELECT", "FROM", "WHERE", "GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT", "OFFSET", "FETCH", "FOR"}

// readStatement reads a SELECT of the simple form.
func readStatement(src string, driver database.Driver) (*selection, error) {
	tokens, err := tokenize(src, driver)
	if err != nil {
		return nil, err
	}
	for len(tokens) > 0 && tokens[len(tokens)-1].symbol(";") {
		tokens = tokens[:len(tokens)-1]
	}
	if len(tokens) == 0 || !tokens[0].is("SELECT") {
		return nil, errSimple
	}
	s := &selection{src: src[:tokens[len(tokens)-1].end], driver: driver, tokens: tokens}
	parts, err := s.split()
	if err != nil {
		return nil, err
	}
	return s, s.read(parts)
}

// read takes the clauses in turn.
func (s *selection) read(parts map[string]span) error {
	from, ok := parts["FROM"]
	if !ok {
		return fmt.Errorf("there is no FROM: %w", errSimple)
	}
	s.findParams(parts)
	if err := s.readFrom(from); err != nil {
		return err
	}
	if where, ok := parts["WHERE"]; ok {
		s.readConditions(where, "WHERE")
	}
	s.group = s.readKeys(parts["GROUP"], "GROUP BY")
	distinct := s.tokens[1:][:min(1, len(s.tokens)-1)]
	aggregated := len(s.group) > 0 || len(distinct) > 0 && distinct[0].is("DISTINCT")
	if order, ok := parts["ORDER"]; ok {
		s.order = s.readKeys(order, "ORDER BY")
		if aggregated {
			s.order = nil
			s.unused = append(s.unused, "ORDER BY: it comes after GROUP BY or DISTINCT, where no index orders")
		}
	}
	s.dropAliases(parts["SELECT"])
	_, limit := parts["LIMIT"]
	_, fetch := parts["FETCH"]
	s.limited = limit || fetch
	return nil
}

// span is a run of tokens.
type span struct{ first, behind int }

// split finds the clauses, each without its opening words.
func (s *selection) split() (map[string]span, error) {
	parts := map[string]span{}
	depth, name, first := 0, "", 0
	for i, t := range s.tokens {
		switch {
		case t.symbol("("):
			depth++
		case t.symbol(")"):
			depth--
		case t.symbol(";"):
			return nil, errors.New("several statements; write one")
		case depth != 0 || t.kind != wordToken:
		case slices.ContainsFunc([]string{"UNION", "INTERSECT", "EXCEPT", "INTO", "WITH"}, t.is):
			return nil, fmt.Errorf("%s is not understood: %w", strings.ToUpper(t.text), errSimple)
		case slices.ContainsFunc(clauses, t.is) && !s.insideName(i):
			parts[name] = span{first, i}
			name, first = strings.ToUpper(t.text), i+1
			if _, twice := parts[name]; twice {
				return nil, fmt.Errorf("%s twice: %w", name, errSimple)
			}
			if name == "GROUP" || name == "ORDER" {
				if first >= len(s.tokens) || !s.tokens[first].is("BY") {
					return nil, fmt.Errorf("%s without BY", name)
				}
				first++
			}
		}
		if depth < 0 {
			return nil, errors.New("a ) closes nothing")
		}
	}
	if depth != 0 {
		return nil, errors.New("a ( is not closed")
	}
	parts[name] = span{min(first, len(s.tokens)), len(s.tokens)}
	delete(parts, "")
	return parts, nil
}

// insideName reports whether a token belongs to a qualified name (t.order) or
// to IS DISTINCT FROM.
func (s *selection) insideName(i int) bool {
	return i > 0 && (s.tokens[i-1].symbol(".") || s.tokens[i].is("FROM") && s.tokens[i-1].is("DISTINCT") && i > 2)
}

// readFrom reads tables, joins and their conditions.
func (s *selection) readFrom(part span) error {
	at := part.first
	for {
		table, next, err := s.readTable(at, part.behind)
		if err != nil {
			return err
		}
		s.tables = append(s.tables, table)
		at = next
		if at < part.behind && s.tokens[at].is("ON") {
			end := at + 1
			for depth := 0; end < part.behind && (depth > 0 || !s.opensJoin(end)); end++ {
				depth += nesting(s.tokens[end])
			}
			s.readConditions(span{at + 1, end}, "ON")
			at = end
		}
		if at >= part.behind {
			return nil
		}
		if at, err = s.skipJoin(at, part.behind); err != nil {
			return err
		}
	}
}

func nesting(t token) int {
	switch {
	case t.symbol("("):
		return 1
	case t.symbol(")"):
		return -1
	}
	return 0
}

func (s *selection) opensJoin(i int) bool {
	return s.tokens[i].symbol(",") || slices.ContainsFunc([]string{"JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "STRAIGHT_JOIN"}, s.tokens[i].is)
}

// skipJoin passes over a comma or the words of a join.
func (s *selection) skipJoin(at, behind int) (int, error) {
	if s.tokens[at].symbol(",") {
		return at + 1, nil
	}
	for ; at < behind; at++ {
		t := s.tokens[at]
		switch {
		case t.is("JOIN"):
			return at + 1, nil
		case t.is("INNER"), t.is("LEFT"), t.is("CROSS"), t.is("OUTER"):
		default:
			return 0, fmt.Errorf("%s: %q in FROM is not understood: %w", place(s.src, t.start), t.text, errSimple)
		}
	}
	return 0, fmt.Errorf("FROM ends with an open join: %w", errSimple)
}

// readTable reads [schema.]table [[AS] alias].
func (s *selection) readTable(at, behind int) (tableRef, int, error) {
	t := tableRef{first: at}
	if at >= behind || !s.isName(at) {
		return t, 0, fmt.Errorf("FROM holds something else than a table: %w", errSimple)
	}
	t.name = s.tokens[at].text
	at++
	if at+1 < behind && s.tokens[at].symbol(".") && s.isName(at+1) {
		t.schema, t.name = t.name, s.tokens[at+1].text
		at += 2
	}
	t.behind = at
	t.alias = t.name
	if at < behind && s.tokens[at].is("AS") {
		at++
	}
	if at < behind && s.isName(at) && !s.tokens[at].is("ON") && !s.opensJoin(at) && !s.tokens[at].is("USING") {
		t.alias, t.aliased = s.tokens[at].text, true
		at++
	}
	if at < behind && !s.tokens[at].is("ON") && !s.opensJoin(at) {
		return t, 0, fmt.Errorf("%s: %q in FROM is not understood: %w", place(s.src, s.tokens[at].start), s.tokens[at].text, errSimple)
	}
	return t, at, nil
}

func (s *selection) isName(i int) bool {
	return s.tokens[i].kind == wordToken || s.tokens[i].kind == nameToken
}

// text is the source of some tokens.
func (s *selection) text(part span) string {
	if part.first >= part.behind {
		return ""
	}
	return s.src[s.tokens[part.first].start:s.tokens[part.behind-1].end]
}

// readKeys reads the columns of ORDER BY or GROUP BY; none when one of them is
// no plain column.
func (s *selection) readKeys(part span, clause string) []sortKey {
	var keys []sortKey
	for _, item := range s.separate(part, func(t token) bool { return t.symbol(",") }) {
		column, at, ok := s.readColumn(item.first, item.behind)
		key := sortKey{column: column}
		for ; ok && at < item.behind; at++ {
			t := s.tokens[at]
			switch {
			case t.is("ASC"):
			case t.is("DESC"):
				key.desc = true
			case t.is("NULLS") && at+1 < item.behind:
				at++
				key.nulls = strings.ToUpper(s.tokens[at].text)
				ok = key.nulls == "FIRST" || key.nulls == "LAST"
				if key.nulls == defaultNulls(s.driver, key.desc) {
					key.nulls = ""
				}
				// Only PostgreSQL's indexes can hold NULLs at the other end.
				ok = ok && (key.nulls == "" || s.driver == database.Postgres)
			default:
				ok = false
			}
		}
		if !ok {
			s.unused = append(s.unused, fmt.Sprintf("%s: %q is no plain column", clause, s.text(item)))
			return nil
		}
		keys = append(keys, key)
	}
	return keys
}

// defaultNulls is where a database puts NULLs when ORDER BY does not say.
func defaultNulls(driver database.Driver, desc bool) string {
	if desc == (driver == database.Postgres) {
		return "FIRST"
	}
	return "LAST"
}

// separate cuts a run of tokens where cut says so, outside parentheses.
func (s *selection) separate(part span, cut func(token) bool) []span {
	var items []span
	depth, first := 0, part.first
	for i := part.first; i < part.behind; i++ {
		depth += nesting(s.tokens[i])
		if depth == 0 && cut(s.tokens[i]) {
			items = append(items, span{first, i})
			first = i + 1
		}
	}
	if part.behind > part.first {
		items = append(items, span{first, part.behind})
	}
	return items
}

// readColumn reads name, table.name or schema.table.name.
func (s *selection) readColumn(at, behind int) (c columnRef, next int, ok bool) {
	if at >= behind || !s.isName(at) || slices.ContainsFunc(constants, s.tokens[at].is) {
		return c, at, false
	}
	c.name = s.tokens[at].text
	at++
	for at+1 < behind && s.tokens[at].symbol(".") && s.isName(at+1) {
		c.table, c.name = c.name, s.tokens[at+1].text
		at += 2
	}
	if at < behind && s.tokens[at].symbol("(") {
		return c, at, false // a function
	}
	return c, at, true
}

// dropAliases forgets ORDER BY when a name of it is one that the select list
// gives to something else.
func (s *selection) dropAliases(list span) {
	for _, item := range s.separate(list, func(t token) bool { return t.symbol(",") }) {
		last := item.behind - 1
		if last <= item.first || !s.isName(last) || s.tokens[last-1].symbol(".") {
			continue
		}
		end := last
		if s.tokens[last-1].is("AS") {
			end--
		}
		source, at, ok := s.readColumn(item.first, end)
		same := ok && at == end && strings.EqualFold(source.name, s.tokens[last].text)
		named := func(k sortKey) bool {
			return k.column.table == "" && strings.EqualFold(k.column.name, s.tokens[last].text)
		}
		if !same && slices.ContainsFunc(s.order, named) {
			s.order = nil
			s.unused = append(s.unused, fmt.Sprintf("ORDER BY: %s is a name of the select list", s.tokens[last].text))
		}
	}
}
