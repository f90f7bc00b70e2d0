package mysql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"spillway/internal/serve/feed"
)

// variantsMax bounds the kinds of results that one feed remembers.
const variantsMax = 16

// description is what is known of a feed's columns: how they are when the parameters
// are samples, and the variants seen since. A column that shows a parameter has a
// type that depends on its value.
type description struct {
	columns  *columns
	flavours map[string]flavour

	mu       sync.Mutex
	variants []*columns
}

// match returns the columns that describe rows; nil when there are none yet.
func (d *description) match(rows driver.Rows, keysOnly bool) *columns {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range append(d.variants, d.columns) {
		if keysOnly {
			c = c.keys
		}
		if c.describe(rows) {
			return c
		}
	}
	return nil
}

// adapt returns columns for rows of another type than described. Another name, or a
// key that is compared in another way, is an error: errOutdated.
func (d *description) adapt(def feed.Definition, rows driver.Rows, keysOnly bool) (*columns, error) {
	list := metadataOf(rows)
	if keysOnly {
		for _, m := range list {
			if !slices.ContainsFunc(d.columns.key, func(k keyColumn) bool { return k.name == m.name }) {
				return nil, errOutdated
			}
		}
	} else if !slices.EqualFunc(list, d.columns.names, func(m metadata, name string) bool { return m.name == name }) {
		return nil, errOutdated
	}
	c, err := newColumns(def, list, d.flavours)
	if err != nil {
		return nil, err
	}
	for i, k := range c.key {
		if k.kind != d.columns.key[i].kind || k.placeholder != d.columns.key[i].placeholder {
			return nil, errOutdated
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !keysOnly && len(d.variants) < variantsMax {
		d.variants = append(d.variants, c)
	}
	return c, nil
}

// describe returns what is known of the feed's columns, asking the database the first
// time and after outdated was called.
func (f *Feed) describe(ctx context.Context) (*description, error) {
	old := f.known.Load()
	if old != nil && !f.stale.Load() {
		return old, nil
	}
	var d *description
	ask := func(ctx context.Context, se *session) (err error) {
		d, _, err = f.ask(ctx, se)
		return err
	}
	err := f.db.withSession(ctx, ask)
	if err != nil && ctx.Err() == nil && worthRetrying(err) {
		err = f.db.withSession(ctx, ask)
	}
	if err != nil {
		return nil, err
	}
	f.stale.Store(false)
	if old != nil && old.columns.same(d.columns) && maps.Equal(old.flavours, d.flavours) {
		return old, nil // and the variants seen
	}
	f.known.Store(d)
	return d, nil
}

// ask describes the feed's columns: their types from a result without rows, and
// from the tables that they come from what a result does not tell.
func (f *Feed) ask(ctx context.Context, se *session) (*description, *origins, error) {
	args, err := f.bindParams(f.samples())
	if err != nil {
		return nil, nil, err
	}
	empty := "SELECT * FROM " + writer{body: f.body}.derived() + " LIMIT 0"
	var list []metadata
	s := &statement{sql: empty, columns: func(rows driver.Rows) (*columns, error) {
		list = metadataOf(rows)
		return nil, nil
	}}
	if err := se.run(ctx, s, namedValues(args), discard{}); err != nil {
		return nil, nil, err
	}
	o, err := f.readOrigins(ctx, se, empty, args)
	if err != nil {
		return nil, nil, err
	}
	flavours := o.flavours()
	c, err := newColumns(f.def, list, flavours)
	return &description{columns: c, flavours: flavours}, o, err
}

// origins says which tables a statement reads and which of their columns its own
// show. What cannot be told is not in it.
type origins struct {
	outputs map[string]columnName  // by name of the output column
	tables  map[string]tableName   // by alias
	columns map[columnName]details // of the tables read
}

type tableName struct{ schema, table string }

type columnName struct {
	tableName
	column string
}

// details are what information_schema says about a column.
type details struct {
	typ      string // "tinyint(1)"
	nullable bool
	flavour  flavour
}

// quotedPath matches names in backticks joined by dots, as the server writes them,
// and the alias that a table has behind it.
var quotedPath = regexp.MustCompile("((?:`(?:[^`]|``)+`\\.)*`(?:[^`]|``)+`)(?: (`(?:[^`]|``)+`))?")

// readOrigins explains the statement and reads what the server says that it
// understood: every column is there with its table.
func (f *Feed) readOrigins(ctx context.Context, se *session, sql string, args []any) (*origins, error) {
	if _, err := se.texts(ctx, se.Server.Explain()+sql, args...); err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	understood, err := se.understood(ctx)
	if err != nil {
		return nil, err
	}
	o := &origins{
		outputs: make(map[string]columnName),
		columns: make(map[columnName]details),
	}
	if o.tables, err = se.existing(ctx, readTables(understood)); err != nil {
		return nil, fmt.Errorf("look up the tables: %w", err)
	}
	for _, t := range o.tables {
		if err := o.readColumns(ctx, se, t); err != nil {
			return nil, fmt.Errorf("look up the columns of %s: %w", t.table, err)
		}
	}
	for output, path := range readOutputs(understood) {
		t, ok := o.tables[path.alias]
		if !ok {
			continue
		}
		column := columnName{t, path.column}
		if _, ok := o.columns[column]; ok {
			o.outputs[output] = column
		}
	}
	return o, nil
}

// understood returns the statement that was explained last as the server rewrote it.
func (se *session) understood(ctx context.Context) (string, error) {
	rows, err := se.Query(ctx, "SHOW WARNINGS")
	if err != nil {
		return "", fmt.Errorf("read how the server understood the statement: %w", err)
	}
	for _, row := range rows {
		if row[1] == "1003" {
			return normalize(row[2]), nil
		}
	}
	return "", nil
}

// normalize empties the strings of a statement that the server wrote, so that no
// name is found in one, and puts all names in backticks: where the sql_mode has
// ANSI_QUOTES they are in double quotes.
func normalize(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		c := text[i]
		if c != '\'' && c != '"' && c != '`' {
			b.WriteByte(c)
			i++
			continue
		}
		content, length := quotedAt(text[i:])
		i += length
		if c == '\'' {
			b.WriteString("''")
		} else {
			b.WriteString(quoteName(content))
		}
	}
	return b.String()
}

// quotedAt returns what is between the quote that text starts with and the next that
// is not doubled, and the length of it all. In strings a backslash escapes.
func quotedAt(text string) (content string, length int) {
	quote := text[0]
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch {
		case quote == '\'' && text[i] == '\\' && i+1 < len(text):
			i++
		case text[i] == quote && i+1 < len(text) && text[i+1] == quote:
			i++
		case text[i] == quote:
			return b.String(), i + 1
		}
		b.WriteByte(text[i])
	}
	return b.String(), len(text)
}

