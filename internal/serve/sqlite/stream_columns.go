package sqlite

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"zombiezen.com/go/sqlite"

	"spillway/internal/serve/stream"
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

// checkColumns refuses columns that do not hold the stream's values exactly, and keys of which some
// values are equal to others.
func (st *Stream) checkColumns(conn *sqlite.Conn) error {
	declared, err := st.declaredTypes(conn)
	if err != nil {
		return err
	}
	strict, err := texts(conn, "SELECT 1 FROM pragma_table_list(?) WHERE schema = COALESCE(NULLIF(?, ''), 'main') AND strict",
		st.table.Name, st.table.Schema)
	if err != nil {
		return fmt.Errorf("look up the table %s: %w", st.def.Table, err)
	}
	columns := st.schema.Columns()
	held := make([]heldColumn, len(columns))
	for i, c := range columns {
		kind, ok := declared[strings.ToLower(c.Name)]
		held[i] = heldColumn{Column: c, declared: kind, affinity: affinityOf(kind), isKey: slices.Contains(st.def.Key, c.Name), bind: bindText}
		if !ok {
			continue // SQLite names it when the INSERT is prepared
		}
		if len(strict) > 0 {
			held[i].blobsOnly = strings.EqualFold(kind, "BLOB")
			if strings.EqualFold(kind, "ANY") {
				held[i].affinity = asBound
			}
		}
		if err := held[i].pair(); err != nil {
			return err
		}
	}
	st.held = held
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
