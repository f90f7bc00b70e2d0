package postgres

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// source reads the rows of a feed or a query. It implements feed.Source.
type source struct {
	db   *DB
	def  feed.Definition
	body string // the SELECT with its parameters numbered and cast

	known atomic.Pointer[columns] // of the rows; nil before the first check or read
	nulls feed.NullKeys

	mu         sync.Mutex
	statements map[shape]*statement // at most a few dozen per combination of filters, because shape.rows is a power of two
}

// Source returns the source of the feed or the query that def describes. Mistakes that only
// the database can find are errors of Read and Check.
//
// Parameters are passed as text, bigint, double precision, boolean, timestamptz, uuid,
// numeric, date, time and bytea. Lists
// are arrays of these, so that a statement compares with = ANY(:ids). Filters are bigint or of
// the type of their column.
func (db *DB) Source(def feed.Definition) (feed.Source, error) {
	return feed.Optional(def, plans.Postgres, func(def feed.Definition) (feed.Source, error) { return db.source(def) })
}

func (db *DB) source(def feed.Definition) (*source, error) {
	body, err := numbered(def.SQL, def.Params)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", &def, err)
	}
	return &source{db: db, def: def, body: body, statements: make(map[shape]*statement)}, nil
}

// numbered returns a statement with its parameters numbered and cast.
func numbered(sql string, params []param.Param) (string, error) {
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
func (s *source) Read(ctx context.Context, r feed.Range, rows *feed.Rows) error {
	return feed.Collect(&s.def, rows, func(to feed.RowHandler) error { return s.run(ctx, r, false, to) })
}

// Keys implements feed.Source.
func (s *source) Keys(ctx context.Context, r feed.Range, every int) (feed.Walk, error) {
	return feed.CollectKeys(&s.def, every, func(to feed.RowHandler) error { return s.run(ctx, r, true, to) })
}

func (s *source) run(ctx context.Context, r feed.Range, keysOnly bool, to feed.RowHandler) error {
	args, err := s.arguments(r)
	if err != nil {
		return err
	}
	err = feed.ReadEnd(ctx, r, to, func(to feed.RowHandler) error {
		return s.db.query(ctx, s.statement(s.shape(r, keysOnly)), args, to)
	}, s.lookForNull)
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	if s.unclear(pgErr) {
		if keyErr := s.checkColumns(ctx); keyErr != nil {
			return keyErr
		}
	}
	return s.judged(r, pgErr, err)
}

// unclear reports whether an error may be due to the key's columns, which checkColumns finds.
func (s *source) unclear(err *pgconn.PgError) bool {
	return !s.def.IsQuery() && (err.Code == stateUndefinedColumn || err.Code == stateAmbiguousColumn)
}

// judged returns err, which is or wraps an error of the server, or what it says about the key or the arguments of r.
func (s *source) judged(r feed.Range, pgErr *pgconn.PgError, err error) error {
	switch {
	case !strings.HasPrefix(pgErr.Code, classDataException):
	case (r.After != "" || r.Until != "") && pgErr.Code != stateDivisionByZero:
		return fmt.Errorf("%w: %w", feed.ErrCursor, err)
	case len(s.def.Params) > 0: // without parameters it is the tables' own
		return param.Rejected(s.def.Params, r.Args, err)
	}
	return err
}

// collected returns the error of a read in an event loop as Read does.
func (s *source) collected(r *feed.LoopRead, err error) error {
	return feed.Collect(&s.def, &r.Rows, func(feed.RowHandler) error { return err })
}

// lookForNull returns an error if a row for the arguments has NULL in the key.
func (s *source) lookForNull(ctx context.Context, args []string) error {
	return s.nulls.Look(args, func(columns []string) (found bool, err error) {
		values, err := bound(s.def.Params[:s.ownParams()], args[:s.ownParams()])
		if err != nil {
			return false, err
		}
		err = s.db.ask(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
			result := conn.ExecParams(ctx, plans.Postgres.FindNull(s.body, columns), values, nil, nil, nil).Read()
			found = len(result.Rows) > 0
			return result.Err
		})
		return found, err
	})
}

