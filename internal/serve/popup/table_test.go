package popup

import (
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// A table behaves like a map, with keys that collide, also at the end of the table.
func TestTable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var states table
		model := make(map[fingerprint]State)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			key := fingerprint{rapid.Uint64Range(1, 20).Draw(t, "key"), rapid.SampledFrom([]uint64{0, 1, 6, 7, 30, 31}).Draw(t, "home")}
			if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
				states.remove(key)
				delete(model, key)
			} else {
				state := State{
					Version: rapid.Uint64Range(1, 9).Draw(t, "version"), Phase: Clicked, Campaign: 3, Variant: 2, Shows: 9, Shown: 5, Answered: 6,
					Until: 7, others: rapid.SampledFrom([]string{"", "others"}).Draw(t, "others"), recent: rapid.SampledFrom([]string{"", "recent"}).Draw(t, "recent"),
				}
				states.set(key, state)
				model[key] = state
			}
			if states.get(key) != model[key] || states.used != len(model) {
				t.Fatalf("%v: %+v of %d, want %+v of %d", key, states.get(key), states.used, model[key], len(model))
			}
		}
		tails := 0
		for key, state := range model {
			if states.get(key) != state || !states.has(key) {
				t.Fatalf("%v: %+v, want %+v", key, states.get(key), state)
			}
			tails += min(1, len(state.others)+len(state.recent))
		}
		filled := 0
		for _, s := range states.cells {
			if s.key != (fingerprint{}) {
				filled++
			}
		}
		if filled != len(model) || len(states.tails) != tails {
			t.Fatalf("%d cells filled for %d states, %d tails for %d", filled, len(model), len(states.tails), tails)
		}
	})
	if size := unsafe.Sizeof(cell{}); size != 64 {
		t.Errorf("a cell takes %d bytes", size)
	}
}
