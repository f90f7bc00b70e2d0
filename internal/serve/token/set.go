package token

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// SetConfig says how a key set is fetched. All fields are required.
type SetConfig struct {
	Fetch   func(context.Context) ([]byte, error) // returns the key set as JSON
	Refresh time.Duration                         // from one fetch to the next
	Pause   time.Duration                         // shortest time from one fetch to the next
	Timeout time.Duration                         // of a fetch, and of a token's wait for one
	Log     *slog.Logger
}

// waitersMax is the number of tokens that may wait for a fetch.
const waitersMax = 1000

// Set is a key set that is fetched again and again. Use NewSet, then Run once. Its other
// methods may be called concurrently.
type Set struct {
	cfg     SetConfig
	current atomic.Pointer[snapshot] // nil until the first fetch has succeeded
	failed  atomic.Bool              // the last fetch failed
	fetches atomic.Uint64
	errors  atomic.Uint64
	refused atomic.Uint64

	asked   chan struct{} // has an element if Run must fetch at once
	mu      sync.Mutex    // guards the fields below
	done    chan struct{} // closed at the end of the fetch that is asked for or runs; nil: none
	began   time.Time     // start of the last fetch
	waiting int
}

// snapshot is the keys of one fetch. It does not change.
type snapshot struct {
	keys map[keyID]any
	at   time.Time
}

// NewSet returns a set that is fetched once Run is called.
func NewSet(cfg SetConfig) *Set { return &Set{cfg: cfg, asked: make(chan struct{}, 1)} }

// Run fetches the key set until ctx ends. A failed fetch is repeated after Pause.
func (s *Set) Run(ctx context.Context) {
	for ctx.Err() == nil {
		wait := s.cfg.Refresh
		if !s.fetch(ctx) {
			wait = s.cfg.Pause
		}
		select {
		case <-time.After(wait):
		case <-s.asked:
		case <-ctx.Done():
		}
	}
}

// fetch fetches the key set once. If that fails, the keys stay as they are.
func (s *Set) fetch(ctx context.Context) bool {
	began := time.Now()
	s.mu.Lock()
	if s.done == nil {
		s.done = make(chan struct{})
	}
	s.began = began
	select {
	case <-s.asked: // this fetch is the answer
	default:
	}
	s.mu.Unlock()
	keys, err := s.read(ctx)
	if err == nil {
		s.current.Store(&snapshot{keys, began})
	} else {
		s.errors.Add(1)
	}
	s.fetches.Add(1)
	failed := err != nil
	if before := s.failed.Swap(failed); failed && !before && ctx.Err() == nil {
		s.cfg.Log.Warn("keys of JWTs not fetched; known keys stay valid", "error", err)
	} else if before && !failed {
		s.cfg.Log.Info("keys of JWTs fetched again", "keys", len(keys))
	}
	s.mu.Lock()
	close(s.done)
	s.done = nil
	s.mu.Unlock()
	return !failed
}

func (s *Set) read(ctx context.Context) (map[keyID]any, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	data, err := s.cfg.Fetch(ctx)
	if err != nil {
		return nil, fmt.Errorf("fetch key set: %w", err)
	}
	return parseSet(data)
}

// key returns a key, and has the set fetched if it is not known.
func (s *Set) key(ctx context.Context, id keyID) (any, error) {
	if key, ok := s.known(id); ok {
		return key, nil
	}
	if ctx.Err() != nil {
		return nil, ErrUnavailable
	}
	err := s.await(ctx)
	if key, ok := s.known(id); ok {
		return key, nil
	}
	if err != nil || s.failed.Load() || s.current.Load() == nil {
		s.refused.Add(1)
		return nil, ErrUnavailable
	}
	return nil, errNoKey
}

func (s *Set) known(id keyID) (any, bool) {
	now := s.current.Load()
	if now == nil {
		return nil, false
	}
	key, ok := now.keys[id]
	return key, ok
}

// fetched reports whether there are keys. It waits for the first fetch if it can begin now.
func (s *Set) fetched(ctx context.Context) bool {
	if s.current.Load() == nil && ctx.Err() == nil {
		if _ = s.await(ctx); s.current.Load() == nil { // what it has found is there
			s.refused.Add(1)
		}
	}
	return s.current.Load() != nil
}

// all returns the keys of an algorithm. The set must have been fetched.
func (s *Set) all(algorithm string) []any {
	var found []any
	for id, key := range s.current.Load().keys {
		if id.algorithm == algorithm {
			found = append(found, key)
		}
	}
	return found
}

// errNotAwaited: the fetch did not end in time, or too many tokens wait for it.
var errNotAwaited = errors.New("the key set is not fetched in time")

// await waits until the next fetch has ended. It returns at once if the last one began less
// than Pause ago and has ended.
func (s *Set) await(ctx context.Context) error {
	s.mu.Lock()
	if s.done == nil {
		if time.Since(s.began) < s.cfg.Pause {
			s.mu.Unlock()
			return nil
		}
		s.done = make(chan struct{})
		s.asked <- struct{}{} // has room: fetch empties it whenever it sets done
	}
	if s.waiting >= waitersMax {
		s.mu.Unlock()
		return errNotAwaited
	}
	s.waiting++
	done := s.done
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = errNotAwaited
	}
	s.mu.Lock()
	s.waiting--
	s.mu.Unlock()
	return err
}

// SetStats are the metrics of a key set.
type SetStats struct {
	Keys        int      `metric:"keys" help:"Keys that verify JWTs."`
	AgeSeconds  *float64 `metric:"age_seconds" help:"Time since the key set was fetched; absent if it never was."`
	Fetches     uint64   `metric:"fetches_total" help:"Fetches of the key set."`
	Errors      uint64   `metric:"errors_total" help:"Fetches that failed."`
	Unavailable uint64   `metric:"unavailable_total" help:"Requests whose key could not be fetched."`
}

// Stats returns the metrics.
func (s *Set) Stats() SetStats {
	stats := SetStats{Fetches: s.fetches.Load(), Errors: s.errors.Load(), Unavailable: s.refused.Load()}
	if now := s.current.Load(); now != nil {
		stats.Keys, stats.AgeSeconds = len(now.keys), new(time.Since(now.at).Seconds())
	}
	return stats
}
