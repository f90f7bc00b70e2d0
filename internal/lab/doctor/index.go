package doctor

import (
	"fmt"
	"slices"
	"strings"

	"spillway/internal/database"
)

// candidatesMax bounds the candidates of one statement.
const candidatesMax = 6

// indexColumn is a column of an index.
type indexColumn struct {
	Name  string `json:"name"`
	Desc  bool   `json:"descending,omitempty"`
	Nulls string `json:"nulls,omitempty"` // "", "FIRST" or "LAST"
}

// Index is an index that a table has.
type Index struct {
	Name       string        `json:"name"`
	Columns    []indexColumn `json:"columns"`
	definition string        // how PostgreSQL writes it
	whole      bool          // no condition, no expression
	unique     bool
}

// column is a column of a table.
type column struct {
	name    string
	kind    string // as the catalog writes the type
	number  bool
	unbound bool // TEXT and the like, which MySQL indexes by a prefix only
}

// TableInfo is a table of the statement.
type TableInfo struct {
	Name    string  `json:"name"`
	Rows    int64   `json:"rows_estimated"`
	Bytes   int64   `json:"bytes"`
	Indexes []Index `json:"indexes"`
	columns []column
	from    int // its place in FROM
	schema  string
	plain   string // the name alone
}

func (t *TableInfo) column(name string) (column, bool) {
	i := slices.IndexFunc(t.columns, func(c column) bool { return strings.EqualFold(c.name, name) })
	if i < 0 {
		return column{}, false
	}
	return t.columns[i], true
}

// Candidate is an index that the statement suggests.
type Candidate struct {
	Table   string        `json:"table"`
	Columns []indexColumn `json:"columns"`
	Reason  string        `json:"reason"`
	Create  string        `json:"create"` // the command that builds it on the live table
	from    int
	bound   int // leading columns that hold one value each
}

// derivation is what a statement and its tables say about indexes.
type derivation struct {
	candidates []Candidate
	covered    []string // candidates that an index of the table serves already
	notes      []string
}

// derive works out the indexes that could serve a statement: columns bound to
// one value first, then those of ORDER BY, then those with a range.
func derive(s *selection, tables []*TableInfo) (*derivation, error) {
	d := &derivation{notes: slices.Clone(s.unused)}
	for i := range s.params {
		if p := &s.params[i]; p.column.name != "" {
			if _, _, err := resolve(s, tables, p.column); err != nil {
				return nil, err
			}
		}
	}
	for _, t := range tables {
		parts, err := partsOf(s, tables, t)
		if err != nil {
			return nil, err
		}
		for _, c := range parts.candidates(s.limited) {
			d.add(s, t, c)
		}
	}
	if len(d.candidates) > candidatesMax {
		d.notes = append(d.notes, fmt.Sprintf("%d more candidates left out", len(d.candidates)-candidatesMax))
		d.candidates = d.candidates[:candidatesMax]
	}
	return d, nil
}

// resolve finds the table and the column that a name means.
func resolve(s *selection, tables []*TableInfo, c columnRef) (*TableInfo, string, error) {
	var found *TableInfo
	var name string
	for _, t := range tables {
		if c.table != "" && !strings.EqualFold(c.table, s.tables[t.from].alias) {
			continue
		}
		column, ok := t.column(c.name)
		if !ok {
			continue
		}
		if found != nil {
			return nil, "", fmt.Errorf("column %s is in several tables; write table.%s", c, c.name)
		}
		found, name = t, column.name
	}
	if found == nil {
		return nil, "", fmt.Errorf("column %s is in no table of FROM", c)
	}
	return found, name, nil
}

// parts are the columns of one table, by what the statement does with them.
type parts struct {
	equal, join, among, ranges []string
	order, group               []indexColumn // empty when not all are this table's
}

func partsOf(s *selection, tables []*TableInfo, t *TableInfo) (parts, error) {
	var p parts
	for _, c := range s.conditions {
		owner, name, err := resolve(s, tables, c.column)
		if err != nil {
			return p, err
		}
		if owner != t {
			continue
		}
		list := map[usage]*[]string{equal: &p.equal, joined: &p.join, among: &p.among, ordered: &p.ranges}[c.usage]
		if c.usage == joined {
			if other, _, err := resolve(s, tables, c.other); err != nil || other == t {
				continue
			}
		}
		if !slices.Contains(*list, name) {
			*list = append(*list, name)
		}
	}
	p.order = keysOf(s, tables, t, s.order)
	p.group = keysOf(s, tables, t, s.group)
	return p, nil
}

// keysOf returns keys as columns of a table; none unless all are its.
func keysOf(s *selection, tables []*TableInfo, t *TableInfo, keys []sortKey) []indexColumn {
	var columns []indexColumn
	for _, k := range keys {
		owner, name, err := resolve(s, tables, k.column)
		if err != nil || owner != t {
			return nil
		}
		columns = append(columns, indexColumn{Name: name, Desc: k.desc, Nulls: k.nulls})
	}
	return columns
}

// candidates lists the indexes that the parts suggest, the fullest first.
func (p parts) candidates(limited bool) []Candidate {
	order := p.order
	what := "ORDER BY"
	if len(order) == 0 {
		order, what = p.group, "GROUP BY"
	}
	var list []Candidate
	add := func(reason string, bound int, groups ...[]indexColumn) {
		if c := compose(groups...); len(c) > 0 {
			list = append(list, Candidate{Columns: c, Reason: reason, bound: bound})
		}
	}
	fixed, rest := plain(p.equal), slices.Concat(plain(p.among), plain(p.ranges))
	if len(order) > 0 {
		add(reason(p.equal, "equal", what, rest), len(fixed), fixed, order, rest)
		if limited && len(p.equal) > 0 {
			add(what+" alone: rows come in order, and LIMIT ends the search", 0, order)
		}
	}
	if len(order) == 0 || len(rest) > 0 {
		add(reason(p.equal, "equal", "", rest), len(fixed), fixed, plain(p.among), first(plain(p.ranges)))
	}
	if len(p.join) > 0 {
		add(reason(slices.Concat(p.join, p.equal), "joined or equal", "", rest), len(compose(plain(p.join), fixed)), plain(p.join), fixed, rest)
	}
	return list
}

