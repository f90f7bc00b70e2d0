package popup

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"
)

// counted returns the counters that tell whether Now has counted.
func counted(p *Popup) Stats {
	s := p.Stats()
	s.Cache.States = 0
	return s
}

// nowTest returns the answer of Begin, if it is known without recording anything.
func nowTest(p *Popup, key Key, a *Attributes, now time.Time) (Answer, bool) {
	answer, showing, ok := p.Begin(context.Background(), key, a, now, nil)
	return answer, ok && showing == nil
}

// copyOf returns attributes with the values of a.
func copyOf(p *Popup, a *Attributes) *Attributes {
	c := p.Attributes()
	for i, v := range a.slots {
		c.slots[i], c.slots[i].list = v, slices.Clone(v.list)
	}
	return c
}

// nothing checks that Now agrees with the model. It answers exactly if there is no popup and nothing has to be read for
// that. It counts what it answers and nothing else, and changes no state.
func (w *walk) nothing(key Key, given *Attributes, id CampaignID, reason Reason, next time.Time) {
	a := copyOf(w.popup, given)
	defer w.popup.Release(a)
	known, cache := true, w.popup.cfg.Cache
	if cache != nil {
		_, _, known = cache.Known(key)
	}
	waits := reason >= WaitShown && reason <= WaitDismissed
	want := id == 0 && known && w.popup.Set().Placement(key.Placement) != nil && (waits || len(w.popup.cfg.Limits) == 0 || cache == nil)

	counts, events := counted(w.popup), len(w.ledger.events)
	state, _ := w.memory.Get(w.t.Context(), key)
	answer, ok := nowTest(w.popup, key, a, w.now)
	if ok != want {
		w.t.Fatalf("%v at %v: Now answers: %v, want %v; the model says %d, %s", key, w.now, ok, want, id, reason)
	}
	if ok && (answer.Campaign != nil || answer.Reason != reason || !answer.NextAt.Equal(next) || answer.Token != "" || answer.Detail != "") {
		w.t.Fatalf("%v at %v: Now answers %+v; the model says %s, %v", key, w.now, answer, reason, next)
	}
	switch {
	case ok && reason <= WaitLimit:
		counts.Waits++
	case ok:
		counts.Nones++
	}
	if ok && cache != nil {
		counts.Cache.Hits++
	}
	if got := counted(w.popup); got != counts {
		w.t.Fatalf("Now answers: %v, and counts %+v, want %+v", ok, got, counts)
	}
	if after, _ := w.memory.Get(w.t.Context(), key); after != state || len(w.ledger.events) != events {
		w.t.Fatal("Nothing has changed a state")
	}
	w.answered[ok]++
}

// asked is a Now and an Ask of the same request.
func asked(t *testing.T, p *Popup, key Key, now time.Time) (Answer, bool, Answer) {
	t.Helper()
	a, b := p.Attributes(), p.Attributes()
	defer p.Release(a)
	defer p.Release(b)
	nothing, ok := nowTest(p, key, a, now)
	answer, err := p.Ask(t.Context(), key, b, now)
	if err != nil {
		t.Fatal(err)
	}
	if ok && nothing != answer {
		t.Errorf("%v at %v: %+v, then %+v", key, now, nothing, answer)
	}
	return nothing, ok, answer
}

// mute is a Store that does not say what it knows.
type mute struct{ Store }

// Whatever must be read first, or cannot be, is left to Ask.
func TestNowLeavesToAsk(t *testing.T) {
	t.Parallel()
	home := Key{"1", "home"}
	leave := func(what string, p *Popup, key Key, now time.Time) Answer {
		t.Helper()
		before := counted(p)
		a := p.Attributes()
		defer p.Release(a)
		if nothing, ok := nowTest(p, key, a, now); ok || nothing != (Answer{}) || counted(p) != before {
			t.Errorf("%s: Now answers %+v, and counts %+v after %+v", what, nothing, counted(p), before)
		}
		_, ok, answer := asked(t, p, key, now)
		if ok {
			t.Errorf("%s: Now answers", what)
		}
		return answer
	}
	targeted := func(target string) []Campaign {
		all := threeCampaigns()[:1]
		all[0].Target = target
		return all
	}

	reads := 0
	row := func(context.Context, string) ([]byte, error) { reads++; return []byte(`{"level": 1}`), nil }
	rows := openTest(t, NewMemory(9, nil), func(c *Config) { c.UserRow = row }, targeted("level > 3")...)
	if leave("the user's row", rows, home, day0); reads != 1 {
		t.Errorf("%d rows read", reads)
	}

	listed := openTest(t, NewMemory(9, nil), nil, targeted(`in_list("a")`)...)
	listed.ChangeLists(func(*Lists) *Lists { return (*Lists)(nil).only([]string{"a"}) })
	if answer := leave("a list that was not read", listed, home, day0); answer.Reason != Unavailable || answer.Detail == "" {
		t.Errorf("%+v", answer)
	}
	listed.ChangeLists(func(l *Lists) *Lists { return l.with("a", nil) })
	if _, ok, answer := asked(t, listed, home, day0); !ok || answer.Reason != NoneMatches {
		t.Errorf("a list without the user: %v, %+v", ok, answer)
	}

	down := openTest(t, NewLocal(9, time.Second, nil, NewClock(), nil), func(c *Config) { c.ShowAnyway = true }, targeted("level > 3")...)
	if answer := leave("states that are not restored", down, home, day0); answer.Reason != Unavailable {
		t.Errorf("%+v", answer)
	}
	leave("a store that does not say", openTest(t, mute{NewMemory(9, nil)}, nil, targeted("level > 3")...), home, day0)
	leave("no campaigns", openTest(t, NewMemory(9, nil), nil), Key{"1", "nowhere"}, day0)

	p := openTest(t, NewMemory(9, nil), nil)
	a := p.Attributes()
	defer p.Release(a)
	for _, key := range []Key{{"", "home"}, {"\xff", "home"}, {"1", "Home"}} {
		if _, ok := nowTest(p, key, a, day0); ok {
			t.Errorf("%q: Now answers", key)
		}
	}
}

