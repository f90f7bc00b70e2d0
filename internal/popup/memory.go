package popup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// ErrFull: a Memory holds as many states as it may, and the user is new.
var ErrFull = errors.New("the memory for popup states is full")

// shards of a Memory. Requests of users in different shards do not meet.
const shards = 256

// Memory is a Store in this process. A state takes about 200 bytes, 250
// at most, with a user id of 16 bytes and no counts; counts add 6 bytes for each campaign
// with a cap that was shown, 192 at most, and an id of 128 bytes adds 112. Nothing is
// forgotten: what a user saw decides what comes next. It does not record events and
// is empty at first: Restore the states that are known before the first request.
type Memory struct {
	limit  int64
	count  atomic.Int64
	shards [shards]shard
}

type shard struct {
	mu     sync.RWMutex
	states map[Key]State
	_      [32]byte // keeps neighbours off one cache line
}

// NewMemory returns an empty Memory for at most limit states.
func NewMemory(limit int) *Memory {
	m := &Memory{limit: int64(limit)}
	for i := range m.shards {
		m.shards[i].states = map[Key]State{}
	}
	return m
}

func (m *Memory) shard(key Key) *shard {
	return &m.shards[xxhash.Sum64String(key.User)%shards]
}

// Get returns a state. It allocates nothing.
func (m *Memory) Get(_ context.Context, key Key) (State, error) {
	s := m.shard(key)
	s.mu.RLock()
	state := s.states[key]
	s.mu.RUnlock()
	return state, nil
}

// Swap replaces a state if its version is still version. The event is not kept.
// The only error wraps ErrFull.
func (m *Memory) Swap(_ context.Context, key Key, version uint64, next State, _ Event) (bool, error) {
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.states[key].Version != version {
		return false, nil
	}
	return true, m.put(s, key, next)
}

// Restore puts a state that was kept elsewhere, unless a newer one is there. key is
// kept: let all keys of a placement share its text. The only error wraps ErrFull.
func (m *Memory) Restore(key Key, state State) error {
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.states[key].Version >= state.Version {
		return nil
	}
	return m.put(s, key, state)
}

// put stores a state; the shard is locked. The zero State takes no room.
func (m *Memory) put(s *shard, key Key, state State) error {
	_, known := s.states[key]
	switch {
	case state == State{}:
		if known {
			delete(s.states, key)
			m.count.Add(-1)
		}
		return nil
	case !known && m.count.Add(1) > m.limit:
		m.count.Add(-1)
		return fmt.Errorf("%w: %d users", ErrFull, m.limit)
	}
	s.states[key] = state
	return nil
}

// Len returns how many states there are.
func (m *Memory) Len() int { return int(m.count.Load()) }

// Range calls yield for each state until it returns false. What changes meanwhile
// may be seen or not. yield must not call Swap or Restore.
func (m *Memory) Range(yield func(Key, State) bool) {
	for i := range m.shards {
		if !m.shards[i].each(yield) {
			return
		}
	}
}

func (s *shard) each(yield func(Key, State) bool) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for key, state := range s.states {
		if !yield(key, state) {
			return false
		}
	}
	return true
}
