package postgres

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// tableColumns yields the name of each column of a table, its type as written in SQL, and its base
// type without a modifier. The modifier follows, the name of the base type, or that of the elements of
// an array, and whether it is an array. The last value is a collation, of the column or of a unique index
// on it, that takes different texts as equal.
//
//go:embed sql/table_columns.sql
var tableColumns string

// deferrableKey yields a unique index on the columns $2 of a table that is checked at COMMIT.
const deferrableKey = `SELECT i.indexrelid::regclass::text FROM pg_index i WHERE i.indrelid = to_regclass($1::text) AND i.indisunique
AND NOT i.indimmediate AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text COLLATE "C") FROM pg_attribute a
	WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)) = $2::text[]`

// layout are the columns of a stream and of its table as it was when it was checked.
type layout []target

// target is a column of the stream and of its table.
type target struct {
	column  stream.Column
	index   int         // in the records
	element stream.Type // of the elements of an array; else that of the column
	key     bool
	pair    *pair // nil: unknown, because the table has no such column
	tableColumn
}

// tableColumn is a row of tableColumns.
type tableColumn struct {
	kind, cast, base, collation string
	modifier                    int
	array                       bool
}

// checkColumns refuses columns whose values would not arrive as they were sent, and keys that are
// equal for different values.
func (st *Stream) checkColumns(ctx context.Context, conn *pgconn.PgConn) (layout, error) {
	rows, err := texts(ctx, conn, tableColumns, st.tableName())
	if err != nil {
		return nil, fmt.Errorf("look up the columns of %s: %w", st.def.Table, err)
	}
	table := make(map[string][]string, len(rows))
	for _, row := range rows {
		table[row[0]] = row
	}
	var targets layout
	for i, c := range st.schema.Columns() {
		t := target{column: c, index: i, element: c.Type, key: slices.Contains(st.def.Key, c.Name)}
		if row, ok := table[c.Name]; ok { // the database names a missing one when the INSERT is prepared
			modifier, err := strconv.Atoi(row[3])
			if err != nil {
				return nil, fmt.Errorf("look up the modifier of %s: %w", c.Name, err)
			}
			t.tableColumn = tableColumn{row[1], row[2], row[4], row[6], modifier, row[5] == "true"}
			reason := t.match()
			if reason == "" && t.key {
				reason = t.merges(st.schema.TextKey())
			}
			if reason == "" {
				reason = t.column.CheckSeconds(st.db.log, st.def.Name, t.kind, t.secondDigits())
			}
			if reason != "" {
				return nil, fmt.Errorf("%w: %s", tables.ErrUnusable, reason)
			}
		}
		targets = append(targets, t)
	}
	return targets, st.checkKey(ctx, conn)
}

// jsonElements are the types of the elements of a JSON array for a column of arrays, by its base type.
var jsonElements = map[string]stream.Type{
	"text": stream.Text, "varchar": stream.Text, "bool": stream.Boolean,
	"int2": stream.Integer, "int4": stream.Integer, "int8": stream.Integer,
}

// match sets the pair of a column, or returns why there is none.
func (t *target) match() string {
	element, isArray := t.column.Type.Element()
	if own, ok := jsonElements[t.base]; ok && t.array && t.column.Type == stream.JSON {
		element, isArray = own, true
	}
	if isArray {
		t.element = element
	}
	var others []stream.Pair
	rounded := *t
	rounded.column.Round = true
	for _, p := range pairs {
		same := p.Type == t.element && isArray == t.array
		switch {
		case !slices.Contains(strings.Fields(p.bases), t.base), p.fits != nil && !p.fits(&rounded):
		case same && (p.fits == nil || p.fits(t)):
			t.pair, t.column.Round = &p, t.column.Round && p.Round != ""
		default:
			other := p.Pair
			if t.array {
				other.Type += "[]"
			}
			others = append(others, other)
		}
	}
	if t.pair == nil {
		return stream.Unfit(t.column, t.kind, others)
	}
	return ""
}

// checkKey refuses a key whose constraint is deferrable, by which no INSERT can find it.
func (st *Stream) checkKey(ctx context.Context, conn *pgconn.PgConn) error {
	if len(st.def.Key) == 0 {
		return nil
	}
	names := arrayOf(slices.Sorted(slices.Values(st.def.Key)))
	rows, err := texts(ctx, conn, deferrableKey, st.tableName(), string(names))
	if err != nil {
		return fmt.Errorf("look up the unique indexes of %s: %w", st.def.Table, err)
	}
	if len(rows) > 0 {
		return fmt.Errorf("%w: the constraint %s of key is DEFERRABLE, by which duplicates cannot be found: make it NOT DEFERRABLE",
			tables.ErrUnusable, rows[0][0])
	}
	return nil
}

// merges returns why different values would be equal in a key column; "" if they are not. texts are
// the columns whose collation matters.
func (t *target) merges(texts []string) string {
	collation := t.collation
	if t.base == "citext" {
		collation = t.base
	}
	switch {
	case !t.pair.Key || t.array:
		return fmt.Sprintf("key column %s is %s, in which different values can be equal, so records would be lost: "+
			"use a column of another type, such as text, or leave it out of key", t.column.Name, t.kind)
	case collation != "" && slices.Contains(texts, t.column.Name):
		return stream.InexactKey(t.column.Name, collation, `type text COLLATE "C"`)
	}
	return ""
}

// refuses returns why the columns do not hold a row exactly; "" if they do.
func (l layout) refuses(r stream.Row) string {
	for i := range l {
		t := &l[i]
		free := t.pair == nil || t.pair.holds == nil && !t.array && t.element != stream.Integer && t.element != stream.Boolean
		if free || r.Null(r.Row, t.index) {
			continue
		}
		v := r.Value(r.Row, t.index)
		if !t.array {
			if v.Big || v.Loose || t.pair.holds != nil && !t.pair.holds(t, v) {
				return stream.Inexact(t.column.Name, t.text(v), t.kind)
			}
			continue
		}
		const dimensionsMax = 6
		a, ok := stream.ParseArray(t.element, v.Bytes)
		if t.column.Type == stream.JSON && t.element == stream.Integer && bytes.IndexByte(v.Bytes, '"') >= 0 {
			ok = false // a string of digits would become a number
		}
		if !ok || len(a.Dimensions) > dimensionsMax {
			return stream.Inexact(t.column.Name, v.Bytes, t.kind)
		}
		for _, v := range a.Values {
			if v != nil && (v.Big || t.pair.holds != nil && !t.pair.holds(t, *v)) {
				return stream.Inexact(t.column.Name, t.text(*v), t.kind)
			}
		}
	}
	return ""
}

// tableName writes the table's name for SQL.
func (st *Stream) tableName() string {
	return plans.ParseTableName(st.def.Table).SQL(plans.Postgres)
}

// expression returns the SQL of a column's values.
func (t *target) expression() string {
	name := "r." + plans.Postgres.QuoteAlways(t.column.Name)
	if t.pair == nil {
		return name
	}
	return name + "::" + t.cast
}

// keyExpression returns the SQL of the values of a key column, as the table has them.
func (t *target) keyExpression() string {
	if t.pair == nil {
		return t.expression()
	}
	return t.expression() + "::" + t.kind
}

// quoteText writes text as a literal of SQL, whatever standard_conforming_strings is.
func quoteText(text string) string {
	return "E'" + strings.NewReplacer("'", "''", `\`, `\\`).Replace(text) + "'"
}