// aliased is a table that may be meant by an alias.
type aliased struct {
	alias string
	tableName
}

// readTables finds what may be a table in a statement that the server wrote: names of
// two parts, with an alias behind or none. Columns of views and derived tables look
// like that, too.
func readTables(understood string) []aliased {
	var list []aliased
	for _, match := range quotedPath.FindAllStringSubmatch(understood, -1) {
		path := splitPath(match[1])
		if len(path) != 2 {
			continue
		}
		found := aliased{alias: path[1], tableName: tableName{path[0], path[1]}}
		if match[2] != "" {
			found.alias = unquoteName(match[2])
		}
		if !slices.Contains(list, found) {
			list = append(list, found)
		}
	}
	return list
}

// existing returns those that are tables, by alias.
func (se *session) existing(ctx context.Context, list []aliased) (map[string]tableName, error) {
	tables := make(map[string]tableName)
	if len(list) == 0 {
		return tables, nil
	}
	var args []any
	for _, found := range list {
		args = append(args, found.schema, found.table)
	}
	rows, err := se.texts(ctx, "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE "+
		strings.TrimPrefix(strings.Repeat(" OR TABLE_SCHEMA = ? AND TABLE_NAME = ?", len(list)), " OR "), args...)
	if err != nil {
		return nil, err
	}
	for _, found := range list {
		there := slices.ContainsFunc(rows, func(row []string) bool {
			return strings.EqualFold(row[0], found.schema) && strings.EqualFold(row[1], found.table)
		})
		if _, taken := tables[found.alias]; there && !taken {
			tables[found.alias] = found.tableName
		}
	}
	return tables, nil
}

