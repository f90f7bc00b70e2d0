package popup

import (
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
)

// The model implements the table of rules in a simple way, with slices and maps.

// person is the attributes of a request.
type person struct {
	level   *int
	vip     *bool
	score   *float64
	country string // "": not given
	tags    []string
}

// targets are expressions and their meaning.
func targets() map[string]func(p person) bool {
	return map[string]func(p person) bool{
		"":                              func(person) bool { return true },
		"level > 3":                     func(p person) bool { return p.level != nil && *p.level > 3 },
		`country == "CN"`:               func(p person) bool { return p.country == "CN" },
		`country != "CN"`:               func(p person) bool { return p.country != "CN" },
		"vip and level in 1..5":         func(p person) bool { return p.vip != nil && *p.vip && p.level != nil && *p.level >= 1 && *p.level <= 5 },
		"not vip":                       func(p person) bool { return p.vip == nil || !*p.vip },
		"(score ?? 0.25) < 0.5":         func(p person) bool { return p.score == nil || *p.score < 0.5 },
		`"new" in tags or level > 8`:    func(p person) bool { return slices.Contains(p.tags, "new") || p.level != nil && *p.level > 8 },
		`level > 3 and country == "CN"`: func(p person) bool { return p.level != nil && *p.level > 3 && p.country == "CN" },
	}
}

// story is what a user was shown and did at a placement.
type story struct {
	shows     int // how many there were
	campaign  CampaignID
	shown     time.Time
	clicked   *time.Time
	dismissed *time.Time
	until     time.Time // by the rules then; zero: never
	history   map[CampaignID]*chapter
}

// chapter is what a user did with one campaign.
type chapter struct {
	shows int // since it last started over
	last  Kind
	at    time.Time
}

type model struct {
	campaigns []Campaign
	stories   map[Key]*story
	suits     map[string]func(person) bool
	limits    []Limit
	shows     map[string][]time.Time // of users at all placements
}

func (m *model) story(key Key) *story {
	if m.stories[key] == nil {
		m.stories[key] = &story{history: map[CampaignID]*chapter{}}
	}
	return m.stories[key]
}

func (m *model) find(id CampaignID) *Campaign {
	for i := range m.campaigns {
		if m.campaigns[i].ID == id {
			return &m.campaigns[i]
		}
	}
	return nil
}

// whole rounds up to a second.
func whole(t time.Time) time.Time {
	if r := t.Truncate(time.Second); r != t {
		return r.Add(time.Second)
	}
	return t
}

// over returns whether the user has finished a campaign, and when it starts over; zero: never.
func (s *story) over(c Campaign) (bool, time.Time) {
	h := s.history[c.ID]
	if h == nil || h.last == KindShow && (c.Cap == 0 || h.shows < c.Cap) {
		return false, time.Time{}
	}
	if c.Again == 0 {
		return true, time.Time{}
	}
	return true, whole(h.at).Add(time.Duration(c.Again))
}

// finished reports whether the user has finished a campaign at a time.
func (s *story) finished(c Campaign, at time.Time) bool {
	over, again := s.over(c)
	return over && (again.IsZero() || at.Before(again))
}

func (m *model) sorted(placement string, status Status) []Campaign {
	var out []Campaign
	for _, c := range m.campaigns {
		if c.Placement == placement && c.Status == status {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b Campaign) int {
		switch {
		case a.Priority != b.Priority:
			return int(b.Priority) - int(a.Priority)
		case a.Order != b.Order:
			return int(a.Order) - int(b.Order)
		}
		return int(a.ID) - int(b.ID)
	})
	return out
}

// wait returns until when the user waits; ok is false for forever.
func (m *model) wait(s *story) (until time.Time, ok bool) {
	last := m.find(s.campaign)
	if last == nil {
		return s.until, !s.until.IsZero()
	}
	from, wait := s.shown, last.RepeatAfter
	if s.clicked != nil {
		from, wait = *s.clicked, last.QuietClick
	}
	if s.dismissed != nil {
		from, wait = *s.dismissed, last.QuietDismiss
	}
	if wait == 0 {
		wait = DefaultQuiet
	}
	return from.Add(time.Duration(wait)), wait != Forever
}

func runs(c Campaign, at time.Time) bool {
	return (c.Start.IsZero() || !at.Before(c.Start.Time)) && (c.End.IsZero() || at.Before(c.End.Time))
}

func latest(times ...time.Time) (out time.Time) {
	for _, t := range times {
		if t.After(out) {
			out = t
		}
	}
	return out
}

// earlier returns the earlier of two times; a zero one counts as none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func (m *model) inRollout(c Campaign, user string) bool {
	return percent(purposeRollout, xxhash.Sum64String(user), c.ID) < c.Rollout
}

// waits decides for a user who waits after the last show.
func (m *model) waits(key Key, s *story, now time.Time) (reason Reason, next time.Time, yes bool) {
	until, ok := m.wait(s)
	if ok && !now.Before(until) {
		return 0, next, false
	}
	reason = WaitShown
	if s.clicked != nil {
		reason = WaitClicked
	}
	if s.dismissed != nil {
		reason = WaitDismissed
	}
	// A campaign runs then, or the first one starts later; whether it is finished does not matter.
	list := m.sorted(key.Placement, Active)
	if len(list) == 0 || !ok {
		return reason, next, true
	}
	opens, closes := list[0].Start.Time, list[0].End.Time
	for _, c := range list {
		if c.Start.Before(opens) {
			opens = c.Start.Time
		}
		if closes.IsZero() || c.End.IsZero() {
			closes = time.Time{}
		} else {
			closes = latest(closes, c.End.Time)
		}
	}
	if at := latest(until, opens); closes.IsZero() || at.Before(closes) {
		next = at
	}
	return reason, next, true
}

