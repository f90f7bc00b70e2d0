package plans

import (
	"slices"
	"strings"
)

// Tables returns the names that a statement may read as tables or views: those behind FROM,
// JOIN and the commas between them, at any depth, but not those that WITH defines. Only the
// database's catalog knows which of them exist.
func Tables(sql string, d Dialect) ([]TableName, error) {
	r, err := NewReader(sql, d)
	if err != nil {
		return nil, err
	}
	defined := r.defined()
	var found []TableName
	levels := []fromClause{{}} // one for each open parenthesis
	for i := 0; i < len(r.Tokens); i++ {
		at := &levels[len(levels)-1]
		name, next := r.TableName(i)
		switch t := r.Tokens[i]; {
		case t.IsSymbol("("):
			inside := fromClause{open: at.expects, expects: at.expects} // a join in parentheses
			at.expects = false
			levels = append(levels, inside)
		case t.IsSymbol(")") && len(levels) > 1:
			levels = levels[:len(levels)-1]
		case t.IsSymbol(","):
			at.expects = at.open
		case t.Is("FROM") && !r.InsideName(i):
			*at = fromClause{open: true, expects: true}
		case t.IsAny("JOIN", "STRAIGHT_JOIN"):
			at.expects = at.open
		case t.IsAny("SELECT", "VALUES", "WHERE", "GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT", "UNION", "INTERSECT", "EXCEPT"):
			*at = fromClause{}
		case at.expects && t.IsAny("LATERAL", "ONLY"):
		case at.expects && next > i:
			at.expects = false
			isFunction := next < len(r.Tokens) && r.Tokens[next].IsSymbol("(")
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

// InsideName reports whether a token belongs to a qualified name (t.order) or
// to IS DISTINCT FROM.
func (r Reader) InsideName(i int) bool {
	return i > 0 && (r.Tokens[i-1].IsSymbol(".") || r.Tokens[i].Is("FROM") && r.Tokens[i-1].Is("DISTINCT") && i > 2)
}

// TableName reads NAME or SCHEMA.NAME from a token on; next is at if there is none.
func (r Reader) TableName(at int) (name TableName, next int) {
	if !r.Tokens[at].IsName() {
		return name, at
	}
	name.Name = r.Tokens[at].Text
	if at+2 < len(r.Tokens) && r.Tokens[at+1].IsSymbol(".") && r.Tokens[at+2].IsName() {
		return TableName{Schema: name.Name, Name: r.Tokens[at+2].Text}, at + 3
	}
	return name, at + 1
}

// defined returns the names that WITH defines: NAME AS ( and NAME (COLUMNS) AS (.
func (r Reader) defined() []string {
	var names []string
	var opened []int
	for i, t := range r.Tokens {
		named := i // the token that may be the name
		switch {
		case t.IsSymbol("("):
			opened = append(opened, i)
			continue
		case t.IsSymbol(")") && len(opened) > 0:
			named = opened[len(opened)-1] - 1
			opened = opened[:len(opened)-1]
		case !t.IsName():
			continue
		}
		if named < 0 || !r.Tokens[named].IsName() || i+2 >= len(r.Tokens) || !r.Tokens[i+1].Is("AS") {
			continue
		}
		if next := r.Tokens[i+2]; next.IsSymbol("(") || next.IsAny("MATERIALIZED", "NOT") {
			names = append(names, r.Tokens[named].Text)
		}
	}
	return names
}

// CheckUnordered returns an error, which starts with line and column, if a statement is itself
// ordered or limited. Its subqueries may be.
func CheckUnordered(sql string, d Dialect) error {
	r, err := NewReader(sql, d)
	if err != nil {
		return err
	}
	depth := 0
	for i, t := range r.Tokens {
		depth += t.Nesting()
		next := Token{}
		if i+1 < len(r.Tokens) {
			next = r.Tokens[i+1]
		}
		isName := i > 0 && (r.Tokens[i-1].IsSymbol(".") || r.Tokens[i-1].Is("AS"))
		if depth != 0 || isName {
			continue
		}
		if t.Is("LIMIT") || t.Is("ORDER") && next.Is("BY") || t.Is("FETCH") && next.IsAny("FIRST", "NEXT") {
			return ErrorAt(sql, t.Start, "%s is not allowed in a feed, because key gives the order and window the number of rows; remove it",
				clauseName(t))
		}
	}
	return nil
}

func clauseName(t Token) string {
	if t.Is("ORDER") {
		return "ORDER BY"
	}
	return strings.ToUpper(t.Text)
}
