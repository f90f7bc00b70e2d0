package popup

// table holds the states of a shard by fingerprint: a hash table with linear probing (Knuth,
// The Art of Computer Programming 6.4, algorithms L and R). A cell is one cache line and has
// no pointers, so a lookup reads memory once and the garbage collector skips the cells. A map
// takes more memory and more time per lookup (docs/reference/dependencies.md). It is not safe for
// concurrent use.
type table struct {
	cells []cell // the length is a power of two; at most three quarters are used
	used  int
	tails map[fingerprint]string // State.recent and State.others of cells with tail set
}

// cell is a State in 64 bytes.
type cell struct {
	key                    fingerprint // zero: the cell is empty
	version                uint64
	shown, answered, until int64
	campaign               CampaignID
	shows                  uint16
	phase                  Phase
	variant                uint8
	tail                   bool
	recent                 uint8 // bytes of State.recent in the tail
}

// cellsMin is the minimum length of cells.
const cellsMin = 8

// place returns the index of a key, or of the empty cell for it.
func (t *table) place(key fingerprint) int {
	mask := len(t.cells) - 1
	i := int(key[1]) & mask
	for t.cells[i].key != key && t.cells[i].key != (fingerprint{}) {
		i = (i + 1) & mask
	}
	return i
}

// get returns a state; the zero State if there is none.
func (t *table) get(key fingerprint) State {
	if len(t.cells) == 0 {
		return State{}
	}
	s := &t.cells[t.place(key)]
	state := State{
		Version: s.version, Phase: s.phase, Campaign: s.campaign, Variant: s.variant, Shows: s.shows,
		Shown: s.shown, Answered: s.answered, Until: s.until,
	}
	if s.tail {
		tail := t.tails[key]
		state.recent, state.others = tail[:s.recent], tail[s.recent:]
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
	tail := state.recent + state.others
	*s = cell{
		key: key, version: state.Version, phase: state.Phase, campaign: state.Campaign, variant: state.Variant, shows: state.Shows,
		shown: state.Shown, answered: state.Answered, until: state.Until,
		tail: tail != "", recent: uint8(len(state.recent)),
	}
	switch {
	case s.tail && t.tails == nil:
		t.tails = map[fingerprint]string{key: tail}
	case s.tail:
		t.tails[key] = tail
	default:
		delete(t.tails, key)
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

// remove deletes a state and moves the cells behind it that could not be found otherwise.
func (t *table) remove(key fingerprint) {
	if !t.has(key) {
		return
	}
	delete(t.tails, key)
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

// evict deletes the first state at or behind a cell and returns where the next eviction starts.
// The table must not be empty.
func (t *table) evict(from int) int {
	mask := len(t.cells) - 1
	for t.cells[from&mask].key == (fingerprint{}) {
		from++
	}
	t.remove(t.cells[from&mask].key)
	return from & mask
}
