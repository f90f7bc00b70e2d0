package mysql

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// inDatabase is the condition of a row of information_schema that is about a table. Its parameters are
// the table's database, "" for that of the session, and its name.
const inDatabase = "table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?"

// checkEngine returns the type of a table, such as VIEW, or "" if it does not exist, and refuses a table without transactions.
func (se *session) checkEngine(ctx context.Context, name plans.TableName) (kind string, err error) {
	rows, err := se.texts(ctx, "SELECT table_type, engine FROM information_schema.tables WHERE "+inDatabase, name.Schema, name.Name)
	if err != nil || len(rows) == 0 {
		return "", err
	}
	kind, engine := rows[0][0], rows[0][1]
	if sql := name.SQL(plans.MySQL); kind != "VIEW" && engine != "InnoDB" {
		err = fmt.Errorf("%w: %s is of engine %s, which has no transactions; run ALTER TABLE %s ENGINE=InnoDB",
			tables.ErrUnusable, sql, engine, sql)
	}
	return kind, err
}

// tableColumn is a column of the stream's table, as far as the stream must know it.
type tableColumn struct {
	kind             string // such as decimal
	full             string // such as decimal(10,2) unsigned
	precision, scale int    // of a decimal; scale also of a time, precision also of a BIT
	charset          string // of a text
	length, bytes    int    // of a text, in characters and in bytes
	collation        string
	nullable         bool
	document         bool // JSON of MariaDB, which takes some texts that are not JSON, such as -
}

// readColumns reads the columns of the stream's table by their names in lower case.
func (st *Stream) readColumns(ctx context.Context, se *session) (map[string]tableColumn, error) {
	name := plans.ParseTableName(st.def.Table)
	rows, err := se.texts(ctx, "SELECT column_name, data_type, COALESCE(numeric_precision, 0), "+
		"COALESCE(numeric_scale, datetime_precision, 0), COALESCE(character_set_name, ''), COALESCE(collation_name, ''), "+
		"COALESCE(character_maximum_length, 0), COALESCE(character_octet_length, 0), column_type, "+
		"is_nullable = 'YES' FROM information_schema.columns WHERE "+inDatabase, name.Schema, name.Name)
	if err != nil {
		return nil, fmt.Errorf("look up the columns of %s: %w", st.def.Table, err)
	}
	documents, err := se.documents(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("look up the constraints of %s: %w", st.def.Table, err)
	}
	columns := make(map[string]tableColumn, len(rows))
	for _, row := range rows {
		var numbers [4]int
		for i, at := range []int{2, 3, 6, 7} {
			n, err := strconv.ParseUint(row[at], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("look up the columns of %s: %w", st.def.Table, err)
			}
			numbers[i] = int(min(n, math.MaxInt32))
		}
		columns[strings.ToLower(row[0])] = tableColumn{
			kind: strings.ToLower(row[1]), precision: numbers[0], scale: numbers[1], charset: row[4], collation: row[5],
			length: numbers[2], bytes: numbers[3], full: row[8], nullable: row[9] == "1",
			document: slices.Contains(documents, row[0]),
		}
	}
	return columns, nil
}

// checkColumns refuses columns that do not hold the stream's values exactly, and keys of which some
// values are equal to others, or that may be NULL.
func (st *Stream) checkColumns(ctx context.Context, se *session) ([]heldColumn, error) {
	table, err := st.readColumns(ctx, se)
	if err != nil {
		return nil, err
	}
	held := make([]heldColumn, len(st.columns))
	for i, c := range st.columns {
		isKey := slices.Contains(st.def.Key, c.Name)
		found, ok := table[strings.ToLower(c.Name)]
		held[i] = heldColumn{tableColumn: found, Column: c, isKey: isKey, bind: bindNothing}
		if !ok {
			continue // the database names it when the INSERT is prepared
		}
		if err := held[i].pair(); err != nil {
			return nil, fmt.Errorf("%w: %w", tables.ErrUnusable, err)
		}
		if isKey && found.nullable {
			return nil, fmt.Errorf("%w: the key column %s of %s may be NULL; make it NOT NULL", tables.ErrUnusable, c.Name, st.def.Table)
		}
		if slices.Contains(st.textKey, c.Name) {
			if !found.exact() {
				return nil, fmt.Errorf("%w: %s", tables.ErrUnusable, stream.InexactKey(c.Name, found.collation, "COLLATE "+found.charset+"_bin"))
			}
			held[i].strict = true
		}
		if found.kind == "datetime" || found.kind == "timestamp" {
			if reason := c.CheckSeconds(st.db.log, st.def.Name, found.full, found.scale); reason != "" {
				return nil, fmt.Errorf("%w: %s", tables.ErrUnusable, reason)
			}
		}
	}
	return held, st.checkIndex(ctx, se)
}

// checkIndex refuses a key of which a table may have a value twice. Those behind a view are not looked at.
func (st *Stream) checkIndex(ctx context.Context, se *session) error {
	if len(st.def.Key) == 0 {
		return nil
	}
	name := plans.ParseTableName(st.def.Table)
	args := []any{name.Schema, name.Name, name.Schema, name.Name}
	for _, column := range st.def.Key {
		args = append(args, column)
	}
	rows, err := se.texts(ctx, "SELECT 1 FROM information_schema.tables WHERE "+inDatabase+" AND table_type <> 'VIEW' AND NOT EXISTS ("+
		"SELECT 1 FROM information_schema.statistics WHERE "+inDatabase+" AND non_unique = 0 "+
		"GROUP BY index_name HAVING SUM(COALESCE(column_name, '') NOT IN (?"+strings.Repeat(", ?", len(st.def.Key)-1)+")) = 0)", args...)
	if err == nil && len(rows) > 0 {
		err = fmt.Errorf("%w: %s has no unique index on %s; create one, or drop the stream's key", tables.ErrUnusable, st.def.Table,
			strings.Join(st.def.Key, ", "))
	}
	return err
}

// exact reports whether a column tells all texts apart, apart from spaces at their end.
// Other collations take letters as equal, or ignore characters.
func (c tableColumn) exact() bool {
	return c.collation == "" || strings.HasSuffix(c.collation, "_bin") || c.isList()
}

// isList reports whether a column has the texts that its type lists.
func (c tableColumn) isList() bool { return c.kind == "enum" || c.kind == "set" }

// padded reports whether a column ignores the spaces at the end of a text. In a CHAR, they are not stored either.
func (c tableColumn) padded() bool {
	return c.collation != "" && !strings.Contains(c.collation, "nopad") && !strings.Contains(c.collation, "0900")
}

// cuts reports whether a text is longer than the column. The server cuts white space at its end off without an error.
func (c tableColumn) cuts(text []byte) bool {
	size := len(text)
	if strings.HasPrefix(c.charset, "u") && !strings.HasPrefix(c.charset, "utf8") {
		size *= 4 // at most, in ucs2, utf16 and utf32
	}
	last, _ := utf8.DecodeLastRune(text)
	return utf8.RuneCount(text) > c.length || strings.HasSuffix(c.kind, "text") && size > c.bytes && unicode.IsSpace(last)
}
