package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// Names in the statement of a batch. The query's own text must not have them.
const (
	ownPrefix  = "spillway_"
	ownColumns = 2 // the execution's position in the batch, and the row's in the execution
)

// Batches implements feed.BatchReader.
func (s *source) Batches() bool { return s.batch.Load() != nil && !s.db.unprepared.active() }

// ReadBatch implements feed.BatchReader.
func (s *source) ReadBatch(ctx context.Context, args [][]string, rows []feed.Rows) error {
	statement := s.batch.Load()
	if statement == nil {
		return fmt.Errorf("read a batch of %s: its executions run alone", &s.def)
	}
	params := make([][]byte, len(s.def.Params))
	column := make([]string, len(args))
	for p := range params {
		for i := range args {
			column[i] = literalOf(s.def.Params[p].Type, args[i][p])
		}
		params[p] = arrayOf(column)
	}
	if err := s.db.query(ctx, statement, params, &splitter{rows: rows, inner: row{columns: s.known.Load()}}); err != nil {
		return fmt.Errorf("read a batch of %s: %w", &s.def, err)
	}
	return nil
}

// splitter gives each row of a batch to its execution.
type splitter struct {
	rows  []feed.Rows
	inner row
	at, n int // the last row's
}

// Row implements feed.RowHandler.
func (s *splitter) Row(r feed.Row) error {
	values := r.(*row).values
	at, err := strconv.Atoi(string(values[0]))
	if err != nil {
		return fmt.Errorf("read a row's position: %w", err)
	}
	n, err := strconv.Atoi(string(values[1]))
	if err != nil {
		return fmt.Errorf("read a row's number: %w", err)
	}
	if next := at == s.at && n == s.n+1 || at > s.at && n == 1; !next || at > len(s.rows) {
		return errors.New("the rows of a batch are out of order")
	}
	s.at, s.n, s.inner.values = at, n, values[ownColumns:]
	return s.rows[at-1].Handler().Row(&s.inner)
}

// Start implements feed.RowHandler.
func (s *splitter) Start() {
	for i := range s.rows {
		s.rows[i].Handler().Start()
	}
	s.at, s.n = 0, 0
}

// batchText returns the statement that runs a query for arrays of its parameters; "" if its text has one of the statement's own
// names. The server does not see the length of the arrays when it plans, so that one plan serves all lengths. OFFSET keeps the
// query apart, with the plan that it has alone.
func (s *source) batchText() (string, error) {
	parsed, err := plans.ParseStatement(s.def.SQL, plans.Postgres)
	if err != nil || strings.Contains(strings.ToLower(s.def.SQL), ownPrefix) {
		return "", err
	}
	var arrays, names []string
	for i, p := range s.def.Params {
		names = append(names, "p"+strconv.Itoa(i+1))
		arrays = append(arrays, fmt.Sprintf("unnest((SELECT $%d::%s[]))", i+1, castOf(p)))
	}
	body := parsed.Render(func(name string) string { return ownPrefix + "batch." + names[param.Index(s.def.Params, name)] })
	const text = `SELECT spillway_batch.spillway_at, spillway_rows.*
		FROM ROWS FROM (%s) WITH ORDINALITY AS spillway_batch(%s, spillway_at) CROSS JOIN LATERAL (
		SELECT row_number() OVER () AS spillway_row, spillway_query.* FROM (%s) AS spillway_query OFFSET 0) AS spillway_rows`
	return fmt.Sprintf(text, strings.Join(arrays, ", "), strings.Join(names, ", "), body), nil
}

// checkBatch finds out whether executions of a query can run together: it has no list, only reads, calls no volatile function, and
// the server plans it in a batch as it does alone. document is its generic plan.
func (s *source) checkBatch(ctx context.Context, conn *pgconn.PgConn, document string) error {
	s.batch.Store(nil)
	if len(s.def.Params) == 0 || slices.ContainsFunc(s.def.Params, func(p param.Param) bool { return p.ListMax > 0 }) {
		return nil
	}
	single, err := plans.ReadPostgres(document)
	if err != nil || !onlyReads(single.Nodes) {
		return err
	}
	if harmless, err := harmless(ctx, conn, document); err != nil || !harmless {
		return err
	}
	text, err := s.batchText()
	if text == "" || err != nil {
		return err
	}
	document, err = explainText(ctx, conn, text, len(s.def.Params))
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return nil // the query cannot be part of another
	}
	if err != nil {
		return err
	}
	plan, err := plans.ReadPostgres(document)
	if err != nil {
		return err
	}
	if !repeats(plan.Nodes, single.Nodes) {
		return nil
	}
	// Compiling takes longer than small statements.
	const compiled = "SELECT current_setting('jit', true) = 'on' AND current_setting('jit_above_cost', true)::float8 BETWEEN 0 AND $1::float8"
	compiles, err := texts(ctx, conn, compiled, fmt.Sprint(plan.Nodes[0].Cost))
	if err != nil || len(compiles) != 1 || compiles[0][0] == "t" {
		return err
	}
	s.batch.Store(newStatement(text, func(fields []pgconn.FieldDescription) (*columns, error) {
		if own := s.known.Load(); own == nil || len(fields) < ownColumns || !own.matches(fields[ownColumns:]) {
			return nil, errors.New("the columns of a batch differ from those of its query")
		}
		return newColumns(s.def, s.db.types, fields)
	}))
	return nil
}
