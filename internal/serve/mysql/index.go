package mysql

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// checkKey judges the key's columns by the tables that they come from.
func (ck *checker) checkKey(ctx context.Context, se *session) error {
	for _, key := range ck.feed.def.Key {
		name, ok := ck.origins.outputs[key.Name]
		if d := ck.origins.columns[name]; ok && d.nullable {
			return fmt.Errorf("the key column %s may be NULL: ALTER TABLE %s MODIFY %s %s NOT NULL",
				key.Name, plainQuote(name.table), plainQuote(name.column), d.typ)
		}
	}
	if err := ck.warnUnlessUnique(ctx, se); err != nil {
		return err
	}
	for _, t := range ck.origins.tables {
		rows, err := se.texts(ctx, "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND TABLE_TYPE = 'BASE TABLE'", t.schema, t.table)
		if err != nil {
			return fmt.Errorf("look up the engine of %s: %w", t.table, err)
		}
		if len(rows) == 1 && rows[0][0] != "InnoDB" {
			ck.feed.db.log.Warn("the table's engine is not InnoDB: reading it waits for writers, and a crash may lose rows",
				"feed", ck.feed.def.Name, "table", t.table, "engine", rows[0][0])
		}
	}
	return nil
}

// keyTable returns the table that all key columns are of, and these columns.
func (ck *checker) keyTable() (t tableName, columns []string, ok bool) {
	for i, key := range ck.feed.def.Key {
		name, found := ck.origins.outputs[key.Name]
		if !found || i > 0 && name.tableName != t {
			return tableName{}, nil, false
		}
		t = name.tableName
		columns = append(columns, name.column)
	}
	return t, columns, true
}

// warnUnlessUnique logs a warning when the key's columns are of one table and no
// unique index covers them. Two rows of one key would be shown as one.
func (ck *checker) warnUnlessUnique(ctx context.Context, se *session) error {
	t, columns, ok := ck.keyTable()
	if !ok {
		return nil
	}
	list, err := indexes(ctx, se, t)
	if err != nil {
		return err
	}
	for _, ix := range list {
		if ix.unique && !slices.ContainsFunc(ix.columns, func(name string) bool { return !containsFold(columns, name) }) {
			return nil
		}
	}
	ck.feed.db.log.Warn("no unique index covers the feed's key: rows with equal keys would be lost between pages",
		"feed", ck.feed.def.Name, "table", t.table)
	return nil
}

// index is one index of a table.
type index struct {
	unique  bool
	columns []string
}

func indexes(ctx context.Context, se *session, t tableName) (map[string]index, error) {
	rows, err := se.texts(ctx, "SELECT INDEX_NAME, NON_UNIQUE, COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY INDEX_NAME, SEQ_IN_INDEX", t.schema, t.table)
	if err != nil {
		return nil, fmt.Errorf("look up the indexes of %s: %w", t.table, err)
	}
	list := make(map[string]index)
	for _, row := range rows {
		ix := list[row[0]]
		ix.unique, ix.columns = row[1] == "0", append(ix.columns, row[2])
		list[row[0]] = ix
	}
	return list, nil
}

// hasIndex reports whether a table has an index that starts with columns.
func hasIndex(ctx context.Context, se *session, t tableName, columns []string) (bool, error) {
	list, err := indexes(ctx, se, t)
	for _, ix := range list {
		if len(ix.columns) >= len(columns) && slices.EqualFunc(ix.columns[:len(columns)], columns, strings.EqualFold) {
			return true, nil
		}
	}
	return false, err
}

// adviser turns what was found in a plan into one error that says what to do.
type adviser struct {
	checker *checker
	plan    *plan
	session *session
}

// advise returns the error for a plan's findings. A join without an index comes
// first: while it lacks, no index in the feed's order helps.
func (a adviser) advise(ctx context.Context, found []finding) error {
	t, columns, one := a.checker.keyTable()
	for _, f := range found {
		if f.sorted && !one {
			return fmt.Errorf("%s: the key's columns are of several tables or computed, so no index can give the feed's order; order it by columns of one table", a.problem(f))
		}
		if f.whole || one && f.table == t {
			continue
		}
		column, ok := a.joinColumn(f)
		if !ok {
			continue
		}
		indexed, err := hasIndex(ctx, a.session, f.table, []string{column})
		if err != nil {
			return err
		}
		if !indexed {
			return fmt.Errorf("%s; add an index for the join: %s", a.problem(f), createIndex(f.table, []string{column}, nil))
		}
	}
	for _, f := range found {
		if one && f.table == t && !f.whole {
			return a.adviseOrder(ctx, f, columns)
		}
	}
	f := found[0]
	if f.whole {
		return fmt.Errorf("%s, and before the window is known: the statement groups, unites or limits them, or asks for them in a subquery; take that out of it", a.problem(f))
	}
	if f.sorted {
		return fmt.Errorf("%s; name %s first in FROM, so that the statement follows the feed's order", a.problem(f), t.table)
	}
	return fmt.Errorf("%s; add an index on the columns that join or filter it", a.problem(f))
}

