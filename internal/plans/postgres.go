package plans

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// wrappingLimits is the number of Limit nodes that the PostgreSQL adapter puts
// around a feed. They let the whole window through, whatever the planner assumes.
const wrappingLimits = 2

// cheapestRow is the least that the planner counts for a row of an index: cpu_index_tuple_cost and cpu_tuple_cost.
const cheapestRow = 0.015

// postgresJudge adds up what a plan reads of each table.
type postgresJudge struct {
	Check
	aliases  map[string]TableName // of the tables in the plan
	sizes    map[TableName]float64
	found    []finding // one for each table, in the order of the plan
	hashCond string    // of the nearest hash join above
}

// flow is what the parent of a node takes from it.
type flow struct {
	need   float64 // rows; all of them: infinity
	times  float64 // how often the node is executed
	limits int     // wrapping Limit nodes still to come
	sorted bool    // the rows are sorted above
}

func (c Check) judgePostgres(p *Plan) ([]finding, error) {
	j := &postgresJudge{Check: c, aliases: make(map[string]TableName), sizes: make(map[TableName]float64)}
	j.name(p.Nodes[0])
	err := j.walk(p.Nodes[0], flow{need: float64(c.Window), times: 1, limits: wrappingLimits})
	for _, f := range j.found {
		p.Reads += f.rows
	}
	return slices.DeleteFunc(j.found, func(f finding) bool { return !c.tooMany(f.rows, f.size) }), err
}

// name notes the tables of a plan.
func (j *postgresJudge) name(n Node) {
	if n.Relation != "" {
		j.aliases[n.Alias] = n.table()
	}
	for _, child := range n.Nodes {
		j.name(child)
	}
}

// walk follows the plan downwards.
func (j *postgresJudge) walk(n Node, f flow) error {
	switch n.Type {
	case "Limit":
		if f.limits == 0 {
			f.need = min(f.need, n.Rows)
		}
		f.limits = max(0, f.limits-1)
		return j.walkChildren(n, f)
	case "Sort":
		return j.sort(n, f)
	case "Incremental Sort": // ends with the group of equal rows in which the need is met
		f.need += n.Rows * n.Startup / max(1, n.Cost)
		return j.walkChildren(n, f)
	case "Nested Loop", "Merge Join", "Subquery Scan", "Result", "Gather", "Gather Merge", "Append", "Merge Append",
		"LockRows", "ProjectSet", "Unique", "Memoize":
		return j.walkChildren(n, f)
	case "Hash Join":
		outside := j.hashCond
		j.hashCond = n.HashCond
		err := j.walkChildren(n, f)
		j.hashCond = outside
		return err
	case "Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Heap Scan":
		return j.scan(n, f)
	}
	if n.Type == "Materialize" {
		f.times = 1
	}
	if n.Type != "Aggregate" || n.Strategy != "Sorted" {
		f.need = math.Inf(1)
	}
	return j.walkChildren(n, f)
}

// sort notes what is read below a node that sorts, and what it sorts if that is more.
func (j *postgresJudge) sort(n Node, f flow) error {
	f.need, f.sorted = math.Inf(1), true
	err := j.walkChildren(n, f)
	known := slices.ContainsFunc(j.found, func(f finding) bool { return j.tooMany(f.rows, f.size) })
	if err != nil || known || len(n.Nodes) == 0 || !j.tooMany(n.Nodes[0].Rows, 0) {
		return err
	}
	return j.add(j.orderingScan(n), n.Nodes[0].Rows, 0, true)
}

// walkChildren passes the need on: a node that drops or multiplies rows takes
// accordingly more or fewer of its child's. The inner side of a join, and what is
// computed beforehand, is taken whole.
func (j *postgresJudge) walkChildren(n Node, f flow) error {
	for _, child := range n.Nodes {
		down := f
		down.need = math.Inf(1)
		share := f.need * max(1, child.Rows) / max(1, n.Rows)
		switch {
		case child.Role == "Inner" && n.Type == "Merge Join": // both sides advance together
			down.need = share
		case child.Role == "Inner" && n.Type == "Nested Loop":
			outer := n.Nodes[0].Rows
			down.times *= max(1, min(outer, f.need*outer/max(1, n.Rows)))
		case child.Role != "Outer" && child.Role != "Member" && child.Role != "Subquery":
		case n.Type == "Limit" || strings.HasPrefix(n.Type, "Gather"): // the rows of a child of Gather are those of one worker
			down.need = f.need
		default:
			down.need = share
		}
		if err := j.walk(child, down); err != nil {
			return err
		}
	}
	return nil
}

// scan notes what a scan reads.
func (j *postgresJudge) scan(n Node, f flow) error {
	size, err := j.size(n.table())
	if err != nil {
		return err
	}
	values := []map[string]string{nil} // the average, if the table or the partition is small
	if size*f.times > largeTable {
		values = j.values(n)
	}
	reads := 0.0
	for _, literals := range values {
		reads = max(reads, j.reads(n, f.need, size, literals))
	}
	return j.add(n, reads*f.times, size, f.sorted)
}

func (j *postgresJudge) size(t TableName) (rows float64, err error) {
	rows, known := j.sizes[t]
	if !known {
		rows, err = j.Catalog.rows(t)
		j.sizes[t] = rows
	}
	return rows, err
}

