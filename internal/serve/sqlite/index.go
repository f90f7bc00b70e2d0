package sqlite

import (
	"fmt"
	"slices"
	"strings"

	"zombiezen.com/go/sqlite"

	"spillway/internal/serve/feed"
)

// advise returns an error that ends in the index for the feed's key on table.
func (c check) advise(reason, table string) error {
	columns, err := columnsOf(c.conn, table)
	if err != nil {
		return err
	}
	for _, key := range c.feed.def.Key {
		if !slices.ContainsFunc(columns, func(name string) bool { return strings.EqualFold(name, key.Name) }) {
			return fmt.Errorf("%s; add an index of %s on the columns shown as %s, in this order", reason, table, nameList(c.feed.def.Key))
		}
	}
	var equal []string
	for i, s := range c.plan {
		if c.schema.table(s.table()) == table && c.plan.leads(i) {
			equal = slices.DeleteFunc(s.equal(), func(name string) bool {
				return slices.ContainsFunc(c.feed.def.Key, func(key feed.KeyColumn) bool { return strings.EqualFold(key.Name, name) })
			})
			break
		}
	}
	exists, err := hasIndex(c.conn, table, equal, c.feed.def.Key)
	if err != nil {
		return err
	}
	if exists {
		return fmt.Errorf("%s, although an index has them in this order; run ANALYZE, or write CROSS JOIN behind %s so that it is read first", reason, table)
	}
	return fmt.Errorf("%s; add: %s", reason, c.createIndex(table, equal, c.feed.def.Key))
}

// keyTables returns the tables whose columns are the feed's key, without
// repetition, and none when a key column is computed.
func (c check) keyTables() ([]string, error) {
	stmt, _, err := c.conn.PrepareTransient(c.feed.texts[keysOnly])
	if err != nil {
		return nil, err
	}
	var tables []string
	for i := range c.feed.def.Key {
		name := stmt.ColumnTableName(i)
		if name == "" {
			tables = nil
			break
		}
		if !slices.Contains(tables, name) {
			tables = append(tables, name)
		}
	}
	return tables, stmt.Finalize()
}

// createIndex writes the index that starts with the columns in equal and goes
// on in the order of key. Names are quoted only if SQLite needs it.
func (c check) createIndex(table string, equal []string, key []feed.KeyColumn) string {
	columns := indexColumns(equal, key)
	plain := indexStatement(table, columns, func(name string) string { return name })
	stmt, _, err := c.conn.PrepareTransient(plain)
	if err != nil {
		return indexStatement(table, columns, quote)
	}
	_ = stmt.Finalize() // it did not run
	return plain
}

func indexStatement(table string, columns []feed.KeyColumn, write func(name string) string) string {
	name := table
	var list []string
	for _, column := range columns {
		name += "_" + column.Name
		list = append(list, write(column.Name)+direction(column))
	}
	return fmt.Sprintf("CREATE INDEX %s ON %s (%s)", write(name), write(table), strings.Join(list, ", "))
}

// indexColumns returns the columns in equal, then those of key.
func indexColumns(equal []string, key []feed.KeyColumn) []feed.KeyColumn {
	var columns []feed.KeyColumn
	for _, name := range equal {
		columns = append(columns, feed.KeyColumn{Name: name, Ascending: true})
	}
	return append(columns, key...)
}

// hasIndex says whether an index of table starts with the columns in equal and then has the
// order of key, forwards or backwards. The rows themselves are in the order of
// an INTEGER PRIMARY KEY.
func hasIndex(conn *sqlite.Conn, table string, equal []string, key []feed.KeyColumn) (bool, error) {
	have, err := texts(conn, `
		SELECT (SELECT group_concat(c.name || c.desc, char(0)) FROM pragma_index_xinfo(l.name) AS c WHERE c.key)
			FROM pragma_index_list(?1) AS l WHERE NOT l.partial
		UNION ALL SELECT name || 0 FROM pragma_table_info(?1) WHERE pk = 1 AND upper(type) = 'INTEGER'`, table)
	if err != nil {
		return false, err
	}
	forwards, backwards := "", ""
	for i, column := range indexColumns(equal, key) {
		up, down := "0", "1"
		if !column.Ascending {
			up, down = down, up
		}
		if i < len(equal) {
			down = up
		}
		forwards += column.Name + up + "\x00"
		backwards += column.Name + down + "\x00"
	}
	return slices.ContainsFunc(have, func(columns string) bool {
		columns += "\x00"
		return strings.HasPrefix(columns, forwards) || strings.HasPrefix(columns, backwards)
	}), nil
}
