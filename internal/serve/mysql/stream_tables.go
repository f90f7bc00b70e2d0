package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/streamtables"
	"spillway/internal/serve/tables"
)

// prepareTables creates the stream's own tables once, drained also those of a spool, and
// checks the table of the records.
func (st *Stream) prepareTables(ctx context.Context, se *session, drained bool) error {
	if st.ready.Load() && (!drained || st.drained.Load()) {
		return nil
	}
	if err := tables.Ensure(ctx, tableSession{se}, dialect, streamtables.Own(drained)); err != nil {
		return err
	}
	if !st.ready.Load() {
		if err := st.checkTable(ctx, se); err != nil {
			return err
		}
	}
	st.ready.Store(true)
	if drained {
		st.drained.Store(true)
	}
	return nil
}

// checkTable refuses a table without transactions, and a key column that may be NULL. It
// finds the table's counter.
func (st *Stream) checkTable(ctx context.Context, se *session) error {
	database, table, named := strings.Cut(st.def.Table, ".")
	if !named {
		database, table = "", st.def.Table
	}
	const where = " WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?"
	engines, err := se.texts(ctx, "SELECT engine FROM information_schema.tables"+where, database, table)
	if err != nil {
		return err
	}
	if len(engines) == 1 && engines[0][0] != "" && engines[0][0] != "InnoDB" {
		return fmt.Errorf("%w: %s is of engine %s, which has no transactions; run ALTER TABLE %s ENGINE=InnoDB", errTable, st.def.Table, engines[0][0], plans.ParseTableName(st.def.Table).SQL(plans.MySQL))
	}
	for _, name := range st.def.Key {
		nullable, err := se.texts(ctx, "SELECT is_nullable FROM information_schema.columns"+where+" AND column_name = ?", database, table, name)
		if err != nil {
			return err
		}
		if len(nullable) == 1 && nullable[0][0] == "YES" {
			return fmt.Errorf("%w: the key column %s of %s may be NULL; make it NOT NULL", errTable, name, st.def.Table)
		}
	}
	if err := st.findCounter(ctx, se, where, database, table); err != nil {
		return err
	}
	return st.checkColumns(ctx, se)
}

// counter is an AUTO_INCREMENT column that the stream does not write. When its type is used
// up, the server reports a value out of range, or a duplicate of the last value.
type counter struct {
	column  string
	indexes []string // unique ones over that column alone
}

// findCounter finds the table's counter.
func (st *Stream) findCounter(ctx context.Context, se *session, where, database, table string) error {
	columns, err := se.texts(ctx, "SELECT column_name FROM information_schema.columns"+where+" AND extra LIKE '%auto_increment%'", database, table)
	if err != nil || len(columns) == 0 {
		return err
	}
	c := &counter{column: columns[0][0]}
	if slices.ContainsFunc(st.columns, func(s stream.Column) bool { return strings.EqualFold(s.Name, c.column) }) {
		return nil
	}
	indexes, err := se.texts(ctx, "SELECT index_name FROM information_schema.statistics"+where+" AND non_unique = 0 GROUP BY index_name HAVING count(*) = 1 AND max(column_name) = ?", database, table, c.column)
	if err != nil {
		return err
	}
	for _, row := range indexes {
		c.indexes = append(c.indexes, row[0])
	}
	st.counter.Store(c)
	return nil
}

// causes reports whether an error says that the counter is used up.
func (c *counter) causes(err *mysql.MySQLError) bool {
	switch {
	case c == nil:
		return false
	case err.Number == numOutOfRange || err.Number == numCounterRange:
		return strings.Contains(err.Message, "'"+c.column+"'")
	case err.Number == numDuplicate:
		return slices.ContainsFunc(c.indexes, func(name string) bool {
			return strings.HasSuffix(err.Message, "'"+name+"'") || strings.HasSuffix(err.Message, "."+name+"'")
		})
	}
	return false
}

// errTable is the error of a table that cannot be used.
var errTable = errors.New("the table cannot be used")
