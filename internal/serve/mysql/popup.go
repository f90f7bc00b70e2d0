package mysql

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/serve/popup"
)

// countSlots is the number of rows over which each count of events is spread, so that replicas
// seldom wait for each other.
const countSlots = 64

// Popups keeps campaigns, events and the states of users in tables popup_*. Any number of
// processes can call its methods concurrently.
type Popups struct {
	db   *DB
	slot int64 // the slot of popup_counts and popup_hours for this process
}

// Popups returns the popup tables of the database. Call EnsureTables first.
func (db *DB) Popups() *Popups {
	return &Popups{db: db, slot: rand.Int64N(countSlots)}
}

// Close does nothing: the connections belong to the DB.
func (p *Popups) Close() error { return nil }

// Identity returns the id of the database, which the first call chooses at random.
func (p *Popups) Identity(ctx context.Context) (string, error) {
	id, err := p.readIdentity(ctx)
	if err == nil && id == "" {
		err = p.transaction(ctx, func(ctx context.Context, se *session) error {
			return se.Exec(ctx, "INSERT IGNORE INTO popup_identity (id, identity) VALUES (1, '"+cryptorand.Text()+"')")
		})
		if err == nil {
			id, err = p.readIdentity(ctx)
		}
	}
	if err != nil {
		return "", fmt.Errorf("read the database's id: %w", err)
	}
	return id, nil
}

// readIdentity returns "" if there is none.
func (p *Popups) readIdentity(ctx context.Context) (id string, err error) {
	err = p.withSession(ctx, func(ctx context.Context, se *session) error {
		rows, err := se.texts(ctx, "SELECT identity FROM popup_identity WHERE id = 1")
		if err == nil && len(rows) > 0 {
			id = rows[0][0]
		}
		return err
	})
	return id, err
}

// withSession runs work on one connection of the pool. It retries once if the connection
// is dead, so work must be repeatable.
func (p *Popups) withSession(ctx context.Context, work func(context.Context, *session) error) error {
	err := p.db.withSession(ctx, work)
	if err == nil || ctx.Err() != nil || !worthRetrying(err) {
		return err
	}
	return p.db.withSession(ctx, work)
}

// transaction runs work in a transaction. It retries as withSession does, and after a
// conflict with another transaction. After an error of the connection work may have been
// committed; it is not repeated then. The COMMIT has no deadline.
func (p *Popups) transaction(ctx context.Context, work func(context.Context, *session) error) error {
	free, cancel := p.db.unlimited(ctx)
	defer cancel()
	return p.attempts(ctx, work, func(se *session) error { return commit(free, se) })
}

