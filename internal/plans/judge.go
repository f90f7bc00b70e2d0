package plans

import (
	"slices"
	"strings"
)

// cheapSort is how many times the window's rows a table may have at most for the
// MySQL optimizer to be right in sorting it though an index has the feed's order:
// it compares the pages of the table, some hundreds of rows each, with one page
// for each row of the window.
const cheapSort = 500

func (n Node) buffered() bool { return strings.Contains(n.Extra, "join buffer") }

// judgeMySQL judges the lines of a plan. Without a sort, the first table yields
// the feed's order and reading ends with the window's last row.
func (c Check) judgeMySQL(p *Plan) ([]finding, error) {
	if len(p.Nodes) == 0 {
		return nil, nil
	}
	outer := slices.DeleteFunc(slices.Clone(p.Nodes), func(n Node) bool { return n.id != p.Nodes[0].id })
	sorted := slices.ContainsFunc(outer, Node.Sorts)
	product := 1.0 // the rows of the join
	for _, n := range outer {
		product *= max(1, n.Rows) * n.passing / 100
	}
	var found []finding
	for i, n := range outer {
		f := finding{rows: n.Rows}
		switch {
		case sorted:
			f.sorted = i == 0 || !n.Scans() && !n.buffered()
			f.cheap = f.sorted && i == 0 && n.Rows <= cheapSort*float64(c.Window)
			if n.Rows <= largeTable && product <= largeTable {
				continue
			}
		case i == 0 && n.Type == "ALL":
		case i == 0:
			f.rows = float64(c.Window) * 100 / n.passing
			if f.rows <= max(largeTable, wasteful*float64(c.Window)) {
				continue
			}
		case !n.Scans() && !n.buffered() && n.Rows <= largeTable:
			continue
		}
		var err error
		if found, err = c.addLarge(found, f, n, p.Rewritten); err != nil {
			return nil, err
		}
	}
	for _, n := range p.Nodes {
		if n.id == outer[0].id || !n.Scans() && n.Rows <= largeTable {
			continue
		}
		var err error
		if found, err = c.addLarge(found, finding{computed: true, rows: n.Rows}, n, p.Rewritten); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// addLarge adds a finding if its table is large. Derived tables, whose own lines
// are in the plan, are left out.
func (c Check) addLarge(found []finding, f finding, n Node, r Rewritten) ([]finding, error) {
	t, ok := c.Tables[n.Alias]
	if !ok {
		return found, nil
	}
	f.table = t
	f.equal, f.join = r.equalities(n.Alias)
	rows, err := c.Catalog.rows(t)
	if err != nil || rows <= largeTable {
		return found, err
	}
	f.join = f.join[:min(1, len(f.join))]
	f.rows = max(1, f.rows)
	return append(found, f), nil
}

// judgeSQLite judges the steps of a plan. They come without estimates, so every
// large table that is sorted or read whole counts.
func (c Check) judgeSQLite(p *Plan) ([]finding, error) {
	var found []finding
	add := func(table string, f finding) error {
		if table == "" {
			return nil // a derived table, whose own steps are in the plan
		}
		f.table = TableName{Name: table}
		rows, err := c.Catalog.rows(f.table)
		if err == nil && rows > largeTable {
			found = append(found, f)
		}
		return err
	}
	sorts := slices.ContainsFunc(p.Nodes, Node.sortsOrder)
	if sorts {
		for _, table := range c.sqliteOrdered() {
			f := finding{sorted: true}
			first := slices.IndexFunc(p.Nodes, func(n Node) bool { return c.Tables[n.Relation].Name == table })
			if first >= 0 && p.leads(first) {
				f.equal = p.Nodes[first].equal()
			}
			if err := add(table, f); err != nil {
				return nil, err
			}
		}
	}
	for i, n := range p.Nodes {
		automatic := strings.Contains(n.Type, " USING AUTOMATIC ") // SQLite builds a temporary index per execution
		leads := p.leads(i)
		if !n.Scans() && !automatic || leads && !sorts && !c.Behind {
			continue
		}
		f := finding{}
		switch {
		case automatic:
			f.join = n.equal()
		case leads:
			f.equal = n.equal()
		}
		if err := add(c.Tables[n.Relation].Name, f); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// sqliteOrdered returns the tables that should give the feed's order: those of
// the key, or all of the plan's if the key is computed.
func (c Check) sqliteOrdered() []string {
	var all, names []string
	for _, k := range c.Key {
		if k.Table.Name == "" {
			for _, t := range c.Tables {
				all = append(all, t.Name)
			}
			slices.Sort(all)
			return slices.Compact(all)
		}
		names = append(names, k.Table.Name)
	}
	return slices.Compact(names)
}

// sortsOrder reports whether a step of SQLite sorts for ORDER BY.
func (n Node) sortsOrder() bool { return n.Sorts() && strings.HasSuffix(n.Type, "ORDER BY") }

// equal returns the columns that a SEARCH of SQLite compares with =.
func (n Node) equal() []string {
	_, terms, _ := strings.Cut(n.Type, " (")
	terms, _, _ = strings.Cut(terms, ")")
	var columns []string
	for term := range strings.SplitSeq(terms, " AND ") {
		if name, found := strings.CutSuffix(term, "=?"); found && name != "rowid" {
			columns = append(columns, name)
		}
	}
	return columns
}

// leads reports whether a step of SQLite is the outermost loop of the statement,
// or of one branch of a UNION ALL that SQLite merges. Without a sort in the plan,
// that loop yields the feed's order and ends with the window's last row.
func (p *Plan) leads(i int) bool {
	for _, n := range p.Nodes[:i] {
		if n.parent == p.Nodes[i].parent && n.Relation != "" {
			return false
		}
	}
	for parent := p.Nodes[i].parent; parent != 0; {
		j := slices.IndexFunc(p.Nodes, func(n Node) bool { return n.id == parent })
		if j < 0 {
			return false
		}
		if n := p.Nodes[j]; n.Type != "LEFT" && n.Type != "RIGHT" && !strings.HasPrefix(n.Type, "MERGE ") {
			return false
		}
		parent = p.Nodes[j].parent
	}
	return true
}

// SQLiteTables returns the table that each name in a plan means. A plan shows
// the alias if there is one; it follows its table in the statement or in a view.
func (c Check) SQLiteTables(p *Plan) (map[string]TableName, error) {
	rows, err := c.Catalog.Query("SELECT type, name, sql FROM sqlite_schema WHERE type IN ('table', 'view')")
	if err != nil {
		return nil, err
	}
	texts := []string{c.SQL}
	var names []string
	for _, row := range rows {
		if row[0] == "view" {
			texts = append(texts, row[2])
		} else {
			names = append(names, row[1])
		}
	}
	tables := map[string]TableName{}
	for _, n := range p.Nodes {
		same := func(table string) bool { return strings.EqualFold(table, n.Relation) }
		if i := slices.IndexFunc(names, same); i >= 0 {
			tables[n.Relation] = TableName{Name: names[i]}
		}
	}
	for _, text := range texts {
		r, _ := NewReader(text, SQLite) // SQLite has read it
		for i, t := range r.Tokens {
			table := slices.IndexFunc(names, func(name string) bool { return t.IsName() && strings.EqualFold(name, t.Text) })
			next := i + 1
			if next < len(r.Tokens) && r.Tokens[next].Is("AS") {
				next++
			}
			if table < 0 || next >= len(r.Tokens) || !r.Tokens[next].IsName() {
				continue
			}
			for _, n := range p.Nodes {
				if _, known := tables[n.Relation]; !known && strings.EqualFold(n.Relation, r.Tokens[next].Text) {
					tables[n.Relation] = TableName{Name: names[table]}
				}
			}
		}
	}
	return tables, nil
}
