package sqlite

import (
	"context"
	"fmt"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/popup"
)

// popupTables are created if they are missing. Times are in milliseconds since 1970; a
// NULL time in popup_state and popup_events means never.
const popupTables = `CREATE TABLE IF NOT EXISTS popup_campaigns (
	id INTEGER PRIMARY KEY,
	name TEXT NOT NULL,
	placement TEXT NOT NULL,
	position INTEGER NOT NULL,
	payload TEXT NOT NULL,
	target TEXT NOT NULL,
	status TEXT NOT NULL,
	starts_at INTEGER,
	ends_at INTEGER,
	repeat_after INTEGER NOT NULL,
	quiet_click INTEGER NOT NULL,
	quiet_dismiss INTEGER NOT NULL,
	cap INTEGER NOT NULL,
	version INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS popup_version (
	id INTEGER PRIMARY KEY CHECK (id = 1),
	version INTEGER NOT NULL
);
INSERT INTO popup_version (id, version) VALUES (1, 0) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS popup_events (
	id BLOB NOT NULL UNIQUE,
	user_id TEXT NOT NULL,
	placement TEXT NOT NULL,
	sequence INTEGER NOT NULL,
	kind INTEGER NOT NULL,
	campaign_id INTEGER NOT NULL,
	shown_at INTEGER NOT NULL,
	at INTEGER NOT NULL,
	next_at INTEGER
);
CREATE TABLE IF NOT EXISTS popup_state (
	user_id TEXT NOT NULL,
	placement TEXT NOT NULL,
	sequence INTEGER NOT NULL,
	kind INTEGER NOT NULL,
	campaign_id INTEGER NOT NULL,
	at INTEGER NOT NULL,
	next_at INTEGER,
	event_id BLOB NOT NULL,
	state BLOB NOT NULL,
	PRIMARY KEY (user_id, placement)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS popup_counts (
	campaign_id INTEGER NOT NULL,
	kind INTEGER NOT NULL,
	events INTEGER NOT NULL,
	PRIMARY KEY (campaign_id, kind)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS popup_queues (
	queue BLOB PRIMARY KEY,
	sequence INTEGER NOT NULL
) WITHOUT ROWID;`

// Popups keeps campaigns, events and the states of users in tables popup_*. Its methods
// can be called concurrently. The owner calls Close.
//
// It writes over a separate connection, whose commits are synced.
type Popups struct {
	*writer
	db *DB
}

// Popups returns the popup tables of the file. Call EnsureTables first.
func (db *DB) Popups() *Popups {
	return &Popups{db: db, writer: newWriter("popups", func(ctx context.Context) (*sqlite.Conn, error) {
		// A commit must not lose what the queue forgets after it.
		return db.connectWriter(ctx, "synchronous = FULL")
	})}
}

