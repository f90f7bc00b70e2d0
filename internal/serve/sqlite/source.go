package sqlite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"zombiezen.com/go/sqlite"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// source reads the rows of a feed or a query without lists. It implements feed.Source.
//
// A feed's statement becomes a derived table, which SQLite flattens. The rows after a key
// (a, b) are a UNION ALL of two searches, a = ? AND b < ? and a < ?, which SQLite merges. Each
// search is a range of the index (a, b), whatever the directions; for (a, b) < (?, ?), SQLite
// may search a alone. Until is one more output column, which is false from the first row after
// it; reading stops there.
//
// There are eight such statements (rows or keys, with and without After and Until) for each
// combination of filters, and each connection keeps those that it has run last prepared.
//
// Integers and reals are bound as numbers, booleans as 0 or 1, timestamps as text like
// 2016-12-01 23:59:57 (with a fraction only if there is one), bytes as blobs, and all others as text.
type source struct {
	db     *DB
	def    feed.Definition
	args   []int // args[i] is the position in Range.Args of the statement's parameter ?i+1
	inner  string
	viewed string    // inner with NULL for each parameter, because views have none
	texts  [8]string // of a feed, without filters
	shape  atomic.Pointer[shape]
	quick  atomic.Int64 // reads elsewhere in a row
	nulls  feed.NullKeys
}

// The bits of an index into source.texts.
const (
	keysOnly = 1 << iota
	withAfter
	withUntil
)

// Source returns the source of the feed or the query that def describes. It does not open the
// database: mistakes that only SQLite can find are errors of Check, Read and Keys.
//
// A list becomes parameters, IN (?1, ?2), as on MySQL. json_each would read reals from text.
func (db *DB) Source(def feed.Definition) (feed.Source, error) {
	return feed.Optional(def, plans.SQLite, func(def feed.Definition) (feed.Source, error) {
		return feed.Expand(def, plans.SQLite, func(def feed.Definition) (feed.Source, error) { return db.source(def) })
	})
}

// source returns the source of a definition without lists.
func (db *DB) source(def feed.Definition) (*source, error) {
	parsed, err := plans.ParseStatement(def.SQL, plans.SQLite)
	if err != nil {
		return nil, err
	}
	if err := param.Match(parsed, def.Params); err != nil {
		return nil, err
	}
	s := &source{db: db, def: def}
	names := parsed.Names()
	for _, name := range names {
		s.args = append(s.args, param.Index(def.Params, name))
	}
	s.inner = parsed.Render(func(name string) string { return "?" + strconv.Itoa(slices.Index(names, name)+1) })
	s.viewed = parsed.Render(func(string) string { return "NULL" })
	if !def.IsQuery() {
		for i := range s.texts {
			s.texts[i] = s.text(i, nil)
		}
	}
	return s, nil
}

// Read implements feed.Source. A key of r that its column's declared type cannot hold wraps
// feed.ErrCursor. In a column whose declared type says nothing, SQLite orders values of all
// kinds, so a forged key only names another place in the feed.
func (s *source) Read(ctx context.Context, r feed.Range, rows *feed.Rows) error {
	return feed.Collect(&s.def, rows, func(to feed.RowHandler) error { return s.run(ctx, r, 0, to) })
}

// Keys implements feed.Source.
func (s *source) Keys(ctx context.Context, r feed.Range, every int) (feed.Walk, error) {
	return feed.CollectKeys(&s.def, every, func(to feed.RowHandler) error { return s.run(ctx, r, keysOnly, to) })
}

// run runs the statement for r and passes its rows to the handler.
func (s *source) run(ctx context.Context, r feed.Range, bits int, to feed.RowHandler) error {
	return feed.ReadEnd(ctx, r, to, func(to feed.RowHandler) error { return s.runOnce(ctx, r, bits, to) }, s.lookForNull)
}

