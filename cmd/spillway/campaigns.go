package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/admin"
	"spillway/internal/freight"
	"spillway/internal/popup"
)

const (
	campaignsEvery   = 500 * time.Millisecond // between two looks at their version
	campaignsTimeout = 2 * time.Second        // for a look
)

// campaignTables is where a database keeps campaigns and their counts.
type campaignTables interface {
	Version(context.Context) (int64, error)
	Campaigns(context.Context) (version int64, all []popup.StoredCampaign, err error)
	SaveCampaign(context.Context, popup.StoredCampaign) (popup.StoredCampaign, error)
	Counts(context.Context) (map[popup.CampaignID]popup.Counts, error)
}

// campaigns keeps a Popup's campaigns the database's.
type campaigns struct {
	tables campaignTables
	popup  *popup.Popup
	repeat time.Duration // of campaigns that do not say
	log    *slog.Logger
	errors atomic.Uint64

	mu       sync.Mutex // guards what follows and the Popup's set
	version  int64      // in force; 0: none was read
	active   int
	problems map[popup.CampaignID]string
}

func newCampaigns(tables campaignTables, p *popup.Popup, repeat time.Duration, log *slog.Logger) *campaigns {
	return &campaigns{tables: tables, popup: p, repeat: repeat, log: log}
}

// reload puts in force what the database has.
func (c *campaigns) reload(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	version, all, err := c.tables.Campaigns(ctx)
	if err != nil {
		return err
	}
	if version < c.version { // read under the lock, so it is not an older read that came late
		c.log.Warn("the campaigns of the database are older than those in force, which they replace: it was restored, or is another server", "version", version, "was", c.version)
	}
	usable, problems := c.usable(all)
	set, err := popup.NewSet(c.popup.Set().Schema(), usable)
	if err != nil {
		return fmt.Errorf("put campaigns in force: %w", err)
	}
	if err := c.popup.Replace(set); err != nil {
		return err
	}
	for id, problem := range problems {
		if c.problems[id] != problem {
			c.log.Error("a campaign cannot be shown: change or archive it", "campaign", uint32(id), "problem", problem)
		}
	}
	c.version, c.problems, c.active = version, problems, 0
	for i := range usable {
		if usable[i].Status == popup.Active {
			c.active++
		}
	}
	return nil
}

// usable returns campaigns as the engine takes them. One that it cannot take, because
// it is over an attribute that is gone, counts as archived, and all others go on.
func (c *campaigns) usable(all []popup.StoredCampaign) ([]popup.Campaign, map[popup.CampaignID]string) {
	schema := c.popup.Set().Schema()
	problems := map[popup.CampaignID]string{}
	usable := make([]popup.Campaign, 0, len(all))
	for _, stored := range all {
		one := stored.Campaign
		if err := one.Validate(); err != nil {
			problems[one.ID] = err.Error()
			continue
		}
		if one.RepeatAfter == 0 {
			one.RepeatAfter = c.repeat
		}
		if one.Status != popup.Archived {
			if err := schema.CheckTarget(one.Target); err != nil {
				problems[one.ID] = "target: " + err.Error()
				one.Status = popup.Archived
			}
		}
		usable = append(usable, one)
	}
	return usable, problems
}

// follow reloads the campaigns whenever their version has changed, until ctx ends.
func (c *campaigns) follow(ctx context.Context) {
	ticker := time.NewTicker(campaignsEvery)
	defer ticker.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := c.look(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && failing:
			c.log.Info("campaigns can be read again")
		case err != nil && !failing:
			c.log.Warn("campaigns cannot be read; those in force stay", "error", err)
		}
		if failing = err != nil; failing {
			c.errors.Add(1)
		}
	}
}

func (c *campaigns) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, campaignsTimeout)
	defer cancel()
	version, err := c.tables.Version(ctx)
	c.mu.Lock()
	same := version == c.version
	c.mu.Unlock()
	if err != nil || same {
		return err
	}
	return c.reload(ctx)
}

// read returns the campaigns that the database has, and what keeps some from being
// shown.
func (c *campaigns) read(ctx context.Context) ([]popup.StoredCampaign, map[popup.CampaignID]string, error) {
	_, all, err := c.tables.Campaigns(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	return all, maps.Clone(c.problems), err
}

// save checks a campaign among all others, stores it and puts it in force here. Errors
// that wrap admin.ErrCampaign are the campaign's.
func (c *campaigns) save(ctx context.Context, changed popup.StoredCampaign) (popup.StoredCampaign, error) {
	_, all, err := c.tables.Campaigns(ctx)
	if err != nil {
		return changed, err
	}
	if err := c.check(all, changed.Campaign); err != nil {
		return changed, fmt.Errorf("%w: %w", admin.ErrCampaign, err)
	}
	saved, err := c.tables.SaveCampaign(ctx, changed)
	if err != nil {
		return saved, err
	}
	c.log.Info("campaign saved", "campaign", uint32(saved.ID), "name", saved.Name, "status", string(saved.Status), "version", saved.Version)
	if err := c.look(ctx); err != nil {
		c.log.Warn("a saved campaign is not in force yet", "campaign", uint32(saved.ID), "error", err)
	}
	return saved, nil
}

// check returns what is wrong with a campaign, by itself or among the others. An
// archived one may be over attributes that are gone.
func (c *campaigns) check(all []popup.StoredCampaign, changed popup.Campaign) error {
	others := make([]popup.StoredCampaign, 0, len(all)+1)
	free := popup.CampaignID(1)
	for _, other := range all {
		free = max(free, other.ID+1)
		if other.ID != changed.ID {
			others = append(others, other)
		}
	}
	if changed.ID == 0 {
		changed.ID = free
	}
	if err := changed.Validate(); err != nil {
		return err
	}
	schema := c.popup.Set().Schema()
	if changed.Status != popup.Archived {
		if err := schema.CheckTarget(changed.Target); err != nil {
			return err
		}
	}
	usable, _ := c.usable(append(others, popup.StoredCampaign{Campaign: changed}))
	_, err := popup.NewSet(schema, usable)
	return err
}

// fillDemo stores the freight app's campaigns where there are none.
func (c *campaigns) fillDemo(ctx context.Context) error {
	_, all, err := c.tables.Campaigns(ctx)
	if err != nil || len(all) > 0 {
		return err
	}
	for _, d := range freight.DefaultCampaigns() {
		campaign := popup.StoredCampaign{Campaign: popup.Campaign{
			Name: d.Name, Placement: d.Placement, Order: d.Order, Payload: []byte(d.Payload), Target: d.Target, Status: popup.Active,
			QuietClick: d.QuietClick, QuietDismiss: d.QuietDismiss, Cap: d.Cap,
		}}
		if err := c.check(nil, campaign.Campaign); err != nil {
			return fmt.Errorf("campaign %q: %w", d.Name, err)
		}
		if _, err := c.tables.SaveCampaign(ctx, campaign); err != nil {
			return err
		}
	}
	return nil
}

// figures returns how many campaigns are active, the version in force and how often the
// database could not be asked.
func (c *campaigns) figures() (active int, version int64, failures uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active, c.version, c.errors.Load()
}
