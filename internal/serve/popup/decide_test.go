package popup

import (
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
)

// shop is a Popup whose campaigns can be changed.
type shop struct {
	t         *testing.T
	p         *Popup
	memory    *Memory
	campaigns []Campaign
	now       time.Time
}

func openShop(t *testing.T, change func(*Config), campaigns ...Campaign) *shop {
	memory := NewMemory(100, &ledger{})
	return &shop{t, openTest(t, memory, change, campaigns...), memory, campaigns, day0}
}

// replace puts changed campaigns in force.
func (s *shop) replace() {
	s.t.Helper()
	set, err := NewSet(s.p.Set().Schema(), s.campaigns)
	if err == nil {
		err = s.p.Replace(set)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// ask returns the campaign that a user gets, 0 for none.
func (s *shop) ask(user string) (CampaignID, Answer) {
	s.t.Helper()
	answer := askTest(s.t, s.p, user, s.now)
	if !answer.Shown() {
		return 0, answer
	}
	return answer.Campaign.ID, answer
}

// click asks, clicks what is shown and waits until its quiet period is over.
func (s *shop) click(user string) CampaignID {
	s.t.Helper()
	id, answer := s.ask(user)
	if id != 0 {
		if err := s.p.Click(s.t.Context(), answer.Token, user, s.now); err != nil {
			s.t.Fatal(err)
		}
	}
	s.now = s.now.Add(8 * 24 * time.Hour)
	return id
}

func (s *shop) want(what string, got, want CampaignID) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("%s: campaign %d, want %d", what, got, want)
	}
}

// What a user has finished does not depend on the order.
func TestOrderIsChanged(t *testing.T) {
	t.Parallel()
	c := threeCampaigns()
	c[0].Order, c[1].Order, c[2].Order, c[2].Status = 10, 20, 0, Paused
	s := openShop(t, nil, c...)
	s.want("first", s.click("1"), 1)
	s.want("second", s.click("1"), 2)
	s.campaigns[1].Order = 5
	s.replace()
	s.want("two that were clicked change places", s.click("1"), 0)
	s.campaigns[0].Order = 30
	s.replace()
	s.want("and again", s.click("1"), 0)
	s.campaigns[2].Status = Active
	s.replace()
	s.want("an urgent campaign before all others", s.click("1"), 3)
	s.want("to a new user", s.click("2"), 3)
	s.campaigns[0].Priority = 1
	s.replace()
	s.want("priority comes before order", s.click("3"), 1)
	s.campaigns[1].Again = Period(30 * 24 * time.Hour)
	s.replace()
	s.now = s.now.Add(30 * 24 * time.Hour)
	s.want("a campaign starts over", s.click("1"), 2)
	s.want("once in that time", s.click("1"), 0)
}

// A show far in the future, by a clock that was wrong, does not silence the user.
func TestWildClock(t *testing.T) {
	t.Parallel()
	s := openShop(t, nil, threeCampaigns()...)
	s.now = day0.AddDate(10, 0, 0)
	_, wild := s.ask("1")
	s.now = day0
	s.want("after the clock was set right", s.click("1"), 1)
	if err := s.p.Click(t.Context(), wild.Token, "1", day0); err == nil {
		t.Error("the click on the replaced show is taken")
	}
	s.now = day0.Add(30 * time.Minute)
	s.want("ahead by half an hour", s.click("2"), 1)
	s.now = day0
	if _, answer := s.ask("2"); answer.Reason != WaitClicked {
		t.Errorf("%+v, want the wait that began in half an hour", answer)
	}
}

