package redis

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
)

const (
	identifyEvery   = 10 * time.Second       // while the database answers
	identifyRetry   = 500 * time.Millisecond // while it does not
	identifyTimeout = 2 * time.Second
	startWait       = time.Second // of the first check of the server, for the database
)

// ErrPopupDatabase: the states in Redis are those of another database; the text names both.
var ErrPopupDatabase = errors.New("the popup states in Redis belong to another database: give each database its own popups.redis_prefix")

// errNoDatabase: the database has not answered since the start.
var errNoDatabase = errors.New("the database has not answered yet")

// errAnotherDatabase: another database answers at the address than before.
var errAnotherDatabase = errors.New("another database answers at the address than before")

// identity is what a process knows of its database.
type identity struct {
	mu   sync.Mutex
	id   string // the last one that it returned; "" before the first
	away bool   // it did not return one when it was last asked
}

// known returns the id of the database; "" if it has not answered yet.
func (i *identity) known() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.id
}

// isAway reports whether the database did not answer when it was last asked.
func (i *identity) isAway() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.away
}

// note keeps the outcome of a request for the id.
func (i *identity) note(id string, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.away = err != nil; err == nil {
		i.id = id
	}
}

// identify asks for the id of the database.
func (p *Popups) identify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	id, err := p.cfg.Table.Identity(ctx)
	p.database.note(id, err)
	return err
}

// watchDatabase asks for the id of the database until ctx ends. It closes identified
// after the first time.
func (p *Popups) watchDatabase(ctx context.Context, identified chan<- struct{}) {
	failing := false
	for {
		err := p.identify(ctx)
		if identified != nil {
			close(identified)
			identified = nil
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			p.cfg.Log.Warn("the database of the popups does not answer: known users are answered from Redis, and events wait there", "database",
				p.cfg.DatabaseName, "error", err)
		case err == nil && failing:
			p.cfg.Log.Info("the database of the popups answers", "database", p.cfg.DatabaseName)
		}
		if failing != (err != nil) {
			failing = err != nil
			p.checkNow()
		}
		pause := identifyEvery
		for ended := time.Now(); ctx.Err() == nil && time.Since(ended) < pause; {
			if p.database.isAway() {
				pause = identifyRetry
			}
			queue.Sleep(ctx, identifyRetry)
		}
	}
}

// databaseAnswers asks the database, unless it is known to be away.
func (p *Popups) databaseAnswers(ctx context.Context) bool {
	return p.database.known() != "" && !p.database.isAway() && p.identify(ctx) == nil
}

// ownScript returns the id and the name of the database that the keys belong to, and whether
// it was reached at this address. If there is none, it is the one given. Nothing is written
// that is there already, so it succeeds without memory, too.
//
//	KEYS database
//	ARGV id or "", name, field of the address
var ownScript = rueidis.NewLuaScript(`
local id = redis.call('HGET', KEYS[1], 'id')
if not id then
	if ARGV[1] == '' then return {'', '', 0} end
	redis.call('HSET', KEYS[1], 'id', ARGV[1], 'name', ARGV[2], ARGV[3], ARGV[2])
	id = ARGV[1]
end
if id == ARGV[1] and redis.call('HEXISTS', KEYS[1], ARGV[3]) == 0 and redis.call('HLEN', KEYS[1]) < 100 then
	redis.pcall('HSET', KEYS[1], ARGV[3], ARGV[2])
end
return {id, redis.call('HGET', KEYS[1], 'name') or '', redis.call('HEXISTS', KEYS[1], ARGV[3])}`)

// own returns nil if the keys of the prefix belong to this process's database. If they belong
// to none, they do from now on. While the database's id is not known, its address decides.
func (p *Popups) own(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	defer cancel()
	known := p.database.known()
	args := []string{known, p.cfg.DatabaseName, p.addressField}
	answer, err := ownScript.Exec(ctx, p.db.client, []string{p.keys[0].database}, args).ToArray()
	if err == nil && len(answer) != 3 {
		err = errors.New("unexpected answer of a script")
	}
	if err != nil {
		return err
	}
	id, err := answer[0].ToString()
	name, err2 := answer[1].ToString()
	reached, err3 := answer[2].AsInt64()
	if err := cmp.Or(err, err2, err3); err != nil {
		return err
	}
	switch {
	case known != "" && id == known, known == "" && reached == 1:
		return nil
	case id == "":
		return fmt.Errorf("%w, and Redis does not say to which database its popup states belong", errNoDatabase)
	case known == "":
		return fmt.Errorf("%w, and Redis has popup states of %s, which is not known to be %s", errNoDatabase, name, p.cfg.DatabaseName)
	}
	return fmt.Errorf("%w; the prefix %s is used by %s, and this process has %s. If that is the same database, moved or restored, run "+
		"DEL %s on %s",
		ErrPopupDatabase, p.cfg.Namespace, name, p.cfg.DatabaseName, p.keys[0].database, p.db.addr)
}

// owns reports whether events may be taken from the streams: the database is known, and the
// keys belonged to it on the connection with this number.
func (p *Popups) owns(dials uint64) bool {
	return dials != 0 && p.database.known() != "" && p.owned.Load() == dials && p.dials.Load() == dials
}

// confirm reports whether events that were just read are those of the database. dials is from
// before the read: if the connection is new since, it waits for the check of it.
func (p *Popups) confirm(ctx context.Context, dials uint64) bool {
	now := p.dials.Load()
	if now == dials {
		return true
	}
	for {
		switch {
		case p.foreign.Load() || ctx.Err() != nil || p.dials.Load() != now:
			return false
		case p.owned.Load() == now:
			return true
		}
		queue.Sleep(ctx, readEvery)
	}
}

// sameDatabase returns an error unless the database has this id.
func (p *Popups) sameDatabase(ctx context.Context, want string) error {
	id, err := p.cfg.Table.Identity(ctx)
	if err == nil && id != want {
		err = errAnotherDatabase
	}
	return err
}

// addressField is the field of the key database that stands for an address.
func addressField(address string) string {
	sum := sha256.Sum256([]byte(address))
	return "address:" + hex.EncodeToString(sum[:16])
}

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
		return fmt.Errorf("popup events have waited for the database for %s, more than half of popups.state_ttl: its states may be old",
			age.Round(time.Second))
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
