package popup

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/queue"
)

// ErrFull: a Memory holds as many states as it may, the user is new, and an event of each state waits in the spool.
var ErrFull = errors.New("the memory for popup states is full")

// Recorder keeps events. It may be called concurrently. The events of a Key come with
// ascending sequences. If Record kept an event and returned an error all the same, another
// event with this sequence may follow; the later one is what the user saw.
type Recorder interface {
	// Record returns when the event is durable. After an error that wraps queue.ErrUnknown it
	// may be; after another one it is not.
	Record(ctx context.Context, event Event) error
}

// shards of a Memory or a Cache. Requests of users in different shards do not contend.
const shards = 256

// Memory is a Store in this process. A state takes 85 to 170 bytes, depending on how full
// the tables are, and about 8 more for each campaign but the last that was shown. It stores
// the fingerprint of a key instead of its text.
type Memory struct {
	limit        int64
	recorder     Recorder
	seeds        seeds
	shards       [shards]shard
	count        atomic.Int64
	recordErrors atomic.Uint64
	evicted      atomic.Uint64
	unavailable  atomic.Pointer[error] // why calls fail; nil if they do not
}

// fingerprint stands for a key: two 64-bit hashes with random seeds. Among a billion keys
// the probability that two have the same one is 10^-21.
type fingerprint [2]uint64

// seeds make fingerprints.
type seeds [2]maphash.Seed

func newSeeds() seeds { return seeds{maphash.MakeSeed(), maphash.MakeSeed()} }

// of returns a key's fingerprint and its shard, which all states of a user share.
func (s *seeds) of(key Key) (f fingerprint, shard int) {
	for i, seed := range s {
		user := maphash.String(seed, key.User)
		if i == 0 {
			shard = int(user % shards)
		}
		f[i] = user + 31*maphash.String(seed, key.Placement)
	}
	f[0] = max(f[0], 1) // zero marks an empty cell
	return f, shard
}

type shard struct {
	mu      sync.RWMutex
	states  table
	pending map[fingerprint]uint64 // versions whose events wait in the spool
	evictAt int                    // cell at which the next eviction starts

	gone      [2]map[fingerprint]bool // evicted since goneSince, and in the period before
	goneSince time.Time

	_ [8]byte // keeps shards on separate cache lines
}

// NewMemory returns an empty Memory for at most limit states, which answers at once.
// recorder may be nil: then events are not recorded.
func NewMemory(limit int, recorder Recorder) *Memory {
	return &Memory{limit: int64(limit), recorder: recorder, seeds: newSeeds()}
}

// find returns a key's fingerprint and shard.
func (m *Memory) find(key Key) (fingerprint, *shard) {
	f, i := m.seeds.of(key)
	return f, &m.shards[i]
}

// Ready returns nil while calls are answered, otherwise why they are not.
func (m *Memory) Ready() error {
	if reason := m.unavailable.Load(); reason != nil {
		return &queue.Unready{Why: *reason}
	}
	return nil
}

// Get implements Store. It allocates nothing.
func (m *Memory) Get(_ context.Context, key Key) (State, error) {
	if err := m.Ready(); err != nil {
		return State{}, err
	}
	f, s := m.find(key)
	s.mu.RLock()
	state := s.states.get(f)
	s.mu.RUnlock()
	return state, nil
}

// Known returns a state, and whether calls are answered.
func (m *Memory) Known(key Key) (State, bool) {
	state, err := m.Get(context.Background(), key)
	return state, err == nil
}

// Swap implements Store. If the event cannot be recorded, it puts the state back.
func (m *Memory) Swap(ctx context.Context, key Key, version uint64, next State, event Event, guards ...Guard) (bool, error) {
	r, ok, err := m.replace(key, version, next, guards)
	if err != nil || !ok || m.recorder == nil {
		return ok, err
	}
	err = r.end(m.recorder.Record(ctx, event), event.Kind)
	return err == nil, err
}

// swapping is a swap whose event is being recorded.
type swapping struct {
	memory  *Memory
	shard   *shard
	key     fingerprint
	version uint64 // of the new state
	before  State
	waiting uint64 // as shard.pending had it before
}

