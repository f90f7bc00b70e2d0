package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"spillway/internal/lab/sheet"
)

const (
	warmRounds = 1 // rounds that are not counted
	runsMin    = 5
	runsMost   = 15
	// Measuring ends after enoughSeconds of counted executions and at least runsMin of
	// them.
	enoughSeconds = 2.0
	// One execution may take 1/runShare of the time left.
	runShare = 20
	// similar is the ratio of times up to which the smaller index wins.
	similar = 1.15
	// similarSeconds is a difference that a client cannot measure.
	similarSeconds = 50e-6
	// chance is the highest probability that the rounds of two equally fast variants look as if one were faster.
	chance = 0.05
	// worthwhile is the least speed-up that justifies an index.
	worthwhile = 1.2
	// fewerRows is the share of the rows read without an index by which a candidate must
	// exceed another to count as reading more.
	fewerRows = 0.01
)

// Measurement is one variant of the statement on copies of its tables.
type Measurement struct {
	Variant             string  `json:"variant"`
	RowsCopied          int64   `json:"rows_copied"`
	BuildSeconds        float64 `json:"build_seconds,omitempty"`
	IndexBytes          int64   `json:"index_bytes,omitempty"`
	IndexBytesEstimated bool    `json:"index_bytes_estimated,omitempty"`
	Runs                int     `json:"runs"`
	MedianSeconds       float64 `json:"median_seconds"`
	MinSeconds          float64 `json:"min_seconds"`
	MaxSeconds          float64 `json:"max_seconds"`
	LowerSeconds        float64 `json:"lower_quartile_seconds"`
	UpperSeconds        float64 `json:"upper_quartile_seconds"`
	SpeedUp             float64 `json:"speed_up"` // over no index
	RowsExamined        int64   `json:"rows_examined"`
	Buffers             int64   `json:"buffers,omitempty"`
	Sorts               bool    `json:"sorts"`
	IndexesUsed         bool    `json:"indexes_used"`       // the plan has all indexes of the variant
	TooLong             bool    `json:"too_long,omitempty"` // MedianSeconds is then the time allowed

	candidates []Candidate
	indexes    []string // their names on the copies
	statement  string
	times      []float64 // one per round
}

// bench measures variants of a statement on copies.
type bench struct {
	*analysis
	copies   map[int]string // copies with the live indexes, by place in FROM
	bare     map[int]string // copies without any
	rows     int64
	trials   []*indexed
	variants []*Measurement
	made     int
}

// measure copies the tables that have candidates. It runs the statement without an index,
// with the existing indexes, with each candidate in addition, and with several of them if
// the plan uses all of these. The copies are temporary tables and end with the session.
func (a *analysis) measure(ctx context.Context) error {
	b := &bench{analysis: a, copies: map[int]string{}, bare: map[int]string{}}
	if err := b.prepare(ctx); err != nil {
		return a.timeUp(err)
	}
	if err := b.time(ctx); err != nil {
		return a.timeUp(err)
	}
	for _, m := range b.variants {
		m.summarize(b.variants[0])
		a.report.Measured = append(a.report.Measured, *m)
	}
	a.judge(b.variants)
	return nil
}

// timeUp says what to change if the time is over.
func (a *analysis) timeUp(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || a.dialect.tooLong(err) {
		return fmt.Errorf("measure: not finished within %s; raise --timeout or lower --copy-rows", a.options.Timeout)
	}
	return fmt.Errorf("measure: %w", err)
}

