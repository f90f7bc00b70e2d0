package sqlite

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/feed"
)

// shape describes the columns of a source's statement under one version of the schema. It is
// immutable.
type shape struct {
	file    *dataFile
	version int64 // of the schema
	names   []string
	labels  [][]byte // by feed.Labels
	columns []column
	keys    []int // positions in columns of the key's columns
}

// column is one output column of a statement.
type column struct {
	name   string
	kind   columnKind
	text   bool // numbers are written as strings
	digits int  // of the fraction of a moment
	holds  affinity
	json   feed.JSONType
}

// Columns returns the columns of the rows; nil if they are not known yet. SQLite checks no
// types: a column can have values that its declared type does not promise.
func (s *source) Columns() []feed.Column {
	shape := s.shape.Load()
	if shape == nil {
		return nil
	}
	var all []feed.Column
	for i, c := range shape.columns {
		all = append(all, feed.Column{Name: c.name, JSON: c.json, Null: !slices.Contains(shape.keys, i)})
	}
	return all
}

// describe returns the source's current shape. It reads the columns only if the version of
// the schema has changed: SQLite prepares a statement again when a table changes, and a
// SELECT * would then have other columns. With hold, what follows in the read mostly belongs to
// the same transaction.
func (s *source) describe(c conn, hold bool) (*shape, error) {
	conn := c.Conn
	stmt, err := conn.Prepare(selectVersion)
	if err == nil {
		_, err = stmt.Step()
	}
	if err != nil {
		return nil, fmt.Errorf("read the schema's version: %w", err)
	}
	version, known := stmt.ColumnInt64(0), s.shape.Load()
	same := known != nil && known.file == c.file && known.version == version
	if same && hold {
		c.guard.held = stmt
		return known, nil
	}
	if err := stmt.Reset(); err != nil || same {
		return known, err
	}
	current := &shape{file: c.file, version: version}
	// A connection loads a new schema when it runs a statement on the file, not when it
	// prepares one.
	if _, err := integer(conn, "SELECT count(*) FROM sqlite_schema"); err != nil {
		return nil, fmt.Errorf("load the schema: %w", err)
	}
	names, err := outputNames(conn, s.inner)
	if err != nil {
		return nil, err
	}
	if current.columns, err = s.declared(conn); err != nil {
		return nil, err
	}
	if len(names) != len(current.columns) {
		return nil, fmt.Errorf("the statement has %d columns and %d as a view", len(names), len(current.columns))
	}
	for i, c := range current.columns {
		// Of two columns with one name, SQLite renames one in a derived table.
		if names[i] != c.name {
			return nil, fmt.Errorf("two output columns are named %q; rename one with AS", cmp.Or(names[i], c.name))
		}
	}
	current.names, current.labels = names, feed.Labels(names)
	if current.keys, err = s.def.KeyPositions(names); err != nil {
		return nil, err
	}
	s.shape.Store(current)
	return current, nil
}

// outputNames returns the names of a statement's columns. Of several columns with one
// name, all but one are "".
func outputNames(conn *sqlite.Conn, sql string) ([]string, error) {
	stmt, _, err := conn.PrepareTransient(sql)
	if err != nil {
		return nil, err
	}
	names := make([]string, stmt.ColumnCount())
	for i := range names {
		names[i] = stmt.ColumnName(i)
	}
	return names, stmt.Finalize()
}

// declared returns the source's columns with their declared types. The driver does not show
// those of a statement, so it creates a temporary view of the statement for a moment. A
// column of a table has the type of its CREATE TABLE; an expression has none.
func (s *source) declared(conn *sqlite.Conn) (columns []column, err error) {
	create := "CREATE TEMP VIEW spillway_feed AS SELECT * FROM (\n" + s.viewed + "\n) AS feed"
	if err := sqlitex.ExecuteTransient(conn, create, nil); err != nil {
		return nil, fmt.Errorf("find the columns' types: %w", err)
	}
	defer func() {
		interrupt := conn.SetInterrupt(nil) // an interrupted drop would leave the view for the next statement
		err = errors.Join(err, sqlitex.ExecuteTransient(conn, "DROP VIEW temp.spillway_feed", nil))
		conn.SetInterrupt(interrupt)
	}()
	rows, err := texts(conn, "SELECT name, type FROM pragma_table_info('spillway_feed', 'temp')")
	if err != nil {
		return nil, fmt.Errorf("find the columns' types: %w", err)
	}
	for _, row := range rows {
		c := column{name: row[0], kind: kindOf(row[1]), holds: affinityOf(row[1])}
		s.format(&c, row[1])
		columns = append(columns, c)
	}
	return columns, nil
}

// accepts reports whether the column can hold a key value of that kind.
func (c column) accepts(kind feed.KeyKind) bool {
	switch c.holds {
	case asInteger, asReal:
		return kind == feed.KeyInteger || kind == feed.KeyReal
	case asText:
		return kind == feed.KeyText
	case asNumber, asBound:
	}
	return true
}

// bindKey binds the values of key to the parameters from number on, each as the class it
// was read with. Values that the columns cannot hold wrap feed.ErrCursor.
func (s *shape) bindKey(stmt *sqlite.Stmt, number int, key feed.Key) error {
	values, err := key.Values(len(s.keys))
	if err != nil {
		return err
	}
	for i, value := range values {
		c := s.columns[s.keys[i]]
		if !c.accepts(value.Kind) {
			return fmt.Errorf("column %s cannot hold the key's value: %w", c.name, feed.ErrCursor)
		}
		if !bindKeyValue(stmt, number+i, value) {
			return fmt.Errorf("the key's value for column %s is no number: %w", c.name, feed.ErrCursor)
		}
	}
	return nil
}

func bindKeyValue(stmt *sqlite.Stmt, number int, value feed.KeyValue) bool {
	switch value.Kind {
	case feed.KeyInteger:
		n, err := strconv.ParseInt(value.Text, 10, 64)
		stmt.BindInt64(number, n)
		return err == nil
	case feed.KeyReal:
		x, err := strconv.ParseFloat(value.Text, 64)
		stmt.BindFloat(number, x)
		return err == nil && !math.IsNaN(x) // NaN would be bound as NULL
	case feed.KeyBlob:
		stmt.BindBytes(number, []byte(value.Text))
	default:
		stmt.BindText(number, value.Text)
	}
	return true
}