// At all placements together, a user gets as many popups as the limits allow, also if
// requests at two placements race.
func TestShowLimits(t *testing.T) {
	t.Parallel()
	c := threeCampaigns()
	c[1].Placement = "list"
	c[2].Placement = "cart"
	placements := []string{"home", "list", "cart"}
	s := openShop(t, func(cfg *Config) {
		cfg.Limits, cfg.Placements = []Limit{{24 * time.Hour, 1}, {7 * 24 * time.Hour, 2}}, placements
	}, c...)
	ask := func(user, placement string) Answer {
		a := s.p.Attributes()
		defer s.p.Release(a)
		answer, err := s.p.Ask(t.Context(), Key{user, placement}, a, s.now)
		if err != nil {
			t.Error(err)
		}
		return answer
	}
	for round := range 20 {
		user := "racer " + strconv.Itoa(round)
		got := make(chan bool, 99)
		crowd(99, func() { got <- ask(user, placements[len(got)%3]).Shown() })
		close(got)
		shows := 0
		for shown := range got {
			if shown {
				shows++
			}
		}
		if shows != 1 {
			t.Fatalf("%d shows", shows)
		}
	}
	if !ask("1", "home").Shown() {
		t.Error("nothing at first")
	}
	s.now = s.now.Add(23 * time.Hour)
	if answer := ask("1", "list"); answer.Reason != WaitLimit || !answer.NextAt.Equal(day0.Add(24*time.Hour)) {
		t.Errorf("%+v", answer)
	}
	s.now = s.now.Add(time.Hour)
	if !ask("1", "list").Shown() {
		t.Error("nothing after a day")
	}
	s.now = s.now.Add(48 * time.Hour)
	if answer := ask("1", "cart"); answer.Reason != WaitLimit || !answer.NextAt.Equal(day0.Add(7*24*time.Hour)) {
		t.Errorf("%+v", answer)
	}
}

// The share of users in a group is the one that was asked for, groups of campaigns and
// purposes are independent, and they never change.
func TestPercent(t *testing.T) {
	t.Parallel()
	const users = 100_000
	in := func(purpose, user uint64, campaign CampaignID) bool { return percent(purpose, user, campaign) < 30 }
	share := map[string]int{}
	for i := range users {
		user := xxhash.Sum64String("user-" + strconv.Itoa(i))
		one, two, other := in(purposeRollout, user, 1), in(purposeRollout, user, 2), in(purposeHoldout, user, 1)
		for name, yes := range map[string]bool{"one": one, "two": two, "other": other, "one and two": one && two, "one and other": one && other} {
			if yes {
				share[name]++
			}
		}
	}
	for name, want := range map[string]float64{"one": 0.3, "two": 0.3, "other": 0.3, "one and two": 0.09, "one and other": 0.09} {
		deviation := math.Sqrt(want * (1 - want) / users)
		if got := float64(share[name]) / users; math.Abs(got-want) > 6*deviation {
			t.Errorf("%s: %.4f, want %.2f", name, got, want)
		}
	}
	if got := percent(purposeVariant, xxhash.Sum64String("7"), 3); math.Abs(got-44.87283259512325) > 1e-9 {
		t.Errorf("user 7 has moved to %v percent", got)
	}
}

// Variants share the users by weight; each user keeps the one of the hash, whose payload and
// number are in the answer, the state and the events.
func TestVariants(t *testing.T) {
	t.Parallel()
	c := threeCampaigns()[:1]
	c[0].Variants = []Variant{{"a", 1, []byte(`"a"`)}, {"off", 0, []byte(`"off"`)}, {"b", 3, []byte(`"b"`)}}
	c[0].Holdout = 20
	s := openShop(t, nil, c...)
	s.memory.limit = 10_000
	count := map[string]int{}
	for i := range 4000 {
		_, answer := s.ask(strconv.Itoa(i))
		name := "held out"
		if answer.Shown() {
			name = string(answer.Payload())
		}
		count[name]++
		if err := s.p.Convert(t.Context(), answer.Token, "", s.now); err != nil {
			t.Fatal(err)
		}
		if _, again := s.ask(strconv.Itoa(i)); again.Shown() {
			t.Fatal("a second popup")
		}
	}
	for name, want := range map[string]float64{"held out": 800, `"a"`: 800, `"b"`: 2400} {
		if math.Abs(float64(count[name])-want) > 6*math.Sqrt(want) {
			t.Errorf("%s: %d, want about %v", name, count[name], want)
		}
	}
	events := s.memory.recorder.(*ledger).events
	for kind, want := range map[Kind]int{KindShow: 4000 - count["held out"], KindWithhold: count["held out"], KindConvert: 4000} {
		if n := len(slices.DeleteFunc(slices.Clone(events), func(e Event) bool { return e.Kind != kind || kind == KindShow && e.Variant != 1 && e.Variant != 3 })); n != want {
			t.Errorf("%d events %s, want %d", n, kind, want)
		}
	}
}

