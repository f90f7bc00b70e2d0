package postgres

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"spillway/internal/serve/popup"
)

// countSlots is the number of rows over which each count of events is spread, so that replicas
// seldom wait for each other.
const countSlots = 64

// Popups keeps campaigns, events and the states of users in tables popup_*. Any number of
// processes can call its methods concurrently.
type Popups struct {
	db   *DB
	slot int16 // the slot of popup_counts and popup_hours for this process
}

// Popups returns the popup tables of the database. Call EnsureTables first.
func (db *DB) Popups() *Popups {
	return &Popups{db: db, slot: int16(rand.IntN(countSlots))}
}

// Close does nothing: the connections belong to the DB.
func (p *Popups) Close() error { return nil }

// Identity returns the id of the database, which the first call chooses at random.
func (p *Popups) Identity(ctx context.Context) (string, error) {
	const read = "SELECT identity FROM popup_identity"
	var id string
	err := p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, read, pgx.QueryExecModeExec).Scan(&id)
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		_, err = conn.PgConn().Exec(ctx, fmt.Sprintf("BEGIN; %s; INSERT INTO popup_identity (identity) VALUES ('%s') ON CONFLICT DO NOTHING; COMMIT",
			commitLocally, cryptorand.Text())).ReadAll()
		if err != nil {
			_, _ = conn.PgConn().Exec(ctx, "ROLLBACK").ReadAll() // the first error is returned
			return err
		}
		return conn.QueryRow(ctx, read, pgx.QueryExecModeExec).Scan(&id)
	})
	if err != nil {
		return "", fmt.Errorf("read the database's id: %w", err)
	}
	return id, nil
}

// withConn runs work on one connection of the pool for at most the statement timeout. It
// retries once if the connection is dead, so work must be repeatable.
func (p *Popups) withConn(ctx context.Context, work func(context.Context, *pgx.Conn) error) error {
	once := func() (dead bool, err error) {
		pooled, err := p.db.acquire(ctx)
		if err != nil {
			return false, err
		}
		defer pooled.Release()
		limited, cancel := context.WithTimeout(ctx, p.db.bounds.StatementTimeout+clientGrace)
		defer cancel()
		err = work(limited, pooled.Conn())
		return pooled.Conn().IsClosed() && limited.Err() == nil, err
	}
	dead, err := once()
	if dead && err != nil {
		p.db.pool.Reset() // after a restart the other idle connections are dead too
		_, err = once()
	}
	return err
}

// Version returns the version of all campaigns, which each change increases. It reads one
// row.
func (p *Popups) Version(ctx context.Context) (int64, error) {
	var version int64
	err := p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT version FROM popup_version", pgx.QueryExecModeExec).Scan(&version)
	})
	if err != nil {
		return 0, fmt.Errorf("read the campaigns' version: %w", err)
	}
	return version, nil
}

// campaignColumns are the columns of popup_campaigns in the order in which they are read.
const campaignColumns = "id, name, placement, status, version, campaign"

// Campaigns returns all campaigns, archived ones too, in the order of their ids, and the
// version of all.
func (p *Popups) Campaigns(ctx context.Context) (version int64, all []popup.StoredCampaign, err error) {
	err = p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		all = nil
		// One statement sees one snapshot.
		rows, err := conn.Query(ctx, "SELECT v.version, c.* FROM popup_version AS v LEFT JOIN (SELECT "+campaignColumns+
			" FROM popup_campaigns) AS c ON true ORDER BY c.id", pgx.QueryExecModeExec)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var r campaignRow
			if err := rows.Scan(&version, &r.ID, &r.Name, &r.Placement, &r.Status, &r.Version, &r.Campaign); err != nil {
				return err
			}
			if r.ID != nil {
				all = append(all, r.campaign())
			}
		}
		return rows.Err()
	})
	if err != nil {
		return 0, nil, fmt.Errorf("read campaigns: %w", err)
	}
	return version, all, nil
}

// campaignRow is a row of popup_campaigns; all NULL if there is no campaign.
type campaignRow struct {
	ID                                *int32
	Version                           *int64
	Name, Placement, Status, Campaign *string
}

