package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/plans"
)

// statementMax bounds the length of a SELECT in bytes.
const statementMax = 64 << 10

// tableRef is a table of FROM.
type tableRef struct {
	plans.TableName
	alias     string // the name itself without one
	aliased   bool
	part      plans.Span   // the tokens of the name
	described *plans.Table // by the database's catalog; nil until it was asked
}

// parameter is a parameter of a SELECT.
type parameter struct {
	name   string          // :name, the column that ? is compared with, or the number of ?
	column plans.ColumnRef // the column that it is compared with; zero if there is none
	equal  bool            // the column must equal it
	count  bool            // it is a number, of LIMIT or OFFSET
	token  int
}

// sortKey is a column of ORDER BY or GROUP BY.
type sortKey struct {
	column plans.ColumnRef
	desc   bool
	nulls  string // "", "FIRST" or "LAST"
}

// selection is one plain SELECT, as far as indexes are concerned.
type selection struct {
	text   string // without the semicolon at its end
	tables []tableRef
	params []parameter // in order of appearance

	reader     plans.Reader
	conditions []plans.Condition // joined by AND, each of one column
	ors        []plans.Condition // those that OR joins
	order      []sortKey
	group      []sortKey
	limited    bool
	notes      []string // parts that no index serves, and why
}

// errSimple says what readSelect accepts.
var errSimple = errors.New("only one plain SELECT … FROM table [JOIN table ON …] [WHERE …] [GROUP BY …] [ORDER BY …] [LIMIT …] can be " +
	"analyzed")

// readSelect reads a SELECT of the simple form, with parameters written ? or :name.
func readSelect(src string, d plans.Dialect) (*selection, error) {
	if len(src) > statementMax {
		return nil, fmt.Errorf("the statement is longer than %d bytes", statementMax)
	}
	r, err := plans.NewReader(src, d)
	if err != nil {
		return nil, err
	}
	for len(r.Tokens) > 0 && r.Tokens[len(r.Tokens)-1].IsSymbol(";") {
		r.Tokens = r.Tokens[:len(r.Tokens)-1]
	}
	if len(r.Tokens) == 0 || !r.Tokens[0].Is("SELECT") {
		return nil, errSimple
	}
	s := &selection{text: src[:r.Tokens[len(r.Tokens)-1].End], reader: r}
	clauses, err := s.clauses()
	if err != nil {
		return nil, err
	}
	return s, s.read(clauses)
}