// columnPath matches a column as the server writes it: with the schema and the alias
// of its table, or within views with the alias alone.
const columnPath = "((?:`(?:[^`]|``)+`\\.){1,2}`(?:[^`]|``)+`)"

var outputColumn = regexp.MustCompile("^" + columnPath + " AS (`(?:[^`]|``)+`)$")

// source is a column by the alias of its table.
type source struct{ alias, column string }

func readSource(text string) source {
	path := splitPath(text)
	return source{alias: path[len(path)-2], column: path[len(path)-1]}
}

// readOutputs returns the outermost columns that are columns of tables, by the name
// that each is shown under. Where the feed's own statement could not be merged with
// what is around it, its columns are those of the second SELECT.
func readOutputs(understood string) map[string]source {
	outputs := selectList(understood)
	if i := strings.Index(understood, "/* select#2 */"); i >= 0 {
		maps.Copy(outputs, selectList(understood[i:]))
	}
	return outputs
}

// selectList returns the columns of the first SELECT in a text that are columns of
// tables.
func selectList(understood string) map[string]source {
	outputs := make(map[string]source)
	start := strings.Index(understood, "select ")
	if start < 0 {
		return outputs
	}
	for _, item := range splitList(understood[start+len("select "):]) {
		if match := outputColumn.FindStringSubmatch(strings.TrimSpace(item)); match != nil {
			outputs[unquoteName(match[2])] = readSource(match[1])
		}
	}
	return outputs
}

// splitList cuts a list at its commas, up to the FROM behind it.
func splitList(text string) []string {
	var items []string
	depth, start := 0, 0
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '`': // a doubled one ends and begins
			quoted = !quoted
		case quoted:
		case c == '(':
			depth++
		case c == ')':
			depth--
		case depth == 0 && c == ',':
			items = append(items, text[start:i])
			start = i + 1
		case depth == 0 && strings.HasPrefix(text[i:], " from "):
			return append(items, text[start:i])
		}
	}
	return append(items, text[start:])
}

// splitPath splits names in backticks joined by dots.
func splitPath(text string) []string {
	var parts []string
	for text != "" {
		part, length := quotedAt(text)
		parts = append(parts, part)
		text = strings.TrimPrefix(text[length:], ".")
	}
	return parts
}

func unquoteName(text string) string {
	name, _ := quotedAt(text)
	return name
}

// readColumns reads what information_schema says about a table's columns.
func (o *origins) readColumns(ctx context.Context, se *session, t tableName) error {
	rows, err := se.texts(ctx, "SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?", t.schema, t.table)
	if err != nil {
		return err
	}
	for _, row := range rows {
		d := details{typ: row[1], nullable: row[2] == "YES"}
		if strings.HasPrefix(row[1], "tinyint(1)") {
			d.flavour = boolean
		}
		o.columns[columnName{t, row[0]}] = d
	}
	if !se.Server.MariaDB || len(rows) == 0 {
		return nil
	}
	// MariaDB's JSON is LONGTEXT with a constraint of the column's name.
	rows, err = se.texts(ctx, "SELECT CONSTRAINT_NAME, CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = ? AND TABLE_NAME = ?", t.schema, t.table)
	if err != nil {
		return err
	}
	for _, row := range rows {
		name := columnName{t, row[0]}
		if d, ok := o.columns[name]; ok && normalize(row[1]) == "json_valid("+quoteName(row[0])+")" {
			d.flavour = document
			o.columns[name] = d
		}
	}
	return nil
}

// flavours returns those of the output columns.
func (o *origins) flavours() map[string]flavour {
	list := make(map[string]flavour)
	for output, column := range o.outputs {
		list[output] = o.columns[column].flavour
	}
	return list
}