func (r *campaignRow) campaign() popup.StoredCampaign {
	c := popup.StoredCampaign{Version: *r.Version, Campaign: popup.Campaign{
		ID: popup.CampaignID(*r.ID), Name: *r.Name, Placement: *r.Placement, Status: popup.Status(*r.Status),
	}}
	c.Decode(*r.Campaign)
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
	read := c.Version
	err = p.change(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if c.Version, err = nextVersion(ctx, tx); err != nil {
			return err
		}
		if c.Version != checked+1 {
			return popup.ErrOutdated
		}
		return saveCampaign(ctx, tx, &c, read, by)
	})
	if err != nil {
		return c, fmt.Errorf("save campaign: %w", err)
	}
	return c, nil
}

// nextVersion increases the version of all campaigns. The lock on its row serializes all
// changes.
func nextVersion(ctx context.Context, tx pgx.Tx) (version int64, err error) {
	err = tx.QueryRow(ctx, "UPDATE popup_version SET version = version + 1 RETURNING version", pgx.QueryExecModeExec).Scan(&version)
	return version, err
}

// change runs work in a transaction, once, and makes its commit durable. It returns an error
// after the statement timeout, also if COMMIT waits for a standby. The COMMIT then keeps its
// connection.
func (p *Popups) change(ctx context.Context, work func(context.Context, pgx.Tx) error) error {
	pooled, err := p.db.acquireWriter(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, p.db.bounds.StatementTimeout+clientGrace)
	defer cancel()
	tx, err := pooled.BeginTx(limited, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err == nil {
		_, err = tx.Exec(limited, pinCommit, pgx.QueryExecModeExec)
	}
	if err == nil {
		err = work(limited, tx)
	}
	if err != nil {
		if tx != nil {
			_ = tx.Rollback(limited) // the first error is returned; if this fails, the connection is closed
		}
		p.db.releaseWriter(pooled)
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer p.db.releaseWriter(pooled)
		done <- commitStatements(p.db.life, pooled.Conn(), nil)
	}()
	select {
	case err := <-done:
		return err
	case <-limited.Done():
		return fmt.Errorf("COMMIT was not answered, and the change may be stored: %w", context.Cause(limited))
	}
}

// saveCampaign writes one row, and one of its history; read is the version known to the caller.
func saveCampaign(ctx context.Context, tx pgx.Tx, c *popup.StoredCampaign, read int64, by string) error {
	sql := "INSERT INTO popup_campaigns (" + campaignColumns + ") VALUES ($1, $2, $3, $4, $5, $6)"
	if c.ID == 0 {
		if err := tx.QueryRow(ctx, "SELECT COALESCE(max(id), 0) + 1 FROM popup_campaigns", pgx.QueryExecModeExec).Scan(&c.ID); err != nil {
			return err
		}
	} else {
		var stored int64
		err := tx.QueryRow(ctx, "SELECT version FROM popup_campaigns WHERE id = $1", pgx.QueryExecModeExec, int32(c.ID)).Scan(&stored)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("%w: %d", popup.ErrNoCampaign, c.ID)
		case err != nil:
			return err
		case stored != read:
			return popup.ErrChanged
		}
		sql = "UPDATE popup_campaigns SET (" + campaignColumns + ") = ($1, $2, $3, $4, $5, $6) WHERE id = $1"
	}
	text, err := c.Encode()
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, sql, pgx.QueryExecModeExec, int32(c.ID), c.Name, c.Placement, string(c.Status), c.Version, text)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "INSERT INTO popup_history (campaign_id, version, who, campaign) VALUES ($1, $2, $3, $4)", pgx.QueryExecModeExec, int32(c.ID), c.Version, by, text)
	return err
}

// History returns the last changes of a campaign, the newest first, at most limit of them.
func (p *Popups) History(ctx context.Context, id popup.CampaignID, limit int) (all []popup.CampaignChange, err error) {
	err = p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT at, who, campaign FROM popup_history WHERE campaign_id = $1 ORDER BY version DESC LIMIT $2", pgx.QueryExecModeExec, int32(id), limit)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (popup.CampaignChange, error) {
			var at time.Time
			var who, campaign string
			if err := row.Scan(&at, &who, &campaign); err != nil {
				return popup.CampaignChange{}, err
			}
			return popup.DecodeChange(campaign, who, at.UTC())
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the history of a campaign: %w", err)
	}
	return all, nil
}

// Now returns the time of the database's clock.
func (p *Popups) Now(ctx context.Context) (now time.Time, err error) {
	err = p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT clock_timestamp()", pgx.QueryExecModeExec).Scan(&now)
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("read the database's clock: %w", err)
	}
	return now.UTC(), nil
}

// orNull returns NULL for the zero time.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
