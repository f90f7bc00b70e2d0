package postgres

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/plans"
)

// readOnly are the steps of plans that change nothing, if their functions do not.
var readOnly = []string{
	"Aggregate", "Append", "Bitmap Heap Scan", "Bitmap Index Scan", "BitmapAnd", "BitmapOr", "CTE Scan", "Function Scan", "Gather",
	"Gather Merge", "Group", "Hash", "Hash Join", "Incremental Sort", "Index Only Scan", "Index Scan", "Limit", "Materialize", "Memoize",
	"Merge Append", "Merge Join", "Nested Loop", "ProjectSet", "Recursive Union", "Result", "Seq Scan", "SetOp", "Sort", "Subquery Scan",
	"Table Function Scan", "Tid Range Scan", "Tid Scan", "Unique", "Values Scan", "WindowAgg", "WorkTable Scan",
}

func onlyReads(steps []plans.Node) bool {
	return !slices.ContainsFunc(steps, func(n plans.Node) bool { return !slices.Contains(readOnly, n.Type) || !onlyReads(n.Nodes) })
}

// harmlessQuery counts what a plan may call that is volatile: functions whose names are in it (quoted ones are not looked up), and
// any own operator, cast, type, aggregate or check of a domain, which plans do not name.
const harmlessQuery = `WITH volatile AS (SELECT oid, proname FROM pg_proc WHERE provolatile = 'v')
	SELECT (SELECT count(*) FROM volatile WHERE position(lower(proname) || '(' IN lower($1)) > 0) + position('\"(' IN $1)
		+ (SELECT count(*) FROM pg_operator JOIN volatile v ON v.oid = oprcode WHERE pg_operator.oid >= 16384)
		+ (SELECT count(*) FROM pg_cast JOIN volatile v ON v.oid = castfunc WHERE pg_cast.oid >= 16384)
		+ (SELECT count(*) FROM pg_type JOIN volatile v ON v.oid IN (typinput, typoutput) WHERE pg_type.oid >= 16384)
		+ (SELECT count(*) FROM pg_aggregate JOIN volatile v ON v.oid IN (aggtransfn, aggfinalfn) WHERE aggfnoid::oid >= 16384)
		+ (SELECT count(*) FROM pg_depend d JOIN pg_constraint c ON d.classid = 'pg_constraint'::regclass AND d.objid = c.oid AND c.contypid <> 0
			JOIN volatile v ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = v.oid)`

// harmless reports whether nothing that a plan calls is volatile. The plan has what views contain.
func harmless(ctx context.Context, conn *pgconn.PgConn, document string) (bool, error) {
	rows, err := texts(ctx, conn, harmlessQuery, document)
	return err == nil && len(rows) == 1 && rows[0][0] == "0", err
}

// checkHarmless explains a query's statement, and notes whether it may run more often than it is asked for.
func (s *source) checkHarmless(ctx context.Context, conn *pgconn.PgConn, sql string) error {
	document, err := explainText(ctx, conn, sql, len(s.def.Params))
	if err != nil {
		return err
	}
	plan, err := plans.ReadPostgres(document)
	if err == nil {
		plan.SQL = sql
		s.def.Plans.Add(plan, nil)
	}
	if err != nil || !onlyReads(plan.Nodes) {
		s.harmless.Store(false)
		return nil
	}
	may, err := harmless(ctx, conn, document)
	s.harmless.Store(may && err == nil)
	return err
}
