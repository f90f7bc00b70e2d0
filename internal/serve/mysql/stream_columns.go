package mysql

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// checkEngine refuses a table without transactions.
func (se *session) checkEngine(ctx context.Context, name plans.TableName) error {
	rows, err := se.texts(ctx, "SELECT engine FROM information_schema.tables WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) "+
		"AND table_name = ?", name.Schema, name.Name)
	if err == nil && len(rows) == 1 && rows[0][0] != "" && rows[0][0] != "InnoDB" { // "" for a view
		err = otherEngine(name, rows[0][0])
	}
	return err
}

// otherEngine refuses a table without transactions of this server.
func otherEngine(name plans.TableName, engine string) error {
	sql := name.SQL(plans.MySQL)
	return fmt.Errorf("%w: %s is of engine %s, which has no transactions; run ALTER TABLE %s ENGINE=InnoDB", tables.ErrUnusable, sql, engine, sql)
}

// tableColumn is a column of the stream's table, as far as the stream must know it.
type tableColumn struct {
	kind             string // such as decimal
	precision, scale int    // of a decimal
	charset          string // of a text
	length           int    // of a text, in characters
	collation        string
	nullable         bool
}

// readColumns reads the columns of the stream's table by their names in lower case.
func (st *Stream) readColumns(ctx context.Context, se *session) (map[string]tableColumn, error) {
	name := plans.ParseTableName(st.def.Table)
	rows, err := se.texts(ctx, "SELECT column_name, data_type, COALESCE(numeric_precision, 0), COALESCE(numeric_scale, 0), "+
		"COALESCE(character_set_name, ''), COALESCE(collation_name, ''), COALESCE(character_maximum_length, 0), "+
		"is_nullable = 'YES' FROM information_schema.columns WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?",
		name.Schema, name.Name)
	if err != nil {
		return nil, fmt.Errorf("look up the columns of %s: %w", st.def.Table, err)
	}
	columns := make(map[string]tableColumn, len(rows))
	for _, row := range rows {
		precision, errPrecision := strconv.Atoi(row[2])
		scale, errScale := strconv.Atoi(row[3])
		length, errLength := strconv.ParseUint(row[6], 10, 64)
		if err := errors.Join(errPrecision, errScale, errLength); err != nil {
			return nil, fmt.Errorf("look up the columns of %s: %w", st.def.Table, err)
		}
		columns[strings.ToLower(row[0])] = tableColumn{
			kind: strings.ToLower(row[1]), precision: precision, scale: scale, charset: row[4], collation: row[5], length: int(length),
			nullable: row[7] == "1",
		}
	}
	return columns, nil
}

// checkColumns refuses columns whose values would not arrive as they were sent: numbers
// that would be rounded, and keys of which some texts are equal to others, or that may be NULL.
// The spaces at the end of a text are left to inexact.
func (st *Stream) checkColumns(ctx context.Context, se *session) error {
	table, err := st.readColumns(ctx, se)
	if err != nil {
		return err
	}
	for _, c := range st.columns {
		found, ok := table[strings.ToLower(c.Name)]
		if !ok {
			continue // the database names it when the INSERT is prepared
		}
		if c.Type == stream.Real && found.kind == "decimal" && found.precision > stream.RealDigits {
			kind := fmt.Sprintf("decimal(%d,%d)", found.precision, found.scale)
			return fmt.Errorf("%w: %s", tables.ErrUnusable, stream.RealOnDecimal(c.Name, kind))
		}
		if c.Type == stream.Real && found.kind == "float" {
			return fmt.Errorf("%w: column %s is float, which keeps about 7 digits of a real: "+
				"make it double, or decimal in the table and in the stream's columns", tables.ErrUnusable, c.Name)
		}
		if c.Type == stream.Decimal && !holdsDecimals(found.kind) {
			return fmt.Errorf("%w: %s", tables.ErrUnusable, stream.DecimalOnOther(c.Name, found.kind))
		}
	}
	for _, name := range st.def.Key {
		if table[strings.ToLower(name)].nullable {
			return fmt.Errorf("%w: the key column %s of %s may be NULL; make it NOT NULL", tables.ErrUnusable, name, st.def.Table)
		}
	}
	st.table.Store(&table)
	for _, name := range st.textKey {
		if found := table[strings.ToLower(name)]; !found.exact() {
			return fmt.Errorf("%w: %s", tables.ErrUnusable, stream.InexactKey(name, found.collation, "COLLATE "+found.charset+"_bin"))
		}
	}
	return nil
}

func holdsDecimals(kind string) bool {
	return kind == "decimal" || strings.HasSuffix(kind, "text") || strings.HasSuffix(kind, "char")
}

// exact reports whether a column tells all texts apart, apart from spaces at their end.
// Other collations take letters as equal, or ignore characters.
func (c tableColumn) exact() bool {
	return c.collation == "" || strings.HasSuffix(c.collation, "_bin")
}

// padded reports whether a column ignores the spaces at the end of a text. In a CHAR, they
// are not stored either.
func (c tableColumn) padded() bool {
	return c.collation != "" && (c.kind == "char" || !strings.Contains(c.collation, "nopad") && !strings.Contains(c.collation, "0900"))
}

// cuts reports whether a text is longer than the column: the server cuts spaces at its end
// off without an error.
func (c tableColumn) cuts(text []byte) bool {
	return c.charset != "" && c.length > 0 && utf8.RuneCount(text) > c.length
}

// inexact returns why a column would not hold a decimal or a key of a row exactly; "" if all
// do. The server itself rounds without an error, and takes a key with spaces at its end for
// the one without them.
func (st *Stream) inexact(r stream.Row) string {
	table := st.table.Load()
	if table == nil {
		return ""
	}
	for i, c := range st.columns {
		isKey := slices.Contains(st.textKey, c.Name)
		if c.Type != stream.Decimal && !isKey || r.Null(r.Row, i) {
			continue
		}
		found, value := (*table)[strings.ToLower(c.Name)], r.Bytes(r.Row, i)
		if isKey && bytes.HasSuffix(value, []byte(" ")) && (found.padded() || found.cuts(value)) {
			return fmt.Sprintf("%s: ends with a space, which %s with collation %s ignores or cuts off in a key", c.Name, found.kind, found.collation)
		}
		if c.Type == stream.Decimal && found.kind == "decimal" && !stream.DecimalFits(value, found.precision, found.scale) {
			return stream.InexactDecimal(c.Name, value, fmt.Sprintf("decimal(%d,%d)", found.precision, found.scale))
		}
	}
	return ""
}
