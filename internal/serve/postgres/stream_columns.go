package postgres

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// baseTypes and the end of it, with a condition between them, are the start of a statement. The
// table b has the columns that meet the condition, with their base type below any number of
// domains, and its modifier. It has rows of these domains too.
const (
	baseTypes = `WITH RECURSIVE b (attrelid, attnum, type, modifier) AS (
	SELECT attrelid, attnum, atttypid, atttypmod FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped AND `
	baseTypesEnd = `
	UNION ALL SELECT b.attrelid, b.attnum, t.typbasetype, COALESCE(NULLIF(b.modifier, -1), t.typtypmod)
	FROM b JOIN pg_type t ON t.oid = b.type AND t.typtype = 'd')`
)

// tableColumns yields the name of each column of a table, its type as written in SQL, its base
// type, and its size: the digits of a numeric or the characters of a varchar, 0 if unlimited.
// The last value is a collation, of the column or of a unique index on it, that takes different
// texts as equal.
const tableColumns = baseTypes + "attrelid = to_regclass($1::text)" + baseTypesEnd + `
SELECT a.attname, format_type(a.atttypid, a.atttypmod), base.typname,
	CASE WHEN b.modifier < 4 THEN 0 WHEN base.typname = 'numeric' THEN ((b.modifier - 4) >> 16) & 65535 ELSE b.modifier - 4 END::text,
	COALESCE((SELECT c.collname FROM pg_collation c WHERE to_jsonb(c) ->> 'collisdeterministic' = 'false'
		AND (c.oid = a.attcollation
			OR c.oid IN (SELECT unnest(i.indcollation) FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND a.attnum = ANY(i.indkey))) LIMIT 1), '')
FROM b JOIN pg_attribute a USING (attrelid, attnum) JOIN pg_type base ON base.oid = b.type AND base.typtype <> 'd'`

// checkColumns refuses columns whose values would not arrive as they were sent: numbers
// that would be rounded, and keys of which some texts are equal to others.
func (st *Stream) checkColumns(ctx context.Context, conn *pgconn.PgConn) error {
	result := conn.ExecParams(ctx, tableColumns, [][]byte{[]byte(st.tableName())}, nil, nil, nil).Read()
	if result.Err != nil {
		return fmt.Errorf("look up the columns of %s: %w", st.def.Table, result.Err)
	}
	table := make(map[string][][]byte, len(result.Rows))
	for _, row := range result.Rows {
		table[string(row[0])] = row
	}
	key := st.schema.TextKey()
	for _, c := range st.schema.Columns() {
		row, ok := table[c.Name]
		if !ok {
			continue // the database names it when the INSERT is prepared
		}
		size, err := strconv.Atoi(string(row[3]))
		if err != nil {
			return fmt.Errorf("look up the size of %s: %w", c.Name, err)
		}
		found := tableColumn{kind: string(row[1]), base: string(row[2]), size: size, collation: string(row[4])}
		reason := found.alters(c)
		if reason == "" && slices.Contains(key, c.Name) {
			reason = found.merges(c)
		}
		if reason != "" {
			return fmt.Errorf("%w: %s", tables.ErrUnusable, reason)
		}
	}
	return nil
}

// tableColumn is a row of tableColumns.
type tableColumn struct {
	kind, base, collation string
	size                  int
}

// alters returns why a column would round values; "" if it does not.
func (t tableColumn) alters(c stream.Column) string {
	switch {
	case c.Type == stream.Real && t.base == "numeric" && (t.size == 0 || t.size > stream.RealDigits):
		return stream.RealOnDecimal(c.Name, t.kind)
	case c.Type == stream.Real && t.base == "float4":
		return fmt.Sprintf("column %s is %s, which keeps only 6 digits: "+
			"use double precision, or numeric and declare it as decimal in the stream's columns", c.Name, t.kind)
	case c.Type == stream.Decimal && !holdsDecimals(t.base):
		return stream.DecimalOnOther(c.Name, t.kind)
	}
	return ""
}

