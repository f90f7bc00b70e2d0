package popup

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// CampaignsMax is the maximum of campaigns of a placement. Archived ones do not count.
const CampaignsMax = 500

// Set is all campaigns, compiled. It is immutable.
type Set struct {
	schema     *Schema
	placements map[string]*Placement
}

// Placement is the campaigns of one placement in their order. It is immutable.
type Placement struct {
	name   string
	opens  int64                  // when the first active campaign starts
	closes int64                  // when the last one has ended
	alive  []*compiled            // active campaigns, in order
	drafts map[string][]*compiled // drafts by tester, in order
	all    []*compiled            // all campaigns, in order
	byID   map[CampaignID]*compiled
}

// compiled is a campaign with its expression. Times are in milliseconds since 1970.
type compiled struct {
	Campaign
	target       target
	live         int // index in Placement.alive; -1: it is not active
	start, end   int64
	repeat       int64
	again        int64
	quietClick   int64
	quietDismiss int64
	weights      int   // sum of those of the variants
	problem      error // why it is never shown; nil: none
}

// never is later than any time.
const never = math.MaxInt64

// later returns t + d; never on overflow.
func later(t, d int64) int64 {
	if d == never || t > never-d {
		return never
	}
	return t + d
}

// instant returns the time of t milliseconds; zero for never.
func instant(t int64) time.Time {
	if t == never {
		return time.Time{}
	}
	return time.UnixMilli(t).UTC()
}

// NewSet validates and compiles all campaigns, archived ones too. The error names the
// campaign; that of an expression wraps a *TargetError.
func NewSet(schema *Schema, campaigns []Campaign) (*Set, error) {
	set, problems := UsableSet(schema, campaigns)
	for _, c := range campaigns {
		if err := problems[c.ID]; err != nil {
			return nil, fmt.Errorf("campaign %d: %w", c.ID, err)
		}
	}
	return set, nil
}

// UsableSet is NewSet for stored campaigns. A campaign with a problem is never shown, and
// Explain says why. If a placement exceeds its limits, the last ones in its order have a
// problem. Those of expressions wrap a *TargetError.
func UsableSet(schema *Schema, campaigns []Campaign) (*Set, map[CampaignID]error) {
	set := &Set{schema: schema, placements: map[string]*Placement{}}
	ids := map[CampaignID]bool{}
	for _, c := range campaigns {
		p := set.placements[c.Placement]
		if p == nil {
			p = &Placement{name: c.Placement, byID: map[CampaignID]*compiled{}}
			set.placements[c.Placement] = p
		}
		problem := c.Validate()
		if problem == nil && ids[c.ID] {
			problem = errors.New("its id is there twice")
		}
		ids[c.ID] = true
		p.add(c, problem)
	}
	problems := map[CampaignID]error{}
	for _, p := range set.placements {
		p.arrange(schema)
		for _, c := range p.all {
			if c.problem != nil {
				problems[c.ID] = c.problem
			}
		}
	}
	return set, problems
}

// checkLimit returns a FieldError if a placement has too many campaigns; nil if not.
func checkLimit(placement string, campaigns []Campaign) error {
	counted := 0
	for i := range campaigns {
		if c := &campaigns[i]; c.Placement == placement && c.Status != Archived {
			counted++
		}
	}
	if counted > CampaignsMax {
		return &FieldError{"placement", fmt.Sprintf("placement %s has %d %v", placement, counted, errManyCampaigns)}
	}
	return nil
}

var errManyCampaigns = fmt.Errorf("campaigns that are not archived, more than %d", CampaignsMax)

// Placement returns the placement with a name; nil if it has no campaigns.
func (s *Set) Placement(name string) *Placement { return s.placements[name] }

// Schema returns the attributes of the set's expressions.
func (s *Set) Schema() *Schema { return s.schema }

// add adds a campaign. One with a problem is only explained.
func (p *Placement) add(c Campaign, problem error) {
	c.Payload = slices.Clone(c.Payload)
	c.RepeatAfter = cmp.Or(c.RepeatAfter, DefaultRepeatAfter)
	c.QuietClick = cmp.Or(c.QuietClick, DefaultQuiet)
	c.QuietDismiss = cmp.Or(c.QuietDismiss, DefaultQuiet)
	k := &compiled{
		Campaign: c, problem: problem, live: -1, start: math.MinInt64, end: never, again: never,
		repeat: c.RepeatAfter.millis(), quietClick: c.QuietClick.millis(), quietDismiss: c.QuietDismiss.millis(),
	}
	for _, v := range c.Variants {
		k.weights += v.Weight
	}
	if c.Again != 0 {
		k.again = c.Again.millis()
	}
	if !c.Start.IsZero() {
		k.start = c.Start.UnixMilli()
	}
	if !c.End.IsZero() {
		k.end = c.End.UnixMilli()
	}
	p.all = append(p.all, k)
	if problem == nil {
		p.byID[c.ID] = k
	}
}

// arrange orders the campaigns and compiles their expressions.
func (p *Placement) arrange(schema *Schema) {
	slices.SortFunc(p.all, func(a, b *compiled) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Order, b.Order), cmp.Compare(a.ID, b.ID))
	})
	p.opens, p.closes = never, math.MinInt64
	counted := 0
	for _, c := range p.all {
		if c.problem == nil && c.Status != Archived { // the attributes of an archived one may be gone
			if counted++; counted > CampaignsMax {
				c.problem = fmt.Errorf("the placement has %w", errManyCampaigns)
			}
			var err error
			if c.target, err = compileTarget(schema, c.Target, c.Zone, nil); err != nil && c.problem == nil {
				c.problem = fmt.Errorf("target: %w", err)
			}
		}
		switch {
		case c.problem != nil:
		case c.Status == Active:
			c.live = len(p.alive)
			p.alive = append(p.alive, c)
			p.opens, p.closes = min(p.opens, c.start), max(p.closes, c.end)
		case c.Status == Draft:
			p.test(c)
		}
	}
}

// test gives a draft to its testers.
func (p *Placement) test(c *compiled) {
	for i, user := range c.Testers {
		if slices.Contains(c.Testers[:i], user) {
			continue
		}
		if p.drafts == nil {
			p.drafts = map[string][]*compiled{}
		}
		p.drafts[user] = append(p.drafts[user], c)
	}
}
