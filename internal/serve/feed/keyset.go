package feed

import (
	"fmt"
	"strings"
)

// Keyset writes the parts of a statement that select and order rows by a key, as every
// database reads them.
type Keyset struct {
	Key   []KeyColumn
	Quote func(name string) string
}

// Columns lists the names of the key columns.
func (k Keyset) Columns() string {
	return k.list(func(KeyColumn) string { return "" })
}

// Order lists the key columns with their directions, for ORDER BY.
func (k Keyset) Order() string {
	return k.list(func(c KeyColumn) string {
		if c.Ascending {
			return ""
		}
		return " DESC"
	})
}

func (k Keyset) list(suffix func(KeyColumn) string) string {
	names := make([]string, len(k.Key))
	for i, column := range k.Key {
		names[i] = k.Quote(column.Name) + suffix(column)
	}
	return strings.Join(names, ", ")
}

// Compare returns the condition that a row comes after a key, or with until that it does
// not. value writes the value of a column of that key. Each column is compared on its own,
// because their directions may differ.
func (k Keyset) Compare(until bool, value func(column int) string) string {
	last := len(k.Key) - 1
	text := fmt.Sprintf("%s %s %s", k.Quote(k.Key[last].Name), k.Key[last].Operator(until, true), value(last))
	for i := last - 1; i >= 0; i-- {
		name, v := k.Quote(k.Key[i].Name), value(i)
		text = fmt.Sprintf("(%s %s %s OR (%s = %s AND %s))", name, k.Key[i].Operator(until, false), v, name, v, text)
	}
	return text
}

// Operator compares a column's value with that of a key: the row comes after the key, or
// with until it does not. Equality is included with until, for the last column of a key.
func (c KeyColumn) Operator(until, last bool) string {
	op := "<"
	if c.Ascending != until {
		op = ">"
	}
	if until && last {
		op += "="
	}
	return op
}
