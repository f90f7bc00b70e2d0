package popup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
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
	order     int32 // then
	shown     time.Time
	clicked   *time.Time
	dismissed *time.Time
	until     time.Time // by the rules then; zero: never
	counts    map[CampaignID]int
}

type model struct {
	campaigns []Campaign
	stories   map[Key]*story
	suits     map[string]func(person) bool
}

func (m *model) find(id CampaignID) *Campaign {
	for i := range m.campaigns {
		if m.campaigns[i].ID == id {
			return &m.campaigns[i]
		}
	}
	return nil
}

// candidates are the campaigns that the user may still get, in order.
func (m *model) candidates(key Key, s *story) []Campaign {
	var out []Campaign
	for _, c := range m.campaigns {
		if c.Placement == key.Placement && c.Status == Active && (c.Cap == 0 || s == nil || s.counts[c.ID] < c.Cap) {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b Campaign) int {
		if a.Order != b.Order {
			return int(a.Order) - int(b.Order)
		}
		return int(a.ID) - int(b.ID)
	})
	if s == nil {
		return out
	}
	order := s.order
	if last := m.find(s.campaign); last != nil {
		order = last.Order
	}
	return slices.DeleteFunc(out, func(c Campaign) bool {
		again := c.ID == s.campaign && s.clicked == nil && s.dismissed == nil
		isLater := c.Order > order || c.Order == order && c.ID > s.campaign
		return !again && !isLater
	})
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
	return from.Add(wait), wait != Forever
}

func runs(c Campaign, at time.Time) bool {
	return (c.Start.IsZero() || !at.Before(c.Start)) && (c.End.IsZero() || at.Before(c.End))
}

// decide returns the campaign or 0, the reason, and NextAt.
func (m *model) decide(key Key, p person, now time.Time) (CampaignID, Reason, time.Time) {
	if !slices.ContainsFunc(m.campaigns, func(c Campaign) bool { return c.Placement == key.Placement }) {
		return 0, NoneLeft, time.Time{} // without campaigns the state does not matter
	}
	s := m.stories[key]
	list := m.candidates(key, s)
	if s != nil {
		until, ok := m.wait(s)
		if !ok || now.Before(until) {
			reason := WaitShown
			if s.clicked != nil {
				reason = WaitClicked
			}
			if s.dismissed != nil {
				reason = WaitDismissed
			}
			var next time.Time
			for _, c := range list {
				at := until
				if c.Start.After(at) {
					at = c.Start
				}
				if ok && runs(c, at) && (next.IsZero() || at.Before(next)) {
					next = at
				}
			}
			return 0, reason, next
		}
	}
	reason, next := NoneLeft, time.Time{}
	for _, c := range list {
		suits := m.suits[c.Target](p)
		switch {
		case runs(c, now) && suits:
			switch {
			case s == nil:
				return c.ID, First, time.Time{}
			case s.campaign == c.ID && s.clicked == nil && s.dismissed == nil:
				return c.ID, Again, time.Time{}
			}
			return c.ID, Next, time.Time{}
		case runs(c, now):
			reason = NoneMatches
		case c.Start.After(now):
			if reason == NoneLeft {
				reason = NoneRuns
			}
			if suits && (next.IsZero() || c.Start.Before(next)) {
				next = c.Start
			}
		}
	}
	return 0, reason, next
}

// ended returns at + d; zero for forever.
func ended(at time.Time, d time.Duration) time.Time {
	if d == Forever {
		return time.Time{}
	}
	return at.Add(d)
}

