package popup

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A cache returns what was put last, unless it was forgotten since it was read. It never
// exceeds its limit.
func TestCache(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := NewCache(shards * rapid.IntRange(1, 3).Draw(t, "limit"))
		type reading struct {
			key    Key
			moment ShardVersion
			state  State
		}
		newest := make(map[Key]State) // what a store would have; forgotten with each change
		var under []reading
		keys := rapid.Custom(func(t *rapid.T) Key { return Key{fmt.Sprint(rapid.IntRange(1, 2000).Draw(t, "user")), "home"} })
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0, 1:
				key := keys.Draw(t, "key")
				newest[key] = State{Version: newest[key].Version + 1, Phase: Shown}
				c.Forget(key)
			case 2, 3, 4:
				key := keys.Draw(t, "key")
				_, version, _ := c.Get(key)
				under = append(under, reading{key, version, newest[key]})
			case 5, 6, 7:
				if len(under) > 0 {
					r := under[0]
					under = under[1:]
					c.Put(r.key, r.moment, r.state)
				}
			case 8:
				key := keys.Draw(t, "key")
				if state, _, ok := c.Get(key); ok && state != newest[key] {
					t.Fatalf("%v: %+v, and the newest is %+v", key, state, newest[key])
				}
			default:
				if rapid.IntRange(0, 20).Draw(t, "clear") == 0 {
					c.Clear()
					if n := c.Stats().States; n != 0 {
						t.Fatalf("%d states behind Clear", n)
					}
				}
			}
			if n := c.Stats().States; n > c.limit*shards {
				t.Fatalf("%d states of at most %d", n, c.limit*shards)
			}
		}
	})
}

// A full cache replaces states.
func TestCacheFull(t *testing.T) {
	t.Parallel()
	c := NewCache(shards * 10)
	const users = shards * 100
	for i := range users {
		key := Key{fmt.Sprint(i), "home"}
		_, version, _ := c.Get(key)
		c.Put(key, version, State{Version: uint64(i) + 1, Phase: Shown})
		if state, _, ok := c.Get(key); !ok || state.Version != uint64(i)+1 {
			t.Fatalf("user %d was not kept: %+v", i, state)
		}
	}
	if s := c.Stats(); s.States > c.limit*shards || s.States < c.limit*shards*9/10 || s.Hits != users {
		t.Errorf("%+v of at most %d", s, c.limit*shards)
	}
}

// Two processes with one store and a cache each: waiting users are not read again, a swap
// notices a state that the other process changed, and clicks read the store.
func TestCachedReplicas(t *testing.T) {
	t.Parallel()
	store := NewMemory(9, &ledger{})
	open := func() (*Popup, *Cache) {
		cache := NewCache(1000)
		return openTest(t, store, func(c *Config) { c.Cache = cache }), cache
	}
	one, _ := open()
	two, cache := open()

	shown := askTest(t, one, "1", day0)
	if a := askTest(t, two, "1", day0); shown.Reason != First || a.Reason != WaitShown {
		t.Fatalf("%+v, then %+v", shown, a)
	}
	if a := askTest(t, two, "1", day0.Add(time.Minute)); a.Reason != WaitShown || cache.Stats().Hits != 1 {
		t.Errorf("%+v, %+v", a, cache.Stats())
	}
	day := 24 * time.Hour
	if a := askTest(t, one, "1", day0.Add(day)); a.Reason != Again {
		t.Fatalf("%+v", a)
	}
	// Two remembers the first show, which would be due again, and loses the swap.
	if a := askTest(t, two, "1", day0.Add(day)); a.Reason != WaitShown || two.Stats().Conflicts != 1 {
		t.Errorf("%+v, %+v", a, two.Stats())
	}
	second := askTest(t, one, "1", day0.Add(2*day))
	if second.Reason != Again {
		t.Fatalf("%+v", second)
	}
	// Two remembers the second show and is asked to record a click on the third.
	if err := two.Click(t.Context(), second.Token, "1", day0.Add(2*day)); err != nil {
		t.Error(err)
	}
	if a := askTest(t, two, "1", day0.Add(2*day)); a.Reason != WaitClicked {
		t.Errorf("its own click: %+v", a)
	}
}
