package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"spillway/internal/plans"
)

// combinationsMax bounds the combinations of indexes on several tables.
const combinationsMax = 12

// indexed is a copy of one table with one candidate, or with several that serve together.
type indexed struct {
	candidates []Candidate
	indexes    []string // their names
	table      string   // the copy
	built      time.Duration
	bytes      int64
	estimated  bool
}

// from is the table's place in FROM.
func (t *indexed) from() int { return t.candidates[0].from }

// trialsOf returns what to try: each candidate that can serve alone, and each set.
func (b *bench) trialsOf() []*indexed {
	var list []*indexed
	for i, c := range b.report.Candidates {
		if !slices.ContainsFunc(b.report.Sets, func(set CandidateSet) bool { return set.Either && slices.Contains(set.Members, i) }) {
			list = append(list, &indexed{candidates: []Candidate{c}})
		}
	}
	for _, set := range b.report.Sets {
		together := &indexed{}
		for _, i := range set.Members {
			together.candidates = append(together.candidates, b.report.Candidates[i])
		}
		list = append(list, together)
	}
	return list
}

// build makes the copy of a trial, with the live indexes and its own.
func (b *bench) build(ctx context.Context, one *indexed) error {
	t := b.report.Tables[one.from()]
	b.progress(fmt.Sprintf("building %s on a copy of %s", one.columns(), t.Name))
	one.table = b.name()
	if err := b.dialect.duplicate(ctx, b.session, t, b.bare[one.from()], one.table, len(t.Indexes) > 0); err != nil {
		return fmt.Errorf("copy %s: %w", t.Name, err)
	}
	start := time.Now()
	for i, c := range one.candidates {
		one.indexes = append(one.indexes, fmt.Sprintf("%s_candidate_%d", one.table, i+1))
		columns := plans.WriteColumns(c.Columns, b.dialect.driver.Dialect().QuoteAlways)
		if err := run(ctx, b.session, fmt.Sprintf(b.dialect.index, one.table, one.indexes[i], columns)); err != nil {
			return fmt.Errorf("build (%s): %w", plans.ColumnList(c.Columns), err)
		}
	}
	one.built = time.Since(start)
	if err := run(ctx, b.session, fmt.Sprintf(b.dialect.analyze, one.table)); err != nil {
		return fmt.Errorf("gather statistics: %w", err)
	}
	for i, c := range one.candidates {
		bytes, estimated, err := b.dialect.indexBytes(ctx, b.session, t, one.table, one.indexes[i], c.Columns)
		if err != nil {
			return fmt.Errorf("size (%s): %w", plans.ColumnList(c.Columns), err)
		}
		one.bytes, one.estimated = one.bytes+bytes, one.estimated || estimated
	}
	b.trials = append(b.trials, one)
	b.variant(b.title(one), b.with(one), one)
	return nil
}

// columns writes the columns of a trial's indexes: "(a) + (b)".
func (t *indexed) columns() string {
	var words []string
	for _, c := range t.candidates {
		words = append(words, "("+plans.ColumnList(c.Columns)+")")
	}
	return strings.Join(words, " + ")
}

// title names a trial, with its table if there are several.
func (b *bench) title(one *indexed) string {
	if len(b.report.Tables) == 1 {
		return one.columns()
	}
	return b.report.Tables[one.from()].Name + " " + one.columns()
}

// with returns the copies with the live indexes, except those that trials replace.
func (b *bench) with(trials ...*indexed) map[int]string {
	tables := maps.Clone(b.copies)
	for _, one := range trials {
		tables[one.from()] = one.table
	}
	return tables
}

// combine adds variants with indexes on several tables, for joins. It keeps those whose plan uses all of the indexes.
func (b *bench) combine(ctx context.Context) error {
	combinations := combinationsOf(b.trials)
	for _, trials := range combinations[:min(len(combinations), combinationsMax)] {
		var titles []string
		for _, one := range trials {
			titles = append(titles, b.title(one))
		}
		m := b.variant(strings.Join(titles, " + "), b.with(trials...), trials...)
		if err := b.explain(ctx, m); err != nil {
			return err
		}
		if !m.IndexesUsed {
			b.variants = b.variants[:len(b.variants)-1]
		}
	}
	return nil
}

// combinationsOf returns the choices of at least two trials, one per table, those of two first.
func combinationsOf(trials []*indexed) [][]*indexed {
	all := [][]*indexed{nil}
	for _, one := range trials {
		for _, chosen := range all {
			if !slices.ContainsFunc(chosen, func(t *indexed) bool { return t.from() == one.from() }) {
				all = append(all, append(slices.Clone(chosen), one))
			}
		}
	}
	all = slices.DeleteFunc(all, func(chosen []*indexed) bool { return len(chosen) < 2 })
	slices.SortStableFunc(all, func(x, y []*indexed) int { return len(x) - len(y) })
	return all
}
