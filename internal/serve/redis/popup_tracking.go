package redis

import (
	"context"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/serve/popup"
)

const (
	prefetchTimeout = 10 * time.Second
	prefetchBatch   = 1000 // keys that one SCAN visits, about
)

// track removes states from the cache when another process writes them: client-side caching
// in broadcasting mode (https://redis.io/docs/latest/develop/reference/client-side-caching).
// The cache is cleared when the connection ends.
//
// Writes of this connection are not announced (NOLOOP). popup.Popup removes what it swaps
// itself, and nothing else writes over a state while calls are answered.
func (p *Popups) track(option *rueidis.ClientOption) {
	cache := p.cfg.Cache
	option.DisableCache = cache == nil
	if cache == nil {
		return
	}
	option.ClientTrackingOptions = []string{"BCAST", "NOLOOP"}
	for i := range p.keys {
		option.ClientTrackingOptions = append(option.ClientTrackingOptions, "PREFIX", p.keys[i].state)
	}
	option.OnInvalidations = func(keys []rueidis.RedisMessage) {
		if keys == nil { // FLUSHALL, or the connection ended
			cache.Clear()
			return
		}
		for i := range keys {
			name, err := keys[i].ToString()
			key, ok := p.keyOf(name)
			if err != nil || !ok {
				cache.Clear() // an unknown key changed
				continue
			}
			cache.Forget(key)
		}
	}
}

// keyOf is the reverse of stateKey.
func (p *Popups) keyOf(name string) (popup.Key, bool) {
	prefix := len(p.keys[0].state) // of each shard
	if len(name) < prefix {
		return popup.Key{}, false
	}
	placement, user, ok := strings.Cut(name[prefix:], ":")
	return popup.Key{Placement: placement, User: user}, ok
}

// prefetch fills the cache before the first request, within prefetchTimeout.
func (p *Popups) prefetch(ctx context.Context) {
	start, read := time.Now(), 0
	ctx, cancel := context.WithTimeout(ctx, prefetchTimeout)
	defer cancel()
	client := p.db.client
	all := "{" + p.cfg.Namespace + ":popup:*}:state:*"
	for cursor := uint64(0); ; {
		page, err := client.Do(ctx, client.B().Scan().Cursor(cursor).Match(all).Count(prefetchBatch).Build()).AsScanEntry()
		if err == nil {
			err = p.prefetchStates(ctx, page.Elements)
		}
		if err != nil {
			p.cfg.Log.Warn("prefetch of popup states ended early", "states", read, "error", p.db.wrap("prefetch from", err))
			return
		}
		read += len(page.Elements)
		if cursor = page.Cursor; cursor == 0 || read >= p.cfg.Cache.Limit() {
			break
		}
	}
	p.cfg.Log.Info("popup states prefetched", "states", read, "took", time.Since(start).Round(time.Millisecond))
}

// prefetchStates reads the states of some keys into the cache.
func (p *Popups) prefetchStates(ctx context.Context, names []string) error {
	client := p.db.client
	commands := make(rueidis.Commands, len(names))
	before := make([]popup.ShardVersion, len(names))
	for i, name := range names {
		commands[i] = client.B().Get().Key(name).Build()
		if key, ok := p.keyOf(name); ok {
			before[i] = p.cfg.Cache.Version(key)
		}
	}
	for i, result := range client.DoMulti(ctx, commands...) {
		value, err := result.AsBytes()
		switch {
		case rueidis.IsRedisNil(err):
			continue // it has expired
		case err != nil:
			return err
		}
		key, ok := p.keyOf(names[i])
		state, err := decodeValue(value)
		if ok && err == nil { // a state that cannot be decoded is reported by Get
			p.cfg.Cache.Put(key, before[i], state)
		}
	}
	return nil
}
