package sqlite

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"zombiezen.com/go/sqlite"

	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// declaredTypes returns the declared types of the columns of the stream's table, by their
// names in lower case.
func (st *Stream) declaredTypes(conn *sqlite.Conn) (map[string]string, error) {
	rows, err := texts(conn, "SELECT lower(name), type FROM pragma_table_xinfo(?, NULLIF(?, ''))", st.table.Name, st.table.Schema)
	if err != nil {
		return nil, fmt.Errorf("look up the columns of %s: %w", st.def.Table, err)
	}
	declared := make(map[string]string, len(rows))
	for _, row := range rows {
		declared[row[0]] = row[1]
	}
	return declared, nil
}

// checkSchema calls checkTable inside a transaction that writes, if the file's schema has
// changed since the last call.
func (st *Stream) checkSchema(conn *sqlite.Conn) error {
	version, err := schemaVersion(conn)
	if err != nil || version == st.checked {
		return err
	}
	if err := st.checkTable(conn); err != nil {
		return err
	}
	st.checked = version
	return nil
}

// checkTable refuses a table that alters what is stored in it, or another record.
func (st *Stream) checkTable(conn *sqlite.Conn) error {
	if err := st.checkCounts(conn); err != nil {
		return fmt.Errorf("%w: %w", tables.ErrUnusable, err)
	}
	if err := st.checkColumns(conn); err != nil {
		return fmt.Errorf("%w: %w", tables.ErrUnusable, err)
	}
	return nil
}

// checkCounts refuses tables of which SQLite does not tell whether a row was stored: views with
// INSTEAD OF triggers, and conflict clauses that delete other rows.
func (st *Stream) checkCounts(conn *sqlite.Conn) error {
	found, err := texts(conn, "SELECT type, upper(sql) FROM sqlite_schema WHERE type IN ('table', 'view') AND name = ? COLLATE NOCASE", st.table.Name)
	if err != nil || len(found) == 0 || st.def.SkippedRows == stream.SkippedAccept {
		return err
	}
	switch {
	case found[0][0] == "view":
		return fmt.Errorf("%s is a view, whose INSTEAD OF trigger does not tell whether a record was stored: name the table behind it, "+
			"or set skipped_rows: accept", st.def.Table)
	case strings.Contains(strings.Join(strings.Fields(found[0][1]), " "), "ON CONFLICT REPLACE"):
		return fmt.Errorf("%s has a constraint with ON CONFLICT REPLACE, which deletes records that were stored: make the table without it, "+
			"or set skipped_rows: accept", st.def.Table)
	}
	return nil
}

// checkColumns refuses columns whose values would not arrive as they were sent: numbers
// that would be rounded, and keys of which some texts are equal to others.
func (st *Stream) checkColumns(conn *sqlite.Conn) error {
	declared, err := st.declaredTypes(conn)
	if err != nil {
		return err
	}
	for _, c := range st.schema.Columns() {
		kind, ok := declared[strings.ToLower(c.Name)]
		if !ok {
			continue // SQLite names it when the INSERT is prepared
		}
		held := affinityOf(kind)
		if c.Type == stream.Real && held == asNumber && kindOf(kind) == decimals && digitsOf(kind) > stream.RealDigits {
			return fmt.Errorf("%s", stream.RealOnDecimal(c.Name, kind))
		}
		if c.Type == stream.Decimal && (held == asReal || held == asInteger) {
			return fmt.Errorf("%s", stream.DecimalOnOther(c.Name, kind))
		}
	}
	if len(st.schema.TextKey()) == 0 {
		return nil
	}
	return st.checkKey(conn)
}

// digitsOf returns the digits of a declared type such as DECIMAL(20, 2); a large number if
// it names none.
func digitsOf(declared string) int {
	const unlimited = 1000
	found := regexp.MustCompile(`\(\s*(\d+)`).FindStringSubmatch(declared)
	if found == nil {
		return unlimited
	}
	digits, err := strconv.Atoi(found[1])
	if err != nil {
		return unlimited
	}
	return digits
}

// checkKey refuses a unique index of the key that compares texts by another collation than
// BINARY.
func (st *Stream) checkKey(conn *sqlite.Conn) error {
	rows, err := texts(conn, `SELECT i.name, c.name, c.coll
FROM pragma_index_list(?, NULLIF(?, '')) AS i, pragma_index_xinfo(i.name, NULLIF(?, '')) AS c
WHERE i."unique" AND c.key ORDER BY i.seq, c.seqno`, st.table.Name, st.table.Schema, st.table.Schema)
	if err != nil {
		return fmt.Errorf("look up the indexes of %s: %w", st.def.Table, err)
	}
	key := func(row []string) bool {
		return slices.ContainsFunc(st.def.Key, func(name string) bool { return strings.EqualFold(name, row[1]) })
	}
	for len(rows) > 0 {
		n := slices.IndexFunc(rows, func(row []string) bool { return row[0] != rows[0][0] })
		if n < 0 {
			n = len(rows)
		}
		index := rows[:n]
		rows = rows[n:]
		if len(index) != len(st.def.Key) || slices.ContainsFunc(index, func(row []string) bool { return !key(row) }) {
			continue
		}
		for _, row := range index {
			text := slices.ContainsFunc(st.schema.TextKey(), func(name string) bool { return strings.EqualFold(name, row[1]) })
			if text && !strings.EqualFold(row[2], "BINARY") {
				return fmt.Errorf("%s", stream.InexactKey(row[1], row[2], "a unique index with COLLATE BINARY"))
			}
		}
	}
	return nil
}

// decimalColumn is how the values of a decimal column are bound.
type decimalColumn struct {
	declared string
	held     affinity
	key      bool // equal numbers need equal texts
}

// decimalColumns returns the decimal columns by their positions.
func (st *Stream) decimalColumns(conn *sqlite.Conn) (map[int]decimalColumn, error) {
	if !st.schema.Has(stream.Decimal) {
		return nil, nil
	}
	declared, err := st.declaredTypes(conn)
	if err != nil {
		return nil, err
	}
	found := make(map[int]decimalColumn)
	for i, c := range st.schema.Columns() {
		if c.Type == stream.Decimal {
			kind := declared[strings.ToLower(c.Name)]
			found[i] = decimalColumn{kind, affinityOf(kind), slices.Contains(st.def.Key, c.Name)}
		}
	}
	return found, nil
}

// bind binds a decimal, and returns false if the column cannot hold it exactly. SQLite keeps
// numbers as integers of 64 bits or as doubles. A double holds a decimal if the shortest
// text that stands for the double is the decimal.
func (c decimalColumn) bind(stmt *sqlite.Stmt, param int, text []byte) bool {
	short := string(stream.TrimDecimal(text))
	if c.held == asText || c.held == asBound {
		if !c.key {
			short = string(text)
		}
		stmt.BindText(param, short)
		return true
	}
	if n, err := strconv.ParseInt(short, 10, 64); err == nil && c.held != asReal {
		stmt.BindInt64(param, n)
		return true
	}
	x, err := strconv.ParseFloat(short, 64)
	stmt.BindFloat(param, x)
	return err == nil && strconv.FormatFloat(x, 'f', -1, 64) == short
}
