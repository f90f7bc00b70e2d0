package plans

import (
	"maps"
	"math"
	"slices"
	"strings"
)

// wrappingLimits is the number of Limit nodes that the PostgreSQL adapter puts
// around a feed. They let the whole window through, whatever the planner assumes.
const wrappingLimits = 2

// postgresJudge looks for parts of a plan that read a large table.
type postgresJudge struct {
	Check
	found    []finding
	hashCond string // of the nearest hash join above
}

func (c Check) judgePostgres(p *Plan) ([]finding, error) {
	j := &postgresJudge{Check: c}
	err := j.walk(p.Nodes[0], float64(c.Window), wrappingLimits)
	return j.found, err
}

// walk follows the plan downwards. need is the number of rows that the node's
// parent will take from it, all of them being infinity; limits is the number of
// wrapping Limit nodes still to come.
func (j *postgresJudge) walk(n Node, need float64, limits int) error {
	switch n.Type {
	case "Limit":
		if limits == 0 {
			need = min(need, n.Rows)
		}
		return j.walkChildren(n, need, max(0, limits-1))
	case "Sort", "Incremental Sort":
		if len(n.Nodes) > 0 && n.Nodes[0].Rows > largeTable {
			f := j.finding(j.orderingScan(n), n.Nodes[0].Rows)
			f.sorted = true
			j.found = append(j.found, f)
		}
		return j.walkChildren(n, math.Inf(1), limits)
	case "Nested Loop", "Merge Join", "Subquery Scan", "Result", "Gather", "Gather Merge", "Append", "Merge Append",
		"LockRows", "ProjectSet", "Unique":
		return j.walkChildren(n, need, limits)
	case "Hash Join":
		outside := j.hashCond
		j.hashCond = n.HashCond
		err := j.walkChildren(n, need, limits)
		j.hashCond = outside
		return err
	case "Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Heap Scan":
		reads, err := j.reads(n, need)
		if err == nil && reads > max(largeTable, wasteful*float64(j.Window)) {
			j.found = append(j.found, j.finding(n, reads))
		}
		return err
	}
	return j.walkChildren(n, math.Inf(1), limits)
}

// walkChildren passes the need on: a node that drops or multiplies rows takes
// accordingly more or fewer of its child's. The inner side of a join, and what is
// computed beforehand, is taken whole.
func (j *postgresJudge) walkChildren(n Node, need float64, limits int) error {
	for _, child := range n.Nodes {
		childNeed := math.Inf(1)
		share := need * max(1, child.Rows) / max(1, n.Rows)
		switch {
		case child.Role == "Inner" && n.Type == "Merge Join": // both sides advance together
			childNeed = share
		case child.Role != "Outer" && child.Role != "Member" && child.Role != "Subquery":
		case n.Type == "Limit":
			childNeed = need
		default:
			childNeed = share
		}
		if err := j.walk(child, childNeed, limits); err != nil {
			return err
		}
	}
	return nil
}

// reads estimates the rows of a table that a scan reads to hand on need of them.
func (j *postgresJudge) reads(n Node, need float64) (float64, error) {
	all := math.IsInf(need, 1)
	switch {
	case all && (n.IndexCond != "" || n.Recheck != ""):
		return n.Rows, nil // at least: what a filter drops is not known
	case !all && n.Filter == "":
		return need, nil
	}
	size, err := j.Catalog.rows(n.table())
	if err != nil || all {
		return size, err
	}
	// The rows that pass the filter are taken to be spread over the table.
	return min(size, need*size/max(1, n.Rows)), nil
}

func (n Node) table() TableName { return TableName{Schema: n.Schema, Name: n.Relation} }