// ownParams returns how many parameters the statement itself has. Filters are behind them.
func (s *source) ownParams() int {
	if i := slices.IndexFunc(s.def.Params, func(p param.Param) bool { return p.Filter }); i >= 0 {
		return i
	}
	return len(s.def.Params)
}

// arguments returns the statement's parameters in the order of writer.write.
func (s *source) arguments(r feed.Range) ([][]byte, error) {
	args, err := bound(s.def.Params, r.Args)
	if err != nil || s.def.IsQuery() {
		return args, err
	}
	for _, key := range []feed.Key{r.After, r.Until} {
		if key == "" {
			continue
		}
		values, err := key.Values(len(s.def.Key))
		if err != nil {
			return nil, err
		}
		for _, value := range values {
			args = append(args, []byte(value.Text))
		}
	}
	return append(args, strconv.AppendInt(nil, int64(r.Limit), 10), strconv.AppendInt(nil, int64(r.Skip), 10)), nil
}

// bound returns the values to pass for arguments. Filters without one are left out.
func bound(params []param.Param, args []string) ([][]byte, error) {
	if len(args) != len(params) {
		return nil, fmt.Errorf("%d arguments for %d parameters", len(args), len(params))
	}
	values := make([][]byte, 0, len(args)+8) // of a key, limit and offset
	for i, arg := range args {
		switch p := params[i]; {
		case p.Filter && arg == param.Absent:
		case p.Filter && param.Finer(p, arg), p.ListMax == 0 && arg == param.Absent:
			values = append(values, nil) // NULL, which equals nothing
		case p.ListMax == 0:
			values = append(values, []byte(literalOf(p.Type, arg)))
		default:
			list, err := param.Values(arg)
			if err != nil {
				return nil, fmt.Errorf("parameter %s: %w", p.Name, err)
			}
			for i := range list {
				list[i] = literalOf(p.Type, list[i])
			}
			values = append(values, arrayOf(list))
		}
	}
	return values, nil
}

// literalOf returns an argument in PostgreSQL's text format.
func literalOf(t param.Type, arg string) string {
	if t != param.Bytes {
		return arg
	}
	raw, _ := param.Raw(arg) // param.Parse has checked it
	return `\x` + hex.EncodeToString(raw)
}

// arrayOf returns values as an array in PostgreSQL's text format.
func arrayOf(values []string) []byte {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	array := []byte{'{'}
	for i, value := range values {
		if i > 0 {
			array = append(array, ',')
		}
		array = append(append(append(array, '"'), escape.Replace(value)...), '"')
	}
	return append(array, '}')
}

func (s *source) writer() *writer { return &writer{def: s.def, body: s.body} }

func (s *source) statement(of shape) *statement {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st, ok := s.statements[of]; ok {
		return st
	}
	known := &s.known
	if of.keysOnly {
		known = nil
	}
	st := readStatement(s.def, s.db.types, s.writer().write(of), known)
	s.statements[of] = st
	return st
}

// Columns returns the columns of the rows; nil if they are not known yet.
func (s *source) Columns() []feed.Column { return s.known.Load().described() }

// checkColumns describes a feed's own statement and returns what is wrong with its
// columns. It returns nil if it finds nothing or cannot describe the statement.
func (s *source) checkColumns(ctx context.Context) (wrong error) {
	_ = s.db.ask(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		description, err := s.describe(ctx, conn)
		if err == nil {
			_, wrong = newColumns(s.def, s.db.types, description.Fields)
		}
		return err
	})
	return wrong
}

// describe returns the columns of a feed's own statement as a derived table.
func (s *source) describe(ctx context.Context, conn *pgconn.PgConn) (*pgconn.StatementDescription, error) {
	description, err := conn.Prepare(ctx, "", "SELECT * FROM ("+s.body+") AS feed", nil)
	if err != nil {
		return nil, err
	}
	description.Fields = slices.Clone(description.Fields) // the slice belongs to the connection
	return description, s.db.types.learn(ctx, conn, s.db.types.unknown(description.Fields))
}
