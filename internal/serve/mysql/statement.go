package mysql

import (
	"database/sql/driver"
	"fmt"
	"strings"

	"spillway/internal/serve/feed"
)

// statement is one SQL text, and how the columns of its result are read.
type statement struct {
	sql     string
	columns func(driver.Rows) (*columns, error)
	// endless: nobody knows how many rows come. When they are not wanted any more the
	// connection is given up, rather than to read them all.
	endless bool
}

// shape is what distinguishes the statements of one feed.
//
// Straight has the server read the tables in the order in which the feed names
// them. Without it the optimizer, which counts the cost of a whole join and not
// that of its first rows, is apt to begin with the smaller table and to sort all
// that it finds.
type shape struct {
	after, until bool
	keysOnly     bool
	straight     bool
}

// writer writes the statement of one shape. Its parameters are the feed's, then
// those of After, of Until, the limit and the offset.
type writer struct {
	def  feed.Definition
	body string      // the feed's SELECT with ? in it
	key  []keyColumn // how its values are compared
}

func (w writer) write(s shape) string {
	selected := "*"
	if s.keysOnly {
		selected = w.keyList("")
	}
	if s.straight {
		selected = "STRAIGHT_JOIN " + selected
	}
	var where []string
	if s.after {
		where = append(where, w.bound(false))
	}
	if s.until {
		where = append(where, w.bound(true))
	}
	text := "SELECT " + selected + " FROM " + w.derived()
	if len(where) > 0 {
		text += " WHERE " + strings.Join(where, " AND ")
	}
	return text + " ORDER BY " + w.keyList("order") + " LIMIT ? OFFSET ?"
}

// derived is the feed's statement as a table. The server merges it with what is
// around it, unless it groups, limits or unites rows.
func (w writer) derived() string { return "(\n" + w.body + "\n) AS feed" }

// keyList lists the key columns, with their directions for ORDER BY.
func (w writer) keyList(use string) string {
	var list []string
	for _, column := range w.def.Key {
		text := quoteName(column.Name)
		if use == "order" && !column.Ascending {
			text += " DESC"
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

// bound compares the key with parameters: the rows behind a key, or those up to and
// including it. Row comparisons, (a, b) < (?, ?), use no index here; spelled out
// they are ranges of one.
func (w writer) bound(until bool) string {
	key := w.def.Key
	last := len(key) - 1
	text := ""
	for i := last; i >= 0; i-- {
		name, value := quoteName(key[i].Name), w.key[i].placeholder
		if i == last {
			text = fmt.Sprintf("%s %s %s", name, operator(key[i], until, true), value)
			continue
		}
		text = fmt.Sprintf("(%s %s %s OR (%s = %s AND %s))",
			name, operator(key[i], until, false), value, name, value, text)
	}
	return text
}

// boundArgs repeats the values of a key as bound uses them.
func boundArgs(dst []any, values []any) []any {
	last := len(values) - 1
	for i, value := range values {
		dst = append(dst, value)
		if i < last {
			dst = append(dst, value)
		}
	}
	return dst
}

// operator returns the comparison that holds for rows behind a key (until: up to
// it). The last column's includes equality when until.
func operator(column feed.KeyColumn, until, last bool) string {
	op := "<"
	if column.Ascending != until {
		op = ">"
	}
	if until && last {
		op += "="
	}
	return op
}

// quoteName writes a name as SQL, whatever the sql_mode.
func quoteName(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }
