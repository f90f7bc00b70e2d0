package popup

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/serve/queue"
)

// fakeSpool keeps entries in memory. Drain hands over all of them at once.
type fakeSpool struct{ entries []queue.Entry }

func (s *fakeSpool) group() queue.Group {
	return queue.Group{Spool: [16]byte{7}, Name: spoolName, Sequence: 3, Entries: s.entries}
}

func (s *fakeSpool) Begin(_ context.Context, _ string, e queue.Entry, ready func() (wake func())) (queue.Appending, error) {
	s.entries = append(s.entries, e)
	return appended(ready), nil
}

// fakeAppending is an entry that a fake spool has.
type fakeAppending struct{ queue.Ticket }

func (a *fakeAppending) Appended(ctx context.Context) (bool, error) { return false, a.Wait(ctx) }

// appended returns an entry that is on disk.
func appended(ready func() (wake func())) queue.Appending {
	a := &fakeAppending{}
	a.Open(ready, false)
	queue.Wake(a.Answer(nil, nil))
	return a
}

func (s *fakeSpool) Waiting(_ context.Context, _ string, yield func(queue.Group) error) error {
	return yield(s.group())
}

func (s *fakeSpool) Drain(ctx context.Context, _ string, _ int, to queue.Destination) error {
	stored, err := to.StoreGroups(ctx, []queue.Group{s.group()})
	if err == nil && len(stored.Dead) != 1 {
		err = errors.New("an entry that is no event is no dead letter")
	}
	<-ctx.Done()
	return err
}

// fakeTables has one state and remembers what was applied.
type fakeTables struct {
	key    Key
	state  State
	events []Event
}

func (f *fakeTables) Restore(_ context.Context, yield func(Key, State) error) error {
	if f.state.Version != 0 {
		return yield(f.key, f.state)
	}
	for _, e := range f.events {
		if err := yield(e.Key, e.State); err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeTables) Apply(_ context.Context, events []Event) error {
	f.events = append(f.events, events...)
	return nil
}

func (f *fakeTables) States(_ context.Context, keys []Key) ([]State, error) {
	states := make([]State, len(keys))
	for i, key := range keys {
		var newest *Event
		for j := range f.events {
			if e := &f.events[j]; e.Key == key && (newest == nil || CompareAge(newest, e) < 0) {
				newest, states[i] = e, e.State
			}
		}
	}
	return states, nil
}

func (f *fakeTables) Now(context.Context) (time.Time, error) { return time.Now(), nil }

// A Local answers once it has restored the newest states, drains what it recorded, and
// stops answering when another process takes the lock.
func TestLocal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		spool, key := &fakeSpool{}, Key{"1", "home"}
		before := openTest(t, NewMemory(9, NewEventLog(spool, nil, lockTimeout)), nil)
		token := askTest(t, before, "1", day0).Token
		old, _ := before.cfg.Store.Get(t.Context(), key)
		if err := before.Click(t.Context(), token, "1", day0); err != nil {
			t.Fatal(err)
		}
		spool.entries = append(spool.entries, queue.Entry{Payload: []byte("no event")})

		tables := &fakeTables{key: key, state: old}
		local := NewLocal(9, lockTimeout, tables, NewClock(), slog.New(slog.DiscardHandler))
		p := openTest(t, local, nil)
		if answer := askTest(t, p, "1", day0); answer.Reason != Unavailable {
			t.Errorf("before Start: %+v", answer)
		}
		server := &lockServer{}
		lock, err := Hold(t.Context(), server.take("first"), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := local.Start(t.Context(), lock, spool); err != nil {
			t.Fatal(err)
		}
		if answer := askTest(t, p, "1", day0); answer.Reason != WaitClicked {
			t.Errorf("the state in the spool is newer than that of the tables: %+v", answer)
		}
		ctx, stop := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		ended := make(chan struct{})
		go func() {
			local.Run(ctx, func(err error) { failed <- err })
			close(ended)
		}()
		synctest.Wait()
		if len(tables.events) != 2 {
			t.Errorf("drained: %+v", tables.events)
		}
		server.restart(false)
		if _, err := server.take("second")(t.Context(), [16]byte{2}, false); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; !errors.Is(err, ErrLockLost) || !errors.Is(local.Ready(), ErrLockLost) {
			t.Errorf("lock lost: %v, %v", err, local.Ready())
		}
		if answer := askTest(t, p, "2", day0); answer.Reason != Unavailable {
			t.Errorf("after the lock was lost: %+v", answer)
		}
		stop()
		<-ended
		lock.Close()
	})
}
