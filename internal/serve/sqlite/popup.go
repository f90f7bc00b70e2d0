package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/popup"
)

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

// Identity returns the id of the database, at random when its tables were created.
func (p *Popups) Identity(ctx context.Context) (id string, err error) {
	err = p.db.read(ctx, func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, "SELECT identity FROM popup_identity", &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
			id = stmt.ColumnText(0)
			return nil
		}})
	})
	if err == nil && id == "" {
		err = errors.New("the table popup_identity has no row")
	}
	if err != nil {
		return "", fmt.Errorf("read the database's id: %w", err)
	}
	return id, nil
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
const campaignColumns = "id, name, placement, status, version, campaign"

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
	c := popup.StoredCampaign{Version: stmt.ColumnInt64(4), Campaign: popup.Campaign{
		ID: popup.CampaignID(stmt.ColumnInt64(0)), Name: stmt.ColumnText(1), Placement: stmt.ColumnText(2), Status: popup.Status(stmt.ColumnText(3)),
	}}
	c.Decode(stmt.ColumnText(5))
	return c
}

// SaveCampaign stores a valid campaign and returns it as stored. A campaign with id 0 gets
// the next id. Otherwise it replaces the campaign with that id if the version is still
// c.Version. checked is the version of all campaigns against which c was checked. The same
// transaction adds the campaign to its history; by is the name of who changes it. Errors wrap
// popup.ErrOutdated, popup.ErrChanged and popup.ErrNoCampaign. After an error of the
// connection the change may be stored: read the campaign again.
func (p *Popups) SaveCampaign(ctx context.Context, c popup.StoredCampaign, checked int64, by string) (popup.StoredCampaign, error) {
	c, err := c.Storable(by)
	if err != nil {
		return c, fmt.Errorf("save campaign: %w", err)
	}
	saved := c
	err = p.transaction(ctx, func(conn *sqlite.Conn) error {
		if saved.Version, err = nextVersion(conn); err != nil {
			return err
		}
		if saved.Version != checked+1 {
			return popup.ErrOutdated
		}
		return saveCampaign(conn, &saved, c.Version, by)
	})
	if err != nil {
		return c, fmt.Errorf("save campaign: %w", err)
	}
	return saved, nil
}

// nextVersion increases the version of all campaigns.
func nextVersion(conn *sqlite.Conn) (int64, error) {
	if err := sqlitex.Execute(conn, "UPDATE popup_version SET version = version + 1", nil); err != nil {
		return 0, err
	}
	return readVersion(conn)
}

// saveCampaign writes one row, and one of its history; read is the version known to the caller.
func saveCampaign(conn *sqlite.Conn, c *popup.StoredCampaign, read int64, by string) error {
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
	text, err := c.Encode()
	if err != nil {
		return err
	}
	err = sqlitex.Execute(conn, "INSERT OR REPLACE INTO popup_campaigns ("+campaignColumns+") VALUES (?, ?, ?, ?, ?, ?)",
		&sqlitex.ExecOptions{Args: []any{int64(c.ID), c.Name, c.Placement, string(c.Status), c.Version, text}})
	if err != nil {
		return err
	}
	return sqlitex.Execute(conn, "INSERT INTO popup_history (campaign_id, version, at, who, campaign) VALUES (?, ?, ?, ?, ?)",
		&sqlitex.ExecOptions{Args: []any{int64(c.ID), c.Version, time.Now().UnixMilli(), by, text}})
}

// History returns the last changes of a campaign, the newest first, at most limit of them.
func (p *Popups) History(ctx context.Context, id popup.CampaignID, limit int) (all []popup.CampaignChange, err error) {
	err = p.db.read(ctx, func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, "SELECT at, who, campaign FROM popup_history WHERE campaign_id = ? ORDER BY version DESC LIMIT ?", &sqlitex.ExecOptions{
			Args: []any{int64(id), limit}, ResultFunc: func(stmt *sqlite.Stmt) error {
				change, err := popup.DecodeChange(stmt.ColumnText(2), stmt.ColumnText(1), time.UnixMilli(stmt.ColumnInt64(0)).UTC())
				all = append(all, change)
				return err
			},
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the history of a campaign: %w", err)
	}
	return all, nil
}

// Now returns the time of this process, in which the database runs.
func (p *Popups) Now(context.Context) (time.Time, error) { return time.Now(), nil }
