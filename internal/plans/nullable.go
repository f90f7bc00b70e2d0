package plans

import (
	"slices"
	"strings"
)

// NullableKey returns the output columns of a feed's key that may be NULL as far as is known. An outer join
// makes all columns of a table NULL together, so that one of them stands for all.
func (c Catalog) NullableKey(key []KeyColumn, sql string) ([]string, error) {
	r, err := NewReader(sql, c.Dialect)
	if err != nil {
		return nil, err
	}
	outer := slices.ContainsFunc(r.Tokens, func(t Token) bool { return t.IsAny("LEFT", "RIGHT", "FULL", "NATURAL") })
	var names []string
	for i, k := range key {
		t := &Table{}
		if k.Column != "" && k.Table.Name != "" {
			if t, err = c.Table(k.Table); err != nil {
				return nil, err
			}
		}
		column, known := t.Column(k.Column)
		first := !slices.ContainsFunc(key[:i], func(other KeyColumn) bool { return other.Table == k.Table })
		if !known || t.View || column.Nullable || outer && first {
			names = append(names, k.Output)
		}
	}
	return names, nil
}

// FindNull writes a statement that returns a row if one of some output columns is NULL in a row of body.
func (d Dialect) FindNull(body string, columns []string) string {
	var conditions []string
	for _, name := range columns {
		conditions = append(conditions, d.QuoteAlways(name)+" IS NULL")
	}
	return "SELECT 1 FROM (\n" + body + "\n) AS feed WHERE " + strings.Join(conditions, " OR ") + " LIMIT 1"
}
