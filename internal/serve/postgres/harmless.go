package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

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

// outline describes how steps read their tables, from the first one down to the last.
func outline(steps []plans.Node) (lines []string) {
	for _, n := range steps {
		if n.Type != "Subquery Scan" && n.Type != "Memoize" {
			lines = append(lines, fmt.Sprintf("%s %s %s %s %s %v %v %d",
				n.Type, n.Schema, n.Relation, n.Index, n.Strategy, n.IndexCond != "", n.Filter != "", len(n.Nodes)))
		}
		lines = append(lines, outline(n.Nodes)...)
	}
	return lines
}

// repeats reports whether the plan of batchText runs a query's plan once for each execution: a loop over the arguments, and in it
// what numbers the rows of the query.
func repeats(batch, single []plans.Node) bool {
	lines, own := outline(batch), outline(single)
	n := len(lines) - len(own)
	if n < 3 || !slices.Equal(lines[n:], own) || !strings.HasPrefix(lines[0], "Nested Loop ") || !strings.HasPrefix(lines[n-1], "WindowAgg ") {
		return false
	}
	return !slices.ContainsFunc(lines[1:n-1], func(line string) bool {
		return !strings.HasPrefix(line, "Function Scan ") && !strings.HasPrefix(line, "Result ")
	})
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