func (m *model) show(key Key, id CampaignID, now time.Time) {
	c, s := m.find(id), m.stories[key]
	if s == nil {
		s = &story{counts: map[CampaignID]int{}}
		m.stories[key] = s
	}
	s.shows++
	s.campaign, s.order, s.shown, s.clicked, s.dismissed, s.until = id, c.Order, now, nil, nil, ended(now, c.RepeatAfter)
	s.counts[id]++
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
	var quiet time.Duration
	if click {
		s.clicked = &now
	} else {
		s.dismissed = &now
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

// ledger is a Recorder that keeps events.
type ledger struct {
	mu     sync.Mutex
	events []Event
	fails  error
}

func (l *ledger) Record(_ context.Context, event Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, event)
	return l.fails
}

// walk is one random run of a Popup and the model side by side.
type walk struct {
	t      *testing.T
	rng    *rand.Rand
	schema *Schema
	model  model
	popup  *Popup
	memory *Memory
	ledger *ledger
	now    time.Time
	next   CampaignID
	shows  []showing
	comeAt time.Time // NextAt of an earlier answer
}

// showing is a show: its token and its number among the user's.
type showing struct {
	token string
	key   Key
	show  int
	at    time.Time
}

const tokenTTL = 1000 * time.Hour

func testSigner(tb testing.TB) *Signer {
	tb.Helper()
	s, err := NewSigner([][]byte{[]byte("0123456789abcdef0123456789abcdef")}, tokenTTL)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func newWalk(t *testing.T, schema *Schema, seed uint64) *walk {
	w := &walk{
		t: t, rng: rand.New(rand.NewPCG(seed, 8)), schema: schema, ledger: &ledger{},
		now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	w.memory = NewMemory(1000, w.ledger)
	w.model = model{stories: map[Key]*story{}, suits: targets()}
	set, err := NewSet(schema, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Store: w.memory, Signer: testSigner(t), Log: slog.New(slog.DiscardHandler)}
	if seed%2 == 0 {
		cfg.Cache = NewCache(1000)
	}
	if w.popup, err = Open(cfg, set); err != nil {
		t.Fatal(err)
	}
	for range 1 + w.rng.IntN(6) {
		w.add()
	}
	w.replace()
	return w
}

func (w *walk) duration(most time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(most/time.Millisecond))) * time.Millisecond
}

func (w *walk) quiet() time.Duration {
	switch w.rng.IntN(6) {
	case 0:
		return 0
	case 1:
		return Forever
	}
	return w.duration(100 * time.Hour)
}

func (w *walk) add() {
	w.next++
	c := Campaign{
		ID: w.next, Name: "x", Placement: []string{"home", "list"}[w.rng.IntN(2)], Order: int32(w.next)/2 + int32(w.rng.IntN(6)),
		Payload: []byte("1"), Status: Active, RepeatAfter: time.Second + w.duration(48*time.Hour),
		QuietClick: w.quiet(), QuietDismiss: w.quiet(), Cap: max(0, w.rng.IntN(6)-2),
	}
	names := make([]string, 0, len(w.model.suits))
	for name := range w.model.suits {
		names = append(names, name)
	}
	slices.Sort(names)
	c.Target = names[w.rng.IntN(len(names))]
	if w.rng.IntN(3) == 0 {
		c.Start = w.now.Add(w.duration(200*time.Hour) - 50*time.Hour)
	}
	if w.rng.IntN(3) == 0 {
		c.End = w.now.Add(200*time.Hour + w.duration(400*time.Hour))
	}
	w.model.campaigns = append(w.model.campaigns, c)
}

// change makes one random change to the campaigns.
func (w *walk) change() {
	n := len(w.model.campaigns)
	if n == 0 || n < 16 && w.rng.IntN(2) == 0 {
		w.add()
		w.replace()
		return
	}
	i := w.rng.IntN(n)
	c := &w.model.campaigns[i]
	switch w.rng.IntN(7) {
	case 0:
		c.Order += int32(w.rng.IntN(9)) - 4
	case 1:
		if c.Status == Active {
			c.Status = Paused
		} else if c.Status == Paused {
			c.Status = Active
		}
	case 2:
		c.Status = Archived
	case 3:
		c.QuietClick, c.QuietDismiss = w.quiet(), w.quiet()
	case 4:
		c.RepeatAfter = time.Second + w.duration(48*time.Hour)
	case 5:
		if c.Cap > 0 {
			c.Cap = 1 + w.rng.IntN(4)
		}
	case 6:
		if n > 6 {
			w.model.campaigns = slices.Delete(w.model.campaigns, i, i+1)
		}
	}
	w.replace()
}

func (w *walk) replace() {
	set, err := NewSet(w.schema, w.model.campaigns)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.popup.Replace(set); err != nil {
		w.t.Fatal(err)
	}
}

func (w *walk) person(a *Attributes) person {
	var p person
	add := func(name, text string) {
		if err := a.Add(name, text); err != nil {
			w.t.Fatal(err)
		}
	}
	if w.rng.IntN(2) == 0 {
		p.level = new(w.rng.IntN(11))
		add("level", strconv.Itoa(*p.level))
	}
	if w.rng.IntN(2) == 0 {
		p.vip = new(w.rng.IntN(2) == 0)
		add("vip", strconv.FormatBool(*p.vip))
	}
	if w.rng.IntN(2) == 0 {
		p.score = new(w.rng.Float64())
		add("score", fmt.Sprint(*p.score))
	}
	if w.rng.IntN(2) == 0 {
		p.country = []string{"CN", "US"}[w.rng.IntN(2)]
		add("country", p.country)
	}
	if w.rng.IntN(2) == 0 {
		p.tags = []string{"old", "new"}[w.rng.IntN(2):]
		for _, tag := range p.tags {
			add("tags", tag)
		}
	}
	return p
}

func (w *walk) ask() {
	key := Key{User: strconv.Itoa(w.rng.IntN(12)), Placement: []string{"home", "list"}[w.rng.IntN(2)]}
	a := w.popup.Attributes()
	defer w.popup.Release(a)
	p := w.person(a)
	id, reason, next := w.model.decide(key, p, w.now)
	state, _ := w.memory.Get(w.t.Context(), key)
	w.explain(key, state, a, id)
	if id == 0 && !next.IsZero() && reason > WaitDismissed {
		// Nothing one millisecond before NextAt, a popup at NextAt.
		place := w.popup.Set().Placement(key.Placement)
		if Decide(place, state, a, next.Add(-time.Millisecond)).Campaign != nil || Decide(place, state, a, next).Campaign == nil {
			w.t.Fatalf("%v: NextAt %v is wrong", key, next)
		}
	}
	answer, err := w.popup.Ask(w.t.Context(), key, a, w.now)
	if err != nil {
		w.t.Fatal(err)
	}
	got := CampaignID(0)
	if answer.Campaign != nil {
		got = answer.Campaign.ID
	}
	if got != id || answer.Reason != reason || !answer.NextAt.Equal(next) {
		w.t.Fatalf("%v at %v: campaign %d, %s, next %v; the model says %d, %s, %v\nstate %+v\nstory %+v\ncampaigns %+v",
			key, w.now, got, answer.Reason, answer.NextAt, id, reason, next, state, w.model.stories[key], w.model.campaigns)
	}
	if id != 0 {
		w.model.show(key, id, w.now)
		w.shows = append(w.shows, showing{answer.Token, key, w.model.stories[key].shows, w.now})
	}
	w.comeAt = next
}

// explain checks that the explanation agrees with the model.
func (w *walk) explain(key Key, state State, a *Attributes, id CampaignID) {
	for _, e := range Explain(w.popup.Set().Placement(key.Placement), state, a, w.now) {
		if (e.Verdict == IsGiven) != (e.Campaign.ID == id) {
			w.t.Fatalf("campaign %d is %s where the model gives %d", e.Campaign.ID, e.Verdict, id)
		}
	}
}

func (w *walk) answer(click bool) {
	if len(w.shows) == 0 {
		return
	}
	g := w.shows[max(0, len(w.shows)-1-w.rng.IntN(6))]
	token, user := g.token, []string{"", g.key.User}[w.rng.IntN(2)]
	var want error
	switch w.rng.IntN(12) {
	case 0:
		user, want = "another", ErrOtherUser
	case 1:
		token, want = token[:w.rng.IntN(len(token))], ErrMalformed
	case 2:
		// Change a character of the version and keep the lengths.
		letter := byte('A')
		if token[12] == 'A' {
			letter = 'B'
		}
		token, want = token[:12]+string(letter)+token[13:], ErrForged
	default:
		if w.now.Sub(g.at) > tokenTTL {
			want = ErrExpired
		} else {
			want = w.model.answer(g.key, g.show, w.now, click)
		}
	}
	before, _ := w.memory.Get(w.t.Context(), g.key)
	do := w.popup.Click
	if !click {
		do = w.popup.Dismiss
	}
	if err := do(w.t.Context(), token, user, w.now); !errors.Is(err, want) || err != nil && want == nil {
		w.t.Fatalf("answer to show %+v: %v, want %v", g, err, want)
	}
	if after, _ := w.memory.Get(w.t.Context(), g.key); want != nil && after != before {
		w.t.Fatalf("a refused answer (%v) changed the state", want)
	}
}

// jump moves the clock to a time at which something changes, or to just before it.
func (w *walk) jump() {
	to := w.comeAt
	if n := len(w.model.campaigns); n > 0 && w.rng.IntN(2) == 0 {
		c := w.model.campaigns[w.rng.IntN(n)]
		to = []time.Time{c.Start, c.End}[w.rng.IntN(2)]
	}
	to = to.Add(-time.Duration(w.rng.IntN(2)) * time.Millisecond)
	if to.After(w.now) {
		w.now = to
	}
}

func (w *walk) step() {
	switch n := w.rng.IntN(20); {
	case n < 11:
		w.ask()
	case n < 14:
		w.answer(true)
	case n < 16:
		w.answer(false)
	case n < 17:
		w.change()
	case n < 18:
		w.jump()
	default:
		w.now = w.now.Add(w.duration([]time.Duration{time.Minute, time.Hour, 30 * time.Hour}[w.rng.IntN(3)]))
	}
}

// check compares the recorded events with the states.
func (w *walk) check() {
	last := map[Key]Event{}
	ids := map[[16]byte]bool{}
	for _, e := range w.ledger.events {
		if e.Sequence != last[e.Key].Sequence+1 || ids[e.ID] {
			w.t.Fatalf("event %+v follows %+v", e, last[e.Key])
		}
		ids[e.ID], last[e.Key] = true, e
	}
	for key, event := range last {
		s, _ := w.memory.Get(w.t.Context(), key)
		back, err := DecodeState(AppendState(nil, s))
		if event.State != s || err != nil || back != s {
			w.t.Fatalf("%v: state %+v, last event %+v, decoded %+v, %v", key, s, event, back, err)
		}
	}
	if w.memory.Len() != len(last) {
		w.t.Fatalf("%d states, events of %d", w.memory.Len(), len(last))
	}
}

func TestRulesAgainstModel(t *testing.T) {
	rounds, steps := 60, 2000
	if *long {
		rounds = 1000
	}
	schema, base := testSchema(t), rand.Uint64()
	t.Logf("seeds from %d", base)
	total := Stats{}
	for i := range rounds {
		w := newWalk(t, schema, base+uint64(i))
		for range steps {
			w.step()
		}
		w.check()
		s := w.popup.Stats()
		total.Shows, total.Clicks, total.Dismissals, total.Waits, total.Nones = total.Shows+s.Shows, total.Clicks+s.Clicks, total.Dismissals+s.Dismissals, total.Waits+s.Waits, total.Nones+s.Nones
		total.Repeated, total.Late, total.Refused = total.Repeated+s.Repeated, total.Late+s.Late, total.Refused+s.Refused
		total.Cache.Hits, total.Cache.Misses = total.Cache.Hits+s.Cache.Hits, total.Cache.Misses+s.Cache.Misses
	}
	if total.Cache.Hits == 0 {
		t.Error("no walk found a state in its cache")
	}
	t.Logf("%d steps: %+v", rounds*steps, total)
}
