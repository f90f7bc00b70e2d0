package freight

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"spillway/internal/database"
	"spillway/internal/progress"
)

// Outcome is the result of Seed, SeedGames or Ensure.
type Outcome struct {
	Made    bool // false: the data set existed
	Orders  int  // number of orders loaded; 0 unless Made
	Indexed bool // an index of games was built or dropped
	Took    time.Duration
}

// Seed creates the data set, which must be valid, in the database: tables, rows, indexes and
// statistics. If the same data set exists, it does nothing. It replaces another data set only
// if replace is set, and never changes tables that Spillway did not create.
//
// After an interruption, even a crash, the database contains what it contained before, because
// the work is one transaction. On MySQL it may contain unfinished tables, which the next Seed
// replaces. When ctx ends, Seed returns within a second with an error that wraps ctx's.
func Seed(ctx context.Context, url database.URL, dataset Dataset, replace bool, meter *progress.Meter) (Outcome, error) {
	return dialectOf(url.Driver).seedFreight(ctx, url, dataset, job{replace: replace}, meter)
}

// Ensure creates the Demo data set unless the database contains a data set of the freight
// app. It creates the directory of a SQLite file. It keeps Seed's promises.
func Ensure(ctx context.Context, url database.URL, meter *progress.Meter) (Outcome, error) {
	return dialectOf(url.Driver).ensure(ctx, url, Demo(), meter)
}

func (d dialect) ensure(ctx context.Context, url database.URL, dataset Dataset, meter *progress.Meter) (Outcome, error) {
	if url.Driver == database.SQLite {
		if err := os.MkdirAll(filepath.Dir(url.Path()), 0o750); err != nil {
			return Outcome{}, fmt.Errorf("make the database's directory: %w", err)
		}
	}
	return d.seedFreight(ctx, url, dataset, job{any: true}, meter)
}

// seedFreight completes a job with what the freight app needs, and does it.
func (d dialect) seedFreight(ctx context.Context, url database.URL, dataset Dataset, j job, meter *progress.Meter) (Outcome, error) {
	start := time.Now()
	var outcome Outcome
	var err error
	j.app, j.dataset = freightApp(), dataset.String()
	j.tables = func() []table {
		g := NewGenerator(dataset)
		outcome.Orders = g.OrderCount()
		return g.tables()
	}
	if outcome.Made, err = d.seed(ctx, url, j, meter); err != nil {
		return Outcome{}, err
	}
	outcome.Took = time.Since(start)
	return outcome, nil
}

// seed does a job unless the database has its data set.
func (d dialect) seed(ctx context.Context, url database.URL, j job, meter *progress.Meter) (made bool, err error) {
	err = d.within(ctx, url, func(tx transaction) error {
		found, err := inspect(ctx, tx, j.app, d.relations)
		if err != nil {
			return err
		}
		want := j.dataset
		if j.any && found.version > 0 {
			want = found.dataset
		}
		if made, err = decide(found, want, j.replace, d.elsewhere); err != nil || !made {
			return err
		}
		return d.build(ctx, tx, found, j, meter)
	})
	if err == nil && made {
		err = d.vacuum(ctx, url, j.app.tables, meter)
	}
	if err != nil {
		return false, d.explain(ctx, url, err)
	}
	return made, nil
}

// build drops an earlier data set, creates the tables and fills them.
func (d dialect) build(ctx context.Context, tx transaction, found component, j job, meter *progress.Meter) error {
	first := append(slices.Clone(d.schema["registry"]), register(j.app, unfinishedDataset, found.version > 0))
	for _, table := range slices.Backward(j.app.tables) {
		if found.has(table) {
			first = append(first, "DROP TABLE "+table)
		}
	}
	if err := execAll(ctx, tx, first...); err != nil {
		return err
	}
	if err := d.fill(ctx, tx, j, meter); err != nil {
		return err
	}
	return execAll(ctx, tx, register(j.app, j.dataset, true))
}

// fill creates the tables, loads them, and builds indexes and statistics.
func (d dialect) fill(ctx context.Context, tx transaction, j job, meter *progress.Meter) error {
	if err := execAll(ctx, tx, d.schema[j.app.name+" tables"]...); err != nil {
		return err
	}
	for _, t := range j.tables() {
		if err := tx.load(ctx, t, meter); err != nil {
			return fmt.Errorf("load %s: %w", t.name, err)
		}
	}
	var finish []string
	for _, name := range j.app.tables {
		finish = append(finish, d.finish(name, slices.Contains(j.app.columns[name], "id"))...)
	}
	if err := execMetered(ctx, tx, "indexes", slices.Concat(d.schema[j.app.name+" indexes"], j.indexes), meter); err != nil {
		return err
	}
	return execMetered(ctx, tx, "statistics", finish, meter)
}

// explain adds the database to an error and, after an interruption, what is left.
func (d dialect) explain(ctx context.Context, url database.URL, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: nothing finished has been added to %s; the same command starts again (%w)", url, ctx.Err())
	}
	return fmt.Errorf("%s: %w", url, err)
}
