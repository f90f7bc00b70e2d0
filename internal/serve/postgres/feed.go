package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// Feed reads one feed. It implements feed.Source.
type Feed struct {
	db   *DB
	def  feed.Definition
	body string // the SELECT with its parameters numbered and cast

	known atomic.Pointer[columns] // of the rows; nil before the first check or read

	mu         sync.Mutex
	statements map[shape]*statement // at most a few dozen per combination of filters, because shape.rows is a power of two
}

var _ feed.Source = (*Feed)(nil)

// Feed returns the source of the feed that def describes. Mistakes that only the database
// can find are errors of Read and Check.
//
// Parameters are passed as text, bigint, double precision, boolean, timestamptz and uuid, lists
// as arrays of these, and filters as bigint or as the type of their column.
func (db *DB) Feed(def feed.Definition) (*Feed, error) {
	if len(def.Key) == 0 {
		return nil, fmt.Errorf("feed %s: the key names no column", def.Name)
	}
	body, err := numbered(def.SQL, def.Params)
	if err != nil {
		return nil, fmt.Errorf("feed %s: %w", def.Name, err)
	}
	return &Feed{db: db, def: def, body: body, statements: make(map[shape]*statement)}, nil
}

// numbered returns a statement with its parameters numbered and cast.
func numbered(sql string, params []feed.Param) (string, error) {
	parsed, err := plans.ParseStatement(sql, plans.Postgres)
	if err != nil {
		return "", err
	}
	if err := param.Match(parsed, params); err != nil {
		return "", err
	}
	return parsed.Render(func(name string) string {
		i := param.Index(params, name)
		return fmt.Sprintf("$%d::%s", i+1, castOf(params[i])) // filters are behind the statement's parameters
	}), nil
}

// Read implements feed.Source. An error leaves rows unchanged.
func (f *Feed) Read(ctx context.Context, r feed.Range, rows *feed.Rows) error {
	return feed.Collect(f.def.Name, rows, func(to feed.RowHandler[[]byte]) error { return f.run(ctx, r, false, to) })
}

// Keys implements feed.Source.
func (f *Feed) Keys(ctx context.Context, r feed.Range, every int) (feed.Walk, error) {
	return feed.CollectKeys(f.def.Name, every, func(to feed.RowHandler[[]byte]) error { return f.run(ctx, r, true, to) })
}

func (f *Feed) run(ctx context.Context, r feed.Range, keysOnly bool, to feed.RowHandler[[]byte]) error {
	args, err := f.arguments(r)
	if err != nil {
		return err
	}
	err = f.db.query(ctx, f.statement(f.shape(r, keysOnly)), args, to)
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	hasKey := r.After != "" || r.Until != ""
	if hasKey && strings.HasPrefix(pgErr.Code, classDataException) && pgErr.Code != stateDivisionByZero {
		return fmt.Errorf("%w: %w", feed.ErrCursor, err)
	}
	if rejected := valueError(f.def.Params, err); rejected != nil {
		return rejected
	}
	if pgErr.Code == stateUndefinedColumn || pgErr.Code == stateAmbiguousColumn {
		if keyErr := f.checkColumns(ctx); keyErr != nil {
			return keyErr
		}
	}
	return err
}

// valueError returns err as param.ErrValue if the server rejects the value of a parameter, else
// nil. Errors of class 22 are about data; without parameters it is the tables' own.
func valueError(params []feed.Param, err error) error {
	var pgErr *pgconn.PgError
	if len(params) > 0 && errors.As(err, &pgErr) && strings.HasPrefix(pgErr.Code, classDataException) {
		return fmt.Errorf("%w: %w", param.ErrValue, err)
	}
	return nil
}

// arguments returns the statement's parameters in the order of writer.write.
func (f *Feed) arguments(r feed.Range) ([][]byte, error) {
	if r.Skip < 0 || r.Limit < 1 || r.Skip > math.MaxInt-r.Limit {
		return nil, fmt.Errorf("skip %d, limit %d", r.Skip, r.Limit)
	}
	args, err := bound(f.def.Params, r.Args)
	if err != nil {
		return nil, err
	}
	for _, key := range []feed.Key{r.After, r.Until} {
		if key == "" {
			continue
		}
		values, err := key.Values(len(f.def.Key))
		if err != nil {
			return nil, err
		}
		for _, value := range values {
			args = append(args, []byte(value.Text))
		}
	}
	return append(args, strconv.AppendInt(nil, int64(r.Limit), 10), strconv.AppendInt(nil, int64(r.Skip), 10)), nil
}

func (f *Feed) writer() *writer { return &writer{def: f.def, body: f.body} }

func (f *Feed) statement(s shape) *statement {
	f.mu.Lock()
	defer f.mu.Unlock()
	if st, ok := f.statements[s]; ok {
		return st
	}
	w := f.writer()
	known := &f.known
	if s.keysOnly {
		known = nil
	}
	st := readStatement(f.def, w.write(s), known)
	f.statements[s] = st
	return st
}

// Columns returns the columns of the rows; nil if they are not known yet.
func (f *Feed) Columns() []feed.Column { return f.known.Load().described() }

// checkColumns describes the feed's own statement and returns what is wrong with its
// columns. It returns nil if it finds nothing or cannot describe the statement.
func (f *Feed) checkColumns(ctx context.Context) error {
	conn, err := f.db.acquire(ctx)
	if err != nil {
		return nil
	}
	defer conn.Release()
	description, err := f.describe(ctx, conn.Conn().PgConn())
	if err != nil {
		return nil
	}
	_, err = newColumns(f.def, description.Fields)
	return err
}

// describe returns the columns of the feed's own statement as a derived table.
func (f *Feed) describe(ctx context.Context, conn *pgconn.PgConn) (*pgconn.StatementDescription, error) {
	return conn.Prepare(ctx, "", "SELECT * FROM ("+f.body+") AS feed", nil)
}
