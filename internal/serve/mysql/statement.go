package mysql

import (
	"database/sql/driver"
	"strings"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// statement is one SQL text and how the columns of its result are read.
type statement struct {
	sql     string
	columns func(driver.Rows) (*columns, error)
	// endless: the number of rows is unknown. If the handler stops early, the connection is closed instead of reading the rest.
	endless bool
}

// shape distinguishes the statements of one feed.
//
// With straight, the server reads the tables in the order in which the feed names them. Without it, the optimizer weighs the cost of the
// whole join instead of its first rows, and tends to start with the smaller table and to sort everything.
type shape struct {
	after, until bool
	keysOnly     bool
	straight     bool
	filters      []int // positions in Definition.Params
}

// writer writes the statement of one shape. Its parameters are those of the feed, of filters, of
// After, of Until, the limit and the offset.
type writer struct {
	def  feed.Definition
	body string      // the feed's SELECT with ? for parameters
	key  []keyColumn // how key values are compared

	decimals map[string]string // of columns
}

func (w writer) write(s shape) string {
	selected := "*"
	if s.keysOnly {
		selected = w.keyset().Columns()
	}
	if s.straight {
		selected = "STRAIGHT_JOIN " + selected
	}
	var where []string
	for _, i := range s.filters {
		p := w.def.Params[i]
		where = append(where, plans.MySQL.QuoteAlways(p.Name)+" = "+w.filterPlaceholder(p))
	}
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
	return text + " ORDER BY " + w.keyset().Order() + " LIMIT ? OFFSET ?"
}

// derived is the feed's statement as a derived table. The server merges it with the outer
// statement unless it groups, limits or unites rows.
func (w writer) derived() string { return "(\n" + w.body + "\n) AS feed" }

func (w writer) keyset() feed.Keyset {
	return feed.Keyset{Key: w.def.Key, Quote: plans.MySQL.QuoteAlways}
}

// bound compares the key with parameters. It selects the rows after a key, or with until those up to and including it. The comparison is
// spelled out because (a, b) < (?, ?) uses no index.
func (w writer) bound(until bool) string {
	return w.keyset().Compare(until, func(column int) string { return w.key[column].placeholder })
}

// boundArgs repeats the values of a key in the order of bound's placeholders.
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

// filterPlaceholder stands for the value of a filter.
func (w writer) filterPlaceholder(p param.Param) string {
	if cast, ok := w.decimals[p.Name]; ok && isNumeric(p.Type) {
		return cast
	}
	return placeholder(p)
}