// EnsureTables creates the tables that are missing.
func (p *Popups) EnsureTables(ctx context.Context) error {
	err := p.transaction(ctx, func(conn *sqlite.Conn) error {
		for sql := range strings.SplitSeq(popupTables, ";") {
			if strings.TrimSpace(sql) == "" {
				continue
			}
			if err := sqlitex.ExecuteTransient(conn, sql, nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("create the tables popup_*: %w", err)
	}
	return nil
}

// Version returns the version of all campaigns, which each change increases. It reads one
// row.
func (p *Popups) Version(ctx context.Context) (version int64, err error) {
	err = p.db.read(ctx, func(conn *sqlite.Conn) error {
		version, err = readVersion(conn)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read the campaigns' version: %w", err)
	}
	return version, nil
}

func readVersion(conn *sqlite.Conn) (version int64, err error) {
	err = sqlitex.Execute(conn, "SELECT version FROM popup_version", &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
		version = stmt.ColumnInt64(0)
		return nil
	}})
	return version, err
}

// campaignColumns are the columns of popup_campaigns in the order in which they are read.
const campaignColumns = "id, name, placement, position, payload, target, status, starts_at, ends_at, repeat_after, quiet_click, quiet_dismiss, cap, version"

// Campaigns returns all campaigns, archived ones too, in the order of their ids, and the
// version of all.
func (p *Popups) Campaigns(ctx context.Context) (version int64, all []popup.StoredCampaign, err error) {
	err = p.db.read(ctx, func(conn *sqlite.Conn) error {
		// The version is read first: a change in between is read again with the next
		// version.
		if version, err = readVersion(conn); err != nil {
			return err
		}
		return sqlitex.Execute(conn, "SELECT "+campaignColumns+" FROM popup_campaigns ORDER BY id", &sqlitex.ExecOptions{
			ResultFunc: func(stmt *sqlite.Stmt) error {
				all = append(all, readCampaign(stmt))
				return nil
			},
		})
	})
	if err != nil {
		return 0, nil, fmt.Errorf("read campaigns: %w", err)
	}
	return version, all, nil
}

func readCampaign(stmt *sqlite.Stmt) popup.StoredCampaign {
	instant := func(column int) time.Time {
		if stmt.ColumnIsNull(column) {
			return time.Time{}
		}
		return time.UnixMilli(stmt.ColumnInt64(column)).UTC()
	}
	return popup.StoredCampaign{Version: stmt.ColumnInt64(13), Campaign: popup.Campaign{
		ID: popup.CampaignID(stmt.ColumnInt64(0)), Name: stmt.ColumnText(1), Placement: stmt.ColumnText(2), Order: stmt.ColumnInt32(3),
		Payload: []byte(stmt.ColumnText(4)), Target: stmt.ColumnText(5), Status: popup.Status(stmt.ColumnText(6)),
		Start: instant(7), End: instant(8), RepeatAfter: popup.FromMilliseconds(stmt.ColumnInt64(9)),
		QuietClick: popup.FromMilliseconds(stmt.ColumnInt64(10)), QuietDismiss: popup.FromMilliseconds(stmt.ColumnInt64(11)), Cap: stmt.ColumnInt(12),
	}}
}

// SaveCampaign stores a valid campaign and returns it as stored. A campaign with id 0 gets
// the next id. Otherwise it replaces the campaign with that id if the version is still
// c.Version. checked is the version of all campaigns against which c was checked. Errors
// wrap popup.ErrOutdated, popup.ErrChanged and popup.ErrNoCampaign. After an error of the
// connection the change may be stored: read the campaign again.
func (p *Popups) SaveCampaign(ctx context.Context, c popup.StoredCampaign, checked int64, _ string) (popup.StoredCampaign, error) {
	c, err := c.Storable()
	if err != nil {
		return c, fmt.Errorf("save campaign: %w", err)
	}
	saved := c
	err = p.transaction(ctx, func(conn *sqlite.Conn) error {
		if err := sqlitex.Execute(conn, "UPDATE popup_version SET version = version + 1", nil); err != nil {
			return err
		}
		if saved.Version, err = readVersion(conn); err != nil {
			return err
		}
		if saved.Version != checked+1 {
			return popup.ErrOutdated
		}
		return saveCampaign(conn, &saved, c.Version)
	})
	if err != nil {
		return c, fmt.Errorf("save campaign: %w", err)
	}
	return saved, nil
}

// saveCampaign writes one row; read is the version known to the caller.
func saveCampaign(conn *sqlite.Conn, c *popup.StoredCampaign, read int64) error {
	sql, args, stored := "SELECT version FROM popup_campaigns WHERE id = ?", []any{int64(c.ID)}, int64(-1)
	if c.ID == 0 {
		sql, args = "SELECT COALESCE(MAX(id), 0) + 1 FROM popup_campaigns", nil
	}
	err := sqlitex.Execute(conn, sql, &sqlitex.ExecOptions{Args: args, ResultFunc: func(stmt *sqlite.Stmt) error {
		stored = stmt.ColumnInt64(0)
		return nil
	}})
	switch {
	case err != nil:
		return err
	case c.ID == 0:
		c.ID = popup.CampaignID(stored)
	case stored < 0:
		return fmt.Errorf("%w: %d", popup.ErrNoCampaign, c.ID)
	case stored != read:
		return popup.ErrChanged
	}
	return sqlitex.Execute(conn, "INSERT OR REPLACE INTO popup_campaigns ("+campaignColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		&sqlitex.ExecOptions{Args: []any{
			int64(c.ID), c.Name, c.Placement, int64(c.Order), string(c.Payload), c.Target, string(c.Status), millisOrNull(c.Start), millisOrNull(c.End),
			popup.Milliseconds(c.RepeatAfter), popup.Milliseconds(c.QuietClick), popup.Milliseconds(c.QuietDismiss), c.Cap, c.Version,
		}})
}

// millisOrNull returns NULL for the zero time.
func millisOrNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}
