package config

import "strings"

// query checks one query. paths holds who has which path already.
func (v *validator) query(at string, q Query, paths map[string]string) {
	v.path(join(at, "path"), q.Path, paths)
	for i, alias := range q.Aliases {
		v.path(index(join(at, "aliases"), i), alias, paths)
	}
	if strings.TrimSpace(q.SQL) == "" {
		v.add(join(at, "sql"), "must be given: one SELECT", "")
	}
	v.params(join(at, "params"), q.Params, "")
	if q.Stale > 0 && q.TTL == 0 {
		v.add(join(at, "stale"), "must be 0s, or ttl be set: without a ttl nothing is kept", q.Stale.String())
	}
	if q.Cache == "redis" && q.TTL == 0 {
		v.add(join(at, "cache"), "must be memory, or ttl be set: without a ttl nothing is kept", q.Cache)
	}
}
