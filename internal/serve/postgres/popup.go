package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/database"
	"spillway/internal/serve/popuptables"
	"spillway/internal/serve/tables"
)

// countSlots is the number of rows over which each count of events is spread, so that replicas
// seldom wait for each other.
const countSlots = 64

// Popups keeps campaigns, events and the states of users in tables popup_*. Any number of
// processes can call its methods concurrently.
type Popups struct {
	*popuptables.Tables
	db   *DB
	slot int16 // the slot of popup_counts and popup_hours for this process

	fence  atomic.Pointer[fence] // what events need; nil: this process has taken no lock
	fenced atomic.Bool           // some were refused since the lock was checked
}

// Popups returns the popup tables of the database. Call EnsureTables first.
func (db *DB) Popups() *Popups {
	return &Popups{Tables: popuptables.New(popupDatabase{db}, dialect), db: db, slot: int16(rand.IntN(countSlots))}
}

// Close does nothing: the connections belong to the DB.
func (p *Popups) Close() error { return nil }

// EnsureTables creates the tables that are missing, each in a transaction of its own, checks
// the privileges, and refuses tables of a newer version. An error of a missing right has the
// statement to run.
func (p *Popups) EnsureTables(ctx context.Context) error {
	err := p.db.askAgain(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := ensureTables(ctx, conn, popuptables.Own(true)); err != nil {
			return err
		}
		return checkRights(ctx, conn, popuptables.Own(true))
	})
	if err != nil {
		return fmt.Errorf("prepare the tables popup_*: %w", err)
	}
	return nil
}

// Grants returns what the popups need.
func (p *Popups) Grants(ctx context.Context) ([]database.Grant, error) {
	var grants []database.Grant
	err := p.db.ask(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		return addOwn(ctx, conn, &grants, popuptables.Own(true))
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
	return db.askAgain(ctx, func(ctx context.Context, conn *pgconn.PgConn) error { return work(ctx, tableSession{conn}) })
}

// beginChange begins a transaction that is durable. It reads indexes in their order: without
// statistics, as after many new rows, the server would rather sort all rows, each time.
const beginChange = "BEGIN ISOLATION LEVEL READ COMMITTED; " + pinCommit + ", set_config('enable_sort', 'off', true)"

// Change implements popuptables.Database. It runs work once. It returns an error after the
// limit also if COMMIT waits for a standby. The COMMIT then keeps its connection.
func (db popupDatabase) Change(ctx context.Context, large int, work func(context.Context, tables.Session) error) error {
	pooled, err := db.acquireWriter(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, time.Duration(large)*db.bounds.StatementTimeout+clientGrace)
	defer cancel()
	conn := pooled.Conn().PgConn()
	err = exec(limited, conn, beginChange)
	if err == nil {
		err = work(limited, tableSession{conn})
	}
	if err != nil {
		_ = exec(limited, conn, "ROLLBACK") // the first error is returned; if this fails, the pool closes the connection
		db.releaseWriter(pooled)
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer db.releaseWriter(pooled)
		done <- commitSteps(db.life, conn, nil)
	}()
	select {
	case err := <-done:
		return err
	case <-limited.Done():
		return fmt.Errorf("COMMIT was not answered, and the change may be stored: %w", context.Cause(limited))
	}
}
