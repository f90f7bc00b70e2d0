package mysql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
)

// variantsMax is the number of variants that one feed remembers.
const variantsMax = 16

// description holds the columns of a feed or a query for sample parameters, and the variants seen
// since. A column that shows a parameter has a type that depends on the value.
type description struct {
	columns  *columns
	subtypes map[string]subtype

	mu       sync.Mutex
	variants []*columns // the columns first
}

// match returns the columns that match rows, nil if there are none.
func (d *description) match(rows driver.Rows, keysOnly bool) *columns {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.variants {
		if keysOnly {
			c = c.keys
		}
		if c.matches(rows) {
			return c
		}
	}
	return nil
}

// adapt returns columns for rows whose types differ from the description. Other names, or
// keys that are compared differently, are errOutdated.
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
	c, err := newColumns(def, list, d.subtypes)
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
	if !keysOnly && len(d.variants) <= variantsMax {
		d.variants = append(d.variants, c)
	}
	return c, nil
}

// describe returns the description of the feed. It asks the database the first time and when the description is stale.
func (s *source) describe(ctx context.Context) (*description, error) {
	old := s.known.Load()
	if old != nil && !s.stale.Load() {
		return old, nil
	}
	var d *description
	err := s.db.again(ctx, s.db.statementLimit(), func(ctx context.Context, se *session) (err error) {
		d, _, err = s.ask(ctx, se)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.stale.Store(false)
	if old != nil && old.columns.same(d.columns) && maps.Equal(old.subtypes, d.subtypes) {
		return old, nil // keeps the variants seen
	}
	s.known.Store(d)
	return d, nil
}

// Columns returns the columns of the rows; nil if they are not known yet.
func (s *source) Columns() []feed.Column {
	d := s.known.Load()
	if d == nil {
		return nil
	}
	var all []feed.Column
	for i, name := range d.columns.names {
		isKey := slices.ContainsFunc(d.columns.key, func(k keyColumn) bool { return k.index == i })
		json := d.columns.forms[i].json
		zeroDate := strings.HasPrefix(d.columns.types[i], "DATE") || json == feed.JSONTimestamp
		all = append(all, feed.Column{Name: name, JSON: json, Null: !isKey || zeroDate})
	}
	return all
}

// ask reads the feed's columns: their types from an empty result, and the rest from their tables.
func (s *source) ask(ctx context.Context, se *session) (*description, *origins, error) {
	args, err := s.bindParams(s.samples(-1, nil), nil, nil)
	if err != nil {
		return nil, nil, err
	}
	empty := "SELECT * FROM " + writer{body: s.body}.derived() + " LIMIT 0"
	var list []metadata
	st := statement{sql: empty, columns: func(rows driver.Rows) (*columns, error) {
		list = metadataOf(rows)
		return nil, nil
	}}
	if err := se.run(ctx, st, namedValues(args), feed.Discard{}); err != nil {
		return nil, nil, err
	}
	o, err := s.readOrigins(ctx, se, empty, args)
	if err != nil {
		return nil, nil, err
	}
	subtypes := o.subtypes()
	c, err := newColumns(s.def, list, subtypes)
	return &description{columns: c, subtypes: subtypes, variants: []*columns{c}}, o, err
}

// origins says which tables a statement reads and which of their columns it shows. What the server does not tell is not in it.
type origins struct {
	outputs map[string]origin          // by name of the output column
	tables  map[string]plans.TableName // by alias
}

// origin is the table column that an output column shows.
type origin struct {
	plans.Column
	table   plans.TableName
	subtype subtype
}

// readOrigins explains the statement and reads what the server made of it: every column comes with its table.
func (s *source) readOrigins(ctx context.Context, se *session, sql string, args []any) (*origins, error) {
	plan, err := se.explain(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	rewritten := plan.Rewritten
	o := &origins{outputs: make(map[string]origin)}
	if o.tables, err = se.existing(ctx, rewritten.Tables()); err != nil {
		return nil, fmt.Errorf("look up the tables: %w", err)
	}
	columns := make(map[plans.TableName][]origin)
	for _, t := range o.tables {
		if columns[t], err = se.columnsOf(ctx, t); err != nil {
			return nil, fmt.Errorf("look up the columns of %s: %w", t, err)
		}
	}
	for output, ref := range rewritten.Outputs() {
		for _, column := range columns[o.tables[ref.Table]] {
			if column.Name == ref.Name {
				o.outputs[output] = column
			}
		}
	}
	return o, nil
}

// existing returns those of the list that are tables, by alias.
func (se *session) existing(ctx context.Context, list []plans.AliasedTable) (map[string]plans.TableName, error) {
	tables := make(map[string]plans.TableName)
	if len(list) == 0 {
		return tables, nil
	}
	var args []any
	for _, found := range list {
		args = append(args, found.Schema, found.Name)
	}
	rows, err := se.texts(ctx, "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE "+
		strings.TrimPrefix(strings.Repeat(" OR TABLE_SCHEMA = ? AND TABLE_NAME = ?", len(list)), " OR "), args...)
	if err != nil {
		return nil, err
	}
	for _, found := range list {
		exists := slices.ContainsFunc(rows, func(row []string) bool {
			return strings.EqualFold(row[0], found.Schema) && strings.EqualFold(row[1], found.Name)
		})
		if _, taken := tables[found.Alias]; exists && !taken {
			tables[found.Alias] = found.TableName
		}
	}
	return tables, nil
}

// columnsOf reads the columns of a table.
func (se *session) columnsOf(ctx context.Context, t plans.TableName) ([]origin, error) {
	described, err := se.catalog(ctx).MySQLColumns(t)
	if err != nil {
		return nil, err
	}
	columns := make([]origin, len(described))
	for i, c := range described {
		columns[i] = origin{Column: c, table: t}
		if strings.HasPrefix(c.Type, "tinyint(1)") {
			columns[i].subtype = boolean
		}
	}
	documents, err := se.documents(ctx, t)
	for i, c := range columns {
		if slices.Contains(documents, c.Name) {
			columns[i].subtype = document
		}
	}
	return columns, err
}

// documents returns the columns of a table that are MariaDB's JSON, which is LONGTEXT with a constraint of the column's name.
func (se *session) documents(ctx context.Context, t plans.TableName) (names []string, err error) {
	if !se.Server.MariaDB {
		return nil, nil
	}
	rows, err := se.texts(ctx, "SELECT CONSTRAINT_NAME, CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS "+
		"WHERE CONSTRAINT_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ?", t.Schema, t.Name)
	for _, row := range rows {
		if plans.ChecksJSON(row[1], row[0]) {
			names = append(names, row[0])
		}
	}
	return names, err
}

// subtypes returns those of the output columns.
func (o *origins) subtypes() map[string]subtype {
	list := make(map[string]subtype)
	for output, column := range o.outputs {
		list[output] = column.subtype
	}
	return list
}

// key returns the feed's key with the origins of its columns.
func (o *origins) key(def feed.Definition) []plans.KeyColumn {
	var key []plans.KeyColumn
	for _, k := range def.Key {
		column := o.outputs[k.Name]
		key = append(key, plans.KeyColumn{Output: k.Name, Desc: !k.Ascending, Table: column.table, Column: column.Name})
	}
	return key
}
