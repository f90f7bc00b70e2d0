package plans

import "strings"

// KnowNull returns a statement for executions in which a named parameter is NULL, or is not: each test of that
// has its result instead, so that :x IS NULL OR a = :x can use an index of a. The statement is unchanged if
// the parameter is only tested, or never.
func KnowNull(sql string, d Dialect, name string, isNull bool) string {
	r, err := NewReader(sql, d)
	if err != nil {
		return sql
	}
	var text strings.Builder
	at, used := 0, false
	for i, t := range r.Tokens {
		if t.Kind != Param || t.Text != name {
			continue
		}
		first, end := r.nullTest(i)
		if used = used || end == 0; end == 0 {
			continue
		}
		negated := r.Tokens[end-2].Is("NOT")
		for r.at(first-1).IsSymbol("(") && r.at(end).IsSymbol(")") && r.startsTerm(first-2) {
			first, end = first-1, end+1
		}
		result := "TRUE"
		if isNull == negated {
			result = "FALSE"
			switch before, behind := r.at(first-1), r.at(end); { // SQLite does not simplify FALSE OR x
			case !d.Has(SQLite):
			case behind.Is("OR") && !before.IsAny("AND", "NOT"):
				result, end = "", end+1
			case before.Is("OR") && (behind.Is("OR") || behind.IsSymbol(")") || end == len(r.Tokens)):
				result, first = "", first-1
			}
		}
		text.WriteString(sql[at:r.Tokens[first].Start] + result)
		at = r.Tokens[end-1].End
	}
	if !used {
		return sql
	}
	return text.String() + sql[at:]
}

// at returns a token; the zero value outside of the statement.
func (r Reader) at(i int) Token {
	if i < 0 || i >= len(r.Tokens) {
		return Token{Kind: Symbol}
	}
	return r.Tokens[i]
}

// startsTerm reports whether a term of a condition begins behind a token.
func (r Reader) startsTerm(i int) bool {
	t := r.at(i)
	return t.IsSymbol("(") || t.IsSymbol(",") || t.IsAny("WHERE", "AND", "OR", "NOT", "ON", "HAVING", "WHEN", "SELECT")
}

// nullTest returns the tokens of the test whether a parameter, possibly with a cast, is NULL. The end is 0 if
// there is none.
func (r Reader) nullTest(param int) (first, end int) {
	first, end = param, param+1
	isCast := r.at(param-1).IsSymbol("(") && r.at(param-2).Is("CAST") && r.at(end).Is("AS")
	if isCast || r.at(end).IsSymbol("::") {
		for end++; r.at(end).IsName() && !r.at(end).Is("IS"); {
			end++
		}
	}
	if isCast {
		first -= 2
		if !r.at(end).IsSymbol(")") {
			return 0, 0
		}
		end++
	}
	if !r.at(end).Is("IS") || !r.startsTerm(first-1) {
		return 0, 0
	}
	if end++; r.at(end).Is("NOT") {
		end++
	}
	if !r.at(end).Is("NULL") {
		return 0, 0
	}
	return first, end + 1
}
