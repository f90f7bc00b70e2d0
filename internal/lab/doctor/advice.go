package doctor

import (
	"fmt"
	"slices"
	"strings"

	"spillway/internal/plans"
)

// candidatesMax bounds the candidates of one statement.
const candidatesMax = 6

// Advice is what a statement and its tables say about indexes.
type Advice struct {
	Candidates []Candidate    `json:"candidates"`
	Covered    []string       `json:"covered,omitempty"` // candidates that an existing index serves
	Notes      []string       `json:"notes,omitempty"`   // parts of the statement that no index serves, and why
	Sets       []CandidateSet `json:"-"`
}

// Candidate is an index that a statement suggests.
type Candidate struct {
	Table   string              `json:"table"`
	Columns []plans.IndexColumn `json:"columns"`
	Reason  string              `json:"reason"`
	Create  string              `json:"create"` // the command that builds it on the live table
	from    int                 // the table's place in FROM
	bound   int                 // leading columns that hold one value each
}

// A CandidateSet is candidates of one table that a database can use together: it combines what it finds by each of them, as
// PostgreSQL does with BitmapOr and BitmapAnd, and MySQL with index_merge.
type CandidateSet struct {
	Members []int // places in Advice.Candidates
	Either  bool  // for OR: none of them serves the statement without the others
}

