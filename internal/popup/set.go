package popup

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Bounds of a placement. Archived campaigns do not count.
const (
	CampaignsMax = 500
	CappedMax    = 32 // campaigns with a Cap: a state counts the shows of each
)

// Set is all campaigns, compiled. It does not change; a change of a campaign makes
// a new Set.
type Set struct {
	schema     *Schema
	placements map[string]*Placement
}

// Placement is the campaigns of one placement in their order. It does not change
// and may be used concurrently.
type Placement struct {
	name  string
	live  []*compiled // active campaigns, in order
	all   []*compiled // all campaigns, in order
	byID  map[CampaignID]*compiled
	words int // of Attributes' bits for shared conditions
}

// compiled is a campaign ready to be decided about. Times are in milliseconds
// since 1970.
type compiled struct {
	Campaign
	target       target
	from         int // the first live campaign at or after it
	after        int // the first live campaign after it
	start, end   int64
	repeat       int64
	quietClick   int64
	quietDismiss int64
}

// never is the time that does not come.
const never = math.MaxInt64

// millis returns d in milliseconds.
func millis(d time.Duration) int64 {
	if d == Forever {
		return never
	}
	return d.Milliseconds()
}

// later returns t + d, never where that is over.
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

// NewSet validates and compiles campaigns: all there are, archived ones too.
// An error names the campaign and what is wrong with it; an expression that is
// refused is a *TargetError.
func NewSet(schema *Schema, campaigns []Campaign) (*Set, error) {
	set := &Set{schema: schema, placements: map[string]*Placement{}}
	ids := map[CampaignID]bool{}
	for _, c := range campaigns {
		if err := c.Validate(); err != nil {
			return nil, fmt.Errorf("campaign %d: %w", c.ID, err)
		}
		if ids[c.ID] {
			return nil, fmt.Errorf("campaign %d is there twice", c.ID)
		}
		ids[c.ID] = true
		p := set.placements[c.Placement]
		if p == nil {
			p = &Placement{name: c.Placement, byID: map[CampaignID]*compiled{}}
			set.placements[c.Placement] = p
		}
		p.add(c)
	}
	for _, p := range set.placements {
		if err := p.arrange(schema); err != nil {
			return nil, err
		}
	}
	return set, nil
}

// Placement returns the placement name; one that has no campaigns is nil, for
// which Decide answers none.
func (s *Set) Placement(name string) *Placement { return s.placements[name] }

// Schema returns the attributes that the set's expressions are over.
func (s *Set) Schema() *Schema { return s.schema }

func (p *Placement) add(c Campaign) {
	c.Payload = slices.Clone(c.Payload)
	if c.RepeatAfter == 0 {
		c.RepeatAfter = DefaultRepeatAfter
	}
	k := &compiled{
		Campaign: c, start: math.MinInt64, end: never,
		repeat: millis(c.RepeatAfter), quietClick: millis(c.QuietClick), quietDismiss: millis(c.QuietDismiss),
	}
	if !c.Start.IsZero() {
		k.start = c.Start.UnixMilli()
	}
	if !c.End.IsZero() {
		k.end = c.End.UnixMilli()
	}
	p.byID[c.ID] = k
	p.all = append(p.all, k)
}

// arrange orders the campaigns and compiles their expressions, twice: first to
// find the conditions that they share.
func (p *Placement) arrange(schema *Schema) error {
	slices.SortFunc(p.all, func(a, b *compiled) int {
		return cmp.Or(cmp.Compare(a.Order, b.Order), cmp.Compare(a.ID, b.ID))
	})
	counted, capped := 0, 0
	memo := newMemo()
	for _, c := range p.all {
		c.from = len(p.live)
		if c.Status == Active {
			p.live = append(p.live, c)
		}
		c.after = len(p.live)
		if c.Status == Archived {
			continue // its expression may be over attributes that are gone
		}
		counted++
		if c.Cap > 0 {
			capped++
		}
		if _, err := compileTarget(schema, c.Target, memo); err != nil {
			return fmt.Errorf("campaign %d: target: %w", c.ID, err)
		}
	}
	if counted > CampaignsMax {
		return fmt.Errorf("placement %s has %d campaigns that are not archived, more than %d", p.name, counted, CampaignsMax)
	}
	if capped > CappedMax {
		return fmt.Errorf("placement %s has %d campaigns with a cap that are not archived, more than %d", p.name, capped, CappedMax)
	}
	memo.sharing = true
	for _, c := range p.all {
		if c.Status == Archived {
			continue
		}
		t, err := compileTarget(schema, c.Target, memo)
		if err != nil {
			return fmt.Errorf("campaign %d: target: %w", c.ID, err)
		}
		c.target = t
	}
	p.words = memo.words()
	return nil
}
