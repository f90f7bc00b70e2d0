package mysql

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// Check implements feed.Source. It explains a feed's statement for a window, and the one for the rows after a key that it reads for the
// purpose. The feed's parameters have made-up values. It does so without filters and with each of them. At first the tables are read in
// the order in which the feed names them; if that is refused, the optimizer may order them. The feed is read in the way that passes.
//
// Check also returns an error if a key column's table lets it be NULL. It logs a warning if no
// unique index covers the key, and if a table is not InnoDB's.
//
// A query's statement is prepared.
func (s *source) Check(ctx context.Context, window int) error {
	var err error
	if s.def.IsQuery() {
		if _, err = s.describe(ctx); err == nil {
			_ = s.db.withSession(ctx, s.planQuery) // the server need not explain it
		}
		err = s.explainError(feed.Range{}, err)
	} else if err = s.checkFeed(ctx, window); err == nil && len(s.uses) == 0 {
		err = s.lookForNull(ctx, nil)
	}
	if err != nil {
		return fmt.Errorf("check %s: %w", &s.def, err)
	}
	return nil
}

// planQuery keeps the plan of a query with made-up values.
func (s *source) planQuery(ctx context.Context, se *session) error {
	values, err := s.bindParams(s.samples(-1, nil), nil, nil)
	if err != nil {
		return err
	}
	plan, err := se.explain(ctx, s.body, values)
	if err == nil {
		s.def.Plans.Add(plan, nil)
	}
	return err
}

func (s *source) checkFeed(ctx context.Context, window int) error {
	ck := &checker{feed: s}
	err := s.db.withSession(ctx, func(ctx context.Context, se *session) error {
		d, o, err := s.ask(ctx, se)
		if err != nil {
			return s.explainError(feed.Range{}, err)
		}
		s.known.Store(d)
		ck.columns = d.columns
		if err := s.def.CheckFilters(d.columns.names); err != nil {
			return err
		}
		for _, p := range s.def.Params {
			if t := d.columns.typeOf(p.Name); p.Filter && p.Type != param.Text && (t == "ENUM" || t == "SET") {
				return fmt.Errorf("the filter %s is %s, and the column is of type %s, which MySQL would compare by the position of the label: "+
					"declare it as text", p.Name, p.Type, t)
			}
		}
		nullable, err := se.catalog(ctx).NullableKey(o.key(s.def), s.body)
		if err != nil {
			return err
		}
		s.nulls.Expect(nullable)
		ck.check = plans.Check{
			Key: o.key(s.def), Window: window, Tables: o.tables, Descending: se.Server.DescendingIndexes(), Judged: s.def.Judged(s.db.log),
		}
		return ck.checkTables(ctx, se, o)
	})
	if err != nil {
		return err
	}
	straight := ck.judge(ctx, true)
	if straight == nil {
		s.optimizer.Store(false)
		return nil
	}
	if ctx.Err() != nil || ck.judge(ctx, false) != nil {
		s.optimizer.Store(false)
		return straight
	}
	s.optimizer.Store(true)
	return nil
}

const (
	measureSeconds = 2
	manyReads      = 100_000
)

// checker checks one feed.
type checker struct {
	feed    *source
	columns *columns
	check   plans.Check

	measured bool             // the statements are executed
	compared []plans.Compared // parameters, with the filter that is judged
}

// checkTables judges the key's columns by their tables, and the tables' engines.
func (ck *checker) checkTables(ctx context.Context, se *session, o *origins) error {
	log := ck.feed.db.log.With("feed", ck.feed.def.Name)
	unguarded, err := se.catalog(ctx).CheckKey(ck.check.Key)
	if err != nil {
		return err
	}
	if unguarded {
		log.Warn("no unique index covers the feed's key; rows with equal keys can be lost between pages", "table", ck.check.Key[0].Table.Name)
	}
	for _, t := range o.tables {
		rows, err := se.texts(ctx, "SELECT ENGINE FROM information_schema.TABLES "+
			"WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND TABLE_TYPE = 'BASE TABLE'", t.Schema, t.Name)
		if err != nil {
			return fmt.Errorf("look up the engine of %s: %w", t, err)
		}
		if len(rows) == 1 && rows[0][0] != "InnoDB" {
			log.Warn("the table's engine is not InnoDB: readers wait for writers, and a crash can lose rows", "table", t.Name, "engine", rows[0][0])
		}
	}
	return nil
}

// judge judges the feed's statements with the tables in the order named, or in the optimizer's. It runs
// them with values that rows have and counts what the server reads. If none are known, the plans decide.
func (ck *checker) judge(ctx context.Context, straight bool) error {
	var after feed.Key
	return ck.feed.def.EachFilter(func(position int) error {
		tries, err := ck.tries(ctx, position)
		if err != nil {
			return err
		}
		for _, args := range tries {
			r := feed.Range{Args: args, Limit: ck.check.Window}
			if err := ck.judgeRange(ctx, r, straight); err != nil {
				return err
			}
			if position < 0 || ck.measured {
				// The plan is known to be fast now, so reading a row does no harm.
				ck.feed.optimizer.Store(!straight)
				walk, err := ck.feed.Keys(ctx, feed.Range{Args: r.Args, Skip: ck.check.Window, Limit: 1}, 1)
				if err != nil {
					return err
				}
				after = cmp.Or(walk.Last, after)
			}
			if r.After = after; after == "" {
				continue // there is nothing after the window
			}
			if err := ck.judgeRange(ctx, r, straight); err != nil {
				return err
			}
		}
		return nil
	})
}