// finding describes a scan by the conditions on its table.
func (j *postgresJudge) finding(scan Node, rows float64) finding {
	f := finding{table: scan.table(), rows: rows}
	for _, text := range []string{scan.IndexCond, scan.Recheck, scan.Filter} {
		r, _ := NewReader(text, Postgres) // the server wrote it
		for _, c := range r.Conditions(r.All()) {
			switch {
			case c.Usage == Equal && c.Column.Table == scan.Alias:
				if !slices.Contains(f.equal, c.Column.Name) {
					f.equal = append(f.equal, c.Column.Name)
				}
			case !slices.ContainsFunc(j.Key, func(k KeyColumn) bool { return r.mentions(c.Part, ColumnRef{scan.Alias, k.Column}) }):
				f.others = true
			}
		}
	}
	r, _ := NewReader(j.hashCond, Postgres)
	for _, c := range r.Conditions(r.All()) {
		if c.Usage == Joined && c.Column.Table == scan.Alias && len(f.join) == 0 {
			f.join = []string{c.Column.Name}
		}
	}
	return f
}

// orderingScan returns the scan below n that should give the feed's order: that
// of the key's table, or of the largest if that is not there.
func (j *postgresJudge) orderingScan(n Node) Node {
	key, one := j.keyTable()
	var best Node
	if n.Relation != "" {
		best = n
	}
	for _, child := range n.Nodes {
		c := j.orderingScan(child)
		switch {
		case c.Relation == "" || best.Relation != "" && one && best.table() == key:
		case best.Relation == "" || one && c.table() == key || c.Rows > best.Rows:
			best = c
		}
	}
	return best
}

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
		rows, err := c.rowsPerValue(n)
		if err != nil {
			return nil, err
		}
		f := finding{rows: rows}
		switch {
		case sorted:
			f.sorted = i == 0 || !n.Scans() && !n.buffered()
			f.cheap = f.sorted && i == 0 && rows <= cheapSort*float64(c.Window)
			if rows <= largeTable && product <= largeTable {
				continue
			}
		case i == 0 && n.Type == "ALL":
		case i == 0:
			f.rows = float64(c.Window) * 100 / n.passing
			if f.rows <= max(largeTable, wasteful*float64(c.Window)) {
				continue
			}
		case !n.Scans() && !n.buffered() && rows <= largeTable:
			continue
		}
		if found, err = c.addLarge(found, f, n, p.rewritten); err != nil {
			return nil, err
		}
	}
	for _, n := range p.Nodes {
		if n.id == outer[0].id || !n.Scans() && n.Rows <= largeTable {
			continue
		}
		var err error
		if found, err = c.addLarge(found, finding{computed: true, rows: n.Rows}, n, p.rewritten); err != nil {
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

// rowsPerValue estimates how many rows of a table are read for each of the one
// before. The optimizer's estimate is for the made-up value of a parameter; an
// index tells how many rows share a value on average.
func (c Check) rowsPerValue(n Node) (float64, error) {
	t, ok := c.Tables[n.Alias]
	if !ok || n.Type != "ref" {
		return n.Rows, nil
	}
	parts := 1 + strings.Count(n.ref, ",")
	rows, err := c.Catalog.rowsPerValue(t, n.Index, parts)
	return max(n.Rows, rows), err
}

// judgeSQLite judges the steps of a plan. They come without estimates, so every
// large table that is sorted or read whole counts.
func (c Check) judgeSQLite(p *Plan) ([]finding, error) {
	tables, err := c.sqliteTables(p)
	if err != nil {
		return nil, err
	}
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
		for _, table := range c.sqliteOrdered(tables) {
			f := finding{sorted: true}
			first := slices.IndexFunc(p.Nodes, func(n Node) bool { return tables[n.Relation] == table })
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
		if err := add(tables[n.Relation], f); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// sqliteOrdered returns the tables that should give the feed's order: those of
// the key, or all of the plan's if the key is computed.
func (c Check) sqliteOrdered(tables map[string]string) []string {
	var names []string
	for _, k := range c.Key {
		if k.Table.Name == "" {
			return slices.Compact(slices.Sorted(maps.Values(tables)))
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

// sqliteTables returns the table that each name in a plan means. A plan shows
// the alias if there is one; it follows its table in the statement or in a view.
func (c Check) sqliteTables(p *Plan) (map[string]string, error) {
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
	tables := map[string]string{}
	for _, n := range p.Nodes {
		same := func(table string) bool { return strings.EqualFold(table, n.Relation) }
		if i := slices.IndexFunc(names, same); i >= 0 {
			tables[n.Relation] = names[i]
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
					tables[n.Relation] = names[table]
				}
			}
		}
	}
	return tables, nil
}
