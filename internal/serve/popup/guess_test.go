package popup

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"
)

// After some new users the next one whose state is not known is taken for new, until that is wrong.
func TestGuess(t *testing.T) {
	t.Parallel()
	store := &guessed{Store: NewMemory(99, nil)}
	p := openTest(t, store, func(c *Config) { c.Cache = NewCache(1000) })
	show := func(from, upto int) {
		t.Helper()
		for i := from; i < upto; i++ {
			if answer := askTest(t, p, strconv.Itoa(i), day0); answer.Reason != First || answer.Token == "" {
				t.Errorf("a new user: %+v", answer)
			}
		}
	}
	did := func(what string, reads, swaps int) {
		t.Helper()
		if store.reads != reads || store.swaps != swaps || p.Stats().Conflicts != 0 {
			t.Errorf("%s: %d reads, %d swaps, %d conflicts; want %d, %d and none", what, store.reads, store.swaps, p.Stats().Conflicts, reads, swaps)
		}
		store.reads, store.swaps = 0, 0
	}
	show(0, 20)
	did("new users", guessAfter, 20)
	if answer := askTest(t, p, "0", day0); answer.Reason != WaitShown {
		t.Errorf("a known user: %+v", answer)
	}
	did("a known user", 1, 1)
	if answer := askTest(t, p, "0", day0); answer.Reason != WaitShown || !answer.Known {
		t.Errorf("a cached user: %+v", answer)
	}
	did("a cached user", 0, 0)
	show(20, 30)
	did("new users again", guessAfter, 10)
	other := openTest(t, store.Store, nil)
	store.races = func() { askTest(t, other, "racer", day0) }
	if answer := askTest(t, p, "racer", day0); answer.Reason != WaitShown {
		t.Errorf("a user whom another process shows a popup meanwhile: %+v", answer)
	}
	did("a race", 1, 1)
}

// Nobody is taken for new whose answer needs more than the state.
func TestGuessNot(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"limits":  func(c *Config) { c.Limits, c.Placements = []Limit{{time.Hour, 1}}, []string{"home"} },
		"no rule": func(c *Config) { c.Store = struct{ Store }{c.Store} },
	} {
		store := &guessed{Store: NewMemory(99, nil)}
		p := openTest(t, store, change)
		for i := range 3 * guessAfter {
			askTest(t, p, strconv.Itoa(i), day0)
		}
		if store.reads != 3*guessAfter {
			t.Errorf("%s: %d reads", name, store.reads)
		}
	}
	store := &guessed{Store: NewMemory(99, nil)}
	all := threeCampaigns()
	for i := range all {
		all[i].Target = "level > 3"
	}
	p := openTest(t, store, nil, all...)
	for i := range 3 * guessAfter {
		if answer := askTest(t, p, strconv.Itoa(i), day0); answer.Reason != NoneMatches {
			t.Errorf("a user whom no campaign matches: %+v", answer)
		}
	}
	if store.reads != 3*guessAfter || store.swaps != 0 {
		t.Errorf("%+v", store)
	}
}

// swapFails is a store whose swaps fail when the test says so.
type swapFails struct {
	*guessed
	err error
}

func (s *swapFails) Swap(ctx context.Context, key Key, v uint64, next State, e Event, g ...Guard) (bool, error) {
	if s.err != nil {
		return false, s.err
	}
	return s.guessed.Swap(ctx, key, v, next, e, g...)
}

// TestGuessFails: a user in a quiet period is shown nothing if the swap of a wrong guess fails where a read does not.
func TestGuessFails(t *testing.T) {
	t.Parallel()
	store := &swapFails{guessed: &guessed{Store: NewMemory(99, nil)}}
	p := openTest(t, store, func(c *Config) { c.ShowAnyway = true })
	for i := range 10 {
		askTest(t, p, strconv.Itoa(i), day0)
	}
	if a := askTest(t, p, "0", day0.Add(time.Minute)); a.Shown() {
		t.Fatal("shown again")
	}
	for i := 10; i < 20; i++ {
		askTest(t, p, strconv.Itoa(i), day0)
	}
	store.err = errors.New("the connection broke during a swap")
	if a := askTest(t, p, "1", day0.Add(time.Minute)); a.Shown() {
		t.Errorf("shown in its quiet period: %+v", a)
	}
	if a := askTest(t, openTest(t, store.guessed, nil), "1", day0.Add(time.Minute)); a.Reason != WaitShown {
		t.Errorf("%+v", a)
	}
}
