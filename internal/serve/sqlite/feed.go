package sqlite

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"zombiezen.com/go/sqlite"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// Feed reads one feed. It implements feed.Source.
//
// The feed's statement becomes a derived table, which SQLite flattens. The rows after a
// key (a, b) are a UNION ALL of two searches, a = ? AND b < ? and a < ?, which SQLite
// merges. Each search is a range of the index (a, b), whatever the directions; for (a, b)
// < (?, ?), SQLite may search a alone. Until is one more output column, which is false
// from the first row after it; reading stops there.
//
// There are eight such statements (rows or keys, with and without After and Until) for each
// combination of filters, and each connection keeps those that it has run last prepared.
//
// Integers and reals are bound as numbers, booleans as 0 or 1, timestamps as text like
// 2016-12-01 23:59:57 (with a fraction only if there is one), text and UUIDs as text.
type Feed struct {
	db     *DB
	def    feed.Definition
	args   []int // args[i] is the position in Range.Args of the statement's parameter ?i+1
	inner  string
	viewed string    // inner with NULL for each parameter, because views have none
	texts  [8]string // without filters
	shape  atomic.Pointer[shape]
}

var _ feed.Source = (*Feed)(nil)

// The bits of an index into Feed.texts.
const (
	keysOnly = 1 << iota
	withAfter
	withUntil
)

// Feed returns the source of def. It does not open the database: mistakes that only SQLite
// can find are errors of Check, Read and Keys.
func (db *DB) Feed(def feed.Definition) (*feed.Expanded[*Feed], error) {
	if len(def.Key) == 0 {
		return nil, fmt.Errorf("feed %s: no key column", def.Name)
	}
	return feed.Expand(def, plans.SQLite, db.feed)
}

// feed returns the source of a definition without lists.
func (db *DB) feed(def feed.Definition) (*Feed, error) {
	f, err := db.statement(def)
	if err != nil {
		return nil, err
	}
	for i := range f.texts {
		f.texts[i] = f.text(i, nil)
	}
	return f, nil
}

// statement reads a definition's SELECT. The definition may lack a key.
func (db *DB) statement(def feed.Definition) (*Feed, error) {
	parsed, err := plans.ParseStatement(def.SQL, plans.SQLite)
	if err != nil {
		return nil, err
	}
	if err := param.Match(parsed, def.Params); err != nil {
		return nil, err
	}
	f := &Feed{db: db, def: def}
	names := parsed.Names()
	for _, name := range names {
		f.args = append(f.args, param.Index(def.Params, name))
	}
	f.inner = parsed.Render(func(name string) string { return "?" + strconv.Itoa(slices.Index(names, name)+1) })
	f.viewed = parsed.Render(func(string) string { return "NULL" })
	return f, nil
}

// Read implements feed.Source. An error leaves rows unchanged. A key of r that its
// column's declared type cannot hold wraps feed.ErrCursor. In a column whose declared type
// says nothing, SQLite orders values of all kinds, so a forged key only names another
// place in the feed.
func (f *Feed) Read(ctx context.Context, r feed.Range, rows *feed.Rows) error {
	size, count := len(rows.Data), rows.Len()
	err := f.db.read(ctx, func(conn *sqlite.Conn) error {
		stmt, shape, err := f.start(conn, r, 0)
		if err != nil {
			return err
		}
		reader := rowReader{stmt: stmt, shape: shape}
		for {
			found, err := f.nextRow(stmt, len(shape.columns), r.Until != "")
			if !found {
				return err
			}
			if err := reader.appendRow(rows); err != nil {
				return err
			}
		}
	})
	if err != nil {
		rows.Data, rows.Ends, rows.Keys = rows.Data[:size], rows.Ends[:count], rows.Keys[:count]
		return fmt.Errorf("read feed %s: %w", f.def.Name, err)
	}
	return nil
}

// Keys implements feed.Source.
func (f *Feed) Keys(ctx context.Context, r feed.Range, every int) (feed.Walk, error) {
	var walk feed.Walk
	err := f.db.read(ctx, func(conn *sqlite.Conn) error {
		stmt, shape, err := f.start(conn, r, keysOnly)
		if err != nil {
			return err
		}
		reader := rowReader{stmt: stmt, shape: shape}
		for {
			found, err := f.nextRow(stmt, len(shape.keys), r.Until != "")
			if err != nil {
				return err
			}
			if !found {
				walk.Last = feed.Key(reader.key)
				return nil
			}
			if err := reader.readKey(shape.firstColumns); err != nil {
				return err
			}
			walk.Count++
			if every > 0 && walk.Count%every == 0 {
				walk.Keys = append(walk.Keys, feed.Key(reader.key))
			}
		}
	})
	if err != nil {
		return feed.Walk{}, fmt.Errorf("read keys of feed %s: %w", f.def.Name, err)
	}
	return walk, nil
}

// start prepares the statement for r and binds its parameters.
func (f *Feed) start(conn *sqlite.Conn, r feed.Range, bits int) (*sqlite.Stmt, *shape, error) {
	shape, err := f.describe(conn)
	if err != nil {
		return nil, nil, err
	}
	if r.After != "" {
		bits |= withAfter
	}
	if r.Until != "" {
		bits |= withUntil
	}
	filters := param.Given(f.def.Params, r.Args)
	text := f.texts[bits]
	if len(filters) > 0 {
		text = f.text(bits, filters)
	}
	stmt, err := f.db.prepareOn(conn, text)
	if err != nil {
		return nil, nil, err
	}
	if err := f.bindArgs(stmt, r.Args, filters); err != nil {
		return nil, nil, err
	}
	next := len(f.args) + len(filters) + 1
	for _, key := range []feed.Key{r.After, r.Until} {
		if key != "" {
			if err := shape.bindKey(stmt, next, key); err != nil {
				return nil, nil, err
			}
		}
		next += len(f.def.Key)
	}
	stmt.BindInt64(next, int64(r.Limit))
	stmt.BindInt64(next+1, int64(r.Skip))
	return stmt, shape, nil
}

// nextRow moves to the next row of the range. A row has the given number of columns and,
// with until, one more that says whether the row is in the range.
func (f *Feed) nextRow(stmt *sqlite.Stmt, columns int, until bool) (bool, error) {
	found, err := stmt.Step()
	if err != nil && len(f.def.Params) > 0 && rejectsValue(err) {
		err = fmt.Errorf("%w: %w", param.ErrValue, err)
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
		return false, nil
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
func (f *Feed) bindArgs(stmt *sqlite.Stmt, args []string, filters []int) error {
	if len(args) != len(f.def.Params) {
		return fmt.Errorf("%d arguments for %d parameters", len(args), len(f.def.Params))
	}
	for i, position := range slices.Concat(f.args, filters) {
		param, text := f.def.Params[position], args[position]
		if err := bindArg(stmt, i+1, param.Type, text); err != nil {
			return fmt.Errorf("parameter %s: %w", param.Name, err)
		}
	}
	return nil
}

func bindArg(stmt *sqlite.Stmt, number int, kind feed.ParamType, text string) error {
	switch kind {
	case feed.Integer:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return err
		}
		stmt.BindInt64(number, n)
	case feed.Real:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		stmt.BindFloat(number, x)
	case feed.Boolean:
		stmt.BindBool(number, text == "true")
	case feed.Timestamp:
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return err
		}
		stmt.BindText(number, t.UTC().Format("2006-01-02 15:04:05.999999999"))
	default:
		stmt.BindText(number, text)
	}
	return nil
}
