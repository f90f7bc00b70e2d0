package mysql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// largeTable is the number of rows above which sorting or scanning a table for
// one page is refused.
const largeTable = 10_000

// wasteful is how many times the window's rows a statement may read before it
// counts as scanning, where that is more than largeTable.
const wasteful = 10

// cheapSort is how many times the window's rows a table may have at most for the
// optimizer to be right in sorting it though an index has the feed's order: it
// compares the pages of the table, some hundreds of rows each, with one page for each
// row of the window.
const cheapSort = 500

// finding is a table that is read too much.
type finding struct {
	line   line
	table  tableName
	sorted bool    // its rows are sorted; otherwise they are only read
	first  bool    // it is the first table of the statement
	whole  bool    // for a derived table or a subquery, which is computed first
	rows   float64 // how many
}

func (l line) scans() bool    { return l.access == "ALL" || l.access == "index" }
func (l line) sorts() bool    { return strings.Contains(l.extra, "Using filesort") }
func (l line) buffered() bool { return strings.Contains(l.extra, "join buffer") }

// main returns the lines of the outermost SELECT.
func (p *plan) main() []line {
	var lines []line
	for _, l := range p.lines {
		if l.id == p.lines[0].id {
			lines = append(lines, l)
		}
	}
	return lines
}

// findings judges a plan for a window of so many rows. Without a sort, the first
// table yields the feed's order and reading ends with the window's last row.
func (p *plan) findings(ctx context.Context, se *session, window float64) ([]finding, error) {
	var found []finding
	add := func(f finding) error {
		t, ok := p.tables[f.line.alias]
		if !ok {
			return nil // a derived table, whose own lines are in the plan
		}
		f.table = t
		big, err := isBig(ctx, se, t)
		if err == nil && big {
			found = append(found, f)
		}
		return err
	}
	if len(p.lines) == 0 {
		return nil, nil
	}
	main := p.main()
	sorted := slices.ContainsFunc(main, line.sorts)
	for i, l := range main {
		rows, err := p.reads(ctx, se, l)
		if err != nil {
			return nil, err
		}
		f := finding{line: l, rows: rows, first: i == 0}
		switch {
		case sorted:
			f.sorted = i == 0 || !l.scans() && !l.buffered()
			if rows <= largeTable && !p.joinGrows(main) {
				continue
			}
		case i == 0 && l.access == "ALL":
		case i == 0:
			f.rows = window * 100 / l.filtered
			if f.rows <= max(largeTable, wasteful*window) {
				continue
			}
		case !l.scans() && !l.buffered() && rows <= largeTable:
			continue
		}
		if err := add(f); err != nil {
			return nil, err
		}
	}
	for _, l := range p.lines {
		if l.id == main[0].id || !l.scans() && l.rows <= largeTable {
			continue
		}
		if err := add(finding{line: l, rows: l.rows, whole: true}); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// joinGrows reports whether the rows of a join, which are sorted, are many though
// the tables' own are few.
func (p *plan) joinGrows(main []line) bool {
	product := 1.0
	for _, l := range main {
		product *= max(1, l.rows) * l.filtered / 100
	}
	return product > largeTable
}

// reads estimates how many rows of a table are read for each of the one before. What
// the optimizer counted for the made-up value of a parameter says little: an index
// tells how many rows share a value on average.
func (p *plan) reads(ctx context.Context, se *session, l line) (float64, error) {
	t, ok := p.tables[l.alias]
	if !ok || l.access != "ref" {
		return l.rows, nil
	}
	parts := strings.Count(l.ref, ",") + 1
	rows, err := se.texts(ctx, `SELECT t.TABLE_ROWS / s.CARDINALITY FROM information_schema.STATISTICS s
		JOIN information_schema.TABLES t ON t.TABLE_SCHEMA = s.TABLE_SCHEMA AND t.TABLE_NAME = s.TABLE_NAME
		WHERE s.TABLE_SCHEMA = ? AND s.TABLE_NAME = ? AND s.INDEX_NAME = ? AND s.SEQ_IN_INDEX = ?`,
		t.schema, t.table, l.key, int64(parts))
	if err != nil {
		return 0, fmt.Errorf("look up the index %s of %s: %w", l.key, t.table, err)
	}
	if len(rows) == 1 {
		if average, err := strconv.ParseFloat(rows[0][0], 64); err == nil {
			return max(l.rows, average), nil
		}
	}
	return l.rows, nil
}

// isBig counts no further than it needs to.
func isBig(ctx context.Context, se *session, t tableName) (bool, error) {
	rows, err := se.Query(ctx, fmt.Sprintf("SELECT COUNT(*) FROM (SELECT 1 FROM %s.%s LIMIT %d) AS counted",
		quoteName(t.schema), quoteName(t.table), largeTable+1))
	if err != nil {
		return false, fmt.Errorf("count the rows of %s: %w", t.table, err)
	}
	return len(rows) == 1 && rows[0][0] == strconv.Itoa(largeTable+1), nil
}

// namesOf keeps the names of a result's columns.
func namesOf(names *[]string) func(driver.Rows) (*columns, error) {
	return func(rows driver.Rows) (*columns, error) {
		*names = rows.Columns()
		return nil, nil
	}
}

func anyValues(named []driver.NamedValue) []any {
	values := make([]any, len(named))
	for i, n := range named {
		values[i] = n.Value
	}
	return values
}
