package mysql

import (
	"context"
	"errors"
	"fmt"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// Check implements feed.Source. It explains a feed's statement for a window, and the one for
// the rows after a key that it reads for the purpose. The feed's parameters have made-up
// values. It does so without filters and with each of them. At first the tables are read in
// the order in which the feed names them; if that is refused, the optimizer may order them.
// The feed is read in the way that passes.
//
// Check also returns an error if a key column's table lets it be NULL. It logs a warning if no
// unique index covers the key, and if a table is not InnoDB's.
//
// A query's statement is prepared.
func (s *source) Check(ctx context.Context, window int) error {
	var err error
	if s.def.IsQuery() {
		_, err = s.describe(ctx)
		err = s.explainError(feed.Range{}, err)
	} else {
		err = s.checkFeed(ctx, window)
	}
	if err != nil {
		return fmt.Errorf("check %s: %w", &s.def, err)
	}
	return nil
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
		ck.check = plans.Check{Key: o.key(s.def), Window: window, Tables: o.tables, Descending: se.Server.DescendingIndexes()}
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
		return straight
	}
	s.optimizer.Store(true)
	return nil
}

// checker checks one feed.
type checker struct {
	feed    *source
	columns *columns
	check   plans.Check
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

// judge explains the feed's statements with the tables in the order named, or in
// the optimizer's.
func (ck *checker) judge(ctx context.Context, straight bool) error {
	var after feed.Key
	return ck.feed.def.EachFilter(func(position int) error {
		r := feed.Range{Args: ck.feed.samples(position, ck.columns), Limit: ck.check.Window}
		if err := ck.judgeRange(ctx, r, straight); err != nil {
			return err
		}
		if position < 0 {
			// The plan is known to be fast now, so reading a row does no harm.
			ck.feed.optimizer.Store(!straight)
			walk, err := ck.feed.Keys(ctx, feed.Range{Args: r.Args, Skip: ck.check.Window, Limit: 1}, 1)
			if err != nil {
				return err
			}
			after = walk.Last
		}
		if r.After = after; after == "" {
			return nil // there is nothing after the window
		}
		return ck.judgeRange(ctx, r, straight)
	})
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
		rows, rewritten, err := se.explain(ctx, ck.feed.writer(ck.columns).write(of), values)
		if err != nil {
			return err
		}
		plan, err := plans.ReadMySQL(rows, rewritten)
		if err != nil {
			return err
		}
		check := ck.check
		check.Catalog = se.catalog(ctx)
		err = check.Judge(plan)
		if errors.Is(err, plans.ErrCheapSort) {
			ck.feed.db.log.Info("the plan sorts a table", "feed", ck.feed.def.Name, "reason", err)
			return nil
		}
		return err
	})
}

// explain returns the rows of EXPLAIN and the statement as the server rewrote it.
func (se *session) explain(ctx context.Context, sql string, args []any) (rows [][]string, rewritten string, err error) {
	if rows, err = se.texts(ctx, se.Server.Explain()+sql, args...); err != nil {
		return nil, "", fmt.Errorf("explain: %w", err)
	}
	notes, err := se.Query(ctx, "SHOW WARNINGS")
	if err != nil {
		return nil, "", fmt.Errorf("read how the server rewrote the statement: %w", err)
	}
	for _, note := range notes {
		if note[1] == "1003" {
			return rows, note[2], nil
		}
	}
	return rows, "", nil
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
