package sqlite

import (
	"fmt"
	"strings"

	"spillway/internal/serve/feed"
)

// text returns one statement with the filters at some positions. Its parameters are those of the
// feed, the values of the filters, of After and of Until, the limit and the offset. Limit and offset are sums: SQLite
// prepares a statement again for each value of a bare parameter there.
func (s *source) text(bits int, filters []int) string {
	key := s.def.Key
	keys := feed.Keyset{Key: key, Quote: quote}
	after := len(s.args) + len(filters) + 1
	until := after + len(key)
	limit := until + len(key)
	columns := "*"
	if bits&keysOnly != 0 {
		columns = keys.Columns()
	}
	if bits&withUntil != 0 {
		columns += ", " + keys.Compare(true, func(column int) string { return fmt.Sprintf("?%d", until+column) }) + " AS spillway_until"
	}
	branch := fmt.Sprintf("SELECT %s FROM (\n%s\n) AS feed", columns, s.inner)
	where := " WHERE "
	for i, position := range filters {
		branch += fmt.Sprintf("%s%s = ?%d", where, quote(s.def.Params[position].Name), len(s.args)+1+i)
		where = " AND "
	}
	branches := []string{branch}
	if bits&withAfter != 0 {
		branches = nil
		for i := len(key) - 1; i >= 0; i-- {
			branches = append(branches, branch+where+equalThenAfter(key[:i+1], after))
		}
	}
	return fmt.Sprintf("%s ORDER BY %s LIMIT ?%d+0 OFFSET ?%d+0",
		strings.Join(branches, " UNION ALL "), keys.Order(), limit, limit+1)
}

// equalThenAfter returns the condition that a row equals a key in all columns but the last
// and comes after it in the last. The key's values are the parameters from first on.
func equalThenAfter(key []feed.KeyColumn, first int) string {
	text := ""
	last := len(key) - 1
	for i, column := range key[:last] {
		text += fmt.Sprintf("%s = ?%d AND ", quote(column.Name), first+i)
	}
	return fmt.Sprintf("%s%s %s ?%d", text, quote(key[last].Name), key[last].Operator(false, true), first+last)
}

// quote quotes a name.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
