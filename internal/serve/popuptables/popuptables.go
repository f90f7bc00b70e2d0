// Package popuptables has the tables of popups and their statements, for every database:
// campaigns and their history, states, counts, and lists of users. What an adapter does by
// itself is storing events, in one round trip where it can, and locking.
//
// Errors of the database are returned as the adapter's Session returns them.
package popuptables

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"spillway/internal/plans"
	"spillway/internal/serve/tables"
)

// Database runs work on connections of a database. The error is that of work, or says why the
// work was not done.
type Database interface {
	// Read runs work that changes nothing for at most the statement timeout. It may run it
	// again, on another connection.
	Read(ctx context.Context, work func(context.Context, tables.Session) error) error
	// Change runs work in a transaction and commits it, durably, for at most the statement
	// timeout, times large. It may run it again, in another transaction, after a conflict
	// with others. After an error of the COMMIT the changes may be stored.
	Change(ctx context.Context, large int, work func(context.Context, tables.Session) error) error
}

// Tables are the popups' tables of a database. Their methods may be called concurrently, by any
// number of processes.
type Tables struct {
	db      Database
	dialect tables.Dialect
}

// New returns the tables of a database, which the adapter has created if they were missing.
func New(db Database, dialect tables.Dialect) *Tables {
	return &Tables{db: db, dialect: dialect}
}

// rows returns the rows of one statement that changes nothing.
func (t *Tables) rows(ctx context.Context, sql string, args ...any) (rows []tables.Row, err error) {
	err = t.db.Read(ctx, func(ctx context.Context, s tables.Session) error {
		rows, err = s.Rows(ctx, sql, args...)
		return err
	})
	return rows, err
}

// sum writes the sum of a column as an integer.
func (t *Tables) sum(column string) string {
	if t.dialect.SQL == plans.Postgres {
		return "sum(" + column + ")::bigint"
	}
	return "SUM(" + column + ")"
}

// Identity returns the id of the database, which the first call chooses at random.
func (t *Tables) Identity(ctx context.Context) (string, error) {
	const read = "SELECT identity FROM popup_version WHERE id = 1"
	rows, err := t.rows(ctx, read)
	if err == nil && len(rows) == 0 {
		err = t.db.Change(ctx, 1, func(ctx context.Context, s tables.Session) error {
			if err := t.insertVersion(ctx, s); err != nil {
				return err
			}
			rows, err = s.Rows(ctx, read)
			return err
		})
	}
	if err == nil && len(rows) == 0 { // another process has chosen it meanwhile
		rows, err = t.rows(ctx, read)
	}
	if err != nil {
		return "", fmt.Errorf("read the database's id: %w", err)
	}
	return rows[0][0], nil
}

// Now returns the time of the database's clock.
func (t *Tables) Now(ctx context.Context) (time.Time, error) {
	rows, err := t.rows(ctx, "SELECT "+t.dialect.Now)
	var now time.Time
	if err == nil {
		now, err = rows[0].Time(0)
	}
	if err != nil {
		return now, fmt.Errorf("read the database's clock: %w", err)
	}
	return now, nil
}

// Version returns the version of all campaigns and lists, which each change increases. It
// reads one row.
func (t *Tables) Version(ctx context.Context) (version int64, err error) {
	err = t.db.Read(ctx, func(ctx context.Context, s tables.Session) error {
		version, err = readVersion(ctx, s)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read the campaigns' version: %w", err)
	}
	return version, nil
}

// insertVersion creates the row of the version and of the database's id, unless it is there.
func (t *Tables) insertVersion(ctx context.Context, s tables.Session) error {
	_, err := s.Exec(ctx, t.dialect.InsertNew("popup_version (id, version, identity) VALUES (1, 0, ?)"), rand.Text())
	return err
}

// readVersion returns 0 if the row is missing.
func readVersion(ctx context.Context, s tables.Session) (int64, error) {
	rows, err := s.Rows(ctx, "SELECT version FROM popup_version WHERE id = 1")
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	return rows[0].Integer(0)
}

// nextVersion increases the version. The lock on its row serializes all changes.
func (t *Tables) nextVersion(ctx context.Context, s tables.Session) (int64, error) {
	const increase = "UPDATE popup_version SET version = version + 1 WHERE id = ?"
	changed, err := s.Exec(ctx, increase, int64(1))
	if err == nil && changed == 0 {
		if err = t.insertVersion(ctx, s); err == nil {
			_, err = s.Exec(ctx, increase, int64(1))
		}
	}
	if err != nil {
		return 0, err
	}
	return readVersion(ctx, s)
}
