package plans

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// statementMax bounds the length of a SELECT in bytes.
const statementMax = 64 << 10

// TableName is the name of a table. Schema is "" where the statement names none.
type TableName struct{ Schema, Name string }

// String writes the name with its schema.
func (t TableName) String() string {
	if t.Schema == "" {
		return t.Name
	}
	return t.Schema + "." + t.Name
}

// TableRef is a table of FROM.
type TableRef struct {
	TableName
	Alias   string // the name itself without one
	Aliased bool
	part    span // of the name
}

// SelectParam is a parameter of a SELECT.
type SelectParam struct {
	Name   string    // :name, the column that ? is compared with, or the number of ?
	Column ColumnRef // the column that it is compared with; zero if there is none
	Equal  bool      // the column must equal it
	Count  bool      // it is a number, of LIMIT or OFFSET
	token  int
}

// sortKey is a column of ORDER BY or GROUP BY.
type sortKey struct {
	column ColumnRef
	desc   bool
	nulls  string // "", "FIRST" or "LAST"
}

// Select is one plain SELECT, as far as indexes are concerned.
type Select struct {
	Text   string // without the semicolon at its end
	Tables []TableRef
	Params []SelectParam // in order of appearance

	reader     reader
	conditions []condition
	order      []sortKey
	group      []sortKey
	limited    bool
	notes      []string // parts that no index serves, and why
}

// errSimple says what ReadSelect accepts.
var errSimple = errors.New("only one plain SELECT … FROM table [JOIN table ON …] [WHERE …] [GROUP BY …] [ORDER BY …] [LIMIT …] can be " +
	"analyzed")

// ReadSelect reads a SELECT of the simple form, with parameters written ? or
// :name.
func ReadSelect(src string, d Dialect) (*Select, error) {
	if len(src) > statementMax {
		return nil, fmt.Errorf("the statement is longer than %d bytes", statementMax)
	}
	r, err := newReader(src, d)
	if err != nil {
		return nil, err
	}
	for len(r.tokens) > 0 && r.tokens[len(r.tokens)-1].symbol(";") {
		r.tokens = r.tokens[:len(r.tokens)-1]
	}
	if len(r.tokens) == 0 || !r.tokens[0].is("SELECT") {
		return nil, errSimple
	}
	s := &Select{Text: src[:r.tokens[len(r.tokens)-1].End], reader: r}
	clauses, err := r.clauses()
	if err != nil {
		return nil, err
	}
	return s, s.read(clauses)
}

// read takes the clauses in turn.
func (s *Select) read(clauses map[string]span) error {
	from, ok := clauses["FROM"]
	if !ok {
		return fmt.Errorf("there is no FROM: %w", errSimple)
	}
	if err := s.findParams(clauses); err != nil {
		return err
	}
	if err := s.readFrom(from); err != nil {
		return err
	}
	if where, ok := clauses["WHERE"]; ok {
		s.readConditions(where, "WHERE")
	}
	s.group = s.readKeys(clauses["GROUP"], "GROUP BY")
	tokens := s.reader.tokens
	aggregated := len(s.group) > 0 || len(tokens) > 1 && tokens[1].is("DISTINCT")
	if order, ok := clauses["ORDER"]; ok {
		s.order = s.readKeys(order, "ORDER BY")
		if aggregated {
			s.order = nil
			s.notes = append(s.notes, "ORDER BY: it comes after GROUP BY or DISTINCT, where no index orders")
		}
	}
	s.dropAliases(clauses["SELECT"])
	_, limit := clauses["LIMIT"]
	_, fetch := clauses["FETCH"]
	s.limited = limit || fetch
	return nil
}

// clauses finds the clauses of a statement, each without its opening words.
func (r reader) clauses() (map[string]span, error) {
	clauses := map[string]span{}
	depth, name, first := 0, "", 0
	for i, t := range r.tokens {
		depth += nesting(t)
		switch {
		case depth < 0:
			return nil, errorAt(r.src, t.Start, "this ) closes nothing")
		case t.symbol(";"):
			return nil, errors.New("several statements; write one")
		case depth != 0:
		case t.isAny("UNION", "INTERSECT", "EXCEPT", "INTO", "WITH"):
			return nil, fmt.Errorf("%s is not supported: %w", strings.ToUpper(t.Text), errSimple)
		case t.isAny("SELECT", "FROM", "WHERE", "GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT", "OFFSET", "FETCH", "FOR") && !r.insideName(i):
			clauses[name] = span{first, i}
			name, first = strings.ToUpper(t.Text), i+1
			if _, twice := clauses[name]; twice {
				return nil, fmt.Errorf("%s twice: %w", name, errSimple)
			}
			if name == "GROUP" || name == "ORDER" {
				if first >= len(r.tokens) || !r.tokens[first].is("BY") {
					return nil, fmt.Errorf("%s without BY", name)
				}
				first++
			}
		}
	}
	if depth != 0 {
		return nil, errors.New("a ( is not closed")
	}
	clauses[name] = span{min(first, len(r.tokens)), len(r.tokens)}
	delete(clauses, "")
	return clauses, nil
}

