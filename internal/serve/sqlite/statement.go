package sqlite

import (
	"fmt"
	"strings"

	"spillway/internal/serve/feed"
)

// text writes one statement. Its parameters are those of the feed, then the
// values of After, then those of Until, then limit and offset. These two are
// sums because SQLite plans for the value of a bare parameter, and so prepares the
// statement again for each: half the time of a short page.
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
		columns += ", " + notBehind(key, until) + " AS spillway_until"
	}
	branch := fmt.Sprintf("SELECT %s FROM (\n%s\n) AS feed", columns, f.inner)
	branches := []string{branch}
	if bits&withAfter != 0 {
		branches = nil
		for i := len(key) - 1; i >= 0; i-- {
			branches = append(branches, branch+" WHERE "+equalThenBehind(key[:i+1], after))
		}
	}
	order := make([]string, len(key))
	for i, column := range key {
		order[i] = quote(column.Name) + direction(column)
	}
	return fmt.Sprintf("%s ORDER BY %s LIMIT ?%d+0 OFFSET ?%d+0",
		strings.Join(branches, " UNION ALL "), strings.Join(order, ", "), limit, limit+1)
}

// equalThenBehind returns the condition that a row equals a key in all columns but the last
// and comes behind it by that one. The key's values are the parameters from first on.
func equalThenBehind(key []feed.KeyColumn, first int) string {
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

// notBehind returns the condition that a row does not come behind the key whose
// values are the parameters from first on.
func notBehind(key []feed.KeyColumn, first int) string {
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

// quote writes a name as SQL.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
