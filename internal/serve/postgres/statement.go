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

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// statement is one SQL text. Its name is derived from the text, so that processes behind
// one pooler never use one name for different texts.
type statement struct {
	name    string
	sql     string
	columns func([]pgconn.FieldDescription) (*columns, error)
	types   *catalog                // that columns needs; nil: none
	last    atomic.Pointer[columns] // the columns of the last run without preparing

	harmless atomic.Bool            // it may run more often than it is asked for
	catalog  atomic.Pointer[string] // with which this was found; nil: it is not known yet
}

// harmful reports whether the statement is known not to be harmless.
func (s *statement) harmful() bool { return !s.harmless.Load() && s.catalog.Load() != nil }

func newStatement(sql string, columns func([]pgconn.FieldDescription) (*columns, error)) *statement {
	sum := sha256.Sum256([]byte(sql))
	return &statement{name: "spillway_" + hex.EncodeToString(sum[:12]), sql: sql, columns: columns}
}

// readStatement returns a statement that reads rows of def. Its columns are stored in known, if
// that is not nil. Its name also depends on the formats, because a connection keeps the columns
// with the name.
func readStatement(def feed.Definition, types *catalog, sql string, known *atomic.Pointer[columns]) *statement {
	s := newStatement(sql, func(fields []pgconn.FieldDescription) (*columns, error) {
		c, err := newColumns(def, types, fields)
		if err == nil && known != nil {
			known.Store(c)
		}
		return c, err
	})
	s.types = types
	if def.RFC3339 {
		s.name += "_rfc3339"
	}
	if def.NumbersAsText {
		s.name += "_text"
	}
	return s
}

// shape distinguishes the statements of one feed.
//
// rows is a literal in the statement: if the number of rows were a parameter, PostgreSQL
// would plan for a tenth of the table and might sort all of it. It is a power of two, so
// that there are few statements; an outer LIMIT takes the exact number.
type shape struct {
	after, until bool
	keysOnly     bool
	rows         int
	filters      uint64 // bit i: the rows are filtered by the i-th of Definition.Params
}

// rowsMin is the smallest shape.rows.
const rowsMin = 16

// shape returns the shape of the statement for r. A query has one, the zero value.
func (s *source) shape(r feed.Range, keysOnly bool) shape {
	if s.def.IsQuery() {
		return shape{}
	}
	of := shape{after: r.After != "", until: r.Until != "", keysOnly: keysOnly, rows: powerOfTwo(r.Skip + r.Limit)}
	for _, i := range param.Given(s.def.Params, r.Args) {
		of.filters |= 1 << i
	}
	return of
}

// powerOfTwo returns the smallest power of two that is at least n and rowsMin.
func powerOfTwo(n int) int {
	if n <= rowsMin {
		return rowsMin
	}
	return 1 << min(bits.Len(uint(n-1)), 62)
}

// writer writes the statement of one shape. That of a query is its own. Its parameters are those of the feed, the values of
// filters, the values of After, the values of Until, the limit and the offset.
type writer struct {
	def  feed.Definition
	body string // the feed's SELECT with $1, $2, ... in it
	used int    // number of parameters so far
}

func (w *writer) write(s shape) string {
	if w.def.IsQuery() {
		return w.body
	}
	selected := "*"
	if s.keysOnly {
		selected = w.keyset().Columns()
	}
	var where []string
	for i, p := range w.def.Params {
		if p.Filter && s.filters&(1<<i) == 0 {
			continue
		}
		w.used++
		if p.Filter {
			where = append(where, fmt.Sprintf("%s = $%d%s", plans.Postgres.QuoteAlways(p.Name), w.used, filterCast(p.Type)))
		}
	}
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
	inner += fmt.Sprintf(" ORDER BY %s LIMIT %d", w.keyset().Order(), s.rows)
	return fmt.Sprintf("SELECT %s FROM (%s) AS page ORDER BY %s LIMIT $%d OFFSET $%d",
		selected, inner, w.keyset().Order(), w.used+1, w.used+2)
}

// filterCast returns the cast of a filter's value. Whole numbers are compared as such, so that one
// that the column cannot hold has no rows; indexes of smaller integers are used all the same.
// Other values have the type of the column.
func filterCast(t param.Type) string {
	if t == param.Integer {
		return "::bigint"
	}
	return ""
}

// parameters returns the number of parameters of the last statement written.
func (w *writer) parameters() int { return w.used + 2 }

func (w *writer) keyset() feed.Keyset {
	return feed.Keyset{Key: w.def.Key, Quote: plans.Postgres.QuoteAlways}
}

// bound compares the key with parameters. It selects the rows after a key, or with until
// those up to and including it.
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
		return fmt.Sprintf("(%s) %s (%s)", w.keyset().Columns(), key[0].Operator(until, true), strings.Join(parameters, ", "))
	}
	// A row comparison has one direction. The bound on the first column is redundant, but
	// an index can use it.
	text := w.keyset().Compare(until, func(column int) string { return parameters[column] })
	lead := fmt.Sprintf("%s %s= %s", plans.Postgres.QuoteAlways(key[0].Name), key[0].Operator(until, false), parameters[0])
	return lead + " AND " + text
}

// castOf returns the SQL type of a parameter. A list is an array.
func castOf(p param.Param) string {
	name := string(p.Type) // text, boolean, uuid, date, time
	switch p.Type {
	case param.Integer:
		name = "bigint"
	case param.Real:
		name = "double precision"
	case param.Timestamp:
		name = "timestamptz"
	case param.Decimal:
		name = "numeric"
	case param.Bytes:
		name = "bytea"
	}
	if p.ListMax > 0 {
		name += "[]"
	}
	return name
}