// read takes the clauses in turn.
func (s *selection) read(clauses map[string]plans.Span) error {
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
	tokens := s.reader.Tokens
	aggregated := len(s.group) > 0 || len(tokens) > 1 && tokens[1].Is("DISTINCT")
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
func (s *selection) clauses() (map[string]plans.Span, error) {
	r, clauses := s.reader, map[string]plans.Span{}
	depth, name, first := 0, "", 0
	for i, t := range r.Tokens {
		depth += t.Nesting()
		switch {
		case depth < 0:
			return nil, plans.ErrorAt(r.Source, t.Start, "this ) closes nothing")
		case t.IsSymbol(";"):
			return nil, errors.New("several statements; write one")
		case depth != 0:
		case t.IsAny("UNION", "INTERSECT", "EXCEPT", "INTO", "WITH"):
			return nil, fmt.Errorf("%s is not supported: %w", strings.ToUpper(t.Text), errSimple)
		case t.IsAny("SELECT", "FROM", "WHERE", "GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT", "OFFSET", "FETCH", "FOR") && !r.InsideName(i):
			clauses[name] = plans.Span{First: first, End: i}
			name, first = strings.ToUpper(t.Text), i+1
			if _, twice := clauses[name]; twice {
				return nil, fmt.Errorf("%s twice: %w", name, errSimple)
			}
			if name == "GROUP" || name == "ORDER" {
				if first >= len(r.Tokens) || !r.Tokens[first].Is("BY") {
					return nil, fmt.Errorf("%s without BY", name)
				}
				first++
			}
		}
	}
	if depth != 0 {
		return nil, errors.New("a ( is not closed")
	}
	clauses[name] = plans.Span{First: min(first, len(r.Tokens)), End: len(r.Tokens)}
	delete(clauses, "")
	return clauses, nil
}

// findParams lists the parameters in order of appearance.
func (s *selection) findParams(clauses map[string]plans.Span) error {
	for i, t := range s.reader.Tokens {
		if t.Kind != plans.Param {
			continue
		}
		if strings.HasPrefix(t.Text, "$") {
			return plans.ErrorAt(s.reader.Source, t.Start, "%s is not supported; write parameters as ? or :name", t.Text)
		}
		p := parameter{name: t.Text, token: i}
		for _, clause := range []string{"LIMIT", "OFFSET", "FETCH"} {
			part, ok := clauses[clause]
			p.count = p.count || ok && i >= part.First && i < part.End
		}
		if p.name == "" {
			p.name = strconv.Itoa(len(s.params) + 1)
		}
		s.params = append(s.params, p)
	}
	return nil
}

// readFrom reads tables, joins and their conditions.
func (s *selection) readFrom(part plans.Span) error {
	tokens := s.reader.Tokens
	at := part.First
	for {
		table, next, err := s.readTable(at, part.End)
		if err != nil {
			return err
		}
		s.tables = append(s.tables, table)
		at = next
		if at < part.End && tokens[at].Is("ON") {
			end := at + 1
			for depth := 0; end < part.End && (depth > 0 || !opensJoin(tokens[end])); end++ {
				depth += tokens[end].Nesting()
			}
			s.readConditions(plans.Span{First: at + 1, End: end}, "ON")
			at = end
		}
		if at >= part.End {
			return nil
		}
		if at, err = s.skipJoin(at, part.End); err != nil {
			return err
		}
	}
}

func opensJoin(t plans.Token) bool {
	return plans.IsComma(t) || t.IsAny("JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "STRAIGHT_JOIN")
}

// skipJoin passes over a comma or the words of a join.
func (s *selection) skipJoin(at, end int) (int, error) {
	if plans.IsComma(s.reader.Tokens[at]) {
		return at + 1, nil
	}
	for ; at < end; at++ {
		switch t := s.reader.Tokens[at]; {
		case t.Is("JOIN"):
			return at + 1, nil
		case !t.IsAny("INNER", "LEFT", "CROSS", "OUTER"):
			return 0, s.unknownFrom(at)
		}
	}
	return 0, fmt.Errorf("FROM ends with an open join: %w", errSimple)
}

func (s *selection) unknownFrom(at int) error {
	t, source := s.reader.Tokens[at], s.reader.Source
	return fmt.Errorf("%w: %w", plans.ErrorAt(source, t.Start, "%q in FROM is not supported", source[t.Start:t.End]), errSimple)
}

// readTable reads [schema.]table [[AS] alias].
func (s *selection) readTable(at, end int) (tableRef, int, error) {
	tokens := s.reader.Tokens[:end]
	if at >= end || !tokens[at].IsName() {
		return tableRef{}, 0, fmt.Errorf("FROM contains something other than a table: %w", errSimple)
	}
	t := tableRef{part: plans.Span{First: at}}
	t.TableName, at = s.reader.TableName(at)
	t.part.End = at
	t.alias = t.Name
	if at < end && tokens[at].Is("AS") {
		at++
	}
	if at < end && tokens[at].IsName() && !tokens[at].IsAny("ON", "USING") && !opensJoin(tokens[at]) {
		t.alias, t.aliased = tokens[at].Text, true
		at++
	}
	if at < end && !tokens[at].Is("ON") && !opensJoin(tokens[at]) {
		return t, 0, s.unknownFrom(at)
	}
	return t, at, nil
}

// readConditions reads the conditions of a clause.
func (s *selection) readConditions(part plans.Span, clause string) {
	for _, c := range s.reader.Conditions(part) {
		switch {
		case c.Reason != "":
			s.notes = append(s.notes, fmt.Sprintf("%s %s: %s", clause, s.reader.Text(c.Part), c.Reason))
		case c.Either != nil:
			s.ors = append(s.ors, c)
		default:
			s.conditions = append(s.conditions, c)
		}
		s.bind(c)
		for _, branch := range c.Either {
			for _, one := range branch {
				s.bind(one)
			}
		}
	}
}

// bind tells the parameters of a condition which column they are compared with.
// A ? that is all of the value is called like the column.
func (s *selection) bind(c plans.Condition) {
	for i := range s.params {
		p := &s.params[i]
		if p.token < c.Value.First || p.token >= c.Value.End {
			continue
		}
		p.column = c.Column
		p.equal = c.Usage == plans.Equal && c.Value.End-c.Value.First == 1
		taken := slices.ContainsFunc(s.params, func(other parameter) bool { return strings.EqualFold(other.name, c.Column.Name) })
		if s.reader.Tokens[p.token].Text == "" && !taken {
			p.name = c.Column.Name
		}
	}
}

// readKeys reads the columns of ORDER BY or GROUP BY; none if one of them is
// not a plain column.
func (s *selection) readKeys(part plans.Span, clause string) []sortKey {
	r := s.reader
	var keys []sortKey
	for _, item := range r.Split(part, plans.IsComma) {
		column, at, ok := r.Column(item.First, item.End)
		key := sortKey{column: column}
		for ; ok && at < item.End; at++ {
			t := r.Tokens[at]
			switch {
			case t.Is("ASC"):
			case t.Is("DESC"):
				key.desc = true
			case t.Is("NULLS") && at+1 < item.End:
				at++
				key.nulls = strings.ToUpper(r.Tokens[at].Text)
				ok = key.nulls == "FIRST" || key.nulls == "LAST"
				if key.nulls == defaultNulls(r.Dialect, key.desc) {
					key.nulls = ""
				}
				// Only PostgreSQL's indexes can hold NULLs at the other end.
				ok = ok && (key.nulls == "" || r.Dialect.Has(plans.Postgres))
			default:
				ok = false
			}
		}
		if !ok {
			s.notes = append(s.notes, fmt.Sprintf("%s: %q is not a plain column", clause, r.Text(item)))
			return nil
		}
		keys = append(keys, key)
	}
	return keys
}

// defaultNulls is where a database puts NULLs when ORDER BY does not say.
func defaultNulls(d plans.Dialect, desc bool) string {
	if desc == d.Has(plans.Postgres) {
		return "FIRST"
	}
	return "LAST"
}

// dropAliases forgets ORDER BY when a name of it is one that the select list
// gives to something else.
func (s *selection) dropAliases(list plans.Span) {
	r := s.reader
	for _, item := range r.Split(list, plans.IsComma) {
		last := item.End - 1
		if last <= item.First || !r.Tokens[last].IsName() || r.Tokens[last-1].IsSymbol(".") {
			continue
		}
		end := last
		if r.Tokens[last-1].Is("AS") {
			end--
		}
		alias := r.Tokens[last].Text
		source, at, ok := r.Column(item.First, end)
		same := ok && at == end && strings.EqualFold(source.Name, alias)
		named := func(k sortKey) bool { return k.column.Table == "" && strings.EqualFold(k.column.Name, alias) }
		if !same && slices.ContainsFunc(s.order, named) {
			s.order = nil
			s.notes = append(s.notes, fmt.Sprintf("ORDER BY: %s is a name of the select list", alias))
		}
	}
}

// resolve finds the table, by its place in FROM, and the column that a name means. The tables must have been described.
func (s *selection) resolve(c plans.ColumnRef) (table int, column plans.Column, err error) {
	table = -1
	for i, t := range s.tables {
		if c.Table != "" && !strings.EqualFold(c.Table, t.alias) {
			continue
		}
		found, ok := t.described.Column(c.Name)
		if !ok {
			continue
		}
		if table >= 0 {
			return -1, column, fmt.Errorf("column %s is in several tables; write table.%s", c, c.Name)
		}
		table, column = i, found
	}
	if table < 0 {
		return -1, column, fmt.Errorf("column %s is in no table of FROM", c)
	}
	return table, column, nil
}

// render writes the statement with placeholders for its parameters, numbered
// from 1, and with other tables in place of some, by their place in FROM.
func (s *selection) render(placeholder func(i int) string, tables map[int]string) string {
	var b strings.Builder
	at, number := 0, 0
	for i, t := range s.reader.Tokens {
		for n, table := range s.tables {
			if replaced, ok := tables[n]; ok && table.part.First == i {
				b.WriteString(s.text[at:t.Start])
				b.WriteString(replaced)
				at = s.reader.Tokens[table.part.End-1].End
			}
		}
		if t.Kind == plans.Param {
			number++
			b.WriteString(s.text[at:t.Start])
			b.WriteString(placeholder(number))
			at = t.End
		}
	}
	b.WriteString(s.text[at:])
	return b.String()
}
