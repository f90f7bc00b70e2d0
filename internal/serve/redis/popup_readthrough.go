package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"spillway/internal/serve/popup"
)

// errUncompared: the state of a user may be in the database only.
var errUncompared = errors.New("the user's state is not in Redis, which was restarted, and the database does not answer")

// lookup returns the state in the database, after Redis has it too.
func (p *Popups) lookup(ctx context.Context, key popup.Key) (popup.State, error) {
	if err := p.databaseCurrent(); err != nil {
		return popup.State{}, err
	}
	return p.lookups.Read(ctx, key)
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

// States implements popup.StateReader for the lookups: it reads states from the database and
// writes them to Redis.
func (r readThrough) States(ctx context.Context, keys []popup.Key) ([]popup.State, error) {
	p := r.Popups
	if p.database.known() == "" {
		return nil, errNoDatabase
	}
	states, err := p.cfg.Table.States(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("read popup states from the database: %w", err)
	}
	w := p.newRestorer(false)
	for i, key := range keys {
		w.add(key, states[i])
	}
	p.counters.loaded.Add(uint64(len(keys)))
	return states, w.flush(ctx, func(k *shardKeys) string { return k.ready })
}

// readThrough hides States from users of Popups.
type readThrough struct{ *Popups }
