package sqlite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
)

// Check implements feed.Source. It judges a feed's statement for the first rows and the one
// for the rows after a key, without filters and with each of them. A query's statement is
// prepared.
func (s *source) Check(ctx context.Context, window int) error {
	err := s.db.read(ctx, func(conn conn) error {
		shape, err := s.describe(conn, false)
		if err == nil && s.def.IsQuery() {
			var plan *plans.Plan
			if plan, err = (&checker{conn: conn}).explain(s.inner); err == nil {
				s.def.Plans.Add(plan, nil)
			}
			return err
		}
		if err != nil {
			return err
		}
		return s.checkFeed(conn, shape, window)
	})
	if err == nil && len(s.args) == 0 && !s.def.IsQuery() {
		err = s.lookForNull(ctx, nil)
	}
	if err != nil {
		return fmt.Errorf("check %s: %w", &s.def, err)
	}
	return nil
}

// checker checks one feed.
type checker struct {
	*source
	conn    conn
	shape   *shape
	check   plans.Check
	filters []int
}

// checkFeed judges the statements of a feed.
func (s *source) checkFeed(conn conn, shape *shape, window int) error {
	if err := s.def.CheckFilters(shape.names); err != nil {
		return err
	}
	ck := &checker{source: s, conn: conn, shape: shape, check: plans.Check{
		Window: window, SQL: s.inner, Judged: s.def.Judged(s.db.log),
		Catalog: plans.Catalog{
			Dialect: plans.SQLite,
			Query:   func(sql string, args ...string) ([][]string, error) { return texts(conn.Conn, sql, args...) },
		},
	}}
	var err error
	if ck.check.Key, err = s.readKey(conn.Conn); err != nil {
		return err
	}
	nullable, err := ck.check.Catalog.NullableKey(ck.check.Key, s.inner)
	if err != nil {
		return err
	}
	s.nulls.Expect(nullable)
	return s.def.EachFilter(ck.judge)
}

// judge judges the statements with the filter at a position, -1 for none. It runs them with values that rows
// have and counts what they read. Where that is not possible, the plans decide.
func (ck *checker) judge(position int) error {
	ck.filters = nil
	if position >= 0 {
		ck.filters = []int{position}
	}
	first, behind := ck.text(0, ck.filters), ck.text(withAfter, ck.filters)
	plan, err := ck.explain(first)
	if err != nil {
		return err
	}
	if ck.check.Tables, err = ck.check.SQLiteTables(plan); err != nil {
		return err
	}
	planBehind, err := ck.explain(behind)
	if err != nil {
		return err
	}
	samples, compared, err := ck.def.Samples(ck.check, position)
	if err != nil {
		return err
	}
	measured := len(samples) > 0
	for _, args := range samples {
		r := feed.Range{Args: args, Limit: ck.check.Window}
		known, err := ck.try(first, plan, r, compared)
		if err != nil {
			return err
		}
		if measured = measured && known; !known {
			break
		}
		if r.After, err = ck.keyBehind(r); err != nil {
			return err
		}
		if r.After == "" {
			continue
		}
		known, err = ck.try(behind, planBehind, r, compared)
		if err != nil {
			return err
		}
		measured = measured && known
	}
	if measured {
		return nil
	}
	ck.check.Behind = false
	if err := ck.check.Judge(plan); err != nil {
		return err
	}
	ck.check.Behind = true
	return ck.check.Judge(planBehind)
}

// try judges a statement by what it reads, if that is known.
func (ck *checker) try(text string, plan *plans.Plan, r feed.Range, compared []plans.Compared) (known bool, err error) {
	reads, known, err := ck.measure(text, plan, r)
	if err != nil || !known {
		return known, err
	}
	ck.check.Behind = r.After != ""
	return known, ck.check.JudgeMeasured(plan, reads, compared)
}

// keyBehind returns the key of the first row after the window, whose statement is known to be fast.
func (ck *checker) keyBehind(r feed.Range) (feed.Key, error) {
	r.Skip, r.Limit = r.Limit, 1
	stmt, _, err := ck.conn.PrepareTransient(ck.text(keysOnly, ck.filters))
	if err != nil {
		return "", err
	}
	err = ck.bind(stmt, ck.shape, r, ck.filters)
	var key []byte
	if err == nil {
		var found bool
		if found, err = stmt.Step(); found {
			key, err = (&row{stmt: stmt, shape: ck.shape, keysOnly: true}).AppendKey(nil)
		}
	}
	return feed.Key(key), errors.Join(err, stmt.Finalize())
}

func (ck *checker) explain(text string) (*plans.Plan, error) {
	rows, err := texts(ck.conn.Conn, "EXPLAIN QUERY PLAN "+text)
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	plan, err := plans.ReadSQLite(rows)
	if err == nil {
		plan.SQL = text
	}
	return plan, err
}

// readKey returns the key's columns with their tables. SQLite does not tell which column
// of the table an output column is, so a column of the same name is assumed.
func (s *source) readKey(conn *sqlite.Conn) ([]plans.KeyColumn, error) {
	stmt, _, err := conn.PrepareTransient(s.texts[keysOnly])
	if err != nil {
		return nil, err
	}
	var key []plans.KeyColumn
	for i, column := range s.def.Key {
		table := plans.TableName{Name: stmt.ColumnTableName(i)}
		key = append(key, plans.KeyColumn{Output: column.Name, Desc: !column.Ascending, Table: table, Column: column.Name})
	}
	return key, stmt.Finalize()
}

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
