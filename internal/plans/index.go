package plans

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// candidatesMax bounds the candidates of one statement.
const candidatesMax = 6

// indexNameMax bounds the names that Create gives, within MySQL's 64 characters.
const indexNameMax = 60

// IndexColumn is a column of an index.
type IndexColumn struct {
	Name  string `json:"name"`
	Desc  bool   `json:"descending,omitempty"`
	Nulls string `json:"nulls,omitempty"` // "", "FIRST" or "LAST"
}

// Index is an index that a table has.
type Index struct {
	Name       string        `json:"name"`
	Columns    []IndexColumn `json:"columns"`
	Definition string        `json:"-"` // PostgreSQL's CREATE INDEX
	Whole      bool          `json:"-"` // it has no condition and no expression
	Unique     bool          `json:"-"`
}

// covers reports whether an index starts with these columns, read forward or
// backward. The first `bound` columns have one value each, in any direction.
func (index Index) covers(columns []IndexColumn, bound int) bool {
	if !index.Whole || len(index.Columns) < len(columns) {
		return false
	}
	same, turned := true, true
	for i, c := range columns {
		have := index.Columns[i]
		if !strings.EqualFold(have.Name, c.Name) {
			return false
		}
		if i >= bound {
			same = same && have.Desc == c.Desc && have.Nulls == c.Nulls
			turned = turned && have.Desc != c.Desc && have.Nulls == c.Nulls
		}
	}
	return same || turned
}

// Within reports whether all columns of an index are among some names.
func (index Index) Within(names []string) bool {
	return !slices.ContainsFunc(index.Columns, func(c IndexColumn) bool { return !containsFold(names, c.Name) })
}

func containsFold(list []string, name string) bool {
	return slices.ContainsFunc(list, func(other string) bool { return strings.EqualFold(other, name) })
}

// Column is a column of a table.
type Column struct {
	Name     string
	Type     string // as the catalog writes it
	Number   bool
	Nullable bool
	prefix   bool // MySQL can index a prefix of it only, as of TEXT
}

// Table is a table as the database's catalog describes it.
type Table struct {
	Name    string    `json:"name"` // as the statement writes it
	Rows    int64     `json:"rows_estimated"`
	Bytes   int64     `json:"bytes"`
	Indexes []Index   `json:"indexes"`
	Columns []Column  `json:"-"` // none: there is no such table
	Full    TableName `json:"-"` // as the catalog has it
	View    bool      `json:"-"` // it is materialized or foreign: it has no constraints
	// visible: its name needs no schema.
	visible, partitioned bool
}

// Column returns the column with a name, ignoring case.
func (t *Table) Column(name string) (Column, bool) {
	i := slices.IndexFunc(t.Columns, func(c Column) bool { return strings.EqualFold(c.Name, name) })
	if i < 0 {
		return Column{}, false
	}
	return t.Columns[i], true
}