// insideName reports whether a token belongs to a qualified name (t.order) or
// to IS DISTINCT FROM.
func (r reader) insideName(i int) bool {
	return i > 0 && (r.tokens[i-1].symbol(".") || r.tokens[i].is("FROM") && r.tokens[i-1].is("DISTINCT") && i > 2)
}

// findParams lists the parameters in order of appearance.
func (s *Select) findParams(clauses map[string]span) error {
	for i, t := range s.reader.tokens {
		if t.Kind != Param {
			continue
		}
		if strings.HasPrefix(t.Text, "$") {
			return errorAt(s.reader.src, t.Start, "%s is not supported; write parameters as ? or :name", t.Text)
		}
		p := SelectParam{Name: t.Text, token: i}
		for _, clause := range []string{"LIMIT", "OFFSET", "FETCH"} {
			part, ok := clauses[clause]
			p.Count = p.Count || ok && i >= part.first && i < part.end
		}
		if p.Name == "" {
			p.Name = strconv.Itoa(len(s.Params) + 1)
		}
		s.Params = append(s.Params, p)
	}
	return nil
}

// readFrom reads tables, joins and their conditions.
func (s *Select) readFrom(part span) error {
	tokens := s.reader.tokens
	at := part.first
	for {
		table, next, err := s.reader.readTable(at, part.end)
		if err != nil {
			return err
		}
		s.Tables = append(s.Tables, table)
		at = next
		if at < part.end && tokens[at].is("ON") {
			end := at + 1
			for depth := 0; end < part.end && (depth > 0 || !opensJoin(tokens[end])); end++ {
				depth += nesting(tokens[end])
			}
			s.readConditions(span{at + 1, end}, "ON")
			at = end
		}
		if at >= part.end {
			return nil
		}
		if at, err = s.reader.skipJoin(at, part.end); err != nil {
			return err
		}
	}
}

