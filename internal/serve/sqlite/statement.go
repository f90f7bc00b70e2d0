package sqlite

import (
	"fmt"
	"strings"

	"spillway/internal/serve/feed"
)

// text returns one statement. Its parameters are those of the feed, the values of After,
// the values of Until, the limit and the offset. Limit and offset are sums: SQLite
// prepares a statement again for each value of a bare parameter there.
func (f *Feed) text(bits int) string {
	key := f.def.Key
	after := len(f.args) + 1
	until := after + len(key)
	limit := until + len(key)
	columns := "*"
	if bits&keysOnly != 0 {
		columns = nameList(key)
	}
	if bits&withUntil != 0 {
		columns += ", " + notAfter(key, until) + " AS spillway_until"
	}
	branch := fmt.Sprintf("SELECT %s FROM (\n%s\n) AS feed", columns, f.inner)
	branches := []string{branch}
	if bits&withAfter != 0 {
		branches = nil
		for i := len(key) - 1; i >= 0; i-- {
			branches = append(branches, branch+" WHERE "+equalThenAfter(key[:i+1], after))
		}
	}
	order := make([]string, len(key))
	for i, column := range key {
		order[i] = quote(column.Name) + direction(column)
	}
	return fmt.Sprintf("%s ORDER BY %s LIMIT ?%d+0 OFFSET ?%d+0",
		strings.Join(branches, " UNION ALL "), strings.Join(order, ", "), limit, limit+1)
}

// equalThenAfter returns the condition that a row equals a key in all columns but the last
// and comes after it in the last. The key's values are the parameters from first on.
func equalThenAfter(key []feed.KeyColumn, first int) string {
	text := ""
	last := len(key) - 1
	for i, column := range key[:last] {
		text += fmt.Sprintf("%s = ?%d AND ", quote(column.Name), first+i)
	}
	operator := "<"
	if key[last].Ascending {
		operator = ">"
	}
	return fmt.Sprintf("%s%s %s ?%d", text, quote(key[last].Name), operator, first+last)
}

// notAfter returns the condition that a row does not come after the key whose values are
// the parameters from first on.
func notAfter(key []feed.KeyColumn, first int) string {
	last := len(key) - 1
	text := ""
	for i := last; i >= 0; i-- {
		name, operator := quote(key[i].Name), ">"
		if key[i].Ascending {
			operator = "<"
		}
		if i == last {
			text = fmt.Sprintf("%s %s= ?%d", name, operator, first+i)
			continue
		}
		text = fmt.Sprintf("(%s %s ?%d OR (%s = ?%d AND %s))", name, operator, first+i, name, first+i, text)
	}
	return text
}

func nameList(key []feed.KeyColumn) string {
	names := make([]string, len(key))
	for i, column := range key {
		names[i] = quote(column.Name)
	}
	return strings.Join(names, ", ")
}

func direction(c feed.KeyColumn) string {
	if c.Ascending {
		return ""
	}
	return " DESC"
}

// quote quotes a name.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
