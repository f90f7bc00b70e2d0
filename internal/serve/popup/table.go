package popup

// table holds the states of a shard by their keys' fingerprints. It is open addressing
// with linear probing (Knuth, The Art of Computer Programming 6.4, algorithms L and R)
// in place of a map, because finding one state of a million is mostly waiting for memory:
// a cell is one line of the cache, and it has no pointers, so the garbage collector passes
// all of them by. It is not safe for concurrent use.
type table struct {
	cells  []cell // a power of two of them, at most three quarters full
	used   int
	counts map[fingerprint]string // State.counts, where there are some
}

// cell is a State in 64 bytes.
type cell struct {
	key                    fingerprint // zero: the cell is empty
	version                uint64
	shown, answered, until int64
	campaign               CampaignID
	order                  int32
	phase                  Phase
	counted                bool // the state has counts
}

// cellsMin is how many cells a table has at least.
const cellsMin = 8

// place returns where a key is, or the empty cell where it would be.
func (t *table) place(key fingerprint) int {
	mask := len(t.cells) - 1
	i := int(key[1]) & mask
	for t.cells[i].key != key && t.cells[i].key != (fingerprint{}) {
		i = (i + 1) & mask
	}
	return i
}

// get returns a state, the zero State where there is none.
func (t *table) get(key fingerprint) State {
	if len(t.cells) == 0 {
		return State{}
	}
	s := &t.cells[t.place(key)]
	state := State{
		Version: s.version, Phase: s.phase, Campaign: s.campaign, Order: s.order,
		Shown: s.shown, Answered: s.answered, Until: s.until,
	}
	if s.counted {
		state.counts = t.counts[key]
	}
	return state
}

// has reports whether there is a state.
func (t *table) has(key fingerprint) bool {
	return len(t.cells) > 0 && t.cells[t.place(key)].key == key
}

// set stores a state.
func (t *table) set(key fingerprint, state State) {
	if (t.used+1)*4 > len(t.cells)*3 {
		t.grow()
	}
	s := &t.cells[t.place(key)]
	if s.key != key {
		t.used++
	}
	*s = cell{
		key: key, version: state.Version, phase: state.Phase, campaign: state.Campaign, order: state.Order,
		shown: state.Shown, answered: state.Answered, until: state.Until, counted: state.counts != "",
	}
	switch {
	case s.counted && t.counts == nil:
		t.counts = map[fingerprint]string{key: state.counts}
	case s.counted:
		t.counts[key] = state.counts
	default:
		delete(t.counts, key)
	}
}

func (t *table) grow() {
	old := t.cells
	t.cells = make([]cell, max(cellsMin, 2*len(old)))
	for i := range old {
		if old[i].key != (fingerprint{}) {
			t.cells[t.place(old[i].key)] = old[i]
		}
	}
}

// remove takes a state away and moves those behind it that would not be found any more.
func (t *table) remove(key fingerprint) {
	if !t.has(key) {
		return
	}
	delete(t.counts, key)
	t.used--
	mask := len(t.cells) - 1
	hole := t.place(key)
	for i := (hole + 1) & mask; t.cells[i].key != (fingerprint{}); i = (i + 1) & mask {
		home := int(t.cells[i].key[1]) & mask
		if (i-home)&mask >= (i-hole)&mask { // the hole is on its way from home
			t.cells[hole] = t.cells[i]
			hole = i
		}
	}
	t.cells[hole] = cell{}
}

// evict takes away the first state from a cell on, and returns where the next one may be
// looked for. There must be one.
func (t *table) evict(from int) int {
	mask := len(t.cells) - 1
	for t.cells[from&mask].key == (fingerprint{}) {
		from++
	}
	t.remove(t.cells[from&mask].key)
	return from & mask
}
