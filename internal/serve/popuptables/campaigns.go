package popuptables

import (
	"context"
	"fmt"

	"spillway/internal/serve/audit"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/tables"
)

// Campaigns returns all campaigns, archived ones too, in the order of their ids, and the
// version of all.
func (t *Tables) Campaigns(ctx context.Context) (version int64, all []popup.StoredCampaign, err error) {
	err = t.db.Read(ctx, func(ctx context.Context, s tables.Session) error {
		// The version is read first: a change in between is read again with the next version.
		if version, err = readVersion(ctx, s); err != nil {
			return err
		}
		rows, err := s.Rows(ctx, "SELECT id, version, name, placement, status, campaign FROM popup_campaigns ORDER BY id")
		all = nil
		for _, row := range rows {
			c, err := readCampaign(row)
			if err != nil {
				return err
			}
			all = append(all, c)
		}
		return err
	})
	if err != nil {
		return 0, nil, fmt.Errorf("read campaigns: %w", err)
	}
	return version, all, nil
}

func readCampaign(row tables.Row) (c popup.StoredCampaign, err error) {
	id, err := row.Integer(0)
	if err != nil {
		return c, err
	}
	if c.Version, err = row.Integer(1); err != nil {
		return c, err
	}
	c.ID, c.Name, c.Placement, c.Status = popup.CampaignID(id), row[2], row[3], popup.Status(row[4])
	c.Decode(row[5])
	return c, nil
}

// SaveCampaign stores a valid campaign and returns it as stored. A campaign with id 0 gets
// the next id. Otherwise it replaces the campaign with that id if the version is still
// c.Version. checked is the version of all campaigns against which c was checked. The same
// transaction adds the campaign to its history; by is who changes it. Errors wrap
// popup.ErrOutdated, popup.ErrChanged and popup.ErrNoCampaign. After an error of the
// connection the change may be stored: read the campaign again.
func (t *Tables) SaveCampaign(ctx context.Context, c popup.StoredCampaign, checked int64, by audit.Author) (popup.StoredCampaign, error) {
	c, err := c.Storable(by.By)
	if err != nil {
		return c, fmt.Errorf("save campaign: %w", err)
	}
	var saved popup.StoredCampaign // read only after Change has returned nil
	err = t.db.Change(ctx, 1, func(ctx context.Context, s tables.Session) error {
		version, err := t.nextVersion(ctx, s)
		if err != nil {
			return err
		}
		if version != checked+1 {
			return popup.ErrOutdated
		}
		changed := c
		changed.Version = version
		if err := t.writeCampaign(ctx, s, &changed, c.Version, by); err != nil {
			return err
		}
		saved = changed
		return nil
	})
	if err != nil {
		return c, fmt.Errorf("save campaign: %w", err)
	}
	return saved, nil
}

// writeCampaign writes one row, and one of its history; read is the version known to the caller.
func (t *Tables) writeCampaign(ctx context.Context, s tables.Session, c *popup.StoredCampaign, read int64, by audit.Author) error {
	sql := "UPDATE popup_campaigns SET name = ?, placement = ?, status = ?, version = ?, campaign = ? WHERE id = ?"
	if c.ID == 0 {
		rows, err := s.Rows(ctx, "SELECT COALESCE(MAX(id), 0) + 1 FROM popup_campaigns")
		if err != nil {
			return err
		}
		id, err := rows[0].Integer(0)
		if err != nil {
			return err
		}
		c.ID = popup.CampaignID(id)
		sql = "INSERT INTO popup_campaigns (name, placement, status, version, campaign, id) VALUES (?, ?, ?, ?, ?, ?)"
	} else {
		rows, err := s.Rows(ctx, "SELECT version FROM popup_campaigns WHERE id = ?", int64(c.ID))
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return fmt.Errorf("%w: %d", popup.ErrNoCampaign, c.ID)
		}
		stored, err := rows[0].Integer(0)
		if err != nil {
			return err
		}
		if stored != read {
			return popup.ErrChanged
		}
	}
	text, err := c.Encode()
	if err != nil {
		return err
	}
	if _, err := s.Exec(ctx, sql, c.Name, c.Placement, string(c.Status), c.Version, text, int64(c.ID)); err != nil {
		return err
	}
	return t.addHistory(ctx, s, c.ID, c.Version, by, text)
}