// advise derives the indexes that could serve a statement: columns bound to one value first, then those of ORDER BY, then
// those with a range; an index for each branch of OR, and for each of two ranges. Its tables must have been described.
func (s *selection) advise() (*Advice, error) {
	a := &Advice{Notes: slices.Clone(s.notes)}
	served := 0
	for i := range s.tables {
		uses, err := s.usesOf(i)
		if err != nil {
			return nil, err
		}
		served += len(uses.either)
		for _, c := range uses.candidates(s.limited) {
			a.add(s, c)
		}
		a.addSet(s, uses.eachRange(), false)
		for _, branches := range uses.either {
			a.addSet(s, branches, true)
		}
	}
	if served < len(s.ors) {
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
func (a *Advice) addSet(s *selection, candidates []Candidate, either bool) {
	set := CandidateSet{Either: either}
	for _, c := range candidates {
		if i, ok := a.add(s, c); ok && !slices.Contains(set.Members, i) {
			set.Members = append(set.Members, i)
		}
	}
	if len(set.Members) > 1 {
		a.Sets = append(a.Sets, set)
	}
}

// add keeps a candidate unless an index of its table serves it, and returns its place.
func (a *Advice) add(s *selection, c Candidate) (place int, kept bool) {
	t := s.tables[c.from].described
	c.Table = t.Name
	for _, column := range c.Columns {
		if info, _ := t.Column(column.Name); info.PrefixOnly {
			a.Notes = append(a.Notes, fmt.Sprintf("(%s): %s is %s, of which only a prefix can be indexed; make it a VARCHAR",
				plans.ColumnList(c.Columns), column.Name, info.Type))
			return 0, false
		}
	}
	if place = slices.IndexFunc(a.Candidates, func(have Candidate) bool {
		return have.from == c.from && slices.Equal(have.Columns, c.Columns)
	}); place >= 0 {
		return place, true
	}
	for _, index := range t.Indexes {
		// A unique index on bound columns finds the row; more columns find nothing more.
		finds := index.Unique && index.Whole && !slices.ContainsFunc(index.Columns, func(have plans.IndexColumn) bool {
			return !slices.ContainsFunc(c.Columns[:c.bound], func(bound plans.IndexColumn) bool { return bound.Name == have.Name })
		})
		if finds || index.Covers(c.Columns, c.bound) {
			a.Covered = append(a.Covered, fmt.Sprintf("(%s): %s has it in %s (%s)", plans.ColumnList(c.Columns), t.Name, index.Name,
				plans.ColumnList(index.Columns)))
			return 0, false
		}
	}
	c.Create = t.Create(s.reader.Dialect, c.Columns)
	a.Candidates = append(a.Candidates, c)
	return len(a.Candidates) - 1, true
}

// uses are the columns of one table, by what a statement does with them.
type uses struct {
	from                       int // the table's place in FROM
	equal, join, among, ranges []string
	order, group               []plans.IndexColumn // empty unless all are this table's
	either                     [][]Candidate       // per OR, one for each branch
}

// usesOf returns the uses of a table.
func (s *selection) usesOf(table int) (uses, error) {
	u := uses{from: table, order: s.keysOf(table, s.order), group: s.keysOf(table, s.group)}
	for _, c := range s.conditions {
		if err := u.add(s, c); err != nil {
			return u, err
		}
	}
	for _, or := range s.ors {
		branches, err := u.branchesOf(s, or)
		if err != nil {
			return u, err
		}
		if branches != nil {
			u.either = append(u.either, branches)
		}
	}
	return u, nil
}

// add adds the column of a condition, if it is the table's and not joined to another one of it.
func (u *uses) add(s *selection, c plans.Condition) error {
	owner, column, err := s.resolve(c.Column)
	if err != nil || owner != u.from {
		return err
	}
	if c.Usage == plans.Joined {
		if other, _, err := s.resolve(c.Other); err != nil || other == owner {
			return nil
		}
	}
	list := map[plans.Usage]*[]string{
		plans.Equal: &u.equal, plans.Joined: &u.join, plans.Among: &u.among, plans.Ordered: &u.ranges,
	}[c.Usage]
	if !slices.Contains(*list, column.Name) {
		*list = append(*list, column.Name)
	}
	return nil
}

// branchesOf returns a candidate for each branch of an OR, behind the columns that hold one value in all branches. There are
// none unless each branch has a condition on the table.
func (u *uses) branchesOf(s *selection, or plans.Condition) ([]Candidate, error) {
	var list []Candidate
	fixed := plans.Plain(u.equal)
	for _, branch := range or.Either {
		own := uses{from: u.from}
		for _, c := range branch {
			if err := own.add(s, c); err != nil {
				return nil, err
			}
		}
		equal := plans.Plain(own.equal)
		columns := compose(equal, plans.Plain(own.among), plans.Plain(own.ranges[:min(1, len(own.ranges))]))
		if len(columns) == 0 {
			return nil, nil
		}
		columns = compose(fixed, columns)
		bound := min(len(compose(fixed, equal)), len(columns))
		list = append(list, Candidate{from: u.from, Columns: columns, Reason: "a branch of OR", bound: bound})
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
		by := plans.Plain([]string{name})
		list = append(list, Candidate{
			from: u.from, Columns: compose(plans.Plain(u.equal), by), Reason: reason(u.equal, "equal", "", by), bound: len(u.equal),
		})
	}
	return list
}

// keysOf returns keys as columns of a table; none unless all are its.
func (s *selection) keysOf(table int, keys []sortKey) []plans.IndexColumn {
	var columns []plans.IndexColumn
	for _, k := range keys {
		owner, column, err := s.resolve(k.column)
		if err != nil || owner != table {
			return nil
		}
		columns = append(columns, plans.IndexColumn{Name: column.Name, Desc: k.desc, Nulls: k.nulls})
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
	add := func(reason string, bound int, groups ...[]plans.IndexColumn) {
		if c := compose(groups...); len(c) > 0 {
			list = append(list, Candidate{from: u.from, Columns: c, Reason: reason, bound: bound})
		}
	}
	fixed, joined, among, ranges := plans.Plain(u.equal), plans.Plain(u.join), plans.Plain(u.among), plans.Plain(u.ranges)
	rest := slices.Concat(among, ranges)
	if len(order) > 0 {
		add(reason(u.equal, "equal", what, rest), len(fixed), fixed, order, rest)
		if limited && len(u.equal) > 0 {
			add(what+" alone: rows come in order, and LIMIT ends the search", 0, order)
		}
	}
	if len(order) == 0 || len(rest) > 0 {
		add(reason(u.equal, "equal", "", rest), len(fixed), fixed, among, ranges[:min(1, len(ranges))])
	}
	if len(u.join) > 0 {
		add(reason(slices.Concat(u.join, u.equal), "joined or equal", "", rest), len(compose(joined, fixed)), joined, fixed, rest)
	}
	return list
}

func reason(equals []string, word, order string, rest []plans.IndexColumn) string {
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

// compose joins groups of columns, each column once.
func compose(groups ...[]plans.IndexColumn) []plans.IndexColumn {
	var columns []plans.IndexColumn
	for _, c := range slices.Concat(groups...) {
		if !slices.ContainsFunc(columns, func(have plans.IndexColumn) bool { return strings.EqualFold(have.Name, c.Name) }) {
			columns = append(columns, c)
		}
	}
	return columns
}
