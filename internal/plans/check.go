package plans

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A feed may read wasteful times the window's rows, and at least largeTable rows. What is estimated and not
// all of a table may be wrong, so that doubtful rows are permitted then.
const (
	wasteful = 10
	doubtful = 30_000
	// cheapReads is how many it may read where the optimizer prefers that to an index in its order.
	cheapReads = 100_000
)

// ErrCheapSort marks a plan that sorts a table although an index has the feed's
// order, and is right to do so: the table is small for the window.
var ErrCheapSort = errors.New("the optimizer finds sorting cheaper than the index in the feed's order; this changes as the table grows")

// KeyColumn is a column of a feed's key and where it comes from.
type KeyColumn struct {
	Output string    // its name in the feed
	Desc   bool      // the feed is in descending order of it
	Table  TableName // of the table; zero if the column is computed
	Column string    // its name in the table; "" if that is not known
}

// Check judges the plans of one feed's statements.
type Check struct {
	Catalog Catalog
	Key     []KeyColumn
	Window  int    // rows that the statement is to return
	SQL     string // SQLite: the feed's own statement, in which aliases are looked up
	Behind  bool   // SQLite: the statement reads the rows after a key
	// Tables are the tables by alias, for MySQL and SQLite.
	Tables map[string]TableName
	// Judged is called with a plan that was judged, and with what is wrong with it. Nil: nobody wants to know.
	Judged func(*Plan, error)
	// Explain returns the plan of a statement for that many unknown parameters, for PostgreSQL.
	Explain func(sql string, parameters int) (*Plan, error)
	// Descending: the server keeps indexes in descending order, for MySQL.
	Descending bool
}

// finding is a table of which a statement reads too much.
type finding struct {
	table    TableName
	sorted   bool     // its rows are sorted; otherwise they are only read
	computed bool     // for a derived table or a subquery, before the first row is known
	cheap    bool     // sorting it can be right
	rows     float64  // the estimate; 0: all, which is more than largeTable
	size     float64  // of the table, for PostgreSQL
	equal    []string // its columns that must equal a constant
	others   bool     // there are other conditions on it
	join     []string // its columns that must equal one of another table
}

// A Refusal is the error of a statement that reads too much. Its text says what to do.
type Refusal struct{ error }

// Unwrap returns the reason.
func (r *Refusal) Unwrap() error { return r.error }

// Judge returns a Refusal if a plan sorts a large table, or scans one that an
// index could serve, for one window. It names the index to add. It is
// ErrCheapSort if nothing is to be done.
func (c Check) Judge(p *Plan) error {
	found, err := c.judge(p)
	if err == nil && len(found) > 0 {
		err = &Refusal{c.advise(found)}
	}
	return c.tell(p, err)
}

// tell tells of a plan that was judged, and returns err.
func (c Check) tell(p *Plan, err error) error {
	if c.Judged != nil {
		c.Judged(p, err)
	}
	return err
}

func (c Check) judge(p *Plan) ([]finding, error) {
	switch {
	case c.Catalog.Dialect.Has(Postgres):
		return c.judgePostgres(p)
	case c.Catalog.Dialect.Has(MySQL):
		return c.judgeMySQL(p)
	}
	return c.judgeSQLite(p)
}

// JudgeMeasured is Judge for a statement that was executed and read so many rows, for the columns that it
// compares.
func (c Check) JudgeMeasured(p *Plan, reads float64, compared []Compared) error {
	p.Reads = reads
	return c.tell(p, c.judgeMeasured(p, reads, compared))
}

