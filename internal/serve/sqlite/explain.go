package sqlite

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"zombiezen.com/go/sqlite"
)

// bigTable is the number of rows above which a table must be read by an index
// in the feed's order.
const bigTable = 10_000

// Check has SQLite explain the feed's two statements, that of the first rows and that of
// the rows behind a key. It refuses a plan that sorts, or reads a table of
// more than 10,000 rows whole, and names the index to add. Smaller tables pass.
// SQLite plans without regard to the number of rows, so the window plays no part.
func (f *Feed) Check(ctx context.Context, _ int) error {
	err := f.db.read(ctx, func(conn *sqlite.Conn) error {
		if _, err := f.describe(conn); err != nil {
			return err
		}
		tables, err := readSchema(conn, f.inner)
		if err != nil {
			return fmt.Errorf("read the schema: %w", err)
		}
		for _, bits := range []int{0, withAfter} {
			p, err := explain(conn, f.texts[bits])
			if err != nil {
				return fmt.Errorf("explain: %w", err)
			}
			c := check{feed: f, conn: conn, schema: tables, plan: p, behind: bits&withAfter != 0}
			if err := c.run(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("check feed %s: %w", f.def.Name, err)
	}
	return nil
}

// plan is what EXPLAIN QUERY PLAN prints: a tree, its steps in order.
type plan []step

type step struct {
	id, parent int
	detail     string // "SEARCH o USING INDEX by_city (city=? AND id<?)"
}

func explain(conn *sqlite.Conn, sql string) (plan, error) {
	stmt, _, err := conn.PrepareTransient("EXPLAIN QUERY PLAN " + sql)
	if err != nil {
		return nil, err
	}
	var p plan
	for {
		found, err := stmt.Step()
		if err != nil {
			_ = stmt.Finalize()
			return nil, err
		}
		if !found {
			return p, stmt.Finalize()
		}
		p = append(p, step{id: stmt.ColumnInt(0), parent: stmt.ColumnInt(1), detail: stmt.ColumnText(3)})
	}
}

// table returns the name, mostly an alias, of the table that a step reads by
// SCAN or SEARCH, and "" for other steps.
func (s step) table() string {
	name, found := strings.CutPrefix(s.detail, "SCAN ")
	if !found {
		if name, found = strings.CutPrefix(s.detail, "SEARCH "); !found {
			return ""
		}
	}
	name, _, _ = strings.Cut(name, " USING ")
	name, _, _ = strings.Cut(name, " VIRTUAL TABLE ")
	return strings.TrimSuffix(name, " LEFT-JOIN")
}

// scans says whether a step reads all of its table: a SCAN, or the SEARCH
// without an index that looks for a min or a max.
func (s step) scans() bool {
	return strings.HasPrefix(s.detail, "SCAN ") || strings.HasPrefix(s.detail, "SEARCH ") && !strings.Contains(s.detail, " USING ")
}

// automatic says whether SQLite builds an index of its own for the step, each time.
func (s step) automatic() bool { return strings.Contains(s.detail, " USING AUTOMATIC ") }

func (s step) sorts() bool {
	return strings.HasPrefix(s.detail, "USE TEMP B-TREE") && strings.HasSuffix(s.detail, "ORDER BY")
}

// equal returns the columns that a SEARCH compares with =.
func (s step) equal() []string {
	_, terms, _ := strings.Cut(s.detail, " (")
	terms, _, _ = strings.Cut(terms, ")")
	var columns []string
	for term := range strings.SplitSeq(terms, " AND ") {
		if name, found := strings.CutSuffix(term, "=?"); found && name != "rowid" {
			columns = append(columns, name)
		}
	}
	return columns
}

// leads says whether a step is the outermost loop of the statement, or of one
// branch of a UNION ALL that SQLite merges. With no sorting in the plan, that loop
// yields the feed's order and ends with the window's last row.
func (p plan) leads(i int) bool {
	for j := range p[:i] {
		if p[j].parent == p[i].parent && p[j].table() != "" {
			return false
		}
	}
	for parent := p[i].parent; parent != 0; {
		j := slices.IndexFunc(p, func(s step) bool { return s.id == parent })
		if j < 0 || p[j].detail != "LEFT" && p[j].detail != "RIGHT" && !strings.HasPrefix(p[j].detail, "MERGE ") {
			return false
		}
		parent = p[j].parent
	}
	return true
}

// check judges one plan.
type check struct {
	feed   *Feed
	conn   *sqlite.Conn
	schema *schema
	plan   plan
	behind bool // the statement reads behind a key: then no scan is short
}

func (c check) run() error {
	sorts := slices.ContainsFunc(c.plan, step.sorts)
	if sorts {
		if err := c.sorting(); err != nil {
			return err
		}
	}
	for i, s := range c.plan {
		leads := c.plan.leads(i)
		if !s.scans() && !s.automatic() || leads && !sorts && !c.behind {
			continue
		}
		if err := c.reading(s, leads); err != nil {
			return err
		}
	}
	return nil
}

// sorting refuses a plan that sorts rows of a big table.
func (c check) sorting() error {
	tables, err := c.keyTables()
	if err != nil {
		return err
	}
	known := len(tables) > 0
	for i := 0; i < len(c.plan) && !known; i++ {
		if name := c.schema.table(c.plan[i].table()); name != "" {
			tables = append(tables, name)
		}
	}
	for _, table := range tables {
		big, err := isBig(c.conn, table)
		if err != nil {
			return err
		}
		if !big {
			continue
		}
		reason := fmt.Sprintf("SQLite sorts the rows of %s, which has more than %d, to order them by %s", table, bigTable, nameList(c.feed.def.Key))
		switch {
		case !known:
			return fmt.Errorf("%s, which no column of a table yields; choose key columns of one table", reason)
		case len(tables) > 1:
			return fmt.Errorf("%s; the key's columns are of several tables (%s), so no index has this order; choose key columns of one", reason, strings.Join(tables, ", "))
		}
		return c.advise(reason, table)
	}
	return nil
}

// reading refuses a step that reads a big table whole.
func (c check) reading(s step, leads bool) error {
	table := c.schema.table(s.table())
	if table == "" {
		return nil // a derived table, whose own steps are in the plan
	}
	big, err := isBig(c.conn, table)
	if err != nil || !big {
		return err
	}
	if s.automatic() {
		return fmt.Errorf("each statement reads all of %s, which has more than %d rows, to join it; add: %s",
			table, bigTable, c.createIndex(table, s.equal(), nil))
	}
	if leads {
		return c.advise(fmt.Sprintf("SQLite reads %s, which has more than %d rows, from its start instead of searching for a key", table, bigTable), table)
	}
	return fmt.Errorf("each statement reads all of %s, which has more than %d rows; add an index on the columns of %s that the statement compares",
		table, bigTable, table)
}
