package plans

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// largeTable is the number of rows above which a feed must not sort or scan a
// table for one page.
const largeTable = 10_000

// Catalog describes the tables of a database. It writes the statements; Query
// runs them.
type Catalog struct {
	Dialect Dialect
	// Query runs one statement, with its arguments as text, and returns the rows
	// as text, NULL as "".
	Query func(sql string, args ...string) ([][]string, error)
}

// Table describes a table: its columns, its indexes and, except on SQLite, its
// size. A table without columns does not exist. Without a schema it is looked
// for where the database finds plain names.
func (c Catalog) Table(name TableName) (*Table, error) {
	t := &Table{Name: name.String(), Full: name}
	read := c.readSQLite
	switch {
	case c.Dialect.Has(Postgres):
		read = c.readPostgres
	case c.Dialect.Has(MySQL):
		read = c.readMySQL
	}
	if err := read(t); err != nil {
		return nil, fmt.Errorf("describe table %s: %w", name, err)
	}
	return t, nil
}

func (c Catalog) readPostgres(t *Table) error {
	// Plain names are folded to lower case, as the server does.
	rows, err := c.Query(`SELECT c.oid, n.nspname, c.relname, greatest(c.reltuples, 0)::bigint, pg_table_size(c.oid), c.relkind, pg_table_is_visible(c.oid)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relname IN ($1::text, lower($1::text)) AND c.relkind IN ('r', 'p', 'm', 'f')
		AND CASE WHEN $2::text = '' THEN pg_table_is_visible(c.oid) ELSE n.nspname IN ($2::text, lower($2::text)) END
		ORDER BY c.relname = $1::text DESC, n.nspname = $2::text DESC LIMIT 1`, t.Full.Name, t.Full.Schema)
	if err != nil || len(rows) == 0 {
		return err
	}
	row := rows[0]
	t.Full = TableName{Schema: row[1], Name: row[2]}
	t.Rows, t.Bytes = number(row[3]), number(row[4])
	t.partitioned, t.View, t.visible = row[5] == "p", row[5] == "m" || row[5] == "f", row[6] == "t"
	columns, err := c.Query(`SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typcategory = 'N', NOT a.attnotnull
		FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`, row[0])
	if err != nil {
		return err
	}
	for _, column := range columns {
		t.Columns = append(t.Columns, Column{Name: column[0], Type: column[1], Number: column[2] == "t", Nullable: column[3] == "t" && !t.View})
	}
	// Bit 0 of an option is DESC, bit 1 NULLS FIRST.
	indexes, err := c.Query(`SELECT c.relname, coalesce(a.attname, ''), (i.indoption[k.n - 1] & 1)::int,
		CASE WHEN (i.indoption[k.n - 1] & 3) IN (0, 3) THEN '' WHEN (i.indoption[k.n - 1] & 2) <> 0 THEN 'FIRST' ELSE 'LAST' END,
		(i.indpred IS NULL AND i.indexprs IS NULL AND am.amname = 'btree')::int, i.indisunique::int, pg_get_indexdef(i.indexrelid)
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am am ON am.oid = c.relam
		CROSS JOIN LATERAL generate_series(1, i.indnkeyatts) AS k(n)
		LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.n - 1]
		WHERE i.indrelid = $1::oid AND i.indisvalid ORDER BY c.relname, k.n`, row[0])
	t.addIndexes(indexes)
	return err
}

func (c Catalog) readMySQL(t *Table) error {
	const where = "TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ?"
	var err error
	if t.Columns, err = c.MySQLColumns(t.Full); err != nil {
		return err
	}
	sizes, err := c.Query("SELECT COALESCE(TABLE_ROWS, 0), COALESCE(DATA_LENGTH, 0), TABLE_SCHEMA = DATABASE() FROM "+
		"information_schema.TABLES WHERE "+where, t.Full.Schema, t.Full.Name)
	if err != nil {
		return err
	}
	if len(sizes) > 0 {
		t.Rows, t.Bytes, t.visible = number(sizes[0][0]), number(sizes[0][1]), sizes[0][2] == "1"
	}
	indexes, err := c.Query(`SELECT INDEX_NAME, COALESCE(COLUMN_NAME, ''), COALESCE(COLLATION, '') = 'D', '',
		INDEX_TYPE = 'BTREE' AND SUB_PART IS NULL AND COLUMN_NAME IS NOT NULL, NON_UNIQUE = 0, ''
		FROM information_schema.STATISTICS WHERE `+where+" ORDER BY INDEX_NAME, SEQ_IN_INDEX", t.Full.Schema, t.Full.Name)
	t.addIndexes(indexes)
	return err
}

