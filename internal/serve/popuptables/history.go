package popuptables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"spillway/internal/serve/audit"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/tables"
)

// addHistory adds an entry of the history: of campaign 0 under any number, of another one under its version.
func (t *Tables) addHistory(ctx context.Context, s tables.Session, id popup.CampaignID, version int64, by audit.Author,
	content string,
) error {
	_, err := s.Exec(ctx, "INSERT INTO popup_history (campaign_id, version, at, who, address, request, content) VALUES (?, ?, "+t.dialect.Now+
		", ?, ?, ?, ?)", int64(id), version, by.By, by.Address, by.Request, content)
	return err
}

// addChange records a change of no campaign, and deletes those that are no longer kept.
func (t *Tables) addChange(ctx context.Context, s tables.Session, by audit.Author, detail string) error {
	now := time.Now()
	if _, err := s.Exec(ctx, "DELETE FROM popup_history WHERE campaign_id = 0 AND version < ?", now.Add(-audit.Kept).UnixNano()); err != nil {
		return err
	}
	return t.addHistory(ctx, s, 0, now.UnixNano(), by, detail)
}

// AddChange records a change of no campaign. After an error of the COMMIT it may be recorded.
func (t *Tables) AddChange(ctx context.Context, c audit.Change) error {
	err := t.db.Change(ctx, 1, func(ctx context.Context, s tables.Session) error { return t.addChange(ctx, s, c.Author, c.Detail) })
	if err != nil {
		return fmt.Errorf("record a change: %w", err)
	}
	return nil
}

// Changes returns the changes from one time on and before another one, the newest first, at most limit. The detail of a campaign
// is its name now.
func (t *Tables) Changes(ctx context.Context, from, before time.Time, limit int) ([]audit.Change, error) {
	rows, err := t.rows(ctx, "SELECT h.campaign_id, h.at, h.who, h.address, h.request, "+
		"CASE WHEN h.campaign_id = 0 THEN h.content ELSE c.name END FROM popup_history AS h "+
		"LEFT JOIN popup_campaigns AS c ON c.id = h.campaign_id WHERE h.at >= ? AND h.at < ? "+
		"ORDER BY h.at DESC, h.campaign_id DESC, h.version DESC LIMIT ?", from, before, int64(limit))
	return collect(rows, err, "the changes", func(row tables.Row) (audit.Change, error) {
		id, idErr := row.Integer(0)
		at, timeErr := row.Time(1)
		by := audit.Author{By: row[2], Address: row[3], Request: row[4]}
		return audit.Change{At: at, Author: by, Campaign: uint32(id), Detail: row[5]}, errors.Join(idErr, timeErr)
	})
}

// History returns the last changes of a campaign, the newest first, at most limit of them.
func (t *Tables) History(ctx context.Context, id popup.CampaignID, limit int) ([]popup.CampaignChange, error) {
	rows, err := t.rows(ctx, "SELECT at, who, content FROM popup_history WHERE campaign_id = ? ORDER BY version DESC LIMIT ?", int64(id),
		int64(limit))
	return collect(rows, err, "the history of a campaign", func(row tables.Row) (popup.CampaignChange, error) {
		at, timeErr := row.Time(0)
		change, decodeErr := popup.DecodeChange(row[2], row[1], at)
		return change, errors.Join(timeErr, decodeErr)
	})
}
