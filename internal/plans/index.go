package plans

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

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

// Covers reports whether an index starts with these columns, read forward or
// backward. The first `bound` columns have one value each, in any direction.
func (index Index) Covers(columns []IndexColumn, bound int) bool {
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

// within reports whether all columns of an index are among some names.
func (index Index) within(names []string) bool {
	return !slices.ContainsFunc(index.Columns, func(c IndexColumn) bool { return !containsFold(names, c.Name) })
}

func containsFold(list []string, name string) bool {
	return slices.ContainsFunc(list, func(other string) bool { return strings.EqualFold(other, name) })
}

// Column is a column of a table.
type Column struct {
	Name       string
	Type       string // as the catalog writes it
	Number     bool
	Nullable   bool
	PrefixOnly bool // MySQL can index a prefix of it only, as of TEXT
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
//
//go:embed reserved.txt
var reserved string

// Quote writes a name as SQL, with quotes only if it needs them.
func (d Dialect) Quote(name string) string {
	folded := strings.ToLower(name)
	plain := plainName.MatchString(name) && !slices.Contains(strings.Fields(reserved), folded)
	if plain && (!d.Has(Postgres) || folded == name) {
		return name
	}
	return d.QuoteAlways(name)
}

// QuoteAlways writes a name as SQL, in quotes.
func (d Dialect) QuoteAlways(name string) string {
	mark := `"`
	if d.Has(MySQL) {
		mark = "`"
	}
	return mark + strings.ReplaceAll(name, mark, mark+mark) + mark
}

// TableName is the name of a table. Schema is "" where the statement names none.
type TableName struct{ Schema, Name string }

// String writes the name with its schema.
func (t TableName) String() string {
	if t.Schema == "" {
		return t.Name
	}
	return t.Schema + "." + t.Name
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
	case d.Has(Postgres) && t.partitioned: // CONCURRENTLY is not possible
		return fmt.Sprintf("CREATE INDEX ON %s (%s)", table, list)
	case d.Has(Postgres):
		return fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s)", table, list)
	}
	name := t.Full.Name
	for _, c := range columns {
		name += "_" + c.Name
	}
	name = strings.ToValidUTF8(name[:min(len(name), indexNameMax)], "")
	command := fmt.Sprintf("CREATE INDEX %s ON %s (%s)", d.Quote(name), table, list)
	if d.Has(MySQL) {
		command += " ALGORITHM=INPLACE LOCK=NONE"
	}
	return command
}

// Plain returns columns of an index in their usual order.
func Plain(names []string) []IndexColumn {
	columns := make([]IndexColumn, len(names))
	for i, name := range names {
		columns[i].Name = name
	}
	return columns
}