// A user whose state was evicted is not taken for a new one.
func TestNowEvicted(t *testing.T) {
	t.Parallel()
	tables := &fakeTables{}
	local := NewLocal(1, time.Second, tables, NewClock(), nil)
	local.unavailable.Store(nil)
	set := threeCampaigns()
	set[0].Target, set[1].Target, set[2].Target = "level > 3", "level > 3", "level > 3"
	p := openTest(t, local, nil, set...)
	shown := State{Version: 1, Phase: Shown, Campaign: 1, Shows: 1, Shown: day0.UnixMilli(), Until: never}
	known := func(user string) (Answer, bool) {
		a := p.Attributes()
		defer p.Release(a)
		return nowTest(p, Key{user, "home"}, a, day0)
	}
	if answer, ok := known("1"); !ok || answer.Reason != NoneMatches {
		t.Errorf("a new user: %+v, %v", answer, ok)
	}
	for _, user := range []string{"1", "2"} {
		if err := local.Restore(Key{user, "home"}, shown); err != nil {
			t.Fatal(err)
		}
		if answer, ok := known(user); !ok || answer.Reason != WaitShown {
			t.Errorf("user %s: %+v, %v", user, answer, ok)
		}
	}
	for _, user := range []string{"1", "3"} {
		if answer, ok := known(user); ok || local.Evicted() != 1 {
			t.Errorf("user %s after %d evictions: %+v", user, local.Evicted(), answer)
		}
	}
	local.Shut()
	if answer, ok := known("2"); ok {
		t.Errorf("after Shut: %+v", answer)
	}
}

// What another process has changed is not known once the store says so, and drafts are for Ask.
func TestNowCached(t *testing.T) {
	t.Parallel()
	campaigns := threeCampaigns()
	draft := threeCampaigns()[0]
	draft.ID, draft.Status, draft.Testers = 9, Draft, []string{"5"}
	campaigns = append(campaigns, draft)
	store, cache := NewMemory(99, nil), NewCache(1000)
	p := openTest(t, store, func(c *Config) { c.Cache = cache }, campaigns...)
	other := openTest(t, store, nil, campaigns...)
	for i := range 9 {
		key := Key{strconv.Itoa(i), "home"}
		if _, ok, answer := asked(t, p, key, day0); ok || !answer.Shown() || (answer.Reason == Test) != (i == 5) {
			t.Fatalf("%+v, %v", answer, ok)
		}
		if _, ok, _ := asked(t, p, key, day0); ok {
			t.Errorf("user %d: a state that is not cached is known", i)
		}
		hits := cache.Stats().Hits
		if i == 5 { // the draft is shown, and then a campaign
			continue
		}
		if _, ok, answer := asked(t, p, key, day0); !ok || answer.Reason != WaitShown || cache.Stats().Hits != hits+2 {
			t.Errorf("user %d: %+v, %v, %d hits", i, answer, ok, cache.Stats().Hits-hits)
		}
		click := askTest(t, other, key.User, day0.Add(24*time.Hour))
		if err := other.Click(t.Context(), click.Token, "", day0.Add(24*time.Hour)); err != nil {
			t.Fatal(err)
		}
		cache.Forget(key) // as the store does
		if _, ok, answer := asked(t, p, key, day0.Add(25*time.Hour)); ok || answer.Reason != WaitClicked {
			t.Errorf("user %d, changed elsewhere: %+v, %v", i, answer, ok)
		}
	}
}