// tries returns the arguments to judge the statements with: made up if none are known that rows have.
func (ck *checker) tries(ctx context.Context, position int) (tries [][]string, err error) {
	err = ck.feed.db.withSession(ctx, func(ctx context.Context, se *session) error {
		check := ck.check
		check.Catalog = se.catalog(ctx)
		tries, ck.compared, err = ck.feed.def.Samples(check, position)
		return err
	})
	ck.measured = len(tries) > 0
	if !ck.measured {
		tries = [][]string{ck.feed.samples(position, ck.columns)}
	}
	return tries, err
}

func (ck *checker) judgeRange(ctx context.Context, r feed.Range, straight bool) error {
	return ck.feed.db.withSession(ctx, func(ctx context.Context, se *session) error {
		args, err := ck.feed.arguments(ck.columns, r)
		if err != nil {
			return err
		}
		values := make([]any, len(args))
		for i, arg := range args {
			values[i] = arg.Value
		}
		of := shape{after: r.After != "", straight: straight, filters: param.Given(ck.feed.def.Params, r.Args)}
		text := ck.feed.writer(ck.columns).write(of)
		plan, err := se.explain(ctx, text, values)
		if err != nil {
			return err
		}
		check := ck.check
		check.Catalog = se.catalog(ctx)
		reads, known := 0.0, false
		if ck.measured {
			if reads, known, err = se.measure(ctx, text, values); err != nil {
				return ck.feed.explainError(r, err)
			}
		}
		if known {
			err = check.JudgeMeasured(plan, reads, ck.compared)
		} else {
			err = check.Judge(plan)
		}
		if errors.Is(err, plans.ErrCheapSort) {
			ck.feed.db.log.Info("the plan sorts a table", "feed", ck.feed.def.Name, "reason", err)
			return nil
		}
		return err
	})
}

// measure runs a statement for at most measureSeconds and returns how many rows the server reads of tables and indexes. They are not known
// if the time was over before many were read. Index conditions are checked outside of the engine, which does not count what it leaves out.
func (se *session) measure(ctx context.Context, sql string, args []any) (reads float64, known bool, err error) {
	timeout, limit := "max_execution_time", 1000.0*measureSeconds
	if se.Server.MariaDB {
		timeout, limit = "max_statement_time", measureSeconds
	}
	before, err := se.texts(ctx, "SELECT @@optimizer_switch, @@"+timeout)
	if err != nil {
		return 0, false, err
	}
	if pool, _ := strconv.ParseFloat(before[0][1], 64); pool > 0 {
		limit = min(limit, math.Ceil(pool/2))
	}
	if err := se.Exec(ctx, fmt.Sprintf("SET optimizer_switch = 'index_condition_pushdown=off', %s = %.0f", timeout, limit)); err != nil {
		return 0, false, err
	}
	defer func() {
		restored := se.Exec(ctx, fmt.Sprintf("SET optimizer_switch = '%s', %s = %s", before[0][0], timeout, before[0][1]))
		if restored != nil {
			_ = se.Close()
		}
		err = errors.Join(err, restored)
	}()
	var counts [3]float64 // the first two are what looking costs
	for i := range counts {
		if i == 2 {
			st := statement{sql: sql, columns: func(driver.Rows) (*columns, error) { return nil, nil }}
			err = se.run(ctx, st, namedValues(args), feed.Discard{})
		}
		status, statusErr := se.Query(ctx, "SHOW SESSION STATUS LIKE 'Handler_read%'")
		if statusErr != nil {
			return 0, false, errors.Join(err, statusErr)
		}
		for _, row := range status {
			n, _ := strconv.ParseFloat(row[1], 64)
			counts[i] += n
		}
	}
	reads, known = counts[2]-2*counts[1]+counts[0], true
	var stopped *mysql.MySQLError
	if errors.As(err, &stopped) && (stopped.Number == numStatementTimeout || stopped.Number == numQueryTimeout) {
		known, err = reads > manyReads, nil
	}
	return reads, known, err
}

// explain returns the plan of a statement, with the statement as the server rewrote it.
func (se *session) explain(ctx context.Context, sql string, args []any) (*plans.Plan, error) {
	rows, err := se.texts(ctx, se.Server.Explain()+sql, args...)
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	notes, err := se.Query(ctx, "SHOW WARNINGS")
	if err != nil {
		return nil, fmt.Errorf("read how the server rewrote the statement: %w", err)
	}
	rewritten := ""
	if i := slices.IndexFunc(notes, func(note []string) bool { return note[1] == "1003" }); i >= 0 {
		rewritten = notes[i][2]
	}
	plan, err := plans.ReadMySQL(rows, rewritten)
	if err == nil {
		plan.SQL = sql
	}
	return plan, err
}

// catalog describes tables through the session.
func (se *session) catalog(ctx context.Context) plans.Catalog {
	return plans.Catalog{Dialect: plans.MySQL, Query: func(sql string, args ...string) ([][]string, error) {
		values := make([]any, len(args))
		for i, arg := range args {
			values[i] = arg
		}
		return se.texts(ctx, sql, values...)
	}}
}
