package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
)

const (
	identifyEvery   = 10 * time.Second
	identifyTimeout = 2 * time.Second
)

// ErrPopupDatabase: the states in Redis are those of another database; the text names both.
var ErrPopupDatabase = errors.New("the popup states in Redis belong to another database: give each database its own popups.redis_prefix")

// errAnotherDatabase: another database answers at the address than before.
var errAnotherDatabase = errors.New("another database answers at the address than before")

// identify asks for the id of the database.
func (p *Popups) identify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	id, err := p.cfg.Table.Identity(ctx)
	if err == nil {
		p.database.Store(&id)
	}
	return err
}

// watchDatabase asks for the id of the database until ctx ends. While it does not answer, its last id counts.
func (p *Popups) watchDatabase(ctx context.Context) {
	for range queue.Ticks(ctx, identifyEvery) {
		if err := p.identify(ctx); err != nil {
			p.cfg.Log.Debug("the database of the popups does not return its id", "database", p.cfg.DatabaseName, "error", err)
		}
	}
}

var ownScript = rueidis.NewLuaScript(script("own"))

// own returns nil if the keys of the prefix belong to this process's database. If they belong
// to none, they do from now on.
func (p *Popups) own(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	defer cancel()
	id := *p.database.Load()
	owner, err := ownScript.Exec(ctx, p.db.client, []string{p.keys.database}, []string{id, p.cfg.DatabaseName}).AsStrSlice()
	if err != nil || owner[0] == id {
		return err
	}
	return fmt.Errorf("%w; the prefix %s is used by %s, and this process has %s. If that is the same database, moved or restored, run "+
		"DEL %s on %s",
		ErrPopupDatabase, p.cfg.Namespace, owner[1], p.cfg.DatabaseName, p.keys.database, p.db.addr)
}

// sameDatabase returns an error unless the database has this id.
func (p *Popups) sameDatabase(ctx context.Context, want string) error {
	id, err := p.cfg.Table.Identity(ctx)
	if err == nil && id != want {
		err = errAnotherDatabase
	}
	return err
}

// databaseCurrent returns an error if the database may not have the newest state of a user
// who is missing in Redis. That state has expired, so its event is older than StateTTL. Half
// of StateTTL is the margin for clocks.
func (p *Popups) databaseCurrent() error {
	if age := p.oldestAge(); age > p.cfg.StateTTL/2 {
		return fmt.Errorf("popup events have waited for the database for %s, more than half of popups.state_ttl: its states may be old",
			age.Round(time.Second))
	}
	return nil
}

// States implements popup.StateReader for the lookups: it reads states from the database and
// writes them to Redis.
func (r readThrough) States(ctx context.Context, keys []popup.Key) ([]popup.State, error) {
	p := r.Popups
	states, err := p.cfg.Table.States(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("read popup states from the database: %w", err)
	}
	w := &restorer{p: p, guard: p.keys.ready, onlyExisting: "0"}
	for i, key := range keys {
		w.add(key, states[i])
	}
	return states, w.flush(ctx)
}

// readThrough hides States from users of Popups.
type readThrough struct{ *Popups }
