package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/serve/popup"
)

const (
	rebuildLease = 30 * time.Second // after which another process may rebuild
	rebuildBatch = 2000             // states that are written at once
)

// errRestore: the database did not return the states.
var errRestore = errors.New("restore popup states")

// errRebuilding: another process rebuilds.
var errRebuilding = errors.New("another process restores them from the database")

// rebuild writes the states of the database that are newer than those in Redis, and sets
// the marks. survived means that some states are in Redis: the server was restarted, or is
// another one. With a StateTTL missing states are read on demand, so only existing ones are
// replaced; if none survived there is nothing to write.
func (p *Popups) rebuild(ctx context.Context, mark string, survived bool) error {
	token, err := p.beginRebuild(ctx)
	if err != nil {
		return err
	}
	defer p.endRebuild(ctx, token)
	if found, err := p.marked(ctx, mark); err != nil || found.whole { // another process has rebuilt
		return err
	}
	start, total := time.Now(), 0
	if survived || p.cfg.StateTTL == 0 {
		if p.database.known() == "" {
			return fmt.Errorf("%w: %w", errRestore, errNoDatabase)
		}
		r := p.newRestorer(p.cfg.StateTTL > 0)
		extended := start
		guard := func(k *shardKeys) string { return k.rebuild }
		var failed error // of Redis
		err = p.cfg.Table.Restore(ctx, func(key popup.Key, state popup.State) error {
			total++
			if r.add(key, state); r.count < rebuildBatch {
				return nil
			}
			if time.Since(extended) > rebuildLease/10 {
				p.extendRebuild(ctx)
				extended = time.Now()
			}
			failed = r.flush(ctx, guard)
			return failed
		})
		if err == nil {
			failed = r.flush(ctx, guard)
		}
		switch {
		case failed != nil:
			return fmt.Errorf("restore popup states: %w", failed)
		case err != nil:
			return fmt.Errorf("%w: %w", errRestore, err)
		}
	}
	if err := p.finishRebuild(ctx, token, mark); err != nil {
		return err
	}
	p.counters.rebuilds.Add(1)
	p.cfg.Log.Info("popup states restored in Redis", "states", total, "took", time.Since(start).Round(time.Millisecond))
	return nil
}

// beginRebuild takes the lease. It sets a key in each shard, which is lost if the shard's
// states are lost again.
func (p *Popups) beginRebuild(ctx context.Context) (token string, err error) {
	token = rand.Text()
	client := p.db.client
	for i := range p.keys {
		set := client.B().Set().Key(p.keys[i].rebuild).Value(token).Px(rebuildLease).Build()
		if i == 0 {
			set = client.B().Set().Key(p.keys[i].rebuild).Value(token).Nx().Px(rebuildLease).Build()
		}
		err := client.Do(ctx, set).Error()
		if rueidis.IsRedisNil(err) {
			return "", errRebuilding
		}
		if err != nil {
			return "", p.db.wrap("set", err)
		}
	}
	return token, nil
}

// extendRebuild renews the lease. Its errors show in finishRebuild.
func (p *Popups) extendRebuild(ctx context.Context) {
	client := p.db.client
	var commands rueidis.Commands
	for i := range p.keys {
		commands = append(commands, client.B().Pexpire().Key(p.keys[i].rebuild).Milliseconds(rebuildLease.Milliseconds()).Build())
	}
	client.DoMulti(ctx, commands...)
}

// readyScript sets the mark of a shard if this process still has the lease.
//
//	KEYS ready, rebuild; ARGV token, value
var readyScript = rueidis.NewLuaScript(`
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1`)

// finishRebuild sets the marks of all shards.
func (p *Popups) finishRebuild(ctx context.Context, token, mark string) error {
	var calls []rueidis.LuaExec
	for i := range p.keys {
		calls = append(calls, rueidis.LuaExec{Keys: []string{p.keys[i].ready, p.keys[i].rebuild}, Args: []string{token, mark}})
	}
	for _, result := range readyScript.ExecMulti(ctx, p.db.client, calls...) {
		done, err := result.AsInt64()
		if err != nil {
			return p.db.wrap("set", err)
		}
		if done != 1 {
			return errors.New("states were lost again during the restore")
		}
	}
	return nil
}

// endRebuild releases the lease.
func (p *Popups) endRebuild(ctx context.Context, token string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.commandTimeout)
	defer cancel()
	client := p.db.client
	for i := range p.keys {
		key := p.keys[i].rebuild
		if value, err := client.Do(ctx, client.B().Get().Key(key).Build()).ToString(); err != nil || value != token {
			return // the lease has expired
		}
		_ = client.Do(ctx, client.B().Del().Key(key).Build()).Error() // it expires otherwise
	}
}

// restorer collects states by shard and writes them to Redis.
type restorer struct {
	p            *Popups
	onlyExisting bool
	calls        [popupShards]rueidis.LuaExec
	count        int
}

func (p *Popups) newRestorer(onlyExisting bool) *restorer {
	return &restorer{p: p, onlyExisting: onlyExisting}
}

func (r *restorer) add(key popup.Key, state popup.State) {
	c := &r.calls[shardOf(key.User)]
	c.Keys = append(c.Keys, r.p.keys[shardOf(key.User)].stateKey(key))
	c.Args = append(c.Args, string(appendValue(nil, state)))
	r.count++
}

// restoreScript writes states unless Redis has newer ones. It returns -1 if the first key
// is missing.
//
//	KEYS a key that must exist, states
//	ARGV TTL in ms or 0, 1: replace existing states only, values
var restoreScript = rueidis.NewLuaScript(`
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
for i = 2, #KEYS do
	local old, new = redis.call('GET', KEYS[i]), ARGV[i+1]
	local put = ARGV[2] == '0'
	if old then put = struct.unpack('>I8', old) < struct.unpack('>I8', new) end
	if put and ARGV[1] == '0' then redis.call('SET', KEYS[i], new)
	elseif put then redis.call('SET', KEYS[i], new, 'PX', ARGV[1]) end
end
return 1`)

// flush writes the collected states to the shards in which the key of guard exists.
func (r *restorer) flush(ctx context.Context, guard func(*shardKeys) string) error {
	only := "0"
	if r.onlyExisting {
		only = "1"
	}
	head := []string{strconv.FormatInt(r.p.cfg.StateTTL.Milliseconds(), 10), only}
	var calls []rueidis.LuaExec
	for i, c := range r.calls {
		if len(c.Keys) > 0 {
			calls = append(calls, rueidis.LuaExec{Keys: append([]string{guard(&r.p.keys[i])}, c.Keys...), Args: append(head[:2:2], c.Args...)})
		}
	}
	r.calls, r.count = [popupShards]rueidis.LuaExec{}, 0
	for _, result := range restoreScript.ExecMulti(ctx, r.p.db.client, calls...) {
		done, err := result.AsInt64()
		if err != nil {
			return r.p.db.wrap("restore popup states on", err)
		}
		if done != 1 {
			return notReady("the server has lost states")
		}
	}
	return nil
}
