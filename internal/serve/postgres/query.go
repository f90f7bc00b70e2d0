package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/query"
)

// Query runs one query. It implements query.Source. A list is passed as an array, so that the
// statement compares with = ANY(:ids).
type Query struct {
	db        *DB
	def       query.Definition
	statement *statement
	known     atomic.Pointer[columns] // of the rows; nil before the first check or run
}

var _ query.Source = (*Query)(nil)

// Query returns the source of the query that def describes. Mistakes that only the
// database can find are errors of Run and Check. DB.Feed says how parameters are passed.
func (db *DB) Query(def query.Definition) (*Query, error) {
	sql, err := numbered(def.SQL, def.Params)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", def.Name, err)
	}
	as := feed.Definition{RFC3339: def.RFC3339, NumbersAsText: def.NumbersAsText}
	q := &Query{db: db, def: def}
	q.statement = readStatement(as, sql, &q.known)
	return q, nil
}

// Columns returns the columns of the rows; nil if they are not known yet.
func (q *Query) Columns() []feed.Column { return q.known.Load().described() }

// Run implements query.Source.
func (q *Query) Run(ctx context.Context, args []string, limit query.Limit, rows *query.Rows) error {
	values, err := bound(q.def.Params, args)
	if err != nil {
		return err
	}
	err = q.db.query(ctx, q.statement, values, &queryRows{rows: rows, limit: limit})
	if rejected := valueError(q.def.Params, err); rejected != nil {
		return rejected
	}
	return err
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
		case p.Filter && param.Finer(p, arg):
			values = append(values, nil) // which equals nothing
		case p.ListMax == 0:
			values = append(values, []byte(arg))
		default:
			list, err := param.Values(arg)
			if err != nil {
				return nil, fmt.Errorf("parameter %s: %w", p.Name, err)
			}
			values = append(values, arrayOf(list))
		}
	}
	return values, nil
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

// Check has the database prepare and explain the statement without running it. EXPLAIN
// checks the privileges.
func (q *Query) Check(ctx context.Context) error {
	conn, err := q.db.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	description, err := conn.Conn().PgConn().Prepare(ctx, "", q.statement.sql, nil)
	var pgErr *pgconn.PgError
	err = adviseArray(q.def.Params, err)
	if err == nil {
		_, err = q.statement.columns(description.Fields)
	}
	if err == nil {
		_, err = explain(ctx, conn.Conn().PgConn(), q.statement.sql, len(q.def.Params))
	}
	if errors.As(err, &pgErr) && strings.HasPrefix(pgErr.Code, classDataException) {
		err = nil // of a constant in the statement; running it may be fine
	}
	if err != nil {
		return fmt.Errorf("query %s: %w", q.def.Name, err)
	}
	return nil
}

// adviseArray adds to an error how to compare with a list.
func adviseArray(params []param.Param, err error) error {
	var pgErr *pgconn.PgError
	list := slices.IndexFunc(params, func(p param.Param) bool { return p.ListMax > 0 })
	if errors.As(err, &pgErr) && pgErr.Code == stateUndefinedFunction && list >= 0 && strings.Contains(pgErr.Message, "[]") {
		return fmt.Errorf("%w; write = ANY(:%[2]s) instead of IN (:%[2]s)", err, params[list].Name)
	}
	return err
}

// queryRows encodes the rows of a query.
type queryRows struct {
	rows  *query.Rows
	limit query.Limit
}

func (s *queryRows) Row(e feed.RowEncoder[[]byte], values [][]byte) error {
	s.rows.Begin()
	s.rows.Data = e.AppendObject(s.rows.Data, values)
	return s.rows.End(s.limit)
}

func (s *queryRows) Reset() { s.rows.Reset() }