// prepare makes the copies and their indexes.
func (b *bench) prepare(ctx context.Context) error {
	var targets []int
	for i := range b.report.Tables {
		if slices.ContainsFunc(b.report.Candidates, func(c Candidate) bool { return c.from == i }) {
			targets = append(targets, i)
		}
	}
	if err := run(ctx, b.session, b.dialect.readWrite); err != nil {
		return fmt.Errorf("allow copies: %w", err)
	}
	if err := b.dialect.begin(ctx, b.session, b.space(targets)); err != nil {
		return fmt.Errorf("ready the session: %w", err)
	}
	if err := b.dialect.limit(ctx, b.session, time.Until(b.deadline)); err != nil {
		return fmt.Errorf("set the statement timeout: %w", err)
	}
	indexed := false
	for _, i := range targets {
		t := b.report.Tables[i]
		if err := b.copyBoth(ctx, i); err != nil {
			return fmt.Errorf("copy %s: %w", t.Name, err)
		}
		indexed = indexed || len(t.Indexes) > 0
	}
	b.variant("no index", b.bare)
	if indexed {
		b.variant("existing indexes", b.copies)
	}
	for _, one := range b.trialsOf() {
		if err := b.build(ctx, one); err != nil {
			return err
		}
	}
	if err := run(ctx, b.session, b.dialect.readOnly); err != nil {
		return fmt.Errorf("allow reading only: %w", err)
	}
	return nil
}

// space estimates the size of all copies in bytes.
func (b *bench) space(targets []int) int64 {
	total := int64(0)
	for _, i := range targets {
		t := b.report.Tables[i]
		share := min(1, float64(b.options.CopyRows)/float64(max(1, t.Rows)))
		total += int64(share*float64(t.Bytes)) * int64(2+len(b.trialsOf()))
	}
	return total
}