// limited returns until when the limits of all placements forbid a show.
func (m *model) limited(user string, now time.Time) (until time.Time) {
	for _, limit := range m.limits {
		var within []time.Time
		for _, at := range m.shows[user] {
			if now.Before(whole(at).Add(limit.Within)) {
				within = append(within, whole(at))
			}
		}
		if slices.SortFunc(within, time.Time.Compare); len(within) >= limit.Shows {
			until = latest(until, within[len(within)-limit.Shows].Add(limit.Within))
		}
	}
	return until
}

// decide returns the campaign or 0, the reason, and NextAt.
func (m *model) decide(key Key, p person, now time.Time) (CampaignID, Reason, time.Time) {
	if !slices.ContainsFunc(m.campaigns, func(c Campaign) bool { return c.Placement == key.Placement }) {
		return 0, NoneLeft, time.Time{} // without campaigns the state does not matter
	}
	s := m.stories[key]
	if s == nil {
		s = &story{}
	}
	for _, c := range m.sorted(key.Placement, Draft) {
		open := false
		if h := s.history[c.ID]; h != nil && h.last == KindShow {
			shown := whole(h.at)
			if s.campaign == c.ID {
				shown = s.shown
			}
			open = now.Before(shown.Add(time.Duration(c.RepeatAfter)))
		}
		if slices.Contains(c.Testers, key.User) && !s.finished(c, now) && !open {
			return c.ID, Test, time.Time{}
		}
	}
	if s.campaign != 0 {
		if reason, next, yes := m.waits(key, s, now); yes {
			return 0, reason, next
		}
	}
	if until := m.limited(key.User, now); now.Before(until) {
		return 0, WaitLimit, until
	}
	return m.choose(key, s, p, now)
}

// choose decides for a user who does not wait.
func (m *model) choose(key Key, s *story, p person, now time.Time) (CampaignID, Reason, time.Time) {
	list := m.sorted(key.Placement, Active)
	may := func(c Campaign) bool { return m.inRollout(c, key.User) && m.suits[c.Target](p) }
	for _, c := range list {
		if c.ID == s.campaign && s.clicked == nil && s.dismissed == nil && runs(c, now) && may(c) && !s.finished(c, now) {
			return c.ID, Again, time.Time{}
		}
	}
	reason, next := NoneLeft, time.Time{}
	for _, c := range list {
		if s.finished(c, now) {
			if _, again := s.over(c); !again.IsZero() && may(c) && runs(c, latest(again, c.Start.Time)) {
				next = earlier(next, latest(again, c.Start.Time))
			}
			continue
		}
		switch {
		case runs(c, now) && may(c):
			if h := s.history[c.ID]; (h == nil || h.last == KindWithhold) && c.Holdout > 0 && percent(purposeHoldout, xxhash.Sum64String(key.User), c.ID) < c.Holdout {
				return c.ID, HeldOut, time.Time{}
			}
			if s.campaign == 0 {
				return c.ID, First, time.Time{}
			}
			return c.ID, Next, time.Time{}
		case runs(c, now):
			reason = NoneMatches
		case c.Start.After(now):
			if reason == NoneLeft && m.inRollout(c, key.User) {
				reason = NoneRuns
			}
			if may(c) {
				next = earlier(next, c.Start.Time)
			}
		}
	}
	return 0, reason, next
}

// ended returns at + d; zero for forever.
func ended(at time.Time, d Period) time.Time {
	if d == Forever {
		return time.Time{}
	}
	if d == 0 {
		d = DefaultQuiet
	}
	return at.Add(time.Duration(d))
}

func (m *model) show(key Key, id CampaignID, now time.Time) {
	c, s := m.find(id), m.story(key)
	h := s.history[id]
	if over, _ := s.over(*c); over || h == nil { // it starts over
		h = &chapter{}
		s.history[id] = h
	}
	h.shows, h.last, h.at = h.shows+1, KindShow, now
	s.shows++
	s.campaign, s.shown, s.clicked, s.dismissed, s.until = id, now, nil, nil, ended(now, c.RepeatAfter)
	m.shows[key.User] = append(m.shows[key.User], now)
}

func (m *model) withhold(key Key, id CampaignID, now time.Time) {
	m.story(key).history[id] = &chapter{last: KindWithhold, at: now}
}

// answer applies a click or dismissal of the show with that number.
func (m *model) answer(key Key, show int, now time.Time, click bool) error {
	s := m.stories[key]
	switch {
	case s.shows != show:
		return ErrLate
	case s.clicked != nil || s.dismissed != nil:
		return ErrRepeated
	}
	h, quiet := s.history[s.campaign], DefaultQuiet
	h.at = now
	if click {
		s.clicked, h.last = &now, KindClick
	} else {
		s.dismissed, h.last = &now, KindDismiss
	}
	if c := m.find(s.campaign); c != nil {
		quiet = c.QuietDismiss
		if click {
			quiet = c.QuietClick
		}
	}
	s.until = ended(now, quiet)
	return nil
}
