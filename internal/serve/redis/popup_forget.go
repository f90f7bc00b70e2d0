package redis

import (
	"context"
	"time"

	"spillway/internal/serve/popup"
)

// Forget removes the states of a user at placements and returns how many there were. Their
// events stay.
func (p *Popups) Forget(ctx context.Context, user string, placements []string) (int, error) {
	if err := p.available(); err != nil {
		return 0, err
	}
	keys := &p.keys[shardOf(user)]
	var names []string
	for _, placement := range placements {
		names = append(names, keys.stateKey(popup.Key{User: user, Placement: placement}))
	}
	n, err := p.db.client.Do(ctx, p.db.client.B().Del().Key(names...).Build()).AsInt64()
	if p.cfg.Cache != nil { // other processes are told
		for _, placement := range placements {
			p.cfg.Cache.Forget(popup.Key{User: user, Placement: placement})
		}
	}
	if err != nil {
		return 0, p.db.wrap("del", err)
	}
	return int(n), nil
}

// Drained reports whether the database has all events that were recorded before a time.
func (p *Popups) Drained(since time.Time) bool {
	return p.counters.backlog.Load() != unknown && p.oldestAge() < time.Since(since)
}
