package sqlite

import (
	"context"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"

	"spillway/internal/serve/popuptables"
	"spillway/internal/serve/tables"
)

// Popups keeps campaigns, events and the states of users in tables popup_*. Its methods
// can be called concurrently. The owner calls Close.
//
// It writes over a separate connection, whose commits are synced.
type Popups struct {
	*popuptables.Tables
	*writer
	db *DB
}

// Popups returns the popup tables of the file. Call EnsureTables first.
func (db *DB) Popups() *Popups {
	w := newWriter(db, "popups", func(ctx context.Context) (*sqlite.Conn, error) {
		// A commit must not lose what the spool or Redis forgets after it.
		return db.connectWriter(ctx, "synchronous = FULL")
	})
	return &Popups{Tables: popuptables.New(popupDatabase{db, w}, dialect), writer: w, db: db}
}

// EnsureTables creates the tables that are missing, and refuses tables of a newer version.
func (p *Popups) EnsureTables(ctx context.Context) error {
	err := p.transaction(ctx, func(conn *sqlite.Conn) error {
		return tables.Ensure(ctx, tableSession{conn}, dialect, popuptables.Own(false))
	})
	if err != nil {
		return fmt.Errorf("prepare the tables popup_*: %w", err)
	}
	return nil
}

// Now returns the time of this process, in which the database runs.
func (p *Popups) Now(context.Context) (time.Time, error) { return time.Now(), nil }

// popupDatabase implements popuptables.Database.
type popupDatabase struct {
	db *DB
	*writer
}

// Read implements popuptables.Database.
func (d popupDatabase) Read(ctx context.Context, work func(context.Context, tables.Session) error) error {
	return d.db.read(ctx, func(conn conn) error { return work(ctx, tableSession{conn.Conn}) })
}

// Change implements popuptables.Database. It runs work once, and only the end of ctx ends it.
func (d popupDatabase) Change(ctx context.Context, _ int, work func(context.Context, tables.Session) error) error {
	return d.transaction(ctx, func(conn *sqlite.Conn) error { return work(ctx, tableSession{conn}) })
}
