package postgres

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/serve/feed"
)

// statement is one SQL text. Its name is derived from the text, so that two
// processes behind one pooler never mean different texts by one name.
type statement struct {
	name    string
	sql     string
	columns func([]pgconn.FieldDescription) (*columns, error)
	last    atomic.Pointer[columns] // of the last run without preparing
}

func newStatement(sql string, columns func([]pgconn.FieldDescription) (*columns, error)) *statement {
	sum := sha256.Sum256([]byte(sql))
	return &statement{name: "spillway_" + hex.EncodeToString(sum[:12]), sql: sql, columns: columns}
}

// shape is what distinguishes the statements of one feed.
//
// Rows is a literal in the statement: where the number of rows is a parameter
// PostgreSQL plans for a tenth of the table, and may sort all of it. To keep the
// statements few it is the next power of two; a LIMIT around it takes the exact
// number, and nothing more is read.
type shape struct {
	after, until bool
	keysOnly     bool
	rows         int
}

// leastRows is the smallest shape.rows.
const leastRows = 16

func shapeOf(r feed.Range, keysOnly bool) shape {
	return shape{after: r.After != "", until: r.Until != "", keysOnly: keysOnly, rows: powerOfTwo(r.Skip + r.Limit)}
}

// powerOfTwo returns the smallest that is at least n and leastRows.
func powerOfTwo(n int) int {
	if n <= leastRows {
		return leastRows
	}
	return 1 << min(bits.Len(uint(n-1)), 62)
}

// writer writes the statement of one shape. Its parameters are the feed's, then
// the values of After, of Until, the exact limit and the offset.
type writer struct {
	def  feed.Definition
	body string // the feed's SELECT with $1, $2, ... in it
	used int    // parameters so far
}

func (w *writer) write(s shape) string {
	selected := "*"
	if s.keysOnly {
		selected = w.keyList("")
	}
	var where []string
	if s.after {
		where = append(where, w.bound(false))
	}
	if s.until {
		where = append(where, w.bound(true))
	}
	inner := fmt.Sprintf("SELECT %s FROM (%s) AS feed", selected, w.body)
	if len(where) > 0 {
		inner += " WHERE " + strings.Join(where, " AND ")
	}
	inner += fmt.Sprintf(" ORDER BY %s LIMIT %d", w.keyList("order"), s.rows)
	return fmt.Sprintf("SELECT %s FROM (%s) AS page ORDER BY %s LIMIT $%d OFFSET $%d",
		selected, inner, w.keyList("order"), w.used+1, w.used+2)
}

// parameters returns how many parameters the statement written last has.
func (w *writer) parameters() int { return w.used + 2 }

// keyList lists the key columns, with their directions for ORDER BY.
func (w *writer) keyList(use string) string {
	var list []string
	for _, column := range w.def.Key {
		text := quoteIdentifier(column.Name)
		if use == "order" && !column.Ascending {
			text += " DESC"
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

// bound compares the key with parameters: the rows behind a key, or those up to
// and including it.
func (w *writer) bound(until bool) string {
	key := w.def.Key
	first := w.used + 1
	w.used += len(key)
	sameDirection := true
	var parameters []string
	for i, column := range key {
		sameDirection = sameDirection && column.Ascending == key[0].Ascending
		parameters = append(parameters, "$"+strconv.Itoa(first+i))
	}
	if sameDirection {
		return fmt.Sprintf("(%s) %s (%s)", w.keyList(""), operator(key[0], until, true), strings.Join(parameters, ", "))
	}
	// A row comparison has one direction. The leading column's bound follows
	// from the rest; said alone, an index can use it.
	last := len(key) - 1
	text := fmt.Sprintf("%s %s %s", quoteIdentifier(key[last].Name), operator(key[last], until, true), parameters[last])
	for i := last - 1; i >= 0; i-- {
		name := quoteIdentifier(key[i].Name)
		text = fmt.Sprintf("(%s %s %s OR (%s = %s AND %s))",
			name, operator(key[i], until, false), parameters[i], name, parameters[i], text)
	}
	lead := fmt.Sprintf("%s %s= %s", quoteIdentifier(key[0].Name), operator(key[0], until, false), parameters[0])
	return lead + " AND " + text
}

// operator returns the comparison that holds for rows behind a key (until: up to
// it). The last column's includes equality when until.
func operator(column feed.KeyColumn, until, last bool) string {
	op := "<"
	if column.Ascending != until {
		op = ">"
	}
	if until && last {
		op += "="
	}
	return op
}

// castOf returns the SQL type of a parameter.
func castOf(t feed.ParamType) string {
	switch t {
	case feed.Integer:
		return "bigint"
	case feed.Real:
		return "double precision"
	case feed.Timestamp:
		return "timestamptz"
	}
	return string(t) // text, boolean, uuid
}

func quoteIdentifier(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}
