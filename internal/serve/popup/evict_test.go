package popup

import (
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"spillway/internal/serve/queue"
)

// Whatever is evicted, memory and database together have the newest state of each user.
func TestEvict(t *testing.T) {
	t.Parallel()
	evictions, full := uint64(0), 0
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 40).Draw(t, "limit")
		m, log := NewMemory(limit, nil), &ledger{}
		m.recorder = log
		model, database := map[Key]State{}, map[Key]State{}
		now, applied := day0, 0
		read := func(key Key) State {
			s, err := m.Get(t.Context(), key)
			if err == nil && s.Version == 0 && m.partial() {
				s = database[key]
				if err = m.Restore(key, s); errors.Is(err, ErrFull) {
					return s
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			key := Key{strconv.Itoa(rapid.IntRange(1, 60).Draw(t, "user")), "home"}
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				for ; applied < len(log.events); applied++ {
					e := log.events[applied]
					database[e.Key] = e.State
					m.stored([]Event{e})
				}
			case 1:
				now = now.Add(time.Second)
			default:
				s := read(key)
				if s != model[key] {
					t.Fatalf("%v: %+v, want %+v", key, s, model[key])
				}
				next := State{Version: s.Version + 1, Phase: Shown, Campaign: 1, Shows: 1, Shown: now.UnixMilli()}
				ok, err := m.Swap(t.Context(), key, s.Version, next, next.event(key, KindShow, 1, next.Shown, next.Shown))
				switch {
				case ok:
					model[key] = next
				case errors.Is(err, ErrFull):
					full++
				case err != nil:
					t.Fatal(err)
				}
			}
			if m.Len() > limit {
				t.Fatalf("%d states, more than %d", m.Len(), limit)
			}
		}
		evictions += m.Evicted()
	})
	if evictions == 0 || full == 0 {
		t.Errorf("%d evictions, %d times full", evictions, full)
	}
}

// A request that saw a new user does not replace a state that another one stored and that was
// evicted since.
func TestEvictedMeanwhile(t *testing.T) {
	t.Parallel()
	log := &ledger{}
	m, slow := NewMemory(1, log), Key{"1", "home"}
	swap := func(key Key, guards ...Guard) (bool, error) {
		next := State{Version: 1, Phase: Shown, Campaign: 1, Shows: 1, Shown: 1}
		e := next.event(key, KindShow, 1, 1, 1)
		ok, err := m.Swap(t.Context(), key, 0, next, e, guards...)
		m.stored([]Event{e})
		return ok, err
	}
	for _, key := range []Key{slow, {"2", "home"}} {
		if ok, err := swap(key); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if ok, err := swap(slow); ok || err != nil || m.Evicted() != 1 {
		t.Errorf("a second show: %v, %v, after %d evictions", ok, err, m.Evicted())
	}
	if ok, err := swap(Key{"1", "list"}, Guard{"home", 0}); ok || err != nil {
		t.Errorf("a show at another placement: %v, %v", ok, err)
	}
	m.Forget("1", []string{"home"})
	if ok, err := swap(slow); !ok || err != nil {
		t.Errorf("a forgotten user: %v, %v", ok, err)
	}
}

// Nothing is kept of events that the spool refuses, and a state whose last event has reached
// the database can be evicted after them.
func TestEvictRefused(t *testing.T) {
	t.Parallel()
	log := &ledger{}
	m := NewMemory(1, log)
	swap := func(user string, version uint64) error {
		next := State{Version: version + 1, Phase: Shown, Campaign: 1, Shows: 1, Shown: day0.UnixMilli()}
		key := Key{user, "home"}
		_, err := m.Swap(t.Context(), key, version, next, next.event(key, KindShow, 1, next.Shown, next.Shown))
		return err
	}
	pending := func() (n int) {
		for i := range m.shards {
			n += len(m.shards[i].pending)
		}
		return n
	}
	for _, test := range []struct {
		fails error
		want  int
	}{{&queue.Overload{Limit: queue.LimitSpool}, 0}, {queue.ErrUnknown, 100}} {
		log.fails = test.fails
		for i := range 100 {
			if err := swap(strconv.Itoa(i), 0); !errors.Is(err, test.fails) {
				t.Fatal(err)
			}
		}
		if n := pending(); n != test.want || m.Len() != 0 {
			t.Errorf("%v: %d users wait for the spool, %d states; want %d and 0", test.fails, n, m.Len(), test.want)
		}
	}
	m.stored(log.events)
	log.events, log.fails = nil, nil
	if err := swap("one", 0); err != nil {
		t.Fatal(err)
	}
	log.fails = queue.ErrOverloaded
	if err := swap("one", 1); !errors.Is(err, log.fails) || pending() != 1 {
		t.Errorf("%v; %d users wait for the spool, want 1", err, pending())
	}
	m.stored(log.events[:1])
	if n := pending(); n != 0 {
		t.Errorf("%d users wait for the spool after the database has their events", n)
	}
}

// States of a clock that was far ahead can be evicted.
func TestEvictFuture(t *testing.T) {
	t.Parallel()
	m := NewMemory(1, nil)
	future := State{Version: 1, Phase: Clicked, Campaign: 1, Shows: 1, Shown: day0.AddDate(10, 0, 0).UnixMilli()}
	for _, user := range []string{"1", "2"} {
		if err := m.Restore(Key{user, "home"}, future); err != nil {
			t.Error(err)
		}
	}
}

// More states than memory_users are stored: the process starts, and each user's state is
// found.
func TestLocalWithMoreStates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const users, limit = 3000, 1000
		tables := &fakeTables{}
		for i := range users {
			s := State{Version: 1, Phase: Clicked, Campaign: 1, Shows: 1, Shown: day0.UnixMilli() + int64(i), Answered: day0.UnixMilli() + int64(i)}
			key := Key{strconv.Itoa(i), "home"}
			tables.events = append(tables.events, s.event(key, KindClick, 1, s.Shown, s.Answered))
		}
		local := NewLocal(limit, lockTimeout, tables, NewClock(), slog.New(slog.DiscardHandler))
		lock, err := Hold(t.Context(), (&lockServer{}).take("one"), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		if err := local.Start(t.Context(), lock, &fakeSpool{}); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			local.lookups.Run(t.Context())
		}()
		if local.Len() != limit || local.Evicted() != users-limit {
			t.Errorf("%d states, %d evicted", local.Len(), local.Evicted())
		}
		for i := range users {
			if s, err := local.Get(t.Context(), Key{strconv.Itoa(i), "home"}); err != nil || s != tables.events[i].State {
				t.Fatalf("user %d: %+v, %v", i, s, err)
			}
		}
	})
}
