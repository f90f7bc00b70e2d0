package popup

import (
	"cmp"
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

// guessed is a Store that has all states.
type guessed struct {
	Store
	reads, swaps int
	races        func() // called before a swap
}

func (g *guessed) Keeps() bool { return true }

func (g *guessed) Get(ctx context.Context, key Key) (State, error) {
	g.reads++
	return g.Store.Get(ctx, key)
}

func (g *guessed) Swap(ctx context.Context, key Key, version uint64, next State, event Event, guards ...Guard) (bool, error) {
	g.swaps++
	if g.races != nil {
		g.races()
	}
	return g.Store.Swap(ctx, key, version, next, event, guards...)
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

	withheld  []string // tokens
	converted map[string]bool
	converts  int
	answered  map[bool]int // whether Now has answered
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
	return NewSigner([][]byte{[]byte("0123456789abcdef0123456789abcdef")}, tokenTTL)
}

func newWalk(t *testing.T, schema *Schema, seed uint64) *walk {
	w := &walk{
		t: t, rng: rand.New(rand.NewPCG(seed, 8)), schema: schema, ledger: &ledger{}, converted: map[string]bool{}, answered: map[bool]int{},
		now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	w.memory = NewMemory(1000, w.ledger)
	w.model = model{stories: map[Key]*story{}, suits: targets(), shows: map[string][]time.Time{}}
	set, err := NewSet(schema, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Store: w.memory, Signer: testSigner(t), Log: slog.New(slog.DiscardHandler)}
	cfg.ConvertTTL = tokenTTL
	if seed%2 == 0 {
		cfg.Cache = NewCache(1000)
	}
	if seed%4 == 2 {
		cfg.Store = &guessed{Store: w.memory}
	}
	if seed%3 == 0 {
		cfg.Limits, cfg.Placements = []Limit{{24 * time.Hour, 2}, {100 * time.Hour, 4}}, []string{"home", "list"}
		w.model.limits = cfg.Limits
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

func (w *walk) quiet() Period {
	switch w.rng.IntN(6) {
	case 0:
		return 0
	case 1:
		return Forever
	}
	return Period(time.Second + w.duration(100*time.Hour))
}

// again returns when a campaign starts over; 0: never.
func (w *walk) again() Period {
	if w.rng.IntN(2) == 0 {
		return 0
	}
	return Period(time.Second + w.duration(300*time.Hour))
}

// part returns a percentage; 0 in most cases.
func (w *walk) part() float64 {
	if w.rng.IntN(4) > 0 {
		return 0
	}
	return 1 + 98*w.rng.Float64()
}

func (w *walk) add() {
	w.next++
	c := Campaign{
		ID: w.next, Name: "x", Placement: []string{"home", "list"}[w.rng.IntN(2)], Order: int32(w.next)/2 + int32(w.rng.IntN(6)),
		Payload: []byte("1"), Status: Active, RepeatAfter: Period(time.Second + w.duration(48*time.Hour)),
		QuietClick: w.quiet(), QuietDismiss: w.quiet(), Cap: max(0, w.rng.IntN(6)-2),
		Again: w.again(), Priority: int32(w.rng.IntN(3)), Rollout: cmp.Or(w.part(), 100), Holdout: w.part(),
	}
	if w.rng.IntN(8) == 0 {
		c.Status, c.Testers = Draft, []string{"3", "5"}
	}
	for i := range w.rng.IntN(3) {
		c.Variants = append(c.Variants, Variant{Name: strconv.Itoa(i), Weight: 1 + w.rng.IntN(3), Payload: []byte(strconv.Itoa(i))})
	}
	names := make([]string, 0, len(w.model.suits))
	for name := range w.model.suits {
		names = append(names, name)
	}
	slices.Sort(names)
	c.Target = names[w.rng.IntN(len(names))]
	if w.rng.IntN(3) == 0 {
		c.Start = Moment{w.now.Add(w.duration(200*time.Hour) - 50*time.Hour)}
	}
	if w.rng.IntN(3) == 0 {
		c.End = Moment{w.now.Add(200*time.Hour + w.duration(400*time.Hour))}
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
	switch w.rng.IntN(11) {
	case 7:
		c.Priority = int32(w.rng.IntN(3))
	case 8:
		c.Again = w.again()
	case 9:
		c.Rollout, c.Holdout = cmp.Or(w.part(), 100), w.part()
	case 10: // the order of all
		for i := range w.model.campaigns {
			w.model.campaigns[i].Order = int32(w.rng.IntN(9))
		}
	case 0:
		c.Order += int32(w.rng.IntN(9)) - 4
	case 1:
		switch c.Status {
		case Active:
			c.Status = Paused
		case Paused, Draft:
			c.Status = Active
		}
	case 2:
		c.Status = Archived
	case 3:
		c.QuietClick, c.QuietDismiss = w.quiet(), w.quiet()
	case 4:
		c.RepeatAfter = Period(time.Second + w.duration(48*time.Hour))
	case 5:
		c.Cap = max(0, w.rng.IntN(6)-2)
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
	a.For(key.User)
	w.explain(key, state, a, id, reason)
	if id == 0 && !next.IsZero() && reason > WaitLimit {
		// Nothing one millisecond before NextAt, a popup at NextAt.
		place := w.popup.Set().Placement(key.Placement)
		before, then := Decide(place, state, a, next.Add(-time.Millisecond)), Decide(place, state, a, next)
		if before.Campaign != nil && before.Reason != Test || then.Campaign == nil { // a draft can come at any time
			w.t.Fatalf("%v: NextAt %v is wrong", key, next)
		}
	}
	w.nothing(key, a, id, reason, next)
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
	switch {
	case reason == HeldOut:
		w.model.withhold(key, id, w.now)
		w.withheld = append(w.withheld, answer.Token)
	case id != 0:
		if c := w.model.find(id); (answer.Variant != 0) != (len(c.Variants) > 0) || int(answer.Variant) > len(c.Variants) {
			w.t.Fatalf("variant %d of %d", answer.Variant, len(c.Variants))
		}
		w.model.show(key, id, w.now)
		w.shows = append(w.shows, showing{answer.Token, key, w.model.stories[key].shows, w.now})
	}
	w.comeAt = next
}

// explain checks that the explanation agrees with the model.
func (w *walk) explain(key Key, state State, a *Attributes, id CampaignID, reason Reason) {
	blocked := time.Time{}
	if reason == WaitLimit {
		blocked = w.model.limited(key.User, w.now)
	}
	for _, e := range Explain(w.popup.Set().Placement(key.Placement), state, a, w.now, blocked) {
		want := Verdict("")
		if e.Campaign == id {
			want = map[bool]Verdict{false: IsGiven, true: IsHeldOut}[reason == HeldOut]
		}
		if (e.Verdict == IsGiven || e.Verdict == IsHeldOut || want != "") && e.Verdict != want {
			w.t.Fatalf("campaign %d is %s where the model gives %d, %s", e.Campaign, e.Verdict, id, reason)
		}
	}
}

// convert sends a token of a show, or of what was withheld.
func (w *walk) convert() {
	tokens := slices.Clone(w.withheld)
	for _, g := range w.shows {
		tokens = append(tokens, g.token)
	}
	if len(tokens) == 0 {
		return
	}
	token := tokens[w.rng.IntN(len(tokens))]
	err := w.popup.Convert(w.t.Context(), token, "", w.now)
	if err != nil && !errors.Is(err, ErrExpired) {
		w.t.Fatal(err)
	}
	if err == nil && !w.converted[token] { // it is recorded once
		w.converted[token] = true
		w.converts++
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
		to = []time.Time{c.Start.Time, c.End.Time}[w.rng.IntN(2)]
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
		w.convert()
	default:
		w.now = w.now.Add(w.duration([]time.Duration{time.Minute, time.Hour, 30 * time.Hour}[w.rng.IntN(3)]))
	}
}

// check compares the recorded events with the states.
func (w *walk) check() {
	last := map[Key]Event{}
	ids := map[[16]byte]bool{}
	for _, e := range w.ledger.events {
		if e.Kind == KindConvert {
			w.converts--
			continue
		}
		if e.Sequence != last[e.Key].Sequence+1 || ids[e.ID] {
			w.t.Fatalf("event %+v follows %+v", e, last[e.Key])
		}
		ids[e.ID], last[e.Key] = true, e
	}
	for key, event := range last {
		s, _ := w.memory.Get(w.t.Context(), key)
		back, err := DecodeState(AppendState(nil, s))
		coded, wrong := AppendEvent(nil, event)
		if again, err := DecodeEvent(coded); err != nil || wrong != nil || again != event {
			w.t.Fatalf("%+v is decoded as %+v: %v, %v", event, again, err, wrong)
		}
		if event.State != s || err != nil || back != s {
			w.t.Fatalf("%v: state %+v, last event %+v, decoded %+v, %v", key, s, event, back, err)
		}
	}
	if w.memory.Len() != len(last) || w.converts != 0 {
		w.t.Fatalf("%d states, events of %d; %d conversions missing", w.memory.Len(), len(last), w.converts)
	}
}

func TestRulesAgainstModel(t *testing.T) {
	t.Parallel()
	rounds, steps := 60, 2000
	switch {
	case *long:
		rounds = 1000
	case testing.Short():
		rounds = 6
	}
	schema, base := testSchema(t), rand.Uint64()
	t.Logf("seeds from %d", base)
	total, answered := Stats{}, map[bool]int{}
	for i := range rounds {
		w := newWalk(t, schema, base+uint64(i))
		for range steps {
			w.step()
		}
		w.check()
		s := w.popup.Stats()
		total.Shows, total.Clicks, total.Dismissals, total.Waits, total.Nones = total.Shows+s.Shows, total.Clicks+s.Clicks, total.Dismissals+s.Dismissals, total.Waits+s.Waits, total.Nones+s.Nones
		total.Withheld, total.Conversions = total.Withheld+s.Withheld, total.Conversions+s.Conversions
		total.Repeated, total.Late, total.Refused = total.Repeated+s.Repeated, total.Late+s.Late, total.Refused+s.Refused
		answered[true], answered[false] = answered[true]+w.answered[true], answered[false]+w.answered[false]
		total.Cache.Hits, total.Cache.Misses = total.Cache.Hits+s.Cache.Hits, total.Cache.Misses+s.Cache.Misses
	}
	if total.Cache.Hits == 0 || total.Withheld == 0 || total.Conversions == 0 {
		t.Errorf("no walk found a state in its cache, withheld a campaign, or converted: %+v", total)
	}
	if answered[true] == 0 || answered[false] == 0 {
		t.Errorf("Now has answered %d requests and left %d", answered[true], answered[false])
	}
	t.Logf("%d steps: %+v, Now %v", rounds*steps, total, answered)
}
