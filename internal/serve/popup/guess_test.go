package popup

import (
	"strconv"
	"testing"
	"time"
)

// A user of whom nothing is known is taken for a new one, until one of them is not, and from the next new one on.
func TestGuess(t *testing.T) {
	t.Parallel()
	store := &guessed{Store: NewMemory(99, nil)}
	p := openTest(t, store, nil)
	for i := range 3 {
		if answer := askTest(t, p, strconv.Itoa(i), day0); answer.Reason != First || answer.Token == "" {
			t.Errorf("a new user: %+v", answer)
		}
	}
	if answer := askTest(t, p, "0", day0); answer.Reason != WaitShown || p.Stats().Conflicts != 0 {
		t.Errorf("a known user: %+v, %d conflicts", answer, p.Stats().Conflicts)
	}
	if store.right != 3 || store.wrong != 1 || store.reads != 0 {
		t.Errorf("%+v", store)
	}
	askTest(t, p, "1", day0)
	askTest(t, p, "new", day0)
	if store.right != 3 || store.wrong != 1 || store.reads != 2 {
		t.Errorf("after a known user: %+v", store)
	}
	askTest(t, p, "newer", day0)
	if store.right != 4 || store.reads != 2 {
		t.Errorf("after a new user: %+v", store)
	}
	other := openTest(t, store.Store, nil)
	store.races = func() { askTest(t, other, "racer", day0) }
	if answer := askTest(t, p, "racer", day0); answer.Reason != WaitShown {
		t.Errorf("a user who is shown a popup by another process meanwhile: %+v", answer)
	}
	limited := openTest(t, store, func(c *Config) { c.Limits, c.Placements = []Limit{{time.Hour, 1}}, []string{"home"} })
	store.races = func() { t.Error("it guesses although there are limits") }
	askTest(t, limited, "limited", day0)
}

// A guess caches the state that the store tells, unless it has changed since.
func TestGuessCaches(t *testing.T) {
	t.Parallel()
	store := &guessed{Store: NewMemory(99, nil)}
	p := openTest(t, store, func(c *Config) { c.Cache = NewCache(1000) })
	askTest(t, openTest(t, store.Store, nil), "1", day0)
	if askTest(t, p, "1", day0); store.wrong != 1 || p.Stats().Cache.States != 1 {
		t.Errorf("%+v, %+v", store, p.Stats().Cache)
	}
	if answer := askTest(t, p, "1", day0); answer.Reason != WaitShown || !answer.Known || store.reads != 0 {
		t.Errorf("the cached state: %+v, %+v", answer, store)
	}
	store.races = func() { p.cfg.Cache.Forget(Key{"2", "home"}) }
	p.olds.Store(false)
	askTest(t, openTest(t, store.Store, nil), "2", day0)
	if askTest(t, p, "2", day0); p.Stats().Cache.States != 1 {
		t.Errorf("a state that has changed is cached: %+v", p.Stats().Cache)
	}
}
