package postgres

import (
	"context"
	_ "embed"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/plans"
)

// readOnly are the steps of plans that change nothing, if their functions do not.
var readOnly = []string{
	"Aggregate", "Append", "Bitmap Heap Scan", "Bitmap Index Scan", "BitmapAnd", "BitmapOr", "CTE Scan", "Function Scan", "Gather",
	"Gather Merge", "Group", "Hash", "Hash Join", "Incremental Sort", "Index Only Scan", "Index Scan", "Limit", "Materialize", "Memoize",
	"Merge Append", "Merge Join", "Nested Loop", "ProjectSet", "Recursive Union", "Result", "Seq Scan", "SetOp", "Sort", "Subquery Scan",
	"Table Function Scan", "Tid Range Scan", "Tid Scan", "Unique", "WindowAgg", "WorkTable Scan",
}

func onlyReads(steps []plans.Node) bool {
	return !slices.ContainsFunc(steps, func(n plans.Node) bool { return !slices.Contains(readOnly, n.Type) || !onlyReads(n.Nodes) })
}

// harmlessQuery counts what a plan may call that is volatile: functions whose names are in it (quoted ones are not looked up), and
// any own operator, cast, type, aggregate or check of a domain, which plans do not name.
//
//go:embed sql/harmless.sql
var harmlessQuery string

// catalogQuery returns a text that changes when functions, views, policies or what else harmlessQuery looks at is replaced.
//
//go:embed sql/catalog.sql
var catalogQuery string

// harmless reports whether nothing that a plan calls is volatile. The plan has what views contain. It
// lacks limits and the frames of windows: sql, and the definitions of views that it names, have those.
func harmless(ctx context.Context, conn *pgconn.PgConn, document, sql string) (bool, error) {
	rows, err := texts(ctx, conn, harmlessQuery, document, sql)
	return err == nil && len(rows) == 1 && rows[0][0] == "0", err
}

// checkHarmless explains a statement with a number of parameters, and notes whether it may run more often than it is asked for.
func (s *source) checkHarmless(ctx context.Context, conn *pgconn.PgConn, st *statement, parameters int) error {
	catalog, err := texts(ctx, conn, catalogQuery)
	if err != nil {
		return err
	}
	document, err := explainText(ctx, conn, st.sql, parameters)
	if err != nil {
		return err
	}
	plan, err := plans.ReadPostgres(document)
	if err == nil && s.def.IsQuery() {
		plan.SQL = st.sql
		s.def.Plans.Add(plan, nil)
	}
	may := err == nil && onlyReads(plan.Nodes)
	if may {
		if may, err = harmless(ctx, conn, document, st.sql); err != nil {
			return err
		}
	}
	st.harmless.Store(may)
	st.catalog.Store(&catalog[0][0])
	return nil
}