// WriteColumns writes the columns of an index, with each name quoted by quote.
func WriteColumns(columns []IndexColumn, quote func(string) string) string {
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

// ColumnList writes the columns of an index without quotes.
func ColumnList(columns []IndexColumn) string {
	return WriteColumns(columns, func(name string) string { return name })
}

// plainName matches names that need no quotes unless they are reserved.
var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// reserved are words that tables and columns are likely to be named by and
// that some database reads as keywords.
const reserved = " add all analyze and as asc between both by case cast change character check column condition constraint create " +
	"cross current current_date" +
	" current_time current_timestamp current_user database databases default delete desc describe distinct div double drop else end " +
	"except exists explain false fetch" +
	" float for foreign from full function grant group groups having if in index inner insert int integer intersect interval into is " +
	"join key keys kill lag lead left" +
	" like limit lines load lock long match mod natural not null of offset on option or order outer over placing primary procedure range " +
	"rank read references" +
	" release rename repeat replace require restrict return returning revoke right row rows schema select session_user set show signal " +
	"some sql system table then to" +
	" trailing trigger true undo union unique unlock update usage use user using values when where while window with write year_month "

// Quote writes a name as SQL, with quotes only if it needs them.
func (d Dialect) Quote(name string) string {
	folded := strings.ToLower(name)
	plain := plainName.MatchString(name) && !strings.Contains(reserved, " "+folded+" ")
	if plain && (!d.has(Postgres) || folded == name) {
		return name
	}
	return d.QuoteAlways(name)
}

// QuoteAlways writes a name as SQL, in quotes.
func (d Dialect) QuoteAlways(name string) string {
	mark := `"`
	if d.has(MySQL) {
		mark = "`"
	}
	return mark + strings.ReplaceAll(name, mark, mark+mark) + mark
}

// ParseTableName reads SCHEMA.NAME or NAME.
func ParseTableName(text string) TableName {
	schema, name, found := strings.Cut(text, ".")
	if !found {
		return TableName{Name: text}
	}
	return TableName{Schema: schema, Name: name}
}

// SQL writes the table's name for a statement, quoted.
func (t TableName) SQL(d Dialect) string {
	if t.Schema == "" {
		return d.QuoteAlways(t.Name)
	}
	return d.QuoteAlways(t.Schema) + "." + d.QuoteAlways(t.Name)
}

// SQL writes the table's name for a statement, with a schema and quotes only if
// it needs them.
func (t *Table) SQL(d Dialect) string {
	if t.Full.Schema == "" || t.visible {
		return d.Quote(t.Full.Name)
	}
	return d.Quote(t.Full.Schema) + "." + d.Quote(t.Full.Name)
}

// Create returns the command that builds an index on the live table, without
// blocking its writers where the database can do that.
func (t *Table) Create(d Dialect, columns []IndexColumn) string {
	table := t.SQL(d)
	list := WriteColumns(columns, d.Quote)
	switch {
	case d.has(Postgres) && t.partitioned: // CONCURRENTLY is not possible
		return fmt.Sprintf("CREATE INDEX ON %s (%s)", table, list)
	case d.has(Postgres):
		return fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s)", table, list)
	}
	name := t.Full.Name
	for _, c := range columns {
		name += "_" + c.Name
	}
	name = strings.ToValidUTF8(name[:min(len(name), indexNameMax)], "")
	command := fmt.Sprintf("CREATE INDEX %s ON %s (%s)", d.Quote(name), table, list)
	if d.has(MySQL) {
		command += " ALGORITHM=INPLACE LOCK=NONE"
	}
	return command
}

// Candidate is an index that a statement suggests.
type Candidate struct {
	Table   string        `json:"table"`
	Columns []IndexColumn `json:"columns"`
	Reason  string        `json:"reason"`
	Create  string        `json:"create"` // the command that builds it on the live table
	From    int           `json:"-"`      // the table's place in FROM
	bound   int           // leading columns that hold one value each
}

// Advice is what a statement and its tables say about indexes.
type Advice struct {
	Candidates []Candidate
	Sets       []CandidateSet
	Covered    []string // candidates that an index of the table serves already
	Notes      []string // parts of the statement that no index serves, and why
}

// A CandidateSet is candidates of one table that a database can use together: it combines what it finds by each of them, as
// PostgreSQL does with BitmapOr and BitmapAnd, and MySQL with index_merge.
type CandidateSet struct {
	Members []int // places in Advice.Candidates
	Either  bool  // for OR: none of them serves the statement without the others
}

// Advise derives the indexes that could serve a statement: columns bound to one
// value first, then those of ORDER BY, then those with a range; an index for each
// branch of OR, and for each of two ranges. tables are those of s.Tables, in this
// order.
func (s *Select) Advise(tables []*Table) (*Advice, error) {
	a := &Advice{Notes: slices.Clone(s.notes)}
	for _, p := range s.Params {
		if p.Column.Name == "" {
			continue
		}
		if _, _, err := s.Resolve(tables, p.Column); err != nil {
			return nil, err
		}
	}
	served := 0
	for i := range tables {
		uses, err := s.usesOf(tables, i)
		if err != nil {
			return nil, err
		}
		served += len(uses.either)
		for _, c := range uses.candidates(s.limited) {
			c.From = i
			a.add(s.reader.dialect, tables[i], c)
		}
		a.addSet(s.reader.dialect, tables[i], i, uses.eachRange(), false)
		for _, branches := range uses.either {
			a.addSet(s.reader.dialect, tables[i], i, branches, true)
		}
	}
	if ors := slices.DeleteFunc(slices.Clone(s.conditions), func(c condition) bool { return c.either == nil }); served < len(ors) {
		a.Notes = append(a.Notes, "conditions joined by OR are on several tables, of which no index finds the rows")
	}
	if len(a.Candidates) > candidatesMax {
		a.Notes = append(a.Notes, fmt.Sprintf("%d more candidates left out", len(a.Candidates)-candidatesMax))
		a.Candidates = a.Candidates[:candidatesMax]
		a.Sets = slices.DeleteFunc(a.Sets, func(set CandidateSet) bool { return slices.Max(set.Members) >= candidatesMax })
	}
	return a, nil
}