// transactionWithin is transaction for a client who waits for an answer: it returns when ctx
// or the time for a statement ends, also during the COMMIT. That keeps its connection then,
// until it is answered or the DB is closed.
func (p *Popups) transactionWithin(ctx context.Context, work func(context.Context, *session) error) error {
	if err := p.db.begin(); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, p.db.bounds.AcquireTimeout+p.db.bounds.StatementTimeout+clientGrace)
	defer cancel()
	var sent atomic.Bool
	done := make(chan error, 1)
	go func() {
		defer p.db.running.Done()
		done <- p.attempts(limited, work, func(se *session) error {
			sent.Store(true)
			if limited.Err() != nil {
				return errors.Join(context.Cause(limited), se.Close()) // the server rolls back
			}
			return commit(p.db.closing, se)
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

// attempts runs work and then end in a transaction, several times if it conflicts with
// others.
func (p *Popups) attempts(ctx context.Context, work func(context.Context, *session) error, end func(*session) error) error {
	var err error
	for range attemptsMax {
		err = p.withSession(ctx, func(ctx context.Context, se *session) error {
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
		if !errors.As(err, &refused) || refused.Number != numDeadlock && refused.Number != numLockWait && refused.Number != numDuplicate && refused.Number != numChanged {
			return err
		}
	}
	return err
}

// commit hides from withSession an error that leaves open whether the server has
// committed.
func commit(ctx context.Context, se *session) error {
	err := se.commit(ctx)
	if err != nil && worthRetrying(err) {
		return fmt.Errorf("commit; it may have succeeded: %s", err.Error())
	}
	return err
}

// attemptsMax is the number of attempts of a transaction that conflicts with others.
const attemptsMax = 5

// Version returns the version of all campaigns, which each change increases. It reads one
// row.
func (p *Popups) Version(ctx context.Context) (int64, error) {
	version := int64(0)
	err := p.withSession(ctx, func(ctx context.Context, se *session) error {
		var err error
		version, err = readVersion(ctx, se)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read the campaigns' version: %w", err)
	}
	return version, nil
}

// readVersion returns 0 before the first change, which creates the row.
func readVersion(ctx context.Context, se *session) (int64, error) {
	rows, err := se.texts(ctx, "SELECT version FROM popup_version WHERE id = 1")
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	return strconv.ParseInt(rows[0][0], 10, 64)
}

// campaignColumns are the columns of popup_campaigns in the order in which they are read.
const campaignColumns = "id, name, placement, status, version, campaign"

// Campaigns returns all campaigns, archived ones too, in the order of their ids, and the
// version of all.
func (p *Popups) Campaigns(ctx context.Context) (version int64, all []popup.StoredCampaign, err error) {
	err = p.withSession(ctx, func(ctx context.Context, se *session) error {
		all = nil
		// The version is read first: a change in between is read again with the next
		// version.
		if version, err = readVersion(ctx, se); err != nil {
			return err
		}
		rows, err := se.texts(ctx, "SELECT "+campaignColumns+" FROM popup_campaigns ORDER BY id")
		if err != nil {
			return err
		}
		for _, row := range rows {
			c, err := parseCampaign(row)
			if err != nil {
				return fmt.Errorf("campaign %s: %w", row[0], err)
			}
			all = append(all, c)
		}
		return nil
	})
	if err != nil {
		return 0, nil, fmt.Errorf("read campaigns: %w", err)
	}
	return version, all, nil
}

func parseCampaign(row []string) (popup.StoredCampaign, error) {
	id, err := strconv.ParseUint(row[0], 10, 32)
	version, err2 := strconv.ParseInt(row[4], 10, 64)
	c := popup.StoredCampaign{Version: version, Campaign: popup.Campaign{
		ID: popup.CampaignID(id), Name: row[1], Placement: row[2], Status: popup.Status(row[3]),
	}}
	c.Decode(row[5])
	return c, errors.Join(err, err2)
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
	var saved popup.StoredCampaign // read only after transactionWithin has returned nil
	err = p.transactionWithin(ctx, func(ctx context.Context, se *session) error {
		saved = c
		var err error
		if saved.Version, err = nextVersion(ctx, se); err != nil {
			return err
		}
		if saved.Version != checked+1 {
			return popup.ErrOutdated
		}
		return saveCampaign(ctx, se, &saved, c.Version, by)
	})
	if err != nil {
		return c, fmt.Errorf("save campaign: %w", err)
	}
	return saved, nil
}

// nextVersion increases the version of all campaigns. The lock on its row serializes all
// changes.
func nextVersion(ctx context.Context, se *session) (int64, error) {
	if err := se.Exec(ctx, "INSERT INTO popup_version (id, version) VALUES (1, 1) ON DUPLICATE KEY UPDATE version = version + 1"); err != nil {
		return 0, err
	}
	return readVersion(ctx, se)
}

// saveCampaign writes one row, and one of its history; read is the version known to the caller.
func saveCampaign(ctx context.Context, se *session, c *popup.StoredCampaign, read int64, by string) error {
	sql, where := "INSERT INTO", ""
	if c.ID == 0 {
		rows, err := se.texts(ctx, "SELECT COALESCE(MAX(id), 0) + 1 FROM popup_campaigns")
		if err != nil {
			return err
		}
		id, err := strconv.ParseInt(rows[0][0], 10, 32)
		if err != nil {
			return err
		}
		c.ID = popup.CampaignID(id)
	} else {
		rows, err := se.texts(ctx, "SELECT version FROM popup_campaigns WHERE id = ?", int64(c.ID))
		switch {
		case err != nil:
			return err
		case len(rows) == 0:
			return fmt.Errorf("%w: %d", popup.ErrNoCampaign, c.ID)
		case rows[0][0] != strconv.FormatInt(read, 10):
			return popup.ErrChanged
		}
		sql, where = "UPDATE", " WHERE id = ?"
	}
	text, err := c.Encode()
	if err != nil {
		return err
	}
	sql += " popup_campaigns SET " + strings.ReplaceAll(campaignColumns, ",", " = ?,") + " = ?" + where
	args := []any{int64(c.ID), []byte(c.Name), c.Placement, string(c.Status), c.Version, []byte(text)}
	if where != "" {
		args = append(args, int64(c.ID))
	}
	if _, err := se.exec(ctx, sql, namedValues(args)); err != nil {
		return err
	}
	_, err = se.exec(ctx, "INSERT INTO popup_history (campaign_id, version, at, who, campaign) VALUES (?, ?, UTC_TIMESTAMP(3), ?, ?)",
		namedValues([]any{int64(c.ID), c.Version, []byte(by), []byte(text)}))
	return err
}

// History returns the last changes of a campaign, the newest first, at most limit of them.
func (p *Popups) History(ctx context.Context, id popup.CampaignID, limit int) (all []popup.CampaignChange, err error) {
	err = p.withSession(ctx, func(ctx context.Context, se *session) error {
		all = nil
		rows, err := se.texts(ctx, "SELECT at, who, campaign FROM popup_history WHERE campaign_id = ? ORDER BY version DESC LIMIT ?", int64(id), int64(limit))
		if err != nil {
			return err
		}
		for _, row := range rows {
			at, err := parseDatetime(row[0])
			if err != nil {
				return err
			}
			change, err := popup.DecodeChange(row[2], row[1], at)
			if err != nil {
				return err
			}
			all = append(all, change)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the history of a campaign: %w", err)
	}
	return all, nil
}

// Now returns the time of the database's clock.
func (p *Popups) Now(ctx context.Context) (now time.Time, err error) {
	err = p.withSession(ctx, func(ctx context.Context, se *session) error {
		rows, err := se.Query(ctx, "SELECT UTC_TIMESTAMP(6)")
		if err != nil {
			return err
		}
		now, err = parseDatetime(rows[0][0])
		return err
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("read the database's clock: %w", err)
	}
	return now, nil
}

// datetimeOrNull returns NULL for the zero time.
func datetimeOrNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return appendDatetime(nil, t)
}