func (c Check) judgeMeasured(p *Plan, reads float64, compared []Compared) error {
	if !c.tooMany(reads, reads) {
		return nil
	}
	found, err := c.judge(p)
	if err != nil {
		return err
	}
	key, one := c.keyTable()
	if len(found) == 0 && !one {
		return &Refusal{fmt.Errorf("the statement reads %.0f rows to show %d; add an index for its conditions", reads, c.Window)}
	}
	if len(found) == 0 {
		found = append(found, finding{table: key})
	}
	for i := range found {
		f := &found[i]
		f.cheap = f.cheap && reads <= cheapReads
		if f.table == key {
			f.equal = append(f.equal, c.equalOf(key, compared)...)
			slices.Sort(f.equal)
			f.equal = slices.Compact(f.equal)
		}
		if f.table == key && c.Catalog.Dialect.Has(MySQL) {
			f.rows = reads
		}
	}
	return &Refusal{c.advise(found)}
}

// tooMany reports whether a statement must not read so many rows of a table for a window. size is how many
// the table has.
func (c Check) tooMany(reads, size float64) bool {
	limit := doubtful
	if reads == size {
		limit = largeTable
	}
	return reads > float64(max(limit, wasteful*c.Window))
}

// CheckKey returns an error if a column of a feed's key may be NULL. unguarded reports whether
// all of them are of one table, and no unique index covers them: rows with equal keys can be
// lost between pages. Of a view's columns neither is known.
func (c Catalog) CheckKey(key []KeyColumn) (unguarded bool, err error) {
	one, unique := true, false
	var names []string
	for _, k := range key {
		names = append(names, k.Column)
	}
	for _, k := range key {
		one = one && k.Column != "" && k.Table == key[0].Table
		if k.Column == "" {
			continue
		}
		t, err := c.Table(k.Table)
		if err != nil {
			return false, err
		}
		column, known := t.Column(k.Column)
		if known && column.Nullable {
			return false, fmt.Errorf("the key column %s may be NULL; run %s", k.Output, c.notNull(t, column))
		}
		one = one && known && !t.View
		unique = unique || slices.ContainsFunc(t.Indexes, func(index Index) bool {
			// On MySQL, a unique index of a column's first bytes is one of the column too.
			return index.Unique && (index.Whole || c.Dialect.Has(MySQL)) && index.within(names)
		})
	}
	return one && !unique, nil
}

// notNull returns the statement that refuses NULL in a column.
func (c Catalog) notNull(t *Table, column Column) string {
	name := c.Dialect.Quote(column.Name)
	if c.Dialect.Has(MySQL) {
		return fmt.Sprintf("ALTER TABLE %s MODIFY %s %s NOT NULL", t.SQL(c.Dialect), name, column.Type)
	}
	return fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", t.SQL(c.Dialect), name)
}

// keyTable returns the table that all key columns are of.
func (c Check) keyTable() (TableName, bool) {
	t := c.Key[0].Table
	one := !slices.ContainsFunc(c.Key, func(k KeyColumn) bool { return k.Table != t })
	return t, one && t != TableName{}
}

// advise returns the error for a plan's findings. A join without an index comes
// first: until it has one, no index in the feed's order helps.
func (c Check) advise(found []finding) error {
	key, one := c.keyTable()
	for _, f := range found {
		if f.sorted && !one {
			return fmt.Errorf("%s: the key's columns are of several tables or computed, so no index can give the feed's order; order it by "+
				"columns of one table", c.problem(f))
		}
		if f.computed || len(f.join) == 0 || one && f.table == key {
			continue
		}
		create, missing, err := c.missing(f.table, Plain(f.join))
		if err != nil {
			return err
		}
		if missing {
			return fmt.Errorf("%s; add an index for the join: %s", c.problem(f), create)
		}
	}
	for _, f := range found {
		if one && f.table == key && !f.computed {
			return c.adviseOrder(f)
		}
	}
	f := found[0]
	switch {
	case f.computed:
		return fmt.Errorf("%s before the first row is known: the statement groups, unites or limits them, or asks for them in a subquery; "+
			"take that out of it", c.problem(f))
	case f.sorted && c.Catalog.Dialect.Has(MySQL):
		return fmt.Errorf("%s; name %s first in FROM, so that the statement follows the feed's order", c.problem(f), key.Name)
	}
	return fmt.Errorf("%s; add an index on the columns of %s that join or filter it", c.problem(f), f.table.Name)
}

