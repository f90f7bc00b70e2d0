package popup

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// ErrFull: a Memory holds as many states as it may, and the user is new.
var ErrFull = errors.New("the memory for popup states is full")

// shards of a Memory. Requests of users in different shards do not meet.
const shards = 256

// Memory is a Store in this process. A state takes 85 to 170 bytes, as full as the
// tables are; counts add 6 bytes for each campaign with a cap that was shown, 192 at most. Nothing
// is forgotten: what a user saw decides what comes next. It does not record events and
// is empty at first: Restore the states that are known before the first request.
//
// It keeps a key's fingerprint and not its text, which would be one more place in
// memory to wait for, and half of the bytes.
type Memory struct {
	limit  int64
	count  atomic.Int64
	seeds  seeds
	shards [shards]shard
}

// fingerprint stands for a key: two hashes of 64 bits whose seeds nobody outside the
// process knows. Of a billion keys any two have the same one with a probability of
// 10^-21.
type fingerprint [2]uint64

// seeds make fingerprints.
type seeds [2]maphash.Seed

func newSeeds() seeds { return seeds{maphash.MakeSeed(), maphash.MakeSeed()} }

func (s *seeds) of(key Key) fingerprint {
	var f fingerprint
	for i, seed := range s {
		f[i] = maphash.String(seed, key.User) + 31*maphash.String(seed, key.Placement)
	}
	f[0] = max(f[0], 1) // zero is no key
	return f
}

type shard struct {
	mu     sync.RWMutex
	states table
	_      [56]byte // keeps neighbours off one cache line
}

// NewMemory returns an empty Memory for at most limit states.
func NewMemory(limit int) *Memory {
	return &Memory{limit: int64(limit), seeds: newSeeds()}
}

// find returns a key's fingerprint and shard.
func (m *Memory) find(key Key) (fingerprint, *shard) {
	f := m.seeds.of(key)
	return f, &m.shards[f[0]%shards]
}

// Get returns a state. It allocates nothing.
func (m *Memory) Get(_ context.Context, key Key) (State, error) {
	f, s := m.find(key)
	s.mu.RLock()
	state := s.states.get(f)
	s.mu.RUnlock()
	return state, nil
}

// Swap replaces a state if its version is still version. The event is not kept.
// The only error wraps ErrFull.
func (m *Memory) Swap(_ context.Context, key Key, version uint64, next State, _ Event) (bool, error) {
	f, s := m.find(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.states.get(f).Version != version {
		return false, nil
	}
	return true, m.put(s, f, next)
}

// Restore puts a state that was kept elsewhere, unless a newer one is there. The only
// error wraps ErrFull.
func (m *Memory) Restore(key Key, state State) error {
	f, s := m.find(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.states.get(f).Version >= state.Version {
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
		return fmt.Errorf("%w: %d users", ErrFull, m.limit)
	}
	s.states.set(f, state)
	return nil
}

// Len returns how many states there are.
func (m *Memory) Len() int { return int(m.count.Load()) }