// MySQLColumns returns the columns of a table of MySQL or MariaDB.
func (c Catalog) MySQLColumns(t TableName) ([]Column, error) {
	rows, err := c.Query("SELECT COLUMN_NAME, COLUMN_TYPE, NUMERIC_PRECISION IS NOT NULL, IS_NULLABLE = 'YES', DATA_TYPE FROM "+
		"information_schema.COLUMNS "+
		"WHERE TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION", t.Schema, t.Name)
	var columns []Column
	for _, row := range rows {
		kind := strings.ToLower(row[4])
		prefix := strings.HasSuffix(kind, "text") || strings.HasSuffix(kind, "blob") || kind == "json" || kind == "geometry"
		columns = append(columns, Column{Name: row[0], Type: row[1], Number: row[2] == "1", Nullable: row[3] == "1", PrefixOnly: prefix})
	}
	return columns, err
}

func (c Catalog) readSQLite(t *Table) error {
	t.visible = t.Full.Schema == ""
	columns, err := c.Query(`SELECT name, type, pk, "notnull" FROM pragma_table_info(?)`, t.Full.Name)
	if err != nil {
		return err
	}
	for _, row := range columns {
		kind := strings.ToUpper(row[1])
		number := false
		for _, part := range []string{"INT", "REAL", "NUM", "DEC", "DOUB", "FLOA"} {
			number = number || strings.Contains(kind, part)
		}
		t.Columns = append(t.Columns, Column{Name: row[0], Type: kind, Number: number, Nullable: row[3] == "0"})
		if row[2] == "1" && kind == "INTEGER" {
			t.Indexes = append(t.Indexes, Index{Name: "rowid", Whole: true, Unique: true, Columns: []IndexColumn{{Name: row[0]}}})
		}
	}
	indexes, err := c.Query(`SELECT l.name, coalesce(x.name, ''), x."desc", '', l.partial = 0 AND x.cid >= 0, l."unique", ''
		FROM pragma_index_list(?) l, pragma_index_xinfo(l.name) x WHERE x.key = 1 ORDER BY l.name, x.seqno`, t.Full.Name)
	t.addIndexes(indexes)
	return err
}

// addIndexes reads one row per column of an index: the index, the column, 1 for
// DESC, where NULLs are if not at the usual end, 1 for a whole index, 1 for a
// unique one, and the definition.
func (t *Table) addIndexes(rows [][]string) {
	for _, row := range rows {
		if len(t.Indexes) == 0 || t.Indexes[len(t.Indexes)-1].Name != row[0] {
			t.Indexes = append(t.Indexes, Index{Name: row[0], Definition: row[6], Whole: true, Unique: row[5] == "1"})
		}
		last := &t.Indexes[len(t.Indexes)-1]
		last.Columns = append(last.Columns, IndexColumn{Name: row[1], Desc: row[2] == "1", Nulls: row[3]})
		last.Whole = last.Whole && row[4] == "1"
	}
}

// rows returns how many rows a table has: PostgreSQL's planner estimates them
// from the size of the file, the others count to one more than largeTable.
func (c Catalog) rows(t TableName) (float64, error) {
	sql := fmt.Sprintf("SELECT count(*) FROM (SELECT 1 FROM %s LIMIT %d) AS counted", t.SQL(c.Dialect), largeTable+1)
	if c.Dialect.Has(Postgres) {
		sql = "EXPLAIN (FORMAT JSON) SELECT FROM " + t.SQL(c.Dialect)
	}
	answer, err := c.Query(sql)
	if err == nil && (len(answer) != 1 || len(answer[0]) != 1) {
		err = errors.New("the database returned no number")
	}
	if err != nil {
		return 0, fmt.Errorf("count the rows of %s: %w", t, err)
	}
	if !c.Dialect.Has(Postgres) {
		return float64(number(answer[0][0])), nil
	}
	p, err := ReadPostgres(answer[0][0])
	if err != nil {
		return 0, err
	}
	return p.Nodes[0].Rows, nil
}

// number reads an integer that is not negative; 0 for anything else.
func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return max(0, n)
}
