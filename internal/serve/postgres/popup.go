package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"spillway/internal/serve/popup"
)

// popupTables are created if they are missing. Without the right to create tables, an
// administrator creates them. A NULL time in popup_state and popup_events means never.
const popupTables = `CREATE TABLE IF NOT EXISTS popup_campaigns (
	id integer PRIMARY KEY,
	name text NOT NULL,
	placement text NOT NULL,
	position integer NOT NULL,
	payload text NOT NULL,
	target text NOT NULL,
	status text NOT NULL,
	starts_at timestamptz,
	ends_at timestamptz,
	repeat_after bigint NOT NULL,
	quiet_click bigint NOT NULL,
	quiet_dismiss bigint NOT NULL,
	cap integer NOT NULL,
	version bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS popup_version (
	id smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1),
	version bigint NOT NULL
);
INSERT INTO popup_version (version) VALUES (0) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS popup_events (
	id uuid PRIMARY KEY,
	user_id text COLLATE "C" NOT NULL,
	placement text COLLATE "C" NOT NULL,
	sequence bigint NOT NULL,
	kind smallint NOT NULL,
	campaign_id integer NOT NULL,
	shown_at timestamptz NOT NULL,
	at timestamptz NOT NULL,
	next_at timestamptz
);
CREATE TABLE IF NOT EXISTS popup_state (
	user_id text COLLATE "C" NOT NULL,
	placement text COLLATE "C" NOT NULL,
	sequence bigint NOT NULL,
	kind smallint NOT NULL,
	campaign_id integer NOT NULL,
	at timestamptz NOT NULL,
	next_at timestamptz,
	event_id uuid NOT NULL,
	state bytea NOT NULL,
	PRIMARY KEY (user_id, placement)
) WITH (fillfactor = 80);
CREATE TABLE IF NOT EXISTS popup_counts (
	campaign_id integer NOT NULL,
	kind smallint NOT NULL,
	slot smallint NOT NULL,
	events bigint NOT NULL,
	PRIMARY KEY (campaign_id, kind, slot)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS popup_queues (
	queue uuid PRIMARY KEY,
	sequence bigint NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS popup_holder (
	id smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1),
	token uuid NOT NULL,
	holder text NOT NULL,
	since timestamptz NOT NULL DEFAULT now()
);`

// countSlots is the number of rows over which the count of a campaign's events is spread,
// so that replicas seldom wait for each other.
const countSlots = 64

// Popups keeps campaigns, events and the states of users in tables popup_*. Any number of
// processes can call its methods concurrently.
type Popups struct {
	db   *DB
	slot int16 // the slot of popup_counts for this process
}

// Popups returns the popup tables of the database. Call EnsureTables first.
func (db *DB) Popups() *Popups {
	return &Popups{db: db, slot: int16(rand.IntN(countSlots))}
}

// Close does nothing: the connections belong to the DB.
func (p *Popups) Close() error { return nil }

