package plans

import (
	"slices"
	"strings"
)

// Tables returns the names that a statement may read as tables or views: those behind FROM,
// JOIN and the commas between them, at any depth, but not those that WITH defines. Only the
// database's catalog knows which of them exist.
func Tables(sql string, d Dialect) ([]TableName, error) {
	r, err := newReader(sql, d)
	if err != nil {
		return nil, err
	}
	defined := r.defined()
	var found []TableName
	levels := []fromClause{{}} // one for each open parenthesis
	for i := 0; i < len(r.tokens); i++ {
		at := &levels[len(levels)-1]
		name, next := r.tableName(i)
		switch t := r.tokens[i]; {
		case t.symbol("("):
			inside := fromClause{open: at.expects, expects: at.expects} // a join in parentheses
			at.expects = false
			levels = append(levels, inside)
		case t.symbol(")") && len(levels) > 1:
			levels = levels[:len(levels)-1]
		case t.symbol(","):
			at.expects = at.open
		case t.is("FROM") && !r.insideName(i):
			*at = fromClause{open: true, expects: true}
		case t.isAny("JOIN", "STRAIGHT_JOIN"):
			at.expects = at.open
		case t.isAny("SELECT", "VALUES", "WHERE", "GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT", "UNION", "INTERSECT", "EXCEPT"):
			*at = fromClause{}
		case at.expects && t.isAny("LATERAL", "ONLY"):
		case at.expects && next > i:
			at.expects = false
			isFunction := next < len(r.tokens) && r.tokens[next].symbol("(")
			isDefined := name.Schema == "" && containsFold(defined, name.Name)
			if !isFunction && !isDefined && !slices.Contains(found, name) {
				found = append(found, name)
			}
			i = next - 1
		}
	}
	return found, nil
}

// fromClause is what Tables knows about the part of a statement inside one parenthesis.
type fromClause struct {
	open    bool // FROM was read, and none of the clauses after it
	expects bool // a table may follow
}

// tableName reads NAME or SCHEMA.NAME from a token on; next is at if there is none.
func (r reader) tableName(at int) (name TableName, next int) {
	if !r.tokens[at].isName() {
		return name, at
	}
	name.Name = r.tokens[at].Text
	if at+2 < len(r.tokens) && r.tokens[at+1].symbol(".") && r.tokens[at+2].isName() {
		return TableName{Schema: name.Name, Name: r.tokens[at+2].Text}, at + 3
	}
	return name, at + 1
}

// defined returns the names that WITH defines: NAME AS ( and NAME (COLUMNS) AS (.
func (r reader) defined() []string {
	var names []string
	var opened []int
	for i, t := range r.tokens {
		named := i // the token that may be the name
		switch {
		case t.symbol("("):
			opened = append(opened, i)
			continue
		case t.symbol(")") && len(opened) > 0:
			named = opened[len(opened)-1] - 1
			opened = opened[:len(opened)-1]
		case !t.isName():
			continue
		}
		if named < 0 || !r.tokens[named].isName() || i+2 >= len(r.tokens) || !r.tokens[i+1].is("AS") {
			continue
		}
		if next := r.tokens[i+2]; next.symbol("(") || next.isAny("MATERIALIZED", "NOT") {
			names = append(names, r.tokens[named].Text)
		}
	}
	return names
}

// CheckUnordered returns an error, which starts with line and column, if a statement is itself
// ordered or limited. Its subqueries may be.
func CheckUnordered(sql string, d Dialect) error {
	r, err := newReader(sql, d)
	if err != nil {
		return err
	}
	depth := 0
	for i, t := range r.tokens {
		depth += nesting(t)
		next := Token{}
		if i+1 < len(r.tokens) {
			next = r.tokens[i+1]
		}
		isName := i > 0 && (r.tokens[i-1].symbol(".") || r.tokens[i-1].is("AS"))
		if depth != 0 || isName {
			continue
		}
		if t.is("LIMIT") || t.is("ORDER") && next.is("BY") || t.is("FETCH") && next.isAny("FIRST", "NEXT") {
			return errorAt(sql, t.Start, "%s is not allowed in a feed, because key gives the order and window the number of rows; remove it",
				clauseName(t))
		}
	}
	return nil
}

func clauseName(t Token) string {
	if t.is("ORDER") {
		return "ORDER BY"
	}
	return strings.ToUpper(t.Text)
}
