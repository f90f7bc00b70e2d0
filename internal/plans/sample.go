package plans

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// sampled is how many rows of a table are looked at for values.
const sampled = 10_000

// Compared is a parameter and the column that it is compared with.
type Compared struct {
	Column ColumnRef
	Param  string
	Equal  bool // = or IN; otherwise it is a bound
}

// Compared returns the named parameters of a statement that are compared with a plain column, in order.
func (r Reader) Compared() []Compared {
	var all []Compared
	for i, t := range r.Tokens {
		if t.Kind != Param || t.Text == "" || i < 2 {
			continue
		}
		c := Compared{Param: t.Text, Equal: r.Tokens[i-1].IsSymbol("=")}
		end := i - 1 // the operator
		for end > 0 && (r.Tokens[end].IsSymbol("(") || r.Tokens[end].IsSymbol(",") || r.Tokens[end].Kind == Param) {
			end--
		}
		c.Equal = c.Equal || r.Tokens[end].Is("IN")
		if !c.Equal && (mirror(r.Tokens[end]) == "" || end < i-1) {
			continue
		}
		first := end - 1
		for first >= 2 && r.Tokens[first-1].IsSymbol(".") {
			first -= 2
		}
		if r.at(first-1).Is("OR") && r.at(first-2).Is("TRUE") || r.at(i+1).Is("OR") && r.at(i+2).Is("TRUE") {
			c.Equal = false // see KnowNull
		}
		column, next, ok := r.Column(max(0, first), end)
		if c.Column = column; ok && next == end && !slices.ContainsFunc(all, func(known Compared) bool { return known.Param == c.Param }) {
			all = append(all, c)
		}
	}
	return all
}

// Values returns values that exist for the parameters, one set for each execution to try: those that many
// rows have, and few. Parameters whose column is not known have none.
func (c Check) Values(compared []Compared) ([]map[string]string, error) {
	of := make(map[TableName][]Compared)
	for _, one := range compared {
		t, err := c.tableOf(one.Column)
		if err != nil {
			return nil, err
		}
		if t.Name != "" {
			of[t] = append(of[t], one)
		}
	}
	sets := []map[string]string{{}}
	for t, list := range of {
		var params, columns []string
		for _, one := range list {
			if one.Equal {
				params, columns = append(params, one.Param), append(columns, one.Column.Name)
				continue
			}
			rows, err := c.Catalog.frequencies(t, []string{one.Column.Name})
			for _, set := range sets {
				if err == nil && len(rows) > 0 {
					set[one.Param] = rows[len(rows)/2][0]
				}
			}
		}
		rows, err := c.Catalog.sample(t, columns)
		if err != nil || len(rows) == 0 {
			continue // no values are known
		}
		for len(rows) > len(sets) {
			sets = append(sets, maps.Clone(sets[0]))
		}
		for i, set := range sets {
			for k, param := range params {
				set[param] = rows[min(i, len(rows)-1)][k]
			}
		}
	}
	return sets, nil
}

// tableOf returns the table of a column; zero if it is not known, or if several have it.
func (c Check) tableOf(column ColumnRef) (found TableName, err error) {
	if column.Table != "" {
		return c.Tables[column.Table], nil
	}
	for _, name := range c.Tables {
		t, err := c.Catalog.Table(name)
		if err != nil {
			return found, err
		}
		if _, ok := t.Column(column.Name); !ok || name == found {
			continue
		}
		if found.Name != "" {
			return TableName{}, nil
		}
		found = name
	}
	return found, nil
}

// equalOf returns the columns of a table that a parameter equals.
func (c Check) equalOf(t TableName, compared []Compared) []string {
	var columns []string
	for _, one := range compared {
		if of, err := c.tableOf(one.Column); err == nil && of == t && one.Equal && !containsFold(columns, one.Column.Name) {
			columns = append(columns, one.Column.Name)
		}
	}
	return columns
}

// sample returns values that some columns have together: those of the most rows, of the fewest, and for
// each column the fewest that have its most frequent value.
func (c Catalog) sample(t TableName, columns []string) ([][]string, error) {
	if len(columns) == 0 {
		return nil, nil
	}
	rows, err := c.frequencies(t, columns)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	chosen := [][]string{rows[0], rows[len(rows)-1]}
	for i := range columns {
		counts := make(map[string]int64)
		for _, row := range rows {
			counts[row[i]] += number(row[len(columns)])
		}
		most := rows[0]
		for _, row := range rows {
			if counts[row[i]] > counts[most[i]] || row[i] == most[i] {
				most = row
			}
		}
		chosen = append(chosen, most)
	}
	var different [][]string
	for _, row := range chosen {
		values := row[:len(columns)] // without their number
		if !slices.ContainsFunc(different, func(other []string) bool { return slices.Equal(other, values) }) {
			different = append(different, values)
		}
	}
	return different, nil
}

// frequencies returns the values of columns in some rows of a table, and how many rows have them, the most
// first. NULL is left out.
func (c Catalog) frequencies(t TableName, columns []string) ([][]string, error) {
	var list, given []string
	for _, name := range columns {
		list = append(list, c.Dialect.QuoteAlways(name))
		given = append(given, c.Dialect.QuoteAlways(name)+" IS NOT NULL")
	}
	from, err := c.some(t)
	if err != nil {
		return nil, err
	}
	all := strings.Join(list, ", ")
	rows, err := c.Query(fmt.Sprintf("SELECT %s, count(*) FROM (SELECT %s FROM %s) AS sampled WHERE %s GROUP BY %s ORDER BY count(*) DESC, %s",
		all, all, from, strings.Join(given, " AND "), all, all))
	if err != nil {
		return nil, fmt.Errorf("look at values of %s: %w", t, err)
	}
	return rows, nil
}

// some returns what follows FROM for some rows of a table: on PostgreSQL of pages all over it, elsewhere the
// newest.
func (c Catalog) some(t TableName) (string, error) {
	name := t.SQL(c.Dialect)
	switch {
	case c.Dialect.Has(Postgres):
		rows, err := c.rows(t)
		return fmt.Sprintf("%s TABLESAMPLE SYSTEM (%g) REPEATABLE (1)", name, min(100, 100*sampled/max(1, rows))), err
	case c.Dialect.Has(SQLite):
		return fmt.Sprintf("%s NOT INDEXED ORDER BY rowid DESC LIMIT %d", name, sampled), nil
	}
	table, err := c.Table(t)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(table.Indexes, func(index Index) bool { return index.Name == "PRIMARY" })
	if i < 0 {
		return fmt.Sprintf("%s USE INDEX () LIMIT %d", name, sampled), nil
	}
	var order []string
	for _, column := range table.Indexes[i].Columns {
		order = append(order, c.Dialect.QuoteAlways(column.Name)+" DESC")
	}
	return fmt.Sprintf("%s FORCE INDEX (PRIMARY) ORDER BY %s LIMIT %d", name, strings.Join(order, ", "), sampled), nil
}
