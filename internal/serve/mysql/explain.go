package mysql

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"spillway/internal/serve/feed"
)

// Check implements feed.Source. It explains the statement for a window, and the one
// for the rows behind a key that it reads for the purpose; the feed's parameters have
// made-up values. First the tables are read in the order in which the feed names
// them; where that is refused, the optimizer may order them, and whichever passes is
// how the feed is read from then on.
//
// It returns an error, too, when a key column's table lets it be NULL, and logs a
// warning when no unique index says that the key is unique, or when a table is not
// InnoDB's.
func (f *Feed) Check(ctx context.Context, window int) error {
	if err := f.check(ctx, window); err != nil {
		return fmt.Errorf("check feed %s: %w", f.def.Name, err)
	}
	return nil
}

func (f *Feed) check(ctx context.Context, window int) error {
	var ck *checker
	err := f.db.withSession(ctx, func(ctx context.Context, se *session) error {
		d, o, err := f.ask(ctx, se)
		if err != nil {
			return f.explainError(feed.Range{}, err)
		}
		f.known.Store(d)
		ck = &checker{feed: f, columns: d.columns, origins: o, window: window}
		return ck.checkKey(ctx, se)
	})
	if err != nil {
		return err
	}
	straight := ck.judge(ctx, true)
	if straight == nil {
		f.scatter.Store(false)
		return nil
	}
	if ctx.Err() != nil || ck.judge(ctx, false) != nil {
		return straight
	}
	f.scatter.Store(true)
	return nil
}

// checker checks one feed.
type checker struct {
	feed    *Feed
	columns *columns
	origins *origins
	window  int
}

// judge explains the feed's statements with the tables in the order named, or in
// the optimizer's.
func (ck *checker) judge(ctx context.Context, straight bool) error {
	r := feed.Range{Args: ck.feed.samples(), Limit: ck.window}
	if err := ck.judgeRange(ctx, r, straight); err != nil {
		return err
	}
	// The plan is known to be quick now, so that reading a row does no harm.
	ck.feed.scatter.Store(!straight)
	walk, err := ck.feed.Keys(ctx, feed.Range{Args: r.Args, Skip: ck.window, Limit: 1}, 1)
	if err != nil || walk.Count == 0 {
		return err // nothing is behind the window
	}
	r.After = walk.Last
	return ck.judgeRange(ctx, r, straight)
}

func (ck *checker) judgeRange(ctx context.Context, r feed.Range, straight bool) error {
	return ck.feed.db.withSession(ctx, func(ctx context.Context, se *session) error {
		args, err := ck.feed.arguments(ck.columns, r)
		if err != nil {
			return err
		}
		s := shape{after: r.After != "", straight: straight}
		p, err := explain(ctx, se, ck.feed.writer(ck.columns).write(s), anyValues(args))
		if err != nil {
			return err
		}
		p.tables = ck.origins.tables
		found, err := p.findings(ctx, se, float64(ck.window))
		if err != nil || len(found) == 0 {
			return err
		}
		return adviser{checker: ck, plan: p, session: se}.advise(ctx, found)
	})
}

// plan is what EXPLAIN says: its lines, and the statement as the server understood it.
type plan struct {
	lines      []line
	understood string
	tables     map[string]tableName // by alias
}

// line is one table of a plan, in the order of reading.
type line struct {
	id         string
	selectType string
	alias      string
	access     string // "ALL", "index", "range", "ref", ...
	key        string
	ref        string
	rows       float64
	filtered   float64 // percent of the rows that pass the conditions
	extra      string
}

func explain(ctx context.Context, se *session, sql string, args []any) (*plan, error) {
	var names []string
	to := &textSink{}
	s := &statement{sql: se.Server.Explain() + sql, columns: namesOf(&names)}
	if err := se.run(ctx, s, namedValues(args), to); err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	understood, err := se.understood(ctx)
	if err != nil {
		return nil, err
	}
	p := &plan{understood: understood}
	for _, row := range to.rows {
		p.lines = append(p.lines, readLine(names, row))
	}
	return p, nil
}

func readLine(names, row []string) line {
	l := line{filtered: 100}
	for i, name := range names {
		switch strings.ToLower(name) {
		case "id":
			l.id = row[i]
		case "select_type":
			l.selectType = row[i]
		case "table":
			l.alias = row[i]
		case "type":
			l.access = row[i]
		case "key":
			l.key = row[i]
		case "ref":
			l.ref = row[i]
		case "rows":
			l.rows, _ = strconv.ParseFloat(row[i], 64) // NULL is none
		case "filtered":
			if share, err := strconv.ParseFloat(row[i], 64); err == nil && share > 0 {
				l.filtered = share
			}
		case "extra":
			l.extra = row[i]
		}
	}
	return l
}