func reason(equals []string, word, order string, rest []indexColumn) string {
	var words []string
	if len(equals) > 0 {
		words = append(words, strings.Join(equals, ", ")+" "+word)
	}
	if order != "" {
		words = append(words, order)
	}
	if len(rest) > 0 {
		words = append(words, "range")
	}
	return strings.Join(words, ", then ")
}

func plain(names []string) []indexColumn {
	columns := make([]indexColumn, len(names))
	for i, name := range names {
		columns[i].Name = name
	}
	return columns
}

func first(columns []indexColumn) []indexColumn { return columns[:min(1, len(columns))] }

// compose joins groups of columns, each column once. An index is read both
// ways, so columns that all descend are written as ascending.
func compose(groups ...[]indexColumn) []indexColumn {
	var columns []indexColumn
	for _, c := range slices.Concat(groups...) {
		if !slices.ContainsFunc(columns, func(have indexColumn) bool { return have.Name == c.Name }) {
			columns = append(columns, c)
		}
	}
	var directed []indexColumn // those whose direction matters
	for _, group := range groups {
		for _, c := range group {
			if c.Desc || c.Nulls != "" {
				directed = group
			}
		}
	}
	uniform := !slices.ContainsFunc(directed, func(c indexColumn) bool { return !c.Desc || c.Nulls != "" })
	if uniform {
		for i := range columns {
			columns[i].Desc = false
		}
	}
	return columns
}

// add keeps a candidate of a table, unless it is there already.
func (d *derivation) add(s *selection, t *TableInfo, c Candidate) {
	c.Table, c.from = t.Name, t.from
	for _, column := range c.Columns {
		if info, _ := t.column(column.Name); info.unbound && s.driver == database.MySQL {
			d.notes = append(d.notes, fmt.Sprintf("(%s): %s is %s, of which only a prefix can be indexed; make it a VARCHAR", columnList(c.Columns), column.Name, info.kind))
			return
		}
	}
	if slices.ContainsFunc(d.candidates, func(have Candidate) bool {
		return have.from == c.from && slices.Equal(have.Columns, c.Columns)
	}) {
		return
	}
	for _, index := range t.Indexes {
		if covers(index, c.Columns) || finds(index, c) {
			d.covered = append(d.covered, fmt.Sprintf("(%s): %s has it in %s (%s)", columnList(c.Columns), t.Name, index.Name, columnList(index.Columns)))
			return
		}
	}
	c.Create = createIndex(s.driver, t, c.Columns)
	d.candidates = append(d.candidates, c)
}

// covers reports whether an index begins with these columns, read forward or
// backward.
func covers(index Index, columns []indexColumn) bool {
	if !index.whole || len(index.Columns) < len(columns) {
		return false
	}
	same, turned := true, true
	for i, c := range columns {
		have := index.Columns[i]
		if have.Name != c.Name {
			return false
		}
		same = same && have.Desc == c.Desc && have.Nulls == c.Nulls
		turned = turned && have.Desc != c.Desc && have.Nulls == c.Nulls
	}
	return same || turned
}

// finds reports whether a unique index leads to the one row by columns that
// the candidate has bound, so that more columns find nothing more.
func finds(index Index, c Candidate) bool {
	return index.unique && index.whole && !slices.ContainsFunc(index.Columns, func(have indexColumn) bool {
		return !slices.ContainsFunc(c.Columns[:c.bound], func(bound indexColumn) bool { return bound.Name == have.Name })
	})
}

// columnList writes the columns of an index without quotes.
func columnList(columns []indexColumn) string {
	return writeColumns(columns, func(name string) string { return name })
}

func writeColumns(columns []indexColumn, quote func(string) string) string {
	var words []string
	for _, c := range columns {
		word := quote(c.Name)
		if c.Desc {
			word += " DESC"
		}
		if c.Nulls != "" {
			word += " NULLS " + c.Nulls
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// createIndex is the command that builds an index on the live table, without
// blocking its writers where the database can.
func createIndex(driver database.Driver, t *TableInfo, columns []indexColumn) string {
	quote := quoteName(driver)
	table := quote(t.plain)
	if t.schema != "" {
		table = quote(t.schema) + "." + table
	}
	list := writeColumns(columns, quote)
	switch driver {
	case database.Postgres:
		return fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s)", table, list)
	case database.MySQL:
		return fmt.Sprintf("ALTER TABLE %s ADD INDEX %s (%s), ALGORITHM=INPLACE, LOCK=NONE", table, quote(indexName(t, columns)), list)
	}
	return fmt.Sprintf("CREATE INDEX %s ON %s (%s)", quote(indexName(t, columns)), table, list)
}

// indexName calls an index by its table and columns, within MySQL's 64 characters.
func indexName(t *TableInfo, columns []indexColumn) string {
	name := t.plain
	for _, c := range columns {
		name += "_" + c.Name
	}
	for len(name) > 60 {
		name = name[:len(name)-1]
	}
	return strings.ToValidUTF8(name, "")
}

// quoteName returns how a database quotes a name.
func quoteName(driver database.Driver) func(string) string {
	mark := `"`
	if driver == database.MySQL {
		mark = "`"
	}
	return func(name string) string { return mark + strings.ReplaceAll(name, mark, mark+mark) + mark }
}