// copyBoth copies a table without its indexes and, if it has any, with them.
func (b *bench) copyBoth(ctx context.Context, i int) error {
	t := b.report.Tables[i]
	b.progress(fmt.Sprintf("copying at most %s of %s", sheet.Plural(b.options.CopyRows, "row"), t.Name))
	name := b.name()
	if err := run(ctx, b.session, b.dialect.copyTable(t, name, b.options.CopyRows)); err != nil {
		return err
	}
	b.bare[i], b.copies[i] = name, name
	rows, err := b.session.query(ctx, "SELECT count(*) FROM "+b.quote(name))
	if err != nil {
		return err
	}
	b.rows = max(b.rows, parseNumber(rows[0][0]))
	if b.rows < t.Rows*9/10 {
		b.report.Notes = append(b.report.Notes, fmt.Sprintf("measured on %s of about %s rows of %s: with all of them the differences are larger",
			sheet.Integer(b.rows), sheet.Integer(t.Rows), t.Name))
	}
	if len(t.Indexes) > 0 {
		b.copies[i] = b.name()
		if err := b.dialect.duplicate(ctx, b.session, t, name, b.copies[i], true); err != nil {
			return err
		}
	}
	for _, copied := range slices.Compact([]string{name, b.copies[i]}) {
		if err := run(ctx, b.session, fmt.Sprintf(b.dialect.analyze, copied)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) quote(name string) string { return b.dialect.driver.Dialect().QuoteAlways(name) }

// name returns the name of the next copy.
func (b *bench) name() string {
	b.made++
	return fmt.Sprintf("spillway_doctor_copy_%d", b.made)
}

// variant adds the statement on some copies, which have the indexes of trials.
func (b *bench) variant(name string, copies map[int]string, trials ...*indexed) *Measurement {
	tables := map[int]string{}
	for from, copied := range copies {
		tables[from] = b.quote(copied)
		if ref := b.selection.tables[from]; !ref.aliased {
			tables[from] += " AS " + b.quote(ref.alias)
		}
	}
	m := &Measurement{Variant: name, RowsCopied: b.rows, statement: b.selection.render(b.dialect.placeholder, tables)}
	for _, one := range trials {
		m.candidates = append(m.candidates, one.candidates...)
		m.indexes = append(m.indexes, one.indexes...)
		m.BuildSeconds += one.built.Seconds()
		m.IndexBytes += one.bytes
		m.IndexBytesEstimated = m.IndexBytesEstimated || one.estimated
	}
	b.variants = append(b.variants, m)
	return m
}

// time explains each variant and executes them in turn, round by round, so that
// disturbances affect all of them alike.
func (b *bench) time(ctx context.Context) error {
	for _, m := range b.variants {
		if err := b.explain(ctx, m); err != nil {
			return err
		}
	}
	if err := b.combine(ctx); err != nil {
		return err
	}
	if err := b.dialect.limit(ctx, b.session, time.Until(b.deadline)); err != nil {
		return fmt.Errorf("set the statement timeout: %w", err)
	}
	spent := 0.0
	for round := range warmRounds + runsMost {
		for i := range b.variants {
			m := b.variants[(i+round)%len(b.variants)] // each variant goes first in turn
			if m.TooLong {
				continue
			}
			// The first execution is not timed: the copies together may exceed the
			// database's memory, and each could evict the one before.
			if _, err := b.session.query(ctx, m.statement, b.args...); err != nil {
				return fmt.Errorf("execute with %s: %w", m.Variant, err)
			}
			start := time.Now()
			if _, err := b.session.query(ctx, m.statement, b.args...); err != nil {
				return fmt.Errorf("execute with %s: %w", m.Variant, err)
			}
			if seconds := time.Since(start).Seconds(); round >= warmRounds {
				m.times = append(m.times, seconds)
				spent += seconds
			}
		}
		if round+1-warmRounds >= runsMin && spent > enoughSeconds {
			break
		}
	}
	return nil
}

// explain reads the plan of a variant, with one execution.
func (b *bench) explain(ctx context.Context, m *Measurement) error {
	b.progress("measuring " + m.Variant)
	allowed := time.Until(b.deadline) / runShare
	plan, err := b.dialect.explain(ctx, b.session, m.statement, b.args, allowed)
	if err != nil {
		return fmt.Errorf("explain %s: %w", m.Variant, err)
	}
	m.RowsExamined, m.Buffers, m.Sorts = plan.RowsExamined, plan.Buffers, plan.Sorts
	m.IndexesUsed = len(m.indexes) > 0 && !slices.ContainsFunc(m.indexes, func(name string) bool { return !plan.uses(name) })
	if plan.ExecutionSeconds == nil {
		m.TooLong, m.MedianSeconds = true, allowed.Seconds()
	}
	return nil
}

// summarize computes the figures of a variant from its executions.
func (m *Measurement) summarize(base *Measurement) {
	if !m.TooLong {
		times := slices.Sorted(slices.Values(m.times))
		m.Runs = len(times)
		m.MedianSeconds = median(times)
		m.MinSeconds, m.MaxSeconds = times[0], times[m.Runs-1]
		m.LowerSeconds, m.UpperSeconds = times[m.Runs/4], times[m.Runs-1-m.Runs/4]
	}
	if m.MedianSeconds > 0 {
		m.SpeedUp = base.MedianSeconds / m.MedianSeconds
	}
}

// median of sorted values.
func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// winner returns the variant to build. Among those about as fast as the fastest it
// prefers one without a sort, then one that reads clearly fewer rows (both matter as the
// table grows), then the one with the fewest columns.
func winner(tried []*Measurement, rowsWithout int64) *Measurement {
	fastest := slices.MinFunc(tried, func(a, b *Measurement) int { return cmp.Compare(a.MedianSeconds, b.MedianSeconds) })
	near := slices.Clone(tried)
	keep := func(ok func(*Measurement) bool) {
		if rest := slices.DeleteFunc(slices.Clone(near), func(m *Measurement) bool { return !ok(m) }); len(rest) > 0 {
			near = rest
		}
	}
	keep(func(m *Measurement) bool {
		// On a busy host medians vary. A candidate's fastest run is not faster than its
		// true cost.
		return m.MinSeconds <= similar*fastest.MedianSeconds || m.MinSeconds-fastest.MedianSeconds <= similarSeconds
	})
	keep(func(m *Measurement) bool { return !m.Sorts })
	least := slices.MinFunc(near, func(a, b *Measurement) int { return cmp.Compare(a.RowsExamined, b.RowsExamined) })
	keep(func(m *Measurement) bool {
		return float64(m.RowsExamined-least.RowsExamined) <= fewerRows*float64(rowsWithout)
	})
	return slices.MinFunc(near, func(a, b *Measurement) int {
		return cmp.Or(cmp.Compare(a.columns(), b.columns()), cmp.Compare(a.IndexBytes, b.IndexBytes))
	})
}