// end takes the error of the recorder. If there is one, it puts the state back.
func (r *swapping) end(err error, kind Kind) error {
	if err == nil {
		return nil
	}
	r.memory.recordErrors.Add(1)
	if errors.Is(err, queue.ErrUnknown) {
		r.waiting = r.version // the event may reach the database all the same
	}
	if back := r.putBack(); back != nil {
		err = fmt.Errorf("%w; put popup state back: %w", err, back)
	}
	return fmt.Errorf("record %s: %w", kind, err)
}

// Record implements Store.
func (m *Memory) Record(ctx context.Context, event Event) error {
	if err := m.Ready(); err != nil || m.recorder == nil {
		return err
	}
	if err := m.recorder.Record(ctx, event); err != nil {
		m.recordErrors.Add(1)
		return fmt.Errorf("record %s: %w", event.Kind, err)
	}
	return nil
}

// Forget removes the states of a user at placements and returns how many there were. Their
// events stay.
func (m *Memory) Forget(user string, placements []string) (n int) {
	for _, placement := range placements {
		f, s := m.find(Key{User: user, Placement: placement})
		s.mu.Lock()
		delete(s.gone[0], f) // the database does not have the state any more
		delete(s.gone[1], f)
		if s.states.has(f) {
			n++
			_ = m.put(s, f, State{}) // only what takes room can fail
		}
		s.mu.Unlock()
	}
	return n
}

// replace puts next in the place of the state before, if that has this version, and the
// guards hold.
func (m *Memory) replace(key Key, version uint64, next State, guards []Guard) (r *swapping, ok bool, err error) {
	if err := m.Ready(); err != nil {
		return nil, false, err
	}
	f, s := m.find(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.states.get(f)
	if before.Version != version || version == 0 && s.wasEvicted(f) {
		return nil, false, nil
	}
	for _, guard := range guards {
		other, _ := m.seeds.of(Key{User: key.User, Placement: guard.Placement})
		if s.states.get(other).Version != guard.Version || guard.Version == 0 && s.wasEvicted(other) {
			return nil, false, nil
		}
	}
	if err := m.put(s, f, next); err != nil {
		return nil, false, err
	}
	r = &swapping{memory: m, shard: s, key: f, version: next.Version, before: before, waiting: s.pending[f]}
	s.waiting(f, next.Version)
	return r, true, nil
}

// putBack undoes the swap, unless the state has changed since.
func (r *swapping) putBack() error {
	s, f := r.shard, r.key
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.states.get(f).Version != r.version {
		return nil
	}
	if s.pending[f] == r.version {
		delete(s.pending, f)
		if r.waiting != 0 {
			s.pending[f] = r.waiting
		}
	}
	return r.memory.put(s, f, r.before)
}

// Restore puts a state that was stored elsewhere, unless one of the same version or a newer
// one is there. The only error wraps ErrFull.
func (m *Memory) Restore(key Key, state State) error {
	f, s := m.find(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.states.get(f).Version >= state.Version {
		return nil
	}
	return m.put(s, f, state)
}

// replay puts the state after an event that waits in the spool, unless a newer one is there.
// The only error wraps ErrFull.
func (m *Memory) replay(key Key, state State) error {
	f, s := m.find(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting(f, state.Version)
	if s.states.get(f).Version > state.Version {
		return nil
	}
	return m.put(s, f, state)
}

// put stores a state; the shard is locked. The zero State takes no room.
func (m *Memory) put(s *shard, f fingerprint, state State) error {
	known := s.states.has(f)
	switch {
	case state == State{}:
		if known {
			s.states.remove(f)
			m.count.Add(-1)
		}
		return nil
	case !known && m.count.Add(1) > m.limit:
		m.count.Add(-1)
		if !m.evict(s) {
			return fmt.Errorf("%w: %d users", ErrFull, m.limit)
		}
	}
	s.states.set(f, state)
	return nil
}

// Len returns how many states there are.
func (m *Memory) Len() int { return int(m.count.Load()) }

// Evicted returns how many states were left to the database.
func (m *Memory) Evicted() uint64 { return m.evicted.Load() }

// RecordErrors returns how many events could not be recorded.
func (m *Memory) RecordErrors() uint64 { return m.recordErrors.Load() }
