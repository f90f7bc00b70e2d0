package freight

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"spillway/internal/database"
	"spillway/internal/progress"
)

// Outcome tells what Seed or Ensure did.
type Outcome struct {
	Made    bool    // false: the data set was there already
	Dataset Dataset // what the database holds now
	Orders  int     // orders loaded; 0 unless Made
	Took    time.Duration
}

// Seed makes the data set in the database: the tables, the rows, the indexes,
// the statistics. It does nothing but bring the schema up to date when the same
// data set is there already; another one it refuses to touch unless replace is
// set, and tables that Spillway did not make it never touches.
//
// Everything happens in one transaction: when it is interrupted, at any moment
// and by any means, the database holds what it held before. When ctx ends, Seed
// returns within a second with an error that wraps ctx's.
func Seed(ctx context.Context, url database.URL, dataset Dataset, replace bool, meter *progress.Meter) (Outcome, error) {
	d, err := dialectOf(url.Driver)
	if err != nil {
		return Outcome{}, err
	}
	if err := dataset.Validate(); err != nil {
		return Outcome{}, err
	}
	choose := func(found component) (action, error) {
		return decide(found, dataset, replace, d.schema.latest(), d.elsewhere)
	}
	return d.seed(ctx, url, dataset, choose, meter)
}

// Ensure makes the Demo data set in the database unless it holds a data set of
// the freight app already, whichever: that one it only brings up to date. The
// directory of a SQLite file is made if need be. It promises what Seed does.
func Ensure(ctx context.Context, url database.URL, meter *progress.Meter) (Outcome, error) {
	d, err := dialectOf(url.Driver)
	if err != nil {
		return Outcome{}, err
	}
	return d.ensure(ctx, url, Demo(), meter)
}

func (d dialect) ensure(ctx context.Context, url database.URL, dataset Dataset, meter *progress.Meter) (Outcome, error) {
	if url.Driver == database.SQLite {
		if err := os.MkdirAll(filepath.Dir(url.Path()), 0o750); err != nil {
			return Outcome{}, fmt.Errorf("make the database's directory: %w", err)
		}
	}
	choose := func(found component) (action, error) {
		want := dataset
		if found.version > 0 && found.state == stateComplete {
			want = found.dataset
		}
		return decide(found, want, false, d.schema.latest(), d.elsewhere)
	}
	return d.seed(ctx, url, dataset, choose, meter)
}

// Migrate brings the freight app's schema up to date: it applies the migrations
// that the database lacks, in order, in one transaction, and returns the
// versions before and after. Both are 0 when the freight app is not there.
func Migrate(ctx context.Context, url database.URL) (from, to int, err error) {
	d, err := dialectOf(url.Driver)
	if err != nil {
		return 0, 0, err
	}
	return d.migrate(ctx, url)
}

func (d dialect) migrate(ctx context.Context, url database.URL) (from, to int, err error) {
	err = d.within(ctx, url, func(tx transaction) error {
		found, err := inspect(ctx, tx, d.relations)
		if err != nil {
			return err
		}
		from, to = found.version, d.schema.latest()
		if from == 0 {
			to = 0
			return nil
		}
		if from > to {
			return errNewer
		}
		return d.upgrade(ctx, tx, found)
	})
	if err != nil {
		return 0, 0, d.explain(ctx, url, err)
	}
	return from, to, nil
}

// upgrade applies the migrations that the database lacks.
func (d dialect) upgrade(ctx context.Context, tx transaction, found component) error {
	if found.version == d.schema.latest() {
		return nil
	}
	if err := execAll(ctx, tx, d.schema.upgrade(found.version)); err != nil {
		return err
	}
	return execAll(ctx, tx, record(found.dataset, d.schema.latest(), found.state))
}

// seed does what choose says about what the database holds.
func (d dialect) seed(ctx context.Context, url database.URL, dataset Dataset, choose func(component) (action, error), meter *progress.Meter) (Outcome, error) {
	start := time.Now()
	outcome := Outcome{Dataset: dataset}
	err := d.within(ctx, url, func(tx transaction) error {
		found, err := inspect(ctx, tx, d.relations)
		if err != nil {
			return err
		}
		todo, err := choose(found)
		if err != nil {
			return err
		}
		if todo == keep {
			outcome.Dataset = found.dataset
			return d.upgrade(ctx, tx, found)
		}
		outcome.Made = true
		if todo == rebuild {
			if err := drop(ctx, tx, found); err != nil {
				return err
			}
		}
		outcome.Orders, err = d.build(ctx, tx, dataset, meter)
		return err
	})
	if err == nil && outcome.Made {
		err = d.vacuum(ctx, url, meter)
	}
	if err != nil {
		return Outcome{}, d.explain(ctx, url, err)
	}
	outcome.Took = time.Since(start)
	return outcome, nil
}

// drop removes the tables of an earlier data set.
func drop(ctx context.Context, tx transaction, found component) error {
	for _, table := range []string{ordersTable, usersTable} {
		if !found.has(table) {
			continue
		}
		if err := execOne(ctx, tx, "DROP TABLE "+table); err != nil {
			return err
		}
	}
	return nil
}

// build makes the tables and fills them.
func (d dialect) build(ctx context.Context, tx transaction, dataset Dataset, meter *progress.Meter) (orders int, err error) {
	if err := execAll(ctx, tx, d.schema.registry); err != nil {
		return 0, err
	}
	if err := execAll(ctx, tx, record(dataset, d.schema.latest(), stateBuilding)); err != nil {
		return 0, err
	}
	if err := execAll(ctx, tx, d.schema.tables()); err != nil {
		return 0, err
	}
	g := NewGenerator(dataset)
	if err := tx.load(ctx, g, meter); err != nil {
		return 0, err
	}
	if err := execMetered(ctx, tx, "indexes", d.schema.indexes(), meter); err != nil {
		return 0, err
	}
	if err := execMetered(ctx, tx, "statistics", d.finish, meter); err != nil {
		return 0, err
	}
	return g.OrderCount(), execAll(ctx, tx, record(dataset, d.schema.latest(), stateComplete))
}

// explain says in which database it happened, and after an interruption what
// is left.
func (d dialect) explain(ctx context.Context, url database.URL, err error) error {
	if ctx.Err() != nil {
		return &interruption{url: url, cause: ctx.Err()}
	}
	return fmt.Errorf("%s: %w", url, err)
}

// interruption is what is left when the context ended.
type interruption struct {
	url   database.URL
	cause error
}

func (e *interruption) Error() string {
	return fmt.Sprintf("interrupted: nothing unfinished is left in %s; the same command starts again", e.url)
}

func (e *interruption) Unwrap() error { return e.cause }