// reads estimates the rows that a scan reads to hand on need of them: those that its index finds, until
// enough of them have passed the filter.
func (j *postgresJudge) reads(n Node, need, size float64, literals map[string]string) float64 {
	index := cmp.Or(n.IndexCond, n.Recheck)
	fetched := size
	if index != "" {
		rows, ok := j.estimate(n, index, literals)
		if !ok { // of a view whose tables the role may not read
			rows = n.Cost / cheapestRow
		}
		fetched = min(size, rows)
	}
	if math.IsInf(need, 1) || n.Filter == "" {
		return min(fetched, need)
	}
	passing, ok := j.estimate(n, n.conditions(), literals)
	if !ok {
		passing = n.Rows
	}
	return min(fetched, need*fetched/max(1, passing))
}

// conditions returns all conditions of a scan.
func (n Node) conditions() string {
	parts := []string{cmp.Or(n.IndexCond, n.Recheck), n.Filter}
	return strings.Join(slices.DeleteFunc(parts, func(text string) bool { return text == "" }), " AND ")
}

// values returns literals for the parameters that the columns of a scan equal, one set for each row that is
// to be tried. Without any, the planner assumes the average.
func (j *postgresJudge) values(n Node) []map[string]string {
	var columns, params []string
	lists := make(map[string]bool)
	r, _ := NewReader(n.conditions(), Postgres) // the server wrote it
	for _, c := range r.Conditions(r.All()) {
		i := slices.IndexFunc(r.Tokens[c.Value.First:c.Value.End], func(t Token) bool { return t.Kind == Param })
		if i < 0 || c.Usage != Equal && c.Usage != Among || c.Column.Table != n.Alias || slices.Contains(columns, c.Column.Name) {
			continue
		}
		param := r.Tokens[c.Value.First+i].Text
		columns, params = append(columns, c.Column.Name), append(params, param)
		lists[param] = c.Usage == Among
	}
	sampled, err := j.Catalog.sample(n.table(), columns)
	if err != nil || len(sampled) == 0 {
		return []map[string]string{nil}
	}
	var all []map[string]string
	for _, row := range sampled {
		literals := make(map[string]string)
		for i, param := range params {
			text := row[i]
			if lists[param] {
				text = `{"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"}`
			}
			literals[param] = "'" + strings.ReplaceAll(text, "'", "''") + "'"
		}
		all = append(all, literals)
	}
	return all
}

// estimate returns how many rows of a table the planner expects to meet conditions: of the inner side of a
// join, for each row of the other tables.
func (j *postgresJudge) estimate(n Node, conditions string, literals map[string]string) (rows float64, ok bool) {
	r, err := NewReader(conditions, Postgres)
	if err != nil {
		return 0, false
	}
	var text strings.Builder
	var parameters []string
	from, others, at := []string{n.Alias}, 1.0, 0
	for i, t := range r.Tokens {
		text.WriteString(conditions[at:t.Start])
		at = t.End
		literal, known := literals[t.Text]
		switch {
		case t.Kind == Param && known:
			text.WriteString(literal)
			continue
		case t.Kind == Param:
			if !slices.Contains(parameters, t.Text) {
				parameters = append(parameters, t.Text)
			}
			text.WriteString("$" + strconv.Itoa(1+slices.Index(parameters, t.Text)))
			continue
		case i+1 < len(r.Tokens) && r.Tokens[i+1].IsSymbol(".") && j.aliases[t.Text].Name != "" && !slices.Contains(from, t.Text):
			size, err := j.size(j.aliases[t.Text])
			if err != nil {
				return 0, false
			}
			from = append(from, t.Text)
			others *= max(1, size)
		}
		text.WriteString(conditions[t.Start:t.End])
	}
	for i, alias := range from {
		from[i] = j.aliases[alias].SQL(Postgres) + " AS " + Postgres.QuoteAlways(alias)
	}
	p, err := j.Explain(fmt.Sprintf("SELECT FROM %s WHERE %s", strings.Join(from, ", "), text.String()), len(parameters))
	if err != nil {
		return 0, false
	}
	return p.Nodes[0].Rows / others, true
}

func (n Node) table() TableName { return TableName{Schema: n.Schema, Name: n.Relation} }

// add notes rows that a scan reads. What is read of partitions is read of their table.
func (j *postgresJudge) add(n Node, rows, size float64, sorted bool) error {
	f := j.finding(n)
	f.rows, f.size, f.sorted = rows, size, sorted
	if key, one := j.keyTable(); !one || f.table != key {
		root, err := j.Catalog.Query(`SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE c.oid = pg_partition_root($1::text::regclass)`, f.table.SQL(Postgres))
		if err != nil {
			return fmt.Errorf("look up the partitions of %s: %w", f.table, err)
		}
		if len(root) == 1 {
			f.table = TableName{Schema: root[0][0], Name: root[0][1]}
		}
	}
	i := slices.IndexFunc(j.found, func(known finding) bool { return known.table == f.table })
	if i < 0 {
		j.found = append(j.found, f)
		return nil
	}
	known := &j.found[i]
	known.rows, known.size, known.sorted = known.rows+f.rows, known.size+f.size, known.sorted || f.sorted
	return nil
}

// finding describes a scan by the conditions on its table.
func (j *postgresJudge) finding(scan Node) finding {
	f := finding{table: scan.table()}
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
