package redis

import (
	"strings"

	"github.com/redis/rueidis"

	"spillway/internal/serve/popup"
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