// addSet adds candidates that serve a statement together. One that an index of the table serves already is left out.
func (a *Advice) addSet(d Dialect, t *Table, from int, candidates []Candidate, either bool) {
	set := CandidateSet{Either: either}
	for _, c := range candidates {
		c.From = from
		if i, ok := a.add(d, t, c); ok && !slices.Contains(set.Members, i) {
			set.Members = append(set.Members, i)
		}
	}
	if len(set.Members) > 1 {
		a.Sets = append(a.Sets, set)
	}
}

// Resolve finds the table, by its place in FROM, and the column that a name means.
func (s *Select) Resolve(tables []*Table, c ColumnRef) (table int, column string, err error) {
	table = -1
	for i, t := range tables {
		if c.Table != "" && !strings.EqualFold(c.Table, s.Tables[i].Alias) {
			continue
		}
		found, ok := t.Column(c.Name)
		if !ok {
			continue
		}
		if table >= 0 {
			return -1, "", fmt.Errorf("column %s is in several tables; write table.%s", c, c.Name)
		}
		table, column = i, found.Name
	}
	if table < 0 {
		return -1, "", fmt.Errorf("column %s is in no table of FROM", c)
	}
	return table, column, nil
}

// uses are the columns of one table, by what a statement does with them.
type uses struct {
	equal, join, among, ranges []string
	order, group               []IndexColumn // empty unless all are this table's
	either                     [][]Candidate // per OR, one for each branch
}

func (s *Select) usesOf(tables []*Table, table int) (uses, error) {
	var u uses
	for _, c := range s.conditions {
		if c.either != nil {
			continue
		}
		owner, name, err := s.Resolve(tables, c.column)
		if err != nil {
			return u, err
		}
		if owner != table {
			continue
		}
		list := map[usage]*[]string{equal: &u.equal, joined: &u.join, among: &u.among, ordered: &u.ranges}[c.usage]
		if c.usage == joined {
			if other, _, err := s.Resolve(tables, c.other); err != nil || other == table {
				continue
			}
		}
		if !slices.Contains(*list, name) {
			*list = append(*list, name)
		}
	}
	u.order = s.keysOf(tables, table, s.order)
	u.group = s.keysOf(tables, table, s.group)
	for _, c := range s.conditions {
		if c.either == nil {
			continue
		}
		branches, err := s.branchesOf(tables, table, u.equal, c)
		if err != nil {
			return u, err
		}
		if branches != nil {
			u.either = append(u.either, branches)
		}
	}
	return u, nil
}

// branchesOf returns a candidate for each branch of an OR, behind the columns that hold one value in all branches. There are
// none unless each branch has a condition on the table.
func (s *Select) branchesOf(tables []*Table, table int, fixed []string, c condition) ([]Candidate, error) {
	var list []Candidate
	for _, branch := range c.either {
		var u uses
		for _, one := range branch {
			owner, name, err := s.Resolve(tables, one.column)
			if err != nil {
				return nil, err
			}
			if owner == table {
				to := map[usage]*[]string{equal: &u.equal, among: &u.among, ordered: &u.ranges}[one.usage]
				*to = append(*to, name)
			}
		}
		columns := compose(plain(u.equal), plain(u.among), plain(u.ranges[:min(1, len(u.ranges))]))
		if len(columns) == 0 {
			return nil, nil
		}
		columns = compose(plain(fixed), columns)
		bound := min(len(compose(plain(fixed), plain(u.equal))), len(columns))
		list = append(list, Candidate{Columns: columns, Reason: "a branch of OR", bound: bound})
	}
	return list, nil
}

