package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
)

// errColumns is the error of a table whose columns do not suit the stream's.
var errColumns = errors.New("the table cannot be used")

// tableColumns yields for each column of a table: its name, its type as written in SQL, its
// base type, the digits of a numeric ("" if they are unlimited), and whether a collation of
// the column or of a unique index on it takes different texts as equal.
const tableColumns = `SELECT a.attname, format_type(a.atttypid, a.atttypmod), base.typname,
	CASE WHEN COALESCE(NULLIF(a.atttypmod, -1), t.typtypmod) >= 4 THEN (((COALESCE(NULLIF(a.atttypmod, -1), t.typtypmod) - 4) >> 16) & 65535)::text ELSE '' END,
	COALESCE((SELECT c.collname FROM pg_collation c WHERE to_jsonb(c) ->> 'collisdeterministic' = 'false'
		AND (c.oid = a.attcollation OR c.oid IN (SELECT unnest(i.indcollation) FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND a.attnum = ANY(i.indkey))) LIMIT 1), '')
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid JOIN pg_type base ON base.oid = COALESCE(NULLIF(t.typbasetype, 0), t.oid)
WHERE a.attrelid = to_regclass($1::text) AND a.attnum > 0 AND NOT a.attisdropped`

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
	for _, c := range st.schema.Columns() {
		row, ok := table[c.Name]
		if !ok {
			continue // the database names it when the INSERT is prepared
		}
		kind, base, digits := string(row[1]), string(row[2]), string(row[3])
		precision, err := strconv.Atoi(digits)
		if c.Type == stream.Real && base == "numeric" && (err != nil || precision > stream.RealDigits) {
			return fmt.Errorf("%w: %s", errColumns, stream.RealOnDecimal(c.Name, kind))
		}
		if c.Type == stream.Decimal && !holdsDecimals(base) {
			return fmt.Errorf("%w: %s", errColumns, stream.DecimalOnOther(c.Name, kind))
		}
	}
	for _, name := range st.schema.TextKey() {
		row, ok := table[name]
		if !ok {
			continue
		}
		collation := string(row[4])
		if string(row[2]) == "citext" {
			collation = "citext"
		}
		if collation != "" {
			return fmt.Errorf("%w: %s", errColumns, stream.InexactKey(name, collation, `type text COLLATE "C"`))
		}
	}
	return nil
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

// modifier is the precision and the scale of a numeric column, as PostgreSQL encodes them;
// NULL if they are unlimited or the column is of another type.
const modifier = `(SELECT COALESCE(NULLIF(a.atttypmod, -1), NULLIF(t.typtypmod, -1)) - 4 FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
	WHERE a.attrelid = %s::regclass AND a.attname = %s AND COALESCE(NULLIF(t.typbasetype, 0), t.oid) = 'numeric'::regtype)`

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
		values = append(values, fmt.Sprintf("CASE WHEN %[1]s IS NULL OR round(%[2]s, %[3]s) = %[2]s AND abs(%[2]s) < ('1e' || (%[4]s - (%[3]s)))::numeric THEN %[2]s "+
			"ELSE (%[5]s || left(%[2]s::text, 50) || %[6]s || %[4]s || ',' || (%[3]s) || ')')::numeric END",
			name, value, scale, precision, quoteText(c.Name+": "), quoteText(notExact)))
		modifiers = append(modifiers, fmt.Sprintf(modifier+" AS m%d", quoteText(table), quoteText(c.Name), i))
	}
	return fmt.Sprintf("SELECT %s FROM unnest(%s) AS r(%s), (SELECT %s OFFSET 0) AS m",
		strings.Join(values, ", "), strings.Join(arrays, ", "), strings.Join(names, ", "), strings.Join(modifiers, ", "))
}

// quoteText writes text as a literal of SQL, whatever standard_conforming_strings is.
func quoteText(text string) string {
	return "E'" + strings.NewReplacer("'", "''", `\`, `\\`).Replace(text) + "'"
}

// refusal returns the reason of a row that the server refuses: its message, without what it
// adds to the error of exactRows.
func refusal(err *pgconn.PgError) string {
	first, last := strings.IndexByte(err.Message, '"'), strings.LastIndexByte(err.Message, '"')
	if strings.Contains(err.Message, notExact) && first < last {
		return err.Message[first+1 : last]
	}
	return err.Message
}
