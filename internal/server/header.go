package server

import (
	"spillway/internal/feed"
	"spillway/internal/query"
)

// names holds header names and values as bytes, made once: fasthttp takes
// canonical names as they are, without allocating or normalising.
type names struct {
	age, cacheControl, etag, ifNoneMatch, source, offset, requestID []byte

	noCache, json, text, bytes, exact []byte

	sources [2][]byte // by feed.From
	origins [3][]byte // by query.From
}

func newNames() names {
	n := names{
		age:          []byte("Age"),
		cacheControl: []byte("Cache-Control"),
		etag:         []byte("ETag"), // canonical in HTTP's own spelling
		ifNoneMatch:  []byte("If-None-Match"),
		source:       []byte("Spillway-Source"),
		offset:       []byte("Spillway-Offset"),
		requestID:    []byte("X-Request-Id"),

		noCache: []byte("no-cache"),
		json:    []byte("application/json"),
		text:    []byte("text/plain; charset=utf-8"),
		bytes:   []byte("application/octet-stream"),
		exact:   []byte("exact"),
	}
	n.sources[feed.FromWindow] = []byte("window")
	n.sources[feed.FromDatabase] = []byte("database")
	n.origins[query.FromDatabase] = []byte("database")
	n.origins[query.FromMemory] = []byte("memory")
	n.origins[query.FromShared] = []byte("redis")
	return n
}