// merges returns why different texts would be equal in a key column; "" if they are not.
func (t tableColumn) merges(c stream.Column) string {
	collation := t.collation
	if t.base == "citext" {
		collation = t.base
	}
	switch {
	case collation != "":
		return stream.InexactKey(c.Name, collation, `type text COLLATE "C"`)
	case t.base == "bpchar", t.base == "name", t.base == "char":
		return fmt.Sprintf("key column %s is %s, in which texts that differ only at the end, such as in spaces, can be equal, "+
			"so records would be lost: use text or varchar, or set key_collation: accept",
			c.Name, t.kind)
	case t.base == "varchar" && t.size > 0 && (c.MaxLength == 0 || c.MaxLength > t.size):
		return fmt.Sprintf("key column %s is %s, which cuts spaces off a longer text, so records would be lost: "+
			"set max_length: %d in the stream's columns, use text, or set key_collation: accept",
			c.Name, t.kind, t.size)
	}
	return ""
}

func holdsDecimals(kind string) bool {
	switch kind {
	case "numeric", "text", "varchar", "bpchar":
		return true
	}
	return false
}

// tableName writes the table's name for SQL.
func (st *Stream) tableName() string {
	return plans.ParseTableName(st.def.Table).SQL(plans.Postgres)
}

// modifier returns an expression: the precision and the scale of a numeric column, as
// PostgreSQL encodes them; NULL if they are unlimited or the column is of another type.
func modifier(table, column string) string {
	return "(" + baseTypes + fmt.Sprintf("attrelid = %s::regclass AND attname = %s", quoteText(table), quoteText(column)) + baseTypesEnd +
		" SELECT NULLIF(modifier, -1) - 4 FROM b WHERE type = 'numeric'::regtype)"
}

// notExact is part of the error of a decimal that a column cannot hold.
const notExact = " cannot be stored exactly in a column of type numeric("

// exactRows writes the SELECT of the rows to insert if some columns are decimals. The server
// would round these to the scale of the column. With this statement it refuses them, by a
// cast that fails. It reads the column's scale in the same statement, so that a change of the
// table cannot go unnoticed.
func exactRows(table string, columns []stream.Column, arrays, names []string) string {
	var values, modifiers []string
	for i, c := range columns {
		value := "r." + names[i]
		if c.Type != stream.Decimal {
			values = append(values, value)
			continue
		}
		name := fmt.Sprintf("m.m%d", i)
		scale, precision := fmt.Sprintf("((%s & 2047) # 1024) - 1024", name), fmt.Sprintf("((%s >> 16) & 65535)", name)
		values = append(values, fmt.Sprintf("CASE WHEN %[1]s IS NULL OR round(%[2]s, %[3]s) = %[2]s "+
			"AND abs(%[2]s) < ('1e' || (%[4]s - (%[3]s)))::numeric THEN %[2]s "+
			"ELSE (%[5]s || left(%[2]s::text, 50) || %[6]s || %[4]s || ',' || (%[3]s) || ')')::numeric END",
			name, value, scale, precision, quoteText(c.Name+": "), quoteText(notExact)))
		modifiers = append(modifiers, fmt.Sprintf("%s AS m%d", modifier(table, c.Name), i))
	}
	return fmt.Sprintf("SELECT %s FROM unnest(%s) AS r(%s), (SELECT %s OFFSET 0) AS m",
		strings.Join(values, ", "), strings.Join(arrays, ", "), strings.Join(names, ", "), strings.Join(modifiers, ", "))
}

// quoteText writes text as a literal of SQL, whatever standard_conforming_strings is.
func quoteText(text string) string {
	return "E'" + strings.NewReplacer("'", "''", `\`, `\\`).Replace(text) + "'"
}

// reasonOf returns the reason of a row that the server refuses: its message, without what it
// adds to the error of exactRows.
func reasonOf(err *pgconn.PgError) string {
	first, last := strings.IndexByte(err.Message, '"'), strings.LastIndexByte(err.Message, '"')
	if strings.Contains(err.Message, notExact) && first < last {
		return err.Message[first+1 : last]
	}
	return err.Message
}