// A user of the holdout stays in it when the campaign starts over, and while states cannot be
// read. Who was held out counts once.
func TestHoldoutStays(t *testing.T) {
	t.Parallel()
	c := threeCampaigns()[:1]
	c[0].Holdout, c[0].Again = 99.9, Period(time.Hour)
	s := openShop(t, nil, c...)
	for i := range 4 {
		if _, answer := s.ask("1"); answer.Reason != HeldOut {
			t.Errorf("request %d: %s, want %s", i, answer.Reason, HeldOut)
		}
		s.now = s.now.Add(2 * time.Hour)
	}
	for i, e := range s.memory.recorder.(*ledger).events {
		if e.First != (i == 0) {
			t.Errorf("event %d: first is %v", i, e.First)
		}
	}
	s.p.cfg.ShowAnyway = true
	reason := errClosed
	s.memory.unavailable.Store(&reason)
	if _, answer := s.ask("1"); answer.Shown() {
		t.Error("shown to a user of the holdout while the store does not answer")
	}
}

// What was done by a clock that was far ahead does not keep a campaign from starting over, or
// a draft from its tester.
func TestRecordOfTheFuture(t *testing.T) {
	t.Parallel()
	c := threeCampaigns()[:2]
	c[0].Again = Period(time.Hour)
	c[1].Status, c[1].Testers = Draft, []string{"tester"}
	s := openShop(t, nil, c...)
	s.now = day0.AddDate(10, 0, 0)
	s.want("in ten years", s.click("1"), 1)
	if id, _ := s.ask("tester"); id != 2 {
		t.Errorf("a tester in ten years: campaign %d", id)
	}
	s.now = day0
	s.want("clicked by a wild clock", s.click("1"), 1)
	s.want("a draft shown by a wild clock", s.click("tester"), 2)
}

// A draft is shown to its testers, whatever else is due, and to nobody else.
func TestDraft(t *testing.T) {
	t.Parallel()
	c := threeCampaigns()
	c[2].Status, c[2].Testers, c[2].Target, c[2].Start = Draft, []string{"tester"}, "level > 3", Moment{day0.AddDate(1, 0, 0)}
	s := openShop(t, nil, c...)
	s.want("another user", s.click("1"), 1)
	s.want("a tester", s.click("tester"), 3)
	s.want("a tester who has finished it", s.click("tester"), 1)
}

// A state keeps the records of campaigns that are not known here, and has a maximal size.
func TestRecords(t *testing.T) {
	t.Parallel()
	set, err := NewSet(testSchema(t), threeCampaigns())
	if err != nil {
		t.Fatal(err)
	}
	p, s := set.Placement("home"), State{}
	for i := range CampaignsMax + 200 {
		s.Version++
		s = State{Version: s.Version, Phase: Clicked, Campaign: CampaignID(1000 + 1000*i), Shows: 1, Shown: 1, Answered: 2, others: p.encode(s.behind(nil, CampaignID(1000+1000*i)))}
	}
	s.others = p.encode(append(s.without(nil, 2), record{campaign: 2, last: KindWithhold}))
	b := AppendState(nil, s)
	back, err := DecodeState(b)
	if _, ok := s.record(2); !ok || err != nil || back != s || len(b) > StateBytesMax || len(s.others) < RecordsMax*4 {
		t.Errorf("%v, %d bytes, %v", ok, len(b), err)
	}
}
