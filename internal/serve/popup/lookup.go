package popup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/queue"
)

const (
	lookupsMax    = 8192 // requests that wait for the database
	lookupBatch   = 500  // states that one statement reads
	lookupTimeout = 2 * time.Second

	readOverdue = 500 * time.Millisecond // after which a read counts as failed
	probeEvery  = 500 * time.Millisecond // between two reads of a database that fails
)

var (
	errLookupsEnded = errors.New("the process is stopping")
	errSilent       = errors.New("the database does not answer")
)

// StateReader reads states from a database.
type StateReader interface {
	// States returns the states of keys, in the same order.
	States(ctx context.Context, keys []Key) ([]State, error)
}

// Lookups reads states of single users from a database for a Store that does not have them.
// All that wait are read with one statement. Reads end after two seconds. While a read is
// overdue, and after one that failed, none is accepted, until one that Run makes succeeds.
type Lookups struct {
	reader  StateReader
	timeout time.Duration
	waiting chan *lookup
	failing atomic.Pointer[error] // why no read is accepted; nil: they are
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
	if why := l.failing.Load(); why != nil {
		return State{}, fmt.Errorf("read popup states: %w", *why)
	}
	one := &lookup{until: time.Now().Add(l.timeout), done: make(chan struct{})}
	one.key = Key{User: strings.Clone(key.User), Placement: strings.Clone(key.Placement)} // the caller's may point into a request
	select {
	case l.waiting <- one:
	default:
		return State{}, fmt.Errorf("%d requests wait for popup states from the database, the limit", lookupsMax)
	}
	select {
	case <-one.done:
		return one.state, one.err
	case <-time.After(l.timeout):
		return State{}, fmt.Errorf("the database did not return a popup state within %s", l.timeout)
	case <-ctx.Done():
		return State{}, context.Cause(ctx)
	}
}

// Run reads until ctx ends. It is called once.
func (l *Lookups) Run(ctx context.Context) {
	defer l.refuse(errLookupsEnded)
	for ctx.Err() == nil {
		select {
		case one := <-l.waiting:
			err := l.readAll(ctx, stillWaiting(append(l.more(), one), time.Now()))
			for err != nil && ctx.Err() == nil {
				queue.Sleep(ctx, probeEvery)
				err = l.readAll(ctx, []*lookup{{done: make(chan struct{})}}) // of nobody: the state of one user may be unreadable
			}
		case <-ctx.Done():
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
// the lookups that wait are refused.
func (l *Lookups) readAll(ctx context.Context, batch []*lookup) error {
	if len(batch) == 0 {
		return nil
	}
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
			if err != nil {
				l.failing.Store(&err)
			}
			for _, one := range batch {
				if one.err = err; err == nil {
					one.state = states[places[one.key]]
				}
				close(one.done)
			}
		})
		if err != nil {
			l.refuse(err)
		}
	}
	late := time.AfterFunc(readOverdue, func() { answer(nil, errSilent) })
	states, err := l.reader.States(ctx, keys)
	late.Stop()
	if answer(states, err); err == nil {
		l.failing.Store(nil)
	}
	return err
}