func opensJoin(t Token) bool {
	return isComma(t) || t.isAny("JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "STRAIGHT_JOIN")
}

// skipJoin passes over a comma or the words of a join.
func (r reader) skipJoin(at, end int) (int, error) {
	if isComma(r.tokens[at]) {
		return at + 1, nil
	}
	for ; at < end; at++ {
		switch t := r.tokens[at]; {
		case t.is("JOIN"):
			return at + 1, nil
		case !t.isAny("INNER", "LEFT", "CROSS", "OUTER"):
			return 0, r.unknownFrom(at)
		}
	}
	return 0, fmt.Errorf("FROM ends with an open join: %w", errSimple)
}

func (r reader) unknownFrom(at int) error {
	t := r.tokens[at]
	return fmt.Errorf("%w: %w", errorAt(r.src, t.Start, "%q in FROM is not supported", r.src[t.Start:t.End]), errSimple)
}

// readTable reads [schema.]table [[AS] alias].
func (r reader) readTable(at, end int) (TableRef, int, error) {
	t := TableRef{part: span{at, at}}
	if at >= end || !r.tokens[at].isName() {
		return t, 0, fmt.Errorf("FROM contains something other than a table: %w", errSimple)
	}
	t.Name = r.tokens[at].Text
	at++
	if at+1 < end && r.tokens[at].symbol(".") && r.tokens[at+1].isName() {
		t.Schema, t.Name = t.Name, r.tokens[at+1].Text
		at += 2
	}
	t.part.end = at
	t.Alias = t.Name
	if at < end && r.tokens[at].is("AS") {
		at++
	}
	if at < end && r.tokens[at].isName() && !r.tokens[at].isAny("ON", "USING") && !opensJoin(r.tokens[at]) {
		t.Alias, t.Aliased = r.tokens[at].Text, true
		at++
	}
	if at < end && !r.tokens[at].is("ON") && !opensJoin(r.tokens[at]) {
		return t, 0, r.unknownFrom(at)
	}
	return t, at, nil
}

// readConditions reads the conditions of a clause.
func (s *Select) readConditions(part span, clause string) {
	for _, c := range s.reader.conditions(part) {
		if c.reason != "" {
			s.notes = append(s.notes, fmt.Sprintf("%s %s: %s", clause, s.reader.text(c.part), c.reason))
		} else {
			s.conditions = append(s.conditions, c)
		}
		s.bind(c)
		for _, branch := range c.either {
			for _, one := range branch {
				s.bind(one)
			}
		}
	}
}

// bind tells the parameters of a condition which column they are compared with.
// A ? that is all of the value is called like the column.
func (s *Select) bind(c condition) {
	for i := range s.Params {
		p := &s.Params[i]
		if p.token < c.value.first || p.token >= c.value.end {
			continue
		}
		p.Column = c.column
		p.Equal = c.usage == equal && c.value.end-c.value.first == 1
		taken := slices.ContainsFunc(s.Params, func(other SelectParam) bool { return strings.EqualFold(other.Name, c.column.Name) })
		if s.reader.tokens[p.token].Text == "" && !taken {
			p.Name = c.column.Name
		}
	}
}

// readKeys reads the columns of ORDER BY or GROUP BY; none if one of them is
// not a plain column.
func (s *Select) readKeys(part span, clause string) []sortKey {
	r := s.reader
	var keys []sortKey
	for _, item := range r.split(part, isComma) {
		column, at, ok := r.readColumn(item.first, item.end)
		key := sortKey{column: column}
		for ; ok && at < item.end; at++ {
			t := r.tokens[at]
			switch {
			case t.is("ASC"):
			case t.is("DESC"):
				key.desc = true
			case t.is("NULLS") && at+1 < item.end:
				at++
				key.nulls = strings.ToUpper(r.tokens[at].Text)
				ok = key.nulls == "FIRST" || key.nulls == "LAST"
				if key.nulls == r.dialect.defaultNulls(key.desc) {
					key.nulls = ""
				}
				// Only PostgreSQL's indexes can hold NULLs at the other end.
				ok = ok && (key.nulls == "" || r.dialect.has(Postgres))
			default:
				ok = false
			}
		}
		if !ok {
			s.notes = append(s.notes, fmt.Sprintf("%s: %q is not a plain column", clause, r.text(item)))
			return nil
		}
		keys = append(keys, key)
	}
	return keys
}

// defaultNulls is where a database puts NULLs when ORDER BY does not say.
func (d Dialect) defaultNulls(desc bool) string {
	if desc == d.has(Postgres) {
		return "FIRST"
	}
	return "LAST"
}

// dropAliases forgets ORDER BY when a name of it is one that the select list
// gives to something else.
func (s *Select) dropAliases(list span) {
	r := s.reader
	for _, item := range r.split(list, isComma) {
		last := item.end - 1
		if last <= item.first || !r.tokens[last].isName() || r.tokens[last-1].symbol(".") {
			continue
		}
		end := last
		if r.tokens[last-1].is("AS") {
			end--
		}
		alias := r.tokens[last].Text
		source, at, ok := r.readColumn(item.first, end)
		same := ok && at == end && strings.EqualFold(source.Name, alias)
		named := func(k sortKey) bool { return k.column.Table == "" && strings.EqualFold(k.column.Name, alias) }
		if !same && slices.ContainsFunc(s.order, named) {
			s.order = nil
			s.notes = append(s.notes, fmt.Sprintf("ORDER BY: %s is a name of the select list", alias))
		}
	}
}

// Render writes the statement with placeholders for its parameters, numbered
// from 1, and with other tables in place of some, by their place in Tables.
func (s *Select) Render(placeholder func(i int) string, tables map[int]string) string {
	var b strings.Builder
	at, number := 0, 0
	for i, t := range s.reader.tokens {
		for n, table := range s.Tables {
			if replaced, ok := tables[n]; ok && table.part.first == i {
				b.WriteString(s.Text[at:t.Start])
				b.WriteString(replaced)
				at = s.reader.tokens[table.part.end-1].End
			}
		}
		if t.Kind == Param {
			number++
			b.WriteString(s.Text[at:t.Start])
			b.WriteString(placeholder(number))
			at = t.End
		}
	}
	b.WriteString(s.Text[at:])
	return b.String()
}