// lookForNull returns an error if a row for the arguments has NULL in the key.
func (s *source) lookForNull(ctx context.Context, args []string) error {
	return s.nulls.Look(args, func(columns []string) (found bool, err error) {
		err = s.db.read(ctx, func(conn conn) error {
			stmt, _, err := conn.PrepareTransient(plans.SQLite.FindNull(s.inner, columns))
			if err != nil {
				return err
			}
			if args != nil {
				err = s.bindArgs(stmt, args, nil)
			}
			if err == nil {
				found, err = stmt.Step()
			}
			return errors.Join(err, stmt.Finalize())
		})
		return found, err
	})
}

func (s *source) runOnce(ctx context.Context, r feed.Range, bits int, to feed.RowHandler) error {
	return s.db.read(ctx, func(conn conn) error {
		began := time.Now()
		err := s.runOn(conn, r, bits, to)
		switch {
		case r.After == "" && !s.def.IsQuery(): // a window
		case time.Since(began) > s.db.quickRead:
			s.quick.Store(0)
		case err == nil:
			s.quick.Add(1)
		}
		return err
	})
}

// runOn is run on one connection.
func (s *source) runOn(conn conn, r feed.Range, bits int, to feed.RowHandler) error {
	to.Start()
	shape, err := s.describe(conn, true)
	if err != nil {
		return err
	}
	stmt, err := s.prepare(conn, shape, r, bits)
	if err != nil {
		return err
	}
	current, columns := &row{stmt: stmt, shape: shape}, len(shape.columns)
	if bits&keysOnly != 0 {
		current.keysOnly, columns = true, len(shape.keys)
	}
	for {
		found, err := s.nextRow(stmt, r.Args, columns, r.Until != "")
		if !found {
			return err
		}
		if err := to.Row(current); err != nil {
			return err
		}
	}
}

// prepare prepares the statement for r and binds its parameters.
func (s *source) prepare(conn conn, shape *shape, r feed.Range, bits int) (*sqlite.Stmt, error) {
	if r.After != "" {
		bits |= withAfter
	}
	if r.Until != "" {
		bits |= withUntil
	}
	filters := param.Given(s.def.Params, r.Args)
	text := s.texts[bits]
	switch {
	case s.def.IsQuery():
		text = s.inner
	case len(filters) > 0:
		text = s.text(bits, filters)
	}
	stmt, err := conn.prepare(text)
	if err != nil {
		return nil, err
	}
	return stmt, s.bind(stmt, shape, r, filters)
}

// bind binds the parameters of the statement for r.
func (s *source) bind(stmt *sqlite.Stmt, shape *shape, r feed.Range, filters []int) error {
	if err := s.bindArgs(stmt, r.Args, filters); err != nil || s.def.IsQuery() {
		return err
	}
	next := len(s.args) + len(filters) + 1
	for _, key := range []feed.Key{r.After, r.Until} {
		if key != "" {
			if err := shape.bindKey(stmt, next, key); err != nil {
				return err
			}
		}
		next += len(s.def.Key)
	}
	stmt.BindInt64(next, int64(r.Limit))
	stmt.BindInt64(next+1, int64(r.Skip))
	return nil
}

// nextRow moves to the next row of the range. A row has the given number of columns and,
// with until, one more that says whether the row is in the range.
func (s *source) nextRow(stmt *sqlite.Stmt, args []string, columns int, until bool) (bool, error) {
	found, err := stmt.Step()
	if err != nil && len(s.def.Params) > 0 && rejectsValue(err) {
		err = param.Rejected(s.def.Params, args, err)
	}
	if !found {
		return false, err
	}
	have := stmt.DataCount()
	if until {
		have--
	}
	if have != columns {
		return false, fmt.Errorf("the columns changed while the statement started: it has %d, not %d", have, columns)
	}
	// NULL belongs to a key with a NULL, which is refused when the row is read.
	if until && stmt.ColumnType(columns) != sqlite.TypeNull && !stmt.ColumnBool(columns) {
		return false, stmt.Reset()
	}
	return true, nil
}

