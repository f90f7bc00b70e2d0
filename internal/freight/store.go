package freight

import (
	"context"
	"errors"
	"fmt"

	"spillway/internal/database"
	"spillway/internal/progress"
)

// ErrUnsupported marks a database of a kind that this package cannot fill.
var ErrUnsupported = errors.New("the freight app runs on postgres:// and sqlite: databases; mysql:// comes in a later release")

// transaction is one open transaction on a database.
type transaction interface {
	// exec runs one statement.
	exec(ctx context.Context, sql string) error
	// query returns the rows of a small result as text, NULL as "".
	query(ctx context.Context, sql string) ([][]string, error)
	// load inserts the generator's users and orders into empty tables without indexes.
	load(ctx context.Context, g *Generator, meter *progress.Meter) error
}

// dialect is what differs between kinds of databases.
type dialect struct {
	schema schema
	// relations selects the name of each of our tables that is there and its
	// columns joined by commas.
	relations string
	// finish are statements run after the indexes, in the same transaction.
	finish []string
	// elsewhere tells how to get out of the way of somebody else's tables.
	elsewhere string
	// within runs work in a transaction that nobody else's within overlaps. It
	// commits when work returns nil and ctx still stands, and rolls back otherwise.
	within func(ctx context.Context, url database.URL, work func(transaction) error) error
	// vacuum tidies after the commit.
	vacuum func(ctx context.Context, url database.URL, meter *progress.Meter) error
}

func dialectOf(driver database.Driver) (dialect, error) {
	var d dialect
	var text string
	switch driver {
	case database.Postgres:
		d, text = postgresDialect(), postgresSchema
	case database.SQLite:
		d, text = sqliteDialect(), sqliteSchema
	default:
		return dialect{}, ErrUnsupported
	}
	var err error
	if d.schema, err = parseSchema(text); err != nil {
		return dialect{}, fmt.Errorf("parse the %s schema: %w", driver, err)
	}
	return d, nil
}

// execAll runs statements in order and names the one that fails.
func execAll(ctx context.Context, tx transaction, statements []string) error {
	for _, sql := range statements {
		if err := execOne(ctx, tx, sql); err != nil {
			return err
		}
	}
	return nil
}

func execOne(ctx context.Context, tx transaction, sql string) error {
	if err := tx.exec(ctx, sql); err != nil {
		return fmt.Errorf("run %q: %w", firstLine(sql), err)
	}
	return nil
}

// execMetered runs statements in order and shows how many are done.
func execMetered(ctx context.Context, tx transaction, label string, statements []string, meter *progress.Meter) (err error) {
	task := meter.Start(label, "", int64(len(statements)))
	defer func() { task.End(err) }()
	for _, sql := range statements {
		if err := execOne(ctx, tx, sql); err != nil {
			return err
		}
		task.Add(1)
	}
	return nil
}

func firstLine(sql string) string {
	for i, c := range sql {
		if c == '\n' {
			return sql[:i] + " …"
		}
	}
	return sql
}
