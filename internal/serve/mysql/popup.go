package mysql

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/database"
	"spillway/internal/plans"
	"spillway/internal/serve/popuptables"
	"spillway/internal/serve/tables"
)

// countSlots is the number of rows over which each count of events is spread, so that replicas seldom wait for each other.
const countSlots = 64

// Popups keeps campaigns, events and the states of users in tables popup_*. Any number of processes can call its methods concurrently.
type Popups struct {
	*popuptables.Tables
	db   *DB
	slot int64 // the slot of popup_counts and popup_hours for this process

	token  atomic.Pointer[[16]byte] // of the lock that events need; nil: this process has taken none
	fenced atomic.Bool              // some were refused since the lock was checked
}

// Popups returns the popup tables of the database. Call EnsureTables first.
func (db *DB) Popups() *Popups {
	return &Popups{Tables: popuptables.New(popupDatabase{db}, dialect), db: db, slot: rand.Int64N(countSlots)}
}

// Close does nothing: the connections belong to the DB.
func (p *Popups) Close() error { return nil }

// EnsureTables creates the tables that are missing, checks the privileges, and refuses tables of a newer version.
func (p *Popups) EnsureTables(ctx context.Context) error {
	err := p.db.again(ctx, p.db.statementLimit(), func(ctx context.Context, se *session) error {
		if err := tables.Ensure(ctx, tableSession{se}, dialect, popuptables.Own(true)); err != nil {
			return err
		}
		for _, t := range popuptables.Own(true) {
			if _, err := se.checkEngine(ctx, plans.TableName{Name: t.Name}); err != nil {
				return err
			}
		}
		return checkRights(ctx, se, popuptables.Own(true))
	})
	if err != nil {
		return fmt.Errorf("prepare the tables popup_*: %w", err)
	}
	return nil
}

// Grants returns what the popups need.
func (p *Popups) Grants(ctx context.Context) ([]database.Grant, error) {
	var grants []database.Grant
	err := p.db.withSession(ctx, func(ctx context.Context, se *session) error {
		return se.addOwn(ctx, &grants, popuptables.Own(true))
	})
	if err != nil {
		return nil, fmt.Errorf("popups: %w", err)
	}
	return grants, nil
}

// popupDatabase implements popuptables.Database.
type popupDatabase struct{ *DB }

// Read implements popuptables.Database.
func (db popupDatabase) Read(ctx context.Context, work func(context.Context, tables.Session) error) error {
	return db.again(ctx, db.statementLimit(), func(ctx context.Context, se *session) error { return work(ctx, tableSession{se}) })
}

// Change implements popuptables.Database, for a client who waits for an answer: it returns when ctx or the limit ends, also during the
// COMMIT. That keeps its connection then, until it is answered or the DB is closed.
func (db popupDatabase) Change(ctx context.Context, large int, work func(context.Context, tables.Session) error) error {
	if err := db.begin(); err != nil {
		return err
	}
	limit := time.Duration(large)*db.bounds.StatementTimeout + clientGrace
	limited, cancel := context.WithTimeout(ctx, db.bounds.AcquireTimeout+limit)
	defer cancel()
	var sent atomic.Bool
	done := make(chan error, 1)
	go func() {
		defer db.running.Done()
		change := func(ctx context.Context, se *session) error { return work(ctx, tableSession{se}) }
		done <- db.attempts(limited, limit, change, func(se *session) error {
			sent.Store(true)
			if limited.Err() != nil {
				return errors.Join(context.Cause(limited), se.Close()) // the server rolls back
			}
			return commit(db.closing, se)
		})
	}()
	select {
	case err := <-done:
		return err
	case <-limited.Done():
	}
	if !sent.Load() {
		return <-done // COMMIT will not be sent
	}
	select {
	case err := <-done:
		return err
	default:
	}
	return fmt.Errorf("COMMIT was not answered, and the change may be stored: %w", context.Cause(limited))
}

// transaction runs work in a transaction, within the time of one statement. It retries as attempts does. After an error of the connection
// work may have been committed; it is not repeated then. The COMMIT ends with ctx only.
func (db popupDatabase) transaction(ctx context.Context, work func(context.Context, *session) error) error {
	return db.attempts(ctx, db.statementLimit(), work, func(se *session) error { return commit(ctx, se) })
}

// attemptsMax is the number of attempts of a transaction that conflicts with others.
const attemptsMax = 5

// attempts runs work and then end in a transaction, each time for at most the limit. It runs
// them again on a dead connection, as again does, and after a conflict with others.
func (db popupDatabase) attempts(ctx context.Context, limit time.Duration, work func(context.Context, *session) error,
	end func(*session) error,
) error {
	var err error
	for range attemptsMax {
		err = db.again(ctx, limit, func(ctx context.Context, se *session) error {
			if err := se.Exec(ctx, "START TRANSACTION"); err != nil {
				return err
			}
			err := work(ctx, se)
			if err == nil {
				return end(se)
			}
			if rollback := se.Exec(ctx, "ROLLBACK"); rollback != nil {
				err = errors.Join(err, se.Close()) // the server rolls back
			}
			return err
		})
		var refused *mysql.MySQLError
		if !errors.As(err, &refused) || refused.Number != numDeadlock && refused.Number != numLockWait && refused.Number != numDuplicate &&
			refused.Number != numChanged {
			return err
		}
	}
	return err
}

// commit hides from again an error that leaves open whether the server has committed.
func commit(ctx context.Context, se *session) error {
	err := se.commit(ctx)
	if err != nil && worthRetrying(err) {
		return fmt.Errorf("commit; it may have succeeded: %s", err.Error())
	}
	return err
}