// EnsureTables creates the tables that are missing. If all exist, it checks the privileges.
func (p *Popups) EnsureTables(ctx context.Context) error {
	const present = `SELECT count(*) = 7 FROM unnest(ARRAY['popup_campaigns', 'popup_version', 'popup_events', 'popup_state',
		'popup_counts', 'popup_queues', 'popup_holder']) AS t(name) WHERE to_regclass(t.name) IS NOT NULL`
	err := p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var all bool
		if err := conn.QueryRow(ctx, present, pgx.QueryExecModeExec).Scan(&all); err != nil {
			return err
		}
		if all {
			return checkRights(ctx, conn.PgConn(), popupRights)
		}
		const lock = 0x706f707570 // concurrent IF NOT EXISTS can fail without a lock
		_, err := conn.PgConn().Exec(ctx, fmt.Sprintf("BEGIN; SELECT pg_advisory_xact_lock(%d); %s; %s COMMIT", lock, commitLocally, popupTables)).ReadAll()
		if err != nil {
			_, _ = conn.PgConn().Exec(ctx, "ROLLBACK").ReadAll() // the first error is returned
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("prepare the tables popup_*: %w", err)
	}
	return nil
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
const campaignColumns = "id, name, placement, position, payload, target, status, starts_at, ends_at, repeat_after, quiet_click, quiet_dismiss, cap, version"

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
			if err := rows.Scan(&version, &r.ID, &r.Name, &r.Placement, &r.Position, &r.Payload, &r.Target, &r.Status,
				&r.Start, &r.End, &r.RepeatAfter, &r.QuietClick, &r.QuietDismiss, &r.Cap, &r.Version); err != nil {
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
	ID, Position, Cap                              *int32
	Name, Placement, Payload, Target, Status       *string
	Start, End                                     *time.Time
	RepeatAfter, QuietClick, QuietDismiss, Version *int64
}

func (r *campaignRow) campaign() popup.StoredCampaign {
	c := popup.StoredCampaign{Version: *r.Version, Campaign: popup.Campaign{
		ID: popup.CampaignID(*r.ID), Name: *r.Name, Placement: *r.Placement, Order: *r.Position, Payload: []byte(*r.Payload),
		Target: *r.Target, Status: popup.Status(*r.Status), Cap: int(*r.Cap), RepeatAfter: popup.FromMilliseconds(*r.RepeatAfter),
		QuietClick: popup.FromMilliseconds(*r.QuietClick), QuietDismiss: popup.FromMilliseconds(*r.QuietDismiss),
	}}
	if r.Start != nil {
		c.Start = r.Start.UTC()
	}
	if r.End != nil {
		c.End = r.End.UTC()
	}
	return c
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
	if err := p.saveCommitted(ctx, &c, checked); err != nil {
		return c, fmt.Errorf("save campaign: %w", err)
	}
	return c, nil
}

// saveCommitted returns an error after the statement timeout, also if COMMIT waits for a
// standby. The COMMIT then keeps its connection.
func (p *Popups) saveCommitted(ctx context.Context, c *popup.StoredCampaign, checked int64) error {
	pooled, err := p.db.acquireWriter(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, p.db.bounds.StatementTimeout+clientGrace)
	defer cancel()
	read := c.Version
	tx, err := pooled.Begin(limited)
	if err == nil {
		err = p.writeCampaign(limited, tx, c, checked, read)
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
		return fmt.Errorf("COMMIT was not answered, and the campaign may be stored: %w", context.Cause(limited))
	}
}

func (p *Popups) writeCampaign(ctx context.Context, tx pgx.Tx, c *popup.StoredCampaign, checked, read int64) error {
	if _, err := tx.Exec(ctx, pinCommit, pgx.QueryExecModeExec); err != nil {
		return err
	}
	// The lock on the row serializes all changes.
	err := tx.QueryRow(ctx, "UPDATE popup_version SET version = version + 1 RETURNING version", pgx.QueryExecModeExec).Scan(&c.Version)
	switch {
	case err != nil:
		return err
	case c.Version != checked+1:
		return popup.ErrOutdated
	}
	return saveCampaign(ctx, tx, c, read)
}

// saveCampaign writes one row; read is the version known to the caller.
func saveCampaign(ctx context.Context, tx pgx.Tx, c *popup.StoredCampaign, read int64) error {
	sql := "INSERT INTO popup_campaigns (" + campaignColumns + ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
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
		sql = "UPDATE popup_campaigns SET (" + campaignColumns + ") = ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) WHERE id = $1"
	}
	_, err := tx.Exec(ctx, sql, pgx.QueryExecModeExec, int32(c.ID), c.Name, c.Placement, c.Order, string(c.Payload), c.Target, string(c.Status),
		orNull(c.Start), orNull(c.End), popup.Milliseconds(c.RepeatAfter), popup.Milliseconds(c.QuietClick), popup.Milliseconds(c.QuietDismiss), int32(c.Cap), c.Version)
	return err
}

// orNull returns NULL for the zero time.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
