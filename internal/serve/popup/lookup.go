package popup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	lookupsMax    = 8192 // requests that wait for the database
	lookupBatch   = 500  // states that one statement reads
	lookupTimeout = 2 * time.Second

	readOverdue = 500 * time.Millisecond // after which a read counts as failed
	probeEvery  = 500 * time.Millisecond // between two reads of a database that fails
)

var errLookupsEnded = errors.New("the process is stopping")

// Breaker refuses reads of a database that does not answer: after a read that failed, and
// while one is overdue. One read per half second is a probe; if it succeeds, reads are
// permitted again. Its methods may be called concurrently; one read is in progress at a time.
type Breaker struct {
	mu     sync.Mutex
	reason error     // of the last read; nil: it succeeded
	began  time.Time // of the read in progress; zero: there is none
	probe  time.Time // the next one is permitted then
}

// Permit returns nil if a read may begin or join those that wait. With probing, it is the
// probe: its caller should not wait for long.
func (b *Breaker) Permit(now time.Time) (probing bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.overdue(now):
		return false, fmt.Errorf("the database has not answered for %s", now.Sub(b.began).Round(time.Millisecond))
	case b.reason == nil:
		return false, nil
	case now.Before(b.probe):
		return false, fmt.Errorf("the database does not answer: %w", b.reason)
	}
	b.probe = now.Add(probeEvery)
	return true, nil
}

func (b *Breaker) overdue(now time.Time) bool {
	return !b.began.IsZero() && now.Sub(b.began) >= readOverdue
}

// Begin notes that a read begins.
func (b *Breaker) Begin(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.began = now
}

// End notes that it has ended.
func (b *Breaker) End(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.began, b.reason = time.Time{}, err
}

// StateReader reads states from a database.
type StateReader interface {
	// States returns the states of keys, in the same order.
	States(ctx context.Context, keys []Key) ([]State, error)
}

// Lookups reads states of single users from a database for a Store that does not have them.
// All that wait are read with one statement, behind a Breaker. Reads end after two seconds.
type Lookups struct {
	reader  StateReader
	timeout time.Duration
	breaker Breaker
	waiting chan *lookup
}

// lookup is a request for a state.
type lookup struct {
	key   Key
	until time.Time // the caller has stopped waiting then
	state State
	err   error
	done  chan struct{} // closed after state and err are set
}

// NewLookups returns Lookups whose callers wait for at most timeout. Run must run.
func NewLookups(reader StateReader, timeout time.Duration) *Lookups {
	return &Lookups{reader: reader, timeout: timeout, waiting: make(chan *lookup, lookupsMax)}
}

// Read returns the state in the database. It fails at once while the database does not answer.
// It does not keep key.
func (l *Lookups) Read(ctx context.Context, key Key) (State, error) {
	now := time.Now()
	probing, err := l.breaker.Permit(now)
	if err != nil {
		return State{}, fmt.Errorf("read popup states: %w", err)
	}
	timeout := l.timeout
	if probing {
		timeout = min(timeout, readOverdue)
	}
	one := &lookup{until: now.Add(timeout), done: make(chan struct{})}
	one.key = Key{User: strings.Clone(key.User), Placement: strings.Clone(key.Placement)} // the caller's may point into a request
	select {
	case l.waiting <- one:
	default:
		return State{}, fmt.Errorf("%d requests wait for popup states from the database, the limit", lookupsMax)
	}
	select {
	case <-one.done:
		return one.state, one.err
	case <-time.After(timeout):
		return State{}, fmt.Errorf("the database did not return a popup state within %s", timeout)
	case <-ctx.Done():
		return State{}, context.Cause(ctx)
	}
}

// Run reads until ctx ends. It is called once.
func (l *Lookups) Run(ctx context.Context) {
	for {
		var batch []*lookup
		select {
		case one := <-l.waiting:
			batch = append(l.more(), one)
		case <-ctx.Done():
			l.refuse(errLookupsEnded)
			return
		}
		if batch = stillWaiting(batch, time.Now()); len(batch) > 0 {
			l.readAll(ctx, batch)
		}
	}
}

// more returns lookups that wait, at most those of one batch without its first.
func (l *Lookups) more() []*lookup {
	var batch []*lookup
	for len(batch) < lookupBatch-1 {
		select {
		case one := <-l.waiting:
			batch = append(batch, one)
		default:
			return batch
		}
	}
	return batch
}

// stillWaiting returns the lookups whose callers still wait. The others would only keep a slow
// database busy.
func stillWaiting(batch []*lookup, now time.Time) []*lookup {
	return slices.DeleteFunc(batch, func(one *lookup) bool { return !now.Before(one.until) })
}

// refuse answers the lookups that wait. Those that come later end with their timeouts.
func (l *Lookups) refuse(err error) {
	for {
		select {
		case one := <-l.waiting:
			one.err = err
			close(one.done)
		default:
			return
		}
	}
}

// readAll reads a batch and answers it. When the read is overdue or has failed, the batch and
// the lookups that wait for the next one are refused.
func (l *Lookups) readAll(ctx context.Context, batch []*lookup) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	places := make(map[Key]int, len(batch))
	var keys []Key
	for _, one := range batch {
		if _, known := places[one.key]; !known {
			places[one.key] = len(keys)
			keys = append(keys, one.key)
		}
	}
	var once sync.Once
	answer := func(states []State, err error) {
		once.Do(func() {
			for _, one := range batch {
				if one.err = err; err == nil {
					one.state = states[places[one.key]]
				}
				close(one.done)
			}
		})
	}
	l.breaker.Begin(time.Now())
	late := time.AfterFunc(readOverdue, func() {
		err := errors.New("the database does not answer")
		answer(nil, err)
		l.refuse(err)
	})
	states, err := l.reader.States(ctx, keys)
	late.Stop()
	l.breaker.End(err)
	answer(states, err)
	if err != nil {
		l.refuse(fmt.Errorf("read popup states: %w", err))
	}
}
