package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/admin"
	"spillway/internal/serve/freight"
	"spillway/internal/serve/popup"
)

const (
	// Between two looks at their version: every replica is to follow within a second, on a
	// busy machine too.
	campaignsEvery   = 200 * time.Millisecond
	campaignsTimeout = 2 * time.Second // for a look
)

// campaignTables is where a database keeps campaigns and their counts.
type campaignTables interface {
	Version(context.Context) (int64, error)
	Campaigns(context.Context) (version int64, all []popup.StoredCampaign, err error)
	SaveCampaign(ctx context.Context, c popup.StoredCampaign, checked int64) (popup.StoredCampaign, error)
	Counts(context.Context) (map[popup.CampaignID]popup.Counts, error)
}

// campaigns keeps a Popup's campaigns the database's.
type campaigns struct {
	tables campaignTables
	popup  *popup.Popup
	repeat time.Duration // of campaigns that do not say
	log    *slog.Logger
	errors atomic.Uint64
	saving sync.Mutex // one save at a time here, so that those of replicas alone meet

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
	campaigns := make([]popup.Campaign, len(all))
	for i := range all {
		if campaigns[i] = all[i].Campaign; campaigns[i].RepeatAfter == 0 {
			campaigns[i].RepeatAfter = c.repeat
		}
	}
	set, flaws := popup.UsableSet(c.popup.Set().Schema(), campaigns)
	if err := c.popup.Replace(set); err != nil {
		return err
	}
	problems := make(map[popup.CampaignID]string, len(flaws))
	for id, flaw := range flaws {
		if problems[id] = flaw.Error(); c.problems[id] != problems[id] {
			c.log.Error("a campaign cannot be shown: change or archive it", "campaign", uint32(id), "problem", problems[id])
		}
	}
	c.version, c.problems, c.active = version, problems, 0
	for i := range campaigns {
		if campaigns[i].Status == popup.Active && flaws[campaigns[i].ID] == nil {
			c.active++
		}
	}
	return nil
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

// savesMax is how often a campaign is checked again because another one was saved
// meanwhile, here or by another replica.
const savesMax = 20

// save checks a campaign among all others, stores it and puts it in force here. Errors
// that wrap admin.ErrCampaign are the campaign's.
func (c *campaigns) save(ctx context.Context, changed popup.StoredCampaign) (popup.StoredCampaign, error) {
	c.saving.Lock()
	defer c.saving.Unlock()
	saved, err := c.store(ctx, changed)
	for tries := 1; errors.Is(err, popup.ErrOutdated) && tries < savesMax; tries++ {
		saved, err = c.store(ctx, changed)
	}
	if err != nil {
		return saved, err
	}
	c.log.Info("campaign saved", "campaign", uint32(saved.ID), "name", saved.Name, "status", string(saved.Status), "version", saved.Version)
	if err := c.look(ctx); err != nil {
		c.log.Warn("a saved campaign is not in force yet", "campaign", uint32(saved.ID), "error", err)
	}
	return saved, nil
}

// store checks a campaign among all others and stores it while they are as they were.
func (c *campaigns) store(ctx context.Context, changed popup.StoredCampaign) (popup.StoredCampaign, error) {
	version, all, err := c.tables.Campaigns(ctx)
	if err != nil {
		return changed, err
	}
	if err := c.check(all, changed.Campaign); err != nil {
		return changed, fmt.Errorf("%w: %w", admin.ErrCampaign, err)
	}
	return c.tables.SaveCampaign(ctx, changed, version)
}

// check returns what is wrong with a campaign, by itself or among the others. An
// archived one may be over attributes that are gone. Where there are too many campaigns
// already, they may be changed, and no new one may come.
func (c *campaigns) check(all []popup.StoredCampaign, changed popup.Campaign) error {
	isNew := changed.ID == 0
	before, after := make([]popup.Campaign, 0, len(all)), make([]popup.Campaign, 0, len(all)+1)
	free := popup.CampaignID(1)
	for i := range all {
		other := all[i].Campaign
		free = max(free, other.ID+1)
		before = append(before, other)
		if other.ID != changed.ID {
			after = append(after, other)
		}
	}
	if isNew {
		changed.ID = free
	}
	if err := changed.Validate(); err != nil {
		return err
	}
	if changed.Status == popup.Archived {
		return nil
	}
	if err := c.popup.Set().Schema().CheckTarget(changed.Target); err != nil {
		return err
	}
	if err := popup.CheckLimits(changed.Placement, append(after, changed)); err != nil && (isNew || popup.CheckLimits(changed.Placement, before) == nil) {
		return err
	}
	return nil
}

// fillDemo stores the freight app's campaigns where there are none.
func (c *campaigns) fillDemo(ctx context.Context) error {
	version, all, err := c.tables.Campaigns(ctx)
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
		saved, err := c.tables.SaveCampaign(ctx, campaign, version)
		if err != nil {
			return err
		}
		version = saved.Version
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
