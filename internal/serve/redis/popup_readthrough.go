package redis

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"spillway/internal/serve/popup"
)

const (
	lookupsMax    = 8192 // that wait for the database
	lookupBatch   = 500  // states that one statement reads
	lookupTimeout = 2 * time.Second
)

// lookup reads a state that Redis does not have from the database.
type lookup struct {
	key   popup.Key
	until time.Time // the caller has stopped waiting then
	state popup.State
	err   error
	done  chan struct{}
}

// lookup returns the state in the database, after Redis has it too.
func (p *Popups) lookup(ctx context.Context, key popup.Key) (popup.State, error) {
	if err := p.databaseCurrent(); err != nil {
		return popup.State{}, err
	}
	timer := time.NewTimer(p.cfg.Timeout)
	defer timer.Stop()
	l := &lookup{key: key, until: time.Now().Add(p.cfg.Timeout), done: make(chan struct{})}
	l.key.User, l.key.Placement = strings.Clone(key.User), strings.Clone(key.Placement) // the caller's may point into a request
	select {
	case p.lookups <- l:
	default:
		return popup.State{}, fmt.Errorf("%d requests wait for popup states from the database, the limit", lookupsMax)
	}
	select {
	case <-l.done:
		return l.state, l.err
	case <-timer.C:
		return popup.State{}, fmt.Errorf("the database did not return a popup state within %s", p.cfg.Timeout)
	case <-ctx.Done():
		return popup.State{}, context.Cause(ctx)
	}
}

// databaseCurrent returns an error if the database may not have the newest state of a user
// who is missing in Redis. That state has expired, so its event is older than StateTTL. Half
// of StateTTL is the margin for clocks.
func (p *Popups) databaseCurrent() error {
	if age := p.oldestAge(); age > p.cfg.StateTTL/2 {
		return fmt.Errorf("popup events have waited for the database for %s, more than half of popups.state_ttl: its states may be old", age.Round(time.Second))
	}
	return nil
}

// serveLookups answers lookups until ctx ends, all that wait with one statement.
func (p *Popups) serveLookups(ctx context.Context) {
	for {
		var batch []*lookup
		select {
		case l := <-p.lookups:
			batch = append(batch, l)
		case <-ctx.Done():
			p.refuseLookups()
			return
		}
		for more := true; more && len(batch) < lookupBatch; {
			select {
			case l := <-p.lookups:
				batch = append(batch, l)
			default:
				more = false
			}
		}
		if batch = waiting(batch, time.Now()); len(batch) == 0 {
			continue
		}
		err := p.lookupAll(ctx, batch)
		for _, l := range batch {
			l.err = err
			close(l.done)
		}
	}
}

// waiting returns the lookups whose callers still wait. The others would only keep a slow
// database busy.
func waiting(batch []*lookup, now time.Time) []*lookup {
	return slices.DeleteFunc(batch, func(l *lookup) bool { return !now.Before(l.until) })
}

// refuseLookups answers the lookups that are left when Run ends. Later calls fail before they
// queue one; the few in between end with their contexts.
func (p *Popups) refuseLookups() {
	for {
		select {
		case l := <-p.lookups:
			l.err = errNotReady
			close(l.done)
		default:
			return
		}
	}
}

func (p *Popups) lookupAll(ctx context.Context, batch []*lookup) error {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	keys := make([]popup.Key, len(batch))
	for i, l := range batch {
		keys[i] = l.key
	}
	states, err := p.cfg.Table.States(ctx, keys)
	if err != nil {
		return fmt.Errorf("read popup states from the database: %w", err)
	}
	r := p.newRestorer(false)
	for i, key := range keys {
		batch[i].state = states[i]
		r.add(key, states[i])
	}
	p.counters.loaded.Add(uint64(len(batch)))
	return r.flush(ctx, func(k *shardKeys) string { return k.ready })
}