// eachRange returns a candidate for each of the first two columns with a range, if no ORDER BY or GROUP BY wants an order.
func (u uses) eachRange() []Candidate {
	if len(u.ranges) < 2 || len(u.among) > 0 || len(u.order) > 0 || len(u.group) > 0 {
		return nil
	}
	var list []Candidate
	for _, name := range u.ranges[:2] {
		columns := compose(plain(u.equal), plain([]string{name}))
		list = append(list, Candidate{Columns: columns, Reason: reason(u.equal, "equal", "", plain([]string{name})), bound: len(u.equal)})
	}
	return list
}

// keysOf returns keys as columns of a table; none unless all are its.
func (s *Select) keysOf(tables []*Table, table int, keys []sortKey) []IndexColumn {
	var columns []IndexColumn
	for _, k := range keys {
		owner, name, err := s.Resolve(tables, k.column)
		if err != nil || owner != table {
			return nil
		}
		columns = append(columns, IndexColumn{Name: name, Desc: k.desc, Nulls: k.nulls})
	}
	return columns
}

// candidates lists the indexes that the uses suggest, the longest first.
func (u uses) candidates(limited bool) []Candidate {
	order, what := u.order, "ORDER BY"
	if len(order) == 0 {
		order, what = u.group, "GROUP BY"
	}
	var list []Candidate
	add := func(reason string, bound int, groups ...[]IndexColumn) {
		if c := compose(groups...); len(c) > 0 {
			list = append(list, Candidate{Columns: c, Reason: reason, bound: bound})
		}
	}
	fixed, rest := plain(u.equal), slices.Concat(plain(u.among), plain(u.ranges))
	if len(order) > 0 {
		add(reason(u.equal, "equal", what, rest), len(fixed), fixed, order, rest)
		if limited && len(u.equal) > 0 {
			add(what+" alone: rows come in order, and LIMIT ends the search", 0, order)
		}
	}
	if len(order) == 0 || len(rest) > 0 {
		ranges := plain(u.ranges)
		add(reason(u.equal, "equal", "", rest), len(fixed), fixed, plain(u.among), ranges[:min(1, len(ranges))])
	}
	if len(u.join) > 0 {
		add(reason(slices.Concat(u.join, u.equal), "joined or equal", "", rest), len(compose(plain(u.join), fixed)), plain(u.join), fixed, rest)
	}
	return list
}

func reason(equals []string, word, order string, rest []IndexColumn) string {
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

func plain(names []string) []IndexColumn {
	columns := make([]IndexColumn, len(names))
	for i, name := range names {
		columns[i].Name = name
	}
	return columns
}

// compose joins groups of columns, each column once.
func compose(groups ...[]IndexColumn) []IndexColumn {
	var columns []IndexColumn
	for _, c := range slices.Concat(groups...) {
		if !slices.ContainsFunc(columns, func(have IndexColumn) bool { return strings.EqualFold(have.Name, c.Name) }) {
			columns = append(columns, c)
		}
	}
	return columns
}

// add keeps a candidate of a table unless an index of the table serves it, and returns its place.
func (a *Advice) add(d Dialect, t *Table, c Candidate) (place int, kept bool) {
	c.Table = t.Name
	for _, column := range c.Columns {
		if info, _ := t.Column(column.Name); info.prefix {
			a.Notes = append(a.Notes, fmt.Sprintf("(%s): %s is %s, of which only a prefix can be indexed; make it a VARCHAR", ColumnList(c.Columns),
				column.Name, info.Type))
			return 0, false
		}
	}
	if place = slices.IndexFunc(a.Candidates, func(have Candidate) bool {
		return have.From == c.From && slices.Equal(have.Columns, c.Columns)
	}); place >= 0 {
		return place, true
	}
	for _, index := range t.Indexes {
		// A unique index on bound columns finds the row; more columns find nothing more.
		finds := index.Unique && index.Whole && !slices.ContainsFunc(index.Columns, func(have IndexColumn) bool {
			return !slices.ContainsFunc(c.Columns[:c.bound], func(bound IndexColumn) bool { return bound.Name == have.Name })
		})
		if finds || index.covers(c.Columns, c.bound) {
			a.Covered = append(a.Covered, fmt.Sprintf("(%s): %s has it in %s (%s)", ColumnList(c.Columns), t.Name, index.Name,
				ColumnList(index.Columns)))
			return 0, false
		}
	}
	c.Create = t.Create(d, c.Columns)
	a.Candidates = append(a.Candidates, c)
	return len(a.Candidates) - 1, true
}