// rejectsValue reports whether a function does not accept a value. The statement itself is
// right, because it was prepared.
func rejectsValue(err error) bool {
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultError, sqlite.ResultTooBig, sqlite.ResultMismatch:
		return true
	}
	return false
}

// bindArgs binds the arguments of the statement's parameters, and of the filters at some
// positions.
func (s *source) bindArgs(stmt *sqlite.Stmt, args []string, filters []int) error {
	if len(args) != len(s.def.Params) {
		return fmt.Errorf("%d arguments for %d parameters", len(args), len(s.def.Params))
	}
	for i, position := range append(slices.Clip(s.args), filters...) {
		p, text := s.def.Params[position], args[position]
		if text == param.Absent {
			stmt.BindNull(i + 1)
			continue
		}
		if err := bindArg(stmt, i+1, p.Type, text); err != nil {
			return fmt.Errorf("parameter %s: %w", p.Name, err)
		}
	}
	return nil
}

func bindArg(stmt *sqlite.Stmt, number int, kind param.Type, text string) error {
	switch kind {
	case param.Integer:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil { // no integer of SQLite is as large
			return fmt.Errorf("%w: %w", param.ErrValue, err)
		}
		stmt.BindInt64(number, n)
	case param.Real:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		stmt.BindFloat(number, x)
	case param.Boolean:
		stmt.BindBool(number, text == "true")
	case param.Timestamp:
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return err
		}
		stmt.BindText(number, t.UTC().Format("2006-01-02 15:04:05.999999999"))
	case param.Bytes:
		raw, err := param.Raw(text)
		if err != nil {
			return err
		}
		stmt.BindBytes(number, raw)
	default:
		stmt.BindText(number, text)
	}
	return nil
}

// text returns one statement with the filters at some positions. Its parameters are those of the
// feed, the values of the filters, of After and of Until, the limit and the offset. Limit and offset are sums: SQLite
// prepares a statement again for each value of a bare parameter there.
func (s *source) text(bits int, filters []int) string {
	key := s.def.Key
	keys := feed.Keyset{Key: key, Quote: plans.SQLite.QuoteAlways}
	after := len(s.args) + len(filters) + 1
	until := after + len(key)
	limit := until + len(key)
	columns := "*"
	if bits&keysOnly != 0 {
		columns = keys.Columns()
	}
	if bits&withUntil != 0 {
		columns += ", " + keys.Compare(true, func(column int) string { return fmt.Sprintf("?%d", until+column) }) + " AS spillway_until"
	}
	branch := fmt.Sprintf("SELECT %s FROM (\n%s\n) AS feed", columns, s.inner)
	where := " WHERE "
	for i, position := range filters {
		branch += fmt.Sprintf("%s%s = ?%d", where, plans.SQLite.QuoteAlways(s.def.Params[position].Name), len(s.args)+1+i)
		where = " AND "
	}
	branches := []string{branch}
	if bits&withAfter != 0 {
		branches = nil
		for i := len(key) - 1; i >= 0; i-- {
			branches = append(branches, branch+where+equalThenAfter(key[:i+1], after))
		}
	}
	return fmt.Sprintf("%s ORDER BY %s LIMIT ?%d+0 OFFSET ?%d+0",
		strings.Join(branches, " UNION ALL "), keys.Order(), limit, limit+1)
}

// equalThenAfter returns the condition that a row equals a key in all columns but the last
// and comes after it in the last. The key's values are the parameters from first on.
func equalThenAfter(key []feed.KeyColumn, first int) string {
	text := ""
	last := len(key) - 1
	for i, column := range key[:last] {
		text += fmt.Sprintf("%s = ?%d AND ", plans.SQLite.QuoteAlways(column.Name), first+i)
	}
	return fmt.Sprintf("%s%s %s ?%d", text, plans.SQLite.QuoteAlways(key[last].Name), key[last].Operator(false, true), first+last)
}
