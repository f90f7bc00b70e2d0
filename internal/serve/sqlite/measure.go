package sqlite

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
)

// readsMax is how many rows of tables a statement may visit while it is measured.
const readsMax = 200_000

// errMeasured ends a statement that has visited more.
var errMeasured = errors.New("the statement reads more rows than are counted")

// measure runs the statement for r and counts the rows of tables that it visits, up to readsMax. For the
// time of the statement, temporary views that count hide its tables. It is not known if the plan is
// then another one, as with tables that are read through a view.
func (ck *checker) measure(text string, plan *plans.Plan, r feed.Range) (reads float64, known bool, err error) {
	defer func() {
		interrupt := ck.conn.SetInterrupt(nil)
		for _, t := range ck.check.Tables {
			err = errors.Join(err, sqlitex.ExecuteTransient(ck.conn.Conn, "DROP VIEW IF EXISTS temp."+t.SQL(plans.SQLite), nil))
		}
		ck.conn.SetInterrupt(interrupt)
	}()
	n := 0
	err = ck.conn.CreateFunction("spillway_visit", &sqlite.FunctionImpl{
		NArgs: 1, AllowIndirect: true,
		Scalar: func(sqlite.Context, []sqlite.Value) (sqlite.Value, error) {
			if n++; n > readsMax {
				return sqlite.Value{}, errMeasured
			}
			return sqlite.IntegerValue(1), nil
		},
	})
	if err != nil {
		return 0, false, err
	}
	for _, t := range ck.check.Tables {
		name := t.SQL(plans.SQLite)
		view := fmt.Sprintf("CREATE TEMP VIEW IF NOT EXISTS %[1]s AS SELECT * FROM main.%[1]s WHERE spillway_visit(rowid)", name)
		if err := sqlitex.ExecuteTransient(ck.conn.Conn, view, nil); err != nil {
			return 0, false, err
		}
	}
	counted, err := ck.explain(text)
	automatic := func(n plans.Node) bool { return strings.Contains(n.Type, " USING AUTOMATIC ") } // is built of rows that are not counted
	if err != nil || !slices.EqualFunc(plan.Nodes, counted.Nodes, sameStep) || slices.ContainsFunc(plan.Nodes, automatic) {
		return 0, false, nil // such as one that names its rowid
	}
	stmt, _, err := ck.conn.PrepareTransient(text)
	if err != nil {
		return 0, false, err
	}
	err = ck.bind(stmt, ck.shape, r, ck.filters)
	rows := 0
	for found := err == nil; found; rows++ {
		if found, err = stmt.Step(); err != nil {
			break
		}
	}
	if n > readsMax {
		err = nil
	}
	return float64(n), err == nil && n >= rows-1, errors.Join(err, stmt.Finalize())
}

// sameStep reports whether two steps of plans do the same, under whatever name of the table.
func sameStep(a, b plans.Node) bool {
	does := func(n plans.Node) string {
		verb, rest, _ := strings.Cut(n.Type, " ")
		if n.Relation == "" {
			return n.Type
		}
		_, using, _ := strings.Cut(rest, " USING ")
		return verb + strings.TrimPrefix(using, "COVERING ")
	}
	return does(a) == does(b)
}