// missing returns the command that adds an index, and whether no index of the
// table starts with its columns.
func (c Check) missing(name TableName, columns []IndexColumn) (create string, missing bool, err error) {
	t, err := c.Catalog.Table(name)
	if err != nil {
		return "", false, err
	}
	there := slices.ContainsFunc(t.Indexes, func(index Index) bool { return index.Covers(columns, len(columns)) })
	return t.Create(c.Catalog.Dialect, columns), !there, nil
}

// adviseOrder is the error for a finding on the key's own table.
func (c Check) adviseOrder(f finding) error {
	d := c.Catalog.Dialect
	t, err := c.Catalog.Table(f.table)
	if err != nil {
		return err
	}
	var order []IndexColumn
	mixed := false
	for _, key := range c.Key {
		if _, ok := t.Column(key.Column); !ok {
			return fmt.Errorf("%s; add an index of %s on the columns shown as %s, in this order", c.problem(f), f.table.Name, c.outputs())
		}
		order = append(order, IndexColumn{Name: key.Column, Desc: key.Desc})
		mixed = mixed || key.Desc != c.Key[0].Desc
	}
	filters := Plain(slices.DeleteFunc(slices.Clone(f.equal), func(name string) bool {
		return slices.ContainsFunc(order, func(k IndexColumn) bool { return strings.EqualFold(k.Name, name) })
	}))
	columns := slices.Concat(filters, order)
	covered := slices.ContainsFunc(t.Indexes, func(index Index) bool { return index.Covers(columns, len(filters)) })
	if covered && f.cheap {
		return fmt.Errorf("%s: %w", c.problem(f), ErrCheapSort)
	}
	if covered && f.others && !f.sorted {
		return fmt.Errorf("%s, although an index on (%s) exists: for some values few rows meet the other conditions; add an index that has "+
			"their columns in front of the key's, or leave them out", c.problem(f), ColumnList(columns))
	}
	if covered && !f.others {
		hint := "conditions on other tables drop most rows, or the statement groups or sorts them; remove that, or filter by a column of " +
			t.Full.Name
		switch {
		case d.Has(MySQL):
			hint = fmt.Sprintf("name %s first in FROM, and filter by its columns only; or run ANALYZE TABLE", t.Full.Name)
		case d.Has(SQLite):
			hint = fmt.Sprintf("run ANALYZE, or write CROSS JOIN after %s so that it is read first", t.Full.Name)
		}
		return fmt.Errorf("%s, although an index on (%s) exists: %s", c.problem(f), ColumnList(columns), hint)
	}
	advice := fmt.Sprintf("%s; add an index in the feed's order: %s", c.problem(f), t.Create(d, columns))
	if f.others {
		advice += ", with the filtered columns first"
	}
	if mixed && d.Has(MySQL) && !c.Descending {
		advice += " (the server ignores DESC in indexes: use MySQL 8.0 or MariaDB 10.8, or one direction for all key columns)"
	}
	return errors.New(advice)
}

func (c Check) outputs() string {
	var names []string
	for _, key := range c.Key {
		names = append(names, c.Catalog.Dialect.QuoteAlways(key.Output))
	}
	return strings.Join(names, ", ")
}

// problem says what a finding is.
func (c Check) problem(f finding) string {
	what := "read"
	if f.sorted {
		what = "sort"
	}
	rows := fmt.Sprintf("about %.0f rows of %s", f.rows, f.table.Name)
	if f.rows == 0 {
		rows = fmt.Sprintf("all rows of %s, more than %d,", f.table.Name, largeTable)
	}
	return fmt.Sprintf("the statement would %s %s to show %d", what, rows, c.Window)
}
