package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/plans"
	"spillway/internal/serve/param"
)

const (
	// explainName is the prepared statement that Check explains.
	explainName = "spillway_explain"
	// checkStatements is how many times the statement timeout a check may take. It runs many small statements.
	checkStatements = 4
)

// Check implements feed.Source. It explains a feed's statement for a window and the one for
// the rows after a key, as they are planned for unknown parameters. It does so without filters
// and with each of them. It also returns an error if a key column's table lets it be NULL, and
// logs a warning if no unique index covers the key.
//
// A query's statement is prepared and explained, which checks the privileges.
func (s *source) Check(ctx context.Context, window int) error {
	err := s.db.withConn(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		limited, cancel := context.WithTimeout(ctx, checkStatements*(s.db.bounds.StatementTimeout+clientGrace))
		defer cancel()
		if s.def.IsQuery() {
			return s.checkQuery(limited, conn)
		}
		return s.checkFeed(limited, conn, window)
	})
	if err == nil && s.ownParams() == 0 {
		err = s.lookForNull(ctx, nil)
	}
	if err != nil {
		return fmt.Errorf("check %s: %w", &s.def, err)
	}
	return nil
}

func (s *source) checkQuery(ctx context.Context, conn *pgconn.PgConn) error {
	statement := s.statement(shape{})
	description, err := conn.Prepare(ctx, "", statement.sql, nil)
	err = adviseArray(s.def.Params, err)
	if err == nil {
		description.Fields = slices.Clone(description.Fields)
		err = s.db.types.learn(ctx, conn, s.db.types.unknown(description.Fields))
	}
	if err == nil {
		_, err = statement.columns(description.Fields)
	}
	if err == nil {
		err = s.warnPolicies(ctx, conn, description.Fields)
	}
	if err == nil {
		err = s.checkHarmless(ctx, conn, statement, len(description.ParamOIDs))
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && strings.HasPrefix(pgErr.Code, classDataException) {
		return nil // of a constant in the statement; running it may be fine
	}
	return err
}

func (s *source) checkFeed(ctx context.Context, conn *pgconn.PgConn, window int) error {
	description, err := s.describe(ctx, conn)
	if err != nil {
		return adviseArray(s.def.Params, err)
	}
	c, err := newColumns(s.def, s.db.types, description.Fields)
	if err != nil {
		return err
	}
	s.known.Store(c)
	if err := checkIntervals(conn, description.Fields); err != nil {
		return err
	}
	if err := s.warnPolicies(ctx, conn, description.Fields); err != nil {
		return err
	}
	check := plans.Check{
		Window: window, Judged: s.def.Judged(s.db.log),
		Catalog: plans.Catalog{Dialect: plans.Postgres, Query: func(sql string, args ...string) ([][]string, error) {
			return texts(ctx, conn, sql, args...)
		}},
		Explain: func(sql string, parameters int) (*plans.Plan, error) { return explain(ctx, conn, sql, parameters) },
	}
	if check.Key, err = s.readKey(check.Catalog, c); err != nil {
		return err
	}
	nullable, err := check.Catalog.NullableKey(check.Key, s.body)
	if err != nil {
		return err
	}
	s.nulls.Expect(nullable)
	if err := s.def.CheckFilters(c.names); err != nil {
		return err
	}
	explained := func(of shape) error {
		w := s.writer()
		text := w.write(of)
		plan, err := explain(ctx, conn, text, w.parameters())
		if err != nil {
			return err
		}
		check.Window = of.rows
		return check.Judge(plan)
	}
	return s.def.EachFilter(func(position int) error {
		of := shape{rows: powerOfTwo(window)}
		if position >= 0 {
			of.filters = 1 << position
		}
		if err := explained(of); err != nil {
			return err
		}
		of.after = true
		return explained(of)
	})
}

// checkIntervals refuses intervals in a style that streams do not take back. A pooler may not let the
// session choose it.
func checkIntervals(conn *pgconn.PgConn, fields []pgconn.FieldDescription) error {
	style := conn.ParameterStatus("IntervalStyle")
	i := slices.IndexFunc(fields, func(f pgconn.FieldDescription) bool {
		return f.DataTypeOID == pgtype.IntervalOID || f.DataTypeOID == pgtype.IntervalArrayOID
	})
	if i < 0 || style == "" || style == "postgres" {
		return nil
	}
	return fmt.Errorf("the column %s is an interval, and IntervalStyle is %s, in which streams do not accept it: "+
		"run ALTER ROLE ... SET intervalstyle = postgres, or let the pooler pass it on (track_extra_parameters)", fields[i].Name, style)
}

// warnPolicies logs a warning for each table of the fields whose row-level security hides all rows
// from the role.
func (s *source) warnPolicies(ctx context.Context, conn *pgconn.PgConn, fields []pgconn.FieldDescription) error {
	seen := map[uint32]bool{0: true} // 0: no table
	for _, field := range fields {
		if seen[field.TableOID] {
			continue
		}
		seen[field.TableOID] = true
		hidden, err := withoutPolicy(ctx, conn, "$1::oid", "r", fmt.Sprint(field.TableOID))
		if err != nil {
			return err
		}
		if hidden {
			s.db.log.Warn("row-level security has no policy that lets the role read: no row is visible; run CREATE POLICY ... FOR SELECT",
				"feed", s.def.Name, "column", field.Name)
		}
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

// readKey looks up the tables of the key's columns. It checks that the columns are NOT
// NULL, and logs a warning if no unique index covers the key.
func (s *source) readKey(catalog plans.Catalog, c *columns) ([]plans.KeyColumn, error) {
	var key []plans.KeyColumn
	for i, position := range c.key {
		field := c.fields[position]
		k := plans.KeyColumn{Output: field.Name, Desc: !s.def.Key[i].Ascending}
		rows, err := catalog.Query(`SELECT n.nspname, c.relname, a.attname
			FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE a.attrelid = $1::oid AND a.attnum = $2::int2`, fmt.Sprint(field.TableOID), fmt.Sprint(field.TableAttributeNumber))
		if err != nil {
			return nil, fmt.Errorf("look up the key column %s: %w", field.Name, err)
		}
		if len(rows) == 1 {
			k.Table, k.Column = plans.TableName{Schema: rows[0][0], Name: rows[0][1]}, rows[0][2]
		}
		key = append(key, k)
	}
	unguarded, err := catalog.CheckKey(key)
	if err != nil {
		return nil, err
	}
	if unguarded {
		s.db.log.Warn("no unique index covers the feed's key; rows with equal keys can be lost between pages",
			"feed", s.def.Name, "table", key[0].Table.String())
	}
	return key, nil
}

// explain returns the generic plan of a statement with a number of parameters.
func explain(ctx context.Context, conn *pgconn.PgConn, sql string, parameters int) (*plans.Plan, error) {
	document, err := explainText(ctx, conn, sql, parameters)
	if err != nil {
		return nil, err
	}
	plan, err := plans.ReadPostgres(document)
	if err == nil {
		plan.SQL = sql
	}
	return plan, err
}

// explainText returns the plan as a document. It is one message with a transaction, which keeps one server connection behind any
// pooler.
func explainText(ctx context.Context, conn *pgconn.PgConn, sql string, parameters int) (string, error) {
	arguments := "" // without parameters, there are no parentheses
	if parameters > 0 {
		arguments = "(" + strings.TrimSuffix(strings.Repeat("NULL, ", parameters), ", ") + ")"
	}
	results, err := conn.Exec(ctx, "BEGIN; SET LOCAL plan_cache_mode = force_generic_plan; PREPARE "+explainName+" AS "+sql+
		";\nEXPLAIN (VERBOSE, FORMAT JSON) EXECUTE "+explainName+arguments+"; DEALLOCATE "+explainName+"; ROLLBACK").ReadAll()
	if err != nil {
		rolledBack := exec(ctx, conn, "ROLLBACK")
		_ = exec(ctx, conn, "DEALLOCATE "+explainName) // it may not be there
		return "", errors.Join(err, rolledBack)
	}
	const explained = 3 // the place of EXPLAIN
	if len(results) <= explained || len(results[explained].Rows) != 1 {
		return "", errors.New("EXPLAIN returned no document")
	}
	return string(results[explained].Rows[0][0]), nil
}
