package redis

import (
	"context"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/serve/popup"
)

const (
	warmTimeout = 10 * time.Second // for reading states ahead
	warmBatch   = 1000             // keys that one SCAN looks at, about
)

// track has the server tell, over the connection that states are read on, which states
// are written, by whomever, and forgets those in the cache (client-side caching in
// broadcasting mode, https://redis.io/docs/latest/develop/reference/client-side-caching).
// A connection that ends takes all of the cache along.
//
// What came over the same connection is not told (NOLOOP): popup.Popup forgets what it
// swaps, reads that follow a swap on the connection see it, and nothing else is written
// over a state while calls are answered.
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
		if keys == nil { // FLUSHALL, or the connection has ended
			cache.Clear()
			return
		}
		for i := range keys {
			name, err := keys[i].ToString()
			key, ok := p.keyOf(name)
			if err != nil || !ok {
				cache.Clear() // something has changed
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

// warm reads states into the cache before the first request, as many as it takes and as
// warmTimeout allows: a process that has just started would else ask Redis for each
// user's, just when it has work enough.
func (p *Popups) warm(ctx context.Context) {
	start, read := time.Now(), 0
	ctx, cancel := context.WithTimeout(ctx, warmTimeout)
	defer cancel()
	client := p.db.client
	all := "{" + p.cfg.Namespace + ":popup:*}:state:*"
	for cursor := uint64(0); ; {
		page, err := client.Do(ctx, client.B().Scan().Cursor(cursor).Match(all).Count(warmBatch).Build()).AsScanEntry()
		if err == nil {
			err = p.warmAll(ctx, page.Elements)
		}
		if err != nil {
			p.cfg.Log.Warn("popup states were not all read ahead; each is read when it is asked for", "states", read, "err", p.db.wrap("read ahead from", err))
			return
		}
		read += len(page.Elements)
		if cursor = page.Cursor; cursor == 0 || read >= p.cfg.Cache.Limit() {
			break
		}
	}
	p.cfg.Log.Info("popup states are read ahead", "states", read, "took", time.Since(start).Round(time.Millisecond))
}

// warmAll reads the states of some keys into the cache.
func (p *Popups) warmAll(ctx context.Context, names []string) error {
	client := p.db.client
	commands := make(rueidis.Commands, len(names))
	before := make([]popup.Moment, len(names))
	for i, name := range names {
		commands[i] = client.B().Get().Key(name).Build()
		if key, ok := p.keyOf(name); ok {
			before[i] = p.cfg.Cache.Now(key)
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
		if ok && err == nil { // who asks for one that cannot be read is told
			p.cfg.Cache.Put(key, before[i], state)
		}
	}
	return nil
}
