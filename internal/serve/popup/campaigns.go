package popup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/audit"
	"spillway/internal/serve/queue"
)

// Errors of Campaigns and of the tables behind it.
var (
	// ErrCampaign: the campaign is not valid; what it wraps says why.
	ErrCampaign = errors.New("the campaign is refused")
	// ErrChanged: the campaign was changed after it was read. Read it again.
	ErrChanged = errors.New("the campaign has been changed meanwhile: read it again")
	// ErrOutdated: another campaign was changed after this one was checked. Check again.
	ErrOutdated = errors.New("other campaigns have been changed meanwhile: check it again")
	// ErrNoCampaign: no campaign has that id.
	ErrNoCampaign = errors.New("no such campaign")
)

// CampaignTables is where a database stores campaigns.
type CampaignTables interface {
	// Version returns the version of all campaigns.
	Version(context.Context) (int64, error)
	// Campaigns returns all campaigns, archived ones too, and their version.
	Campaigns(context.Context) (version int64, all []StoredCampaign, err error)
	// SaveCampaign stores a campaign that was checked among those of version checked. An
	// id of 0 is a new campaign. by is who changes it, for the history. Errors wrap ErrChanged,
	// ErrOutdated or ErrNoCampaign.
	SaveCampaign(ctx context.Context, c StoredCampaign, checked int64, by audit.Author) (StoredCampaign, error)
}

const (
	pollEvery   = 200 * time.Millisecond // between two reads of the version
	pollTimeout = 2 * time.Second
)

// Campaigns keeps a Popup's campaigns equal to those of a database. Its methods may be
// called concurrently.
type Campaigns struct {
	tables CampaignTables
	popup  *Popup
	unset  Defaults
	log    *slog.Logger
	errors atomic.Uint64
	lists  *listReader

	saving    sync.Mutex    // one save at a time: only those of other replicas conflict
	uploading chan struct{} // holds a value while a list is uploaded

	mu       sync.Mutex // guards the fields below and the Popup's set
	version  int64      // in force; 0: none was read
	active   int
	problems map[CampaignID]string
}

// Defaults are the times of campaigns that have none.
type Defaults struct {
	RepeatAfter Period // 0: DefaultRepeatAfter
	Quiet       Period // QuietClick and QuietDismiss; 0: DefaultQuiet
}

// NewCampaigns returns Campaigns for a Popup, and the lists of users that their targets name.
// Nothing is read before Reload.
func NewCampaigns(tables CampaignTables, lists ListTables, p *Popup, unset Defaults, log *slog.Logger) *Campaigns {
	return &Campaigns{
		tables: tables, popup: p, unset: unset, log: log, uploading: make(chan struct{}, 1),
		lists: &listReader{tables: lists, popup: p, log: log, read: map[string]int64{}, failing: map[string]bool{}},
	}
}

// Reload puts the campaigns of the database in force, and before them lists of up to
// 100,000 users. A campaign that is not valid is logged and skipped. Lists that cannot be read
// are logged; Run reads them later, and the larger ones.
func (c *Campaigns) Reload(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	version, all, err := c.tables.Campaigns(ctx)
	if err != nil {
		return err
	}
	c.lists.follow(ctx)      // after the version was read, so that no later change is missed
	if version < c.version { // it was read under the lock, so no older read came late
		c.log.Warn("campaigns in the database are older than those in force and replace them: it was restored, or is another server", "version",
			version, "was", c.version)
	}
	campaigns := make([]Campaign, len(all))
	for i := range all {
		campaigns[i] = c.complete(all[i].Campaign)
	}
	set, invalid := UsableSet(c.popup.Set().Schema(), campaigns)
	if err := c.popup.Replace(set); err != nil {
		return err
	}
	problems := make(map[CampaignID]string, len(invalid))
	for id, problem := range invalid {
		if problems[id] = problem.Error(); c.problems[id] != problems[id] {
			c.log.Error("campaign cannot be shown: change or archive it", "campaign", uint32(id), "problem", problems[id])
		}
	}
	c.version, c.problems, c.active = version, problems, 0
	for i := range campaigns {
		if campaigns[i].Status == Active && invalid[campaigns[i].ID] == nil {
			c.active++
		}
	}
	return nil
}

// complete returns a campaign with the times that it has not set.
func (c *Campaigns) complete(one Campaign) Campaign {
	one.RepeatAfter = cmp.Or(one.RepeatAfter, c.unset.RepeatAfter)
	one.QuietClick, one.QuietDismiss = cmp.Or(one.QuietClick, c.unset.Quiet), cmp.Or(one.QuietDismiss, c.unset.Quiet)
	return one
}

// ExplainActive returns why a user would or would not get a campaign if it were active, saved or not. A new one gets the next id.
// Errors are those of Popup.Explain, or of the database.
func (c *Campaigns) ExplainActive(ctx context.Context, campaign Campaign, user string, a *Attributes, now time.Time) (e Explanation,
	err error,
) {
	_, all, err := c.tables.Campaigns(ctx)
	if err != nil {
		return e, err
	}
	var others []Campaign
	free := CampaignID(1)
	for i := range all {
		if free = max(free, all[i].ID+1); all[i].ID != campaign.ID {
			others = append(others, c.complete(all[i].Campaign))
		}
	}
	campaign.ID, campaign.Status = cmp.Or(campaign.ID, free), Active
	set, _ := UsableSet(c.popup.Set().Schema(), append(others, c.complete(campaign)))
	explained, _, err := c.popup.explain(ctx, set, Key{User: user, Placement: campaign.Placement}, a, now)
	for _, e = range explained {
		if e.Campaign == campaign.ID {
			break
		}
	}
	return e, err
}