// adviseOrder is the error for a finding on the key's own table.
func (a adviser) adviseOrder(ctx context.Context, f finding, key []string) error {
	filters := a.equalities(f, key)
	columns := slices.Concat(filters, key)
	indexed, err := hasIndex(ctx, a.session, f.table, columns)
	if err != nil {
		return err
	}
	mixed := false // directions: then an index on the same columns may not do
	var create []string
	for i, column := range key {
		direction := " DESC"
		if a.checker.feed.def.Key[i].Ascending {
			direction = ""
		}
		create = append(create, plainQuote(column)+direction)
		mixed = mixed || a.checker.feed.def.Key[i].Ascending != a.checker.feed.def.Key[0].Ascending
	}
	ordered := indexed && (!mixed || a.session.Server.DescendingIndexes())
	if ordered && f.sorted && f.first && f.rows <= cheapSort*float64(a.checker.window) {
		a.checker.feed.db.log.Info("the optimizer takes sorting the table for cheaper than its index in the feed's order; it changes its mind as the table grows",
			"feed", a.checker.feed.def.Name, "table", f.table.table, "rows", f.rows)
		return nil
	}
	if indexed && !mixed {
		return fmt.Errorf("%s, although an index on (%s) is there: name %s first in FROM, and filter by its columns only; or run ANALYZE TABLE",
			a.problem(f), strings.Join(columns, ", "), f.table.table)
	}
	advice := fmt.Sprintf("%s; add an index in the feed's order: %s", a.problem(f), createIndex(f.table, columns, create))
	if mixed && !a.session.Server.DescendingIndexes() {
		advice += fmt.Sprintf(" (the server, %s, forgets DESC: MySQL 8.0 or MariaDB 10.8 is needed, or one direction for all key columns)", a.session.Server.Text)
	}
	return errors.New(advice)
}

// createIndex writes the statement; the last columns are written as in create.
func createIndex(t tableName, columns, create []string) string {
	var list []string
	for _, column := range columns[:len(columns)-len(create)] {
		list = append(list, plainQuote(column))
	}
	name := plainQuote(t.table + "_" + strings.Join(columns, "_"))
	return fmt.Sprintf("CREATE INDEX %s ON %s (%s)", name, plainQuote(t.table), strings.Join(append(list, create...), ", "))
}

// problem says what a finding is.
func (a adviser) problem(f finding) string {
	what := "read"
	if f.sorted {
		what = "sort"
	}
	return fmt.Sprintf("the statement would %s about %.0f rows of %s to show %d", what, f.rows, f.table.table, a.checker.window)
}

// literal matches what an equality compares a column with.
const literal = `(''|-?[0-9][0-9.e+-]*|\?|NULL|TRUE|FALSE|cast\()`

var (
	equalColumns  = regexp.MustCompile(columnPath + " = " + columnPath)
	equalLiteral  = regexp.MustCompile("(?i)" + columnPath + " = " + literal)
	literalEquals = regexp.MustCompile("(?i)" + literal + " = " + columnPath)
	plainName     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// joinColumn returns the column of a finding's table that the statement compares with
// one of another table.
func (a adviser) joinColumn(f finding) (string, bool) {
	for _, match := range equalColumns.FindAllStringSubmatch(a.plan.understood, -1) {
		for _, side := range match[1:] {
			if c := readSource(side); c.alias == f.line.alias {
				return c.column, true
			}
		}
	}
	return "", false
}

// equalities returns the columns of a finding's table, not of the key, that the
// statement compares with constants.
func (a adviser) equalities(f finding, key []string) []string {
	var list []string
	add := func(text string) {
		c := readSource(text)
		if c.alias == f.line.alias && !containsFold(key, c.column) && !containsFold(list, c.column) {
			list = append(list, c.column)
		}
	}
	for _, match := range equalLiteral.FindAllStringSubmatch(a.plan.understood, -1) {
		add(match[1])
	}
	for _, match := range literalEquals.FindAllStringSubmatch(a.plan.understood, -1) {
		add(match[2])
	}
	return list
}

func containsFold(list []string, name string) bool {
	return slices.ContainsFunc(list, func(other string) bool { return strings.EqualFold(other, name) })
}

// plainQuote quotes a name only if SQL needs it.
func plainQuote(name string) string {
	if plainName.MatchString(name) && !isReserved(name) {
		return name
	}
	return quoteName(name)
}

// isReserved knows the reserved words that tables and columns are likely named by.
func isReserved(name string) bool {
	return slices.Contains([]string{
		"group", "order", "key", "index", "rank", "range", "rows", "desc", "condition", "usage", "table",
		"read", "write", "release", "option", "match", "limit", "interval", "lead", "lag", "system", "to", "from",
	}, strings.ToLower(name))
}