// Run reloads campaigns and lists when their version changes, until ctx ends.
func (c *Campaigns) Run(ctx context.Context) {
	var lists sync.WaitGroup
	lists.Go(func() { c.lists.run(ctx) })
	defer lists.Wait()
	failing := false
	for range queue.Ticks(ctx, pollEvery) {
		err := c.poll(ctx)
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

func (c *Campaigns) poll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	version, err := c.tables.Version(ctx)
	c.mu.Lock()
	same := version == c.version
	c.mu.Unlock()
	if err != nil || same {
		return err
	}
	return c.Reload(ctx)
}

// Read returns the campaigns of the database, and why some of them are not shown.
func (c *Campaigns) Read(ctx context.Context) ([]StoredCampaign, map[CampaignID]string, error) {
	_, all, err := c.tables.Campaigns(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	return all, maps.Clone(c.problems), err
}

// savesMax is how often a campaign is checked again after ErrOutdated.
const savesMax = 20

// Save checks a campaign against all others, stores it and puts it in force here. by is
// who changes it. Errors wrap ErrCampaign, or are those of
// CampaignTables.SaveCampaign.
func (c *Campaigns) Save(ctx context.Context, changed StoredCampaign, by audit.Author) (StoredCampaign, error) {
	c.saving.Lock()
	defer c.saving.Unlock()
	saved, err := c.store(ctx, changed, by)
	for tries := 1; errors.Is(err, ErrOutdated) && tries < savesMax; tries++ {
		saved, err = c.store(ctx, changed, by)
	}
	if err != nil {
		return saved, err
	}
	c.log.Info("campaign saved", "campaign", uint32(saved.ID), "name", saved.Name, "status", string(saved.Status), "version", saved.Version)
	if err := c.poll(ctx); err != nil {
		c.log.Warn("saved campaign is not in force yet", "campaign", uint32(saved.ID), "error", err)
	}
	return saved, nil
}

// store checks a campaign against all others and stores it, if they are unchanged.
func (c *Campaigns) store(ctx context.Context, changed StoredCampaign, by audit.Author) (StoredCampaign, error) {
	version, all, err := c.tables.Campaigns(ctx)
	if err != nil {
		return changed, err
	}
	changed.Created = Moment{c.popup.Time()}
	for i := range all {
		if all[i].ID == changed.ID {
			changed.Created = all[i].Created
		}
	}
	if err := c.check(all, changed.Campaign); err != nil {
		return changed, fmt.Errorf("%w: %w", ErrCampaign, err)
	}
	return c.tables.SaveCampaign(ctx, changed, version, by)
}

// Check returns all that is wrong with a campaign alone, as joined FieldErrors and a
// TargetError. The target of an archived one is not checked: its attributes may be gone.
func (c *Campaigns) Check(campaign Campaign) error {
	err := campaign.Validate()
	if campaign.Status == Archived {
		return err
	}
	return errors.Join(err, c.popup.Set().Schema().CheckTarget(campaign.Target, campaign.Zone, c.popup.Lists().Names()))
}

// check returns what is wrong with a campaign, alone or among the others. If a placement
// exceeds its limits, its campaigns may be changed, but none may be added.
func (c *Campaigns) check(all []StoredCampaign, changed Campaign) error {
	isNew := changed.ID == 0
	before, after := make([]Campaign, 0, len(all)), make([]Campaign, 0, len(all)+1)
	free := CampaignID(1)
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
	if err := c.Check(changed); err != nil || changed.Status == Archived {
		return err
	}
	if err := checkLimit(changed.Placement, append(after, changed)); err != nil && (isNew || checkLimit(changed.Placement, before) == nil) {
		return err
	}
	return nil
}

// SaveFirst stores campaigns if the database has none.
func (c *Campaigns) SaveFirst(ctx context.Context, campaigns []Campaign) error {
	version, all, err := c.tables.Campaigns(ctx)
	if err != nil || len(all) > 0 {
		return err
	}
	for _, campaign := range campaigns {
		if err := c.check(nil, campaign); err != nil {
			return fmt.Errorf("campaign %q: %w", campaign.Name, err)
		}
		saved, err := c.tables.SaveCampaign(ctx, StoredCampaign{Campaign: campaign}, version, audit.Author{})
		if err != nil {
			return err
		}
		version = saved.Version
	}
	return nil
}

// CampaignStats is a snapshot of Campaigns, for metrics.
type CampaignStats struct {
	Active     int    `metric:"campaigns" help:"Active campaigns in force."`
	Version    int64  `metric:"campaigns_version" help:"Version of the campaigns in force; replicas differ for at most a second."`
	PollErrors uint64 `metric:"campaigns_read_errors_total" help:"Failed reads of the campaigns."`
	ListErrors uint64 `metric:"list_read_errors_total" help:"Failed reads of lists of users."`
}

// Stats returns the figures.
func (c *Campaigns) Stats() CampaignStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return CampaignStats{Active: c.active, Version: c.version, PollErrors: c.errors.Load(), ListErrors: c.lists.failed.Load()}
}
